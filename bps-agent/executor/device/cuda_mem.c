/* Device memory that the executor allocates, and pinned host memory. An allocation has one handle
 * and one mapping, so one descriptor is enough to share it. The memory exists as long as any
 * process has the handle or a mapping. Imported memory is in cuda_share.c. Thread: the
 * executor's. */
#include "bps-agent/executor/device/cuda_impl.h"

#include <stdlib.h>
#include <unistd.h>

struct cuda_mem *cuda_mem_new(struct device *dev, int gpu, enum cuda_mem_kind kind)
{
	struct cuda_mem *m = calloc(1, sizeof(*m));

	if (!m) {
		err_set(&dev->why, DEVICE_NOMEM,
			"out of memory for the description of device memory");
		return NULL;
	}
	m->base.dev = dev;
	m->base.gpu = gpu;
	m->kind = kind;
	if (gpu != DEVICE_HOST)
		m->reach = UINT64_C(1) << gpu;
	return m;
}

static int cuda_mem_set_access(struct cuda_mem *m)
{
	struct cuda_device *d = cuda_device_of_base(m->base.dev);
	CUmemAccessDesc access[DEVICE_GPUS_MAX];
	size_t n = 0;

	for (int i = 0; i < d->n_gpus; i++) {
		if (!(m->reach >> i & 1))
			continue;
		access[n++] = (CUmemAccessDesc){
			.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->gpu[i].dev},
			.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
		};
	}
	return cuda_check_result(m->base.dev, cuMemSetAccess(m->map, m->map_bytes, access, n),
		"cannot give GPUs access to device memory");
}

int cuda_map_handles(
	struct cuda_mem *m, const CUmemGenericAllocationHandle *handles, unsigned n, uint64_t chunk)
{
	struct device *dev = m->base.dev;
	CUdeviceptr map = 0;
	int rc;

	rc = cuda_check_result(dev, cuMemAddressReserve(&map, n * chunk, 0, 0, 0),
		"cannot reserve device addresses");
	if (rc)
		return rc;
	m->map = map;
	m->map_bytes = n * chunk;
	for (unsigned i = 0; i < n && !rc; i++) {
		rc = cuda_check_result(dev, cuMemMap(map + i * chunk, chunk, 0, handles[i], 0),
			"cannot map device memory");
		if (!rc)
			m->mapped_bytes += chunk;
	}
	return rc ? rc : cuda_mem_set_access(m);
}

static int cuda_mem_create_handle(struct cuda_mem *m, uint64_t bytes)
{
	struct device *dev = m->base.dev;
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
			.id = cuda_device_of_base(dev)->gpu[m->base.gpu].dev},
	};
	size_t grain = 0;
	int rdma = 0, rc;

	/* Without this flag, the memory could not be registered with a network card later. */
	if (cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
		    prop.location.id) == CUDA_SUCCESS)
		prop.allocFlags.gpuDirectRDMACapable = rdma != 0;
	/* NCCL registers only memory aligned to the recommended granularity. */
	rc = cuda_check_result(dev,
		cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
		"cannot get the granularity of device memory");
	if (rc)
		return rc;
	if (bytes > UINT64_MAX - grain)
		return cuda_refuse(
			dev, DEVICE_ARG, "the requested size of device memory is too large");
	m->base.bytes = (bytes + grain - 1) / grain * grain;
	return cuda_check_result(dev, cuMemCreate(&m->handle, m->base.bytes, &prop, 0),
		"cannot allocate device memory");
}

/* Zero the memory, because it may have belonged to another process. No other work uses the default
 * stream, so cuStreamSynchronize waits only for this memset. The wait takes no longer than the
 * allocation of the memory. */
static int cuda_mem_zero_fill(struct cuda_mem *m)
{
	struct device *dev = m->base.dev;
	int rc = cuda_check_result(
		dev, cuMemsetD8(m->addr, 0, m->base.bytes), "cannot clear device memory");

	return rc ? rc
		  : cuda_check_result(dev, cuStreamSynchronize(NULL), "cannot clear device memory");
}

static int cuda_mem_add_gpus(struct cuda_mem *m, const int *also, int n_also)
{
	struct cuda_device *d = cuda_device_of_base(m->base.dev);

	for (int i = 0; i < n_also; i++) {
		if (also[i] < 0 || also[i] >= d->n_gpus)
			return cuda_refuse(&d->base, DEVICE_ARG, "GPU %d does not exist", also[i]);
		if (!cuda_gpu_can_reach(d, also[i], m->base.gpu))
			return cuda_refuse(&d->base, DEVICE_UNSUP,
				"GPU %d cannot reach the memory of GPU %d", also[i], m->base.gpu);
		m->reach |= UINT64_C(1) << also[i];
	}
	return 0;
}

int cuda_alloc_memory(struct device *dev, int gpu, uint64_t bytes, const int *also, int n_also,
	struct device_mem **ret_mem)
{
	struct cuda_mem *m;
	int rc = cuda_enter_context(dev, gpu);

	if (rc)
		return rc;
	if (!bytes)
		return cuda_refuse(dev, DEVICE_ARG, "0 bytes of device memory are requested");
	if (!(cuda_device_of_base(dev)->gpu[gpu].info.caps & DEVICE_CAP_VMM_FD))
		return cuda_refuse(
			dev, DEVICE_UNSUP, "GPU %d cannot share memory by file descriptor", gpu);
	m = cuda_mem_new(dev, gpu, CUDA_MEM_ALLOC);
	if (!m)
		return DEVICE_NOMEM;
	rc = cuda_mem_add_gpus(m, also, n_also);
	if (!rc)
		rc = cuda_mem_create_handle(m, bytes);
	if (!rc)
		rc = cuda_map_handles(m, &m->handle, 1, m->base.bytes);
	m->addr = m->map;
	if (!rc)
		rc = cuda_mem_zero_fill(m);
	if (rc) {
		cuda_drop_memory(&m->base);
		return rc;
	}
	if (cuPointerGetAttribute(&m->buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, m->addr) !=
		CUDA_SUCCESS)
		m->buffer_id = 0;
	*ret_mem = &m->base;
	return 0;
}

