/* Describes device memory for another process, as the client library does: by a legacy handle, or
 * by a descriptor of each mapping. Test code; one thread. */
#include "tests/gpu/cuda/share_ptr.h"

#include <string.h>
#include <unistd.h>

#include "bps-agent/executor/device/cuda_impl.h"

static void close_all(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

/* The driver's attributes of an address; 0 for attributes that the driver does not support. */
struct about {
	unsigned type, is_managed;
	int ordinal, is_legacy;
	CUmemoryPool pool;
	unsigned long long handle_types, buffer_id;
	CUdeviceptr map;
	size_t map_bytes;
};

static struct about ask(CUdeviceptr addr)
{
	struct about a = {.ordinal = -1};

	cuPointerGetAttribute(&a.type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr);
	cuPointerGetAttribute(&a.is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, addr);
	cuPointerGetAttribute(&a.ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, addr);
	cuPointerGetAttribute(&a.is_legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, addr);
	cuPointerGetAttribute(&a.pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, addr);
	cuPointerGetAttribute(&a.handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, addr);
	cuPointerGetAttribute(&a.buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, addr);
	cuPointerGetAttribute(&a.map, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, addr);
	cuPointerGetAttribute(&a.map_bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, addr);
	return a;
}

static int find_ordinal(struct cuda_device *d, int ordinal)
{
	for (int i = 0; i < d->n_gpus; i++)
		if (d->gpu[i].dev == ordinal)
			return i;
	return DEVICE_NODEV;
}

static int share_legacy(
	struct device *dev, int gpu, CUdeviceptr addr, uint64_t bytes, struct device_desc *ret_desc)
{
	CUdeviceptr base = 0;
	CUipcMemHandle handle;
	size_t size = 0;
	int rc;

	rc = cuda_check_result(
		dev, cuMemGetAddressRange(&base, &size, addr), "cannot find the allocation");
	if (rc)
		return rc;
	if (addr < base || addr - base > size || bytes > size - (addr - base))
		return cuda_refuse(
			dev, DEVICE_ARG, "memory to share reaches beyond its allocation");
	rc = cuda_check_result(dev, cuIpcGetMemHandle(&handle, base), "cannot share device memory");
	if (rc)
		return rc;
	*ret_desc = cuda_describe_memory(dev, gpu, DEVICE_DESC_IPC, bytes, size);
	ret_desc->offset = addr - base;
	memcpy(ret_desc->blob, &handle, sizeof(handle));
	return 0;
}

/* Return a new file descriptor for the memory of the mapping that starts at a->map. On failure,
 * return a negative error code. */
static int share_mapping(struct device *dev, const struct about *a)
{
	CUmemGenericAllocationHandle handle = 0;
	int fd, rc;

	rc = cuda_check_result(dev, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)a->map),
		"cannot find the memory behind a mapping");
	if (rc)
		return rc;
	fd = cuda_export_handle(dev, handle);
	rc = cuda_check_result(dev, cuMemRelease(handle), "cannot release a handle");
	if (rc && fd >= 0) {
		close(fd);
		return rc;
	}
	return fd;
}

/* Describe a memory range by one file descriptor for each mapping in the range. The mappings must
 * be adjacent and of the same size. An allocator whose segments grow creates such mappings. */
static int share_mappings(struct device *dev, int gpu, CUdeviceptr addr, uint64_t bytes,
	struct device_desc *ret_desc, int *fds, int max)
{
	struct about a = ask(addr);
	CUdeviceptr start = a.map, end = addr + bytes;
	size_t chunk = a.map_bytes;
	int n = 0, rc = 0;

	for (CUdeviceptr at = start; at < end && !rc; at += chunk) {
		a = ask(at);
		if (!chunk || a.map != at || a.map_bytes != chunk)
			rc = cuda_refuse(dev, DEVICE_UNSUP, "memory of unequal mappings");
		else if (n == max)
			rc = cuda_refuse(dev, DEVICE_ARG, "memory of more than %d mappings", max);
		else if ((rc = share_mapping(dev, &a)) >= 0)
			fds[n++] = rc, rc = 0;
	}
	if (rc) {
		close_all(fds, n);
		return rc;
	}
	*ret_desc = cuda_describe_memory(dev, gpu, DEVICE_DESC_FD, bytes, chunk);
	ret_desc->n_fds = (uint32_t)n;
	ret_desc->offset = addr - start;
	return n;
}

int share_ptr(struct device *dev, uint64_t addr, uint64_t bytes, struct device_desc *ret_desc,
	int *fds, int max)
{
	struct cuda_device *d = cuda_device_of_base(dev);
	struct about a;
	int gpu, rc;

	if (d->is_lost)
		return DEVICE_LOST;
	if (!bytes || addr + bytes < addr)
		return cuda_refuse(dev, DEVICE_ARG, "no bytes to share");
	a = ask(addr);
	gpu = find_ordinal(d, a.ordinal);
	if (a.type != CU_MEMORYTYPE_DEVICE || gpu < 0)
		return cuda_refuse(dev, DEVICE_ARG, "not an address of device memory");
	if (a.is_managed || a.pool)
		return cuda_refuse(dev, DEVICE_UNSUP, "%s memory cannot be shared",
			a.is_managed ? "managed" : "a pool's");
	rc = cuda_enter_context(dev, gpu);
	if (rc)
		return rc;
	if (a.is_legacy)
		rc = share_legacy(dev, gpu, addr, bytes, ret_desc);
	else if (a.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		rc = share_mappings(dev, gpu, addr, bytes, ret_desc, fds,
			max < DEVICE_FDS_MAX ? max : DEVICE_FDS_MAX);
	else
		rc = cuda_refuse(dev, DEVICE_UNSUP, "memory whose allocator forbids sharing");
	if (rc >= 0)
		ret_desc->buffer_id = a.buffer_id;
	return rc;
}