/* Pin the memory in the context of GPU number `gpu`, if the memory is not pinned yet. The flag
 * PORTABLE pins the memory for the contexts of all GPUs, even for contexts that are created
 * afterwards. */
static int cuda_mem_pin_for_gpu(struct cuda_mem *m, int gpu)
{
	struct device *dev = m->base.dev;
	int rc = cuda_enter_context(dev, gpu);

	if (rc || m->is_pinned)
		return rc;
	rc = cuda_check_result(dev,
		cuMemHostRegister(m->host, m->base.bytes,
			CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
		"cannot pin host memory (is LimitMEMLOCK of bps-agent too small?)");
	m->is_pinned = !rc;
	m->pin_gpu = gpu;
	return rc;
}

/* Pin memory in the first existing context. Creates no context, because a new context could be on a
 * GPU that the job does not use. If no context exists, this function does not pin the memory. The
 * first call of cuda_mem_pinned_address then pins it. */
int cuda_pin_host_memory(
	struct device *dev, void *host, uint64_t bytes, struct device_mem **ret_mem)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct cuda_device *d = cuda_device_of_base(dev);
	struct cuda_mem *m;
	int gpu = 0, rc;

	if (d->is_lost)
		return DEVICE_LOST;
	if (!host || !bytes || (uintptr_t)host % page || bytes % page)
		return cuda_refuse(dev, DEVICE_ARG,
			"the host memory to be pinned does not consist of whole pages");
	m = cuda_mem_new(dev, DEVICE_HOST, CUDA_MEM_PIN);
	if (!m)
		return DEVICE_NOMEM;
	m->host = host;
	m->base.bytes = bytes;
	while (gpu < d->n_gpus && !d->gpu[gpu].ctx)
		gpu++;
	rc = gpu < d->n_gpus ? cuda_mem_pin_for_gpu(m, gpu) : 0;
	if (rc) {
		free(m);
		return rc;
	}
	*ret_mem = &m->base;
	return 0;
}

/* Return the address at which the GPU can use the host memory. Pins the memory first if it is not
 * pinned yet. Returns 0 if the driver reports an error. The address may differ between contexts, so
 * the function queries the driver once per context. */
static uint64_t cuda_mem_pinned_address(struct cuda_mem *m, int gpu)
{
	if (m->reach >> gpu & 1)
		return m->pin_addr[gpu];
	if (cuda_mem_pin_for_gpu(m, gpu) ||
		cuda_check_result(m->base.dev,
			cuMemHostGetDevicePointer(&m->pin_addr[gpu], m->host, 0),
			"cannot get the device address of pinned memory"))
		return 0;
	m->reach |= UINT64_C(1) << gpu;
	return m->pin_addr[gpu];
}

/* Give a GPU access to imported memory when a copy first needs the access. The import cannot give
 * the access, because the GPUs that will copy are not known then. Returns whether the GPU has
 * access. */
static bool cuda_mem_grant_gpu_access(struct cuda_mem *m, int gpu)
{
	uint64_t bit = UINT64_C(1) << gpu;

	if (m->kind != CUDA_MEM_FDS ||
		!cuda_gpu_can_reach(cuda_device_of_base(m->base.dev), gpu, m->base.gpu))
		return false;
	m->reach |= bit;
	if (!cuda_mem_set_access(m))
		return true;
	m->reach &= ~bit;
	return false;
}

uint64_t cuda_memory_address(struct device_mem *mem, int gpu)
{
	struct cuda_mem *m = (struct cuda_mem *)mem;

	if (gpu == DEVICE_HOST)
		return (uintptr_t)m->host;
	if (gpu < 0 || gpu >= cuda_device_of_base(mem->dev)->n_gpus)
		return 0;
	if (m->kind == CUDA_MEM_PIN)
		return cuda_mem_pinned_address(m, gpu);
	return m->reach >> gpu & 1 || cuda_mem_grant_gpu_access(m, gpu) ? m->addr : 0;
}

/* Unpin or close the memory, or free it in this order: mapping, reserved addresses, handle. After
 * a sticky error no call of the driver works. The end of the process then frees the memory. */
void cuda_drop_memory(struct device_mem *mem)
{
	struct cuda_mem *m = (struct cuda_mem *)mem;

	if (!m)
		return;
	if (m->kind == CUDA_MEM_PIN && !m->is_pinned)
		goto out;
	if (cuda_enter_context(mem->dev, mem->gpu == DEVICE_HOST ? m->pin_gpu : mem->gpu))
		goto out;
	if (m->kind == CUDA_MEM_PIN) {
		cuda_check_result(
			mem->dev, cuMemHostUnregister(m->host), "cannot unpin host memory");
	} else if (m->kind == CUDA_MEM_IPC) {
		cuda_check_result(
			mem->dev, cuIpcCloseMemHandle(m->map), "cannot close device memory");
	} else {
		if (m->mapped_bytes)
			cuda_check_result(mem->dev, cuMemUnmap(m->map, m->mapped_bytes),
				"cannot unmap device memory");
		if (m->map)
			cuda_check_result(mem->dev, cuMemAddressFree(m->map, m->map_bytes),
				"cannot free device addresses");
		if (m->handle)
			cuda_check_result(
				mem->dev, cuMemRelease(m->handle), "cannot release device memory");
	}
out:
	free(m);
}
