/* Memory shared between processes: VMM handles as file descriptors, and the driver's legacy
 * handles. Thread: the executor's. */
#include "bps-agent/executor/device/cuda_impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(CUipcMemHandle) == sizeof(((struct device_desc *)0)->blob), "IPC handle");

int cuda_export_handle(struct device *dev, CUmemGenericAllocationHandle handle)
{
	int fd = -1;
	int rc = cuda_check_result(dev,
		cuMemExportToShareableHandle(
			&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		"cannot export device memory");

	if (rc)
		return rc;
	/* the descriptor must not be inherited by child processes */
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

struct device_desc cuda_describe_memory(
	struct device *dev, int gpu, enum device_desc_kind kind, uint64_t bytes, uint64_t chunk)
{
	struct device_desc d = {
		.version = DEVICE_DESC_VERSION,
		.kind = (uint16_t)kind,
		.bytes = bytes,
		.chunk_bytes = chunk,
	};

	memcpy(d.uuid, cuda_device_of_base(dev)->gpu[gpu].info.uuid, sizeof(d.uuid));
	return d;
}

int cuda_share_memory(struct device_mem *mem, struct device_desc *ret_desc, int *fds, int max)
{
	struct cuda_mem *m = (struct cuda_mem *)mem;
	struct device *dev = mem->dev;
	int fd, rc;

	if (m->kind != CUDA_MEM_ALLOC)
		return cuda_refuse(dev, DEVICE_UNSUP,
			"only memory that this process has allocated can be shared");
	if (max < 1)
		return cuda_refuse(dev, DEVICE_ARG, "no room to return the memory's descriptor");
	rc = cuda_enter_context(dev, mem->gpu);
	if (rc)
		return rc;
	fd = cuda_export_handle(dev, m->handle);
	if (fd < 0)
		return fd;
	fds[0] = fd;
	*ret_desc = cuda_describe_memory(dev, mem->gpu, DEVICE_DESC_FD, mem->bytes, mem->bytes);
	ret_desc->n_fds = 1;
	ret_desc->buffer_id = m->buffer_id;
	return 1;
}

/* Import a descriptor. If the descriptor is not device memory, the driver may report an unknown
 * error. Do not treat the unknown error as sticky, because the process that sent the descriptor can
 * cause it. If the driver really has failed, the next call reports the failure. */
static int cuda_import_descriptor(
	struct device *dev, int fd, CUmemGenericAllocationHandle *ret_handle)
{
	CUresult r = cuMemImportFromShareableHandle(
		ret_handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (r == CUDA_ERROR_UNKNOWN || r == CUDA_ERROR_OPERATING_SYSTEM)
		r = CUDA_ERROR_INVALID_VALUE;
	return cuda_check_result(dev, r, "cannot import device memory");
}

/* Check the chunk size, which the exporting process has chosen. The size must be a multiple of the
 * granularity. */
static int cuda_check_chunk_size(struct device *dev, int gpu, uint64_t chunk)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
			.id = cuda_device_of_base(dev)->gpu[gpu].dev},
	};
	size_t grain = 1;
	int rc;

	rc = cuda_check_result(dev,
		cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
		"cannot get the granularity of device memory");
	if (!rc && chunk % grain)
		rc = cuda_refuse(dev, DEVICE_ARG,
			"handles of %llu bytes cannot be mapped: the size is not a multiple of the "
			"GPU's granularity",
			(unsigned long long)chunk);
	return rc;
}

/* Import and map all descriptors. The handles are released at once, because a mapping alone keeps
 * the memory alive. */
static int cuda_import_descriptors(
	struct cuda_mem *m, const struct device_desc *desc, const int *fds)
{
	CUmemGenericAllocationHandle handles[DEVICE_FDS_MAX];
	struct device *dev = m->base.dev;
	int rc = cuda_check_chunk_size(dev, m->base.gpu, desc->chunk_bytes);
	unsigned n = 0;

	while (n < desc->n_fds && !rc) {
		rc = cuda_import_descriptor(dev, fds[n], &handles[n]);
		n += !rc;
	}
	if (!rc)
		rc = cuda_map_handles(m, handles, n, desc->chunk_bytes);
	while (n && !cuda_device_of_base(dev)->is_lost) {
		int failed = cuda_check_result(
			dev, cuMemRelease(handles[--n]), "cannot release a handle");

		rc = rc ? rc : failed;
	}
	return rc;
}

/* Import a legacy handle, and check the described range against the size that the driver reports.
 * If the driver reports no size, the size in the description is used. A wrong size harms only the
 * job of the exporting process. */
static int cuda_import_ipc_handle(struct cuda_mem *m, const struct device_desc *desc)
{
	struct device *dev = m->base.dev;
	CUipcMemHandle handle;
	CUdeviceptr base = 0;
	size_t size = 0;
	int rc;

	memcpy(&handle, desc->blob, sizeof(handle));
	rc = cuda_check_result(dev,
		cuIpcOpenMemHandle(&m->map, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
		"cannot open another process's device memory");
	if (rc)
		return rc;
	rc = cuda_check_result(dev, cuMemGetAddressRange(&base, &size, m->map),
		"cannot find the size of another process's device memory");
	if (rc)
		return rc == DEVICE_LOST ? rc : 0;
	size -= m->map - base;
	if (size < desc->offset || size - desc->offset < desc->bytes)
		return cuda_refuse(dev, DEVICE_ARG,
			"another process's device memory is smaller than described");
	return 0;
}

int cuda_import_memory(struct device *dev, int gpu, const struct device_desc *desc, const int *fds,
	int n_fds, struct device_mem **ret_mem)
{
	struct cuda_mem *m;
	int rc = cuda_enter_context(dev, gpu);

	if (rc)
		return rc;
	if (n_fds < 0 || device_desc_check(desc, (unsigned)n_fds, &dev->why))
		return DEVICE_ARG;
	if (desc->kind != DEVICE_DESC_FD && desc->kind != DEVICE_DESC_IPC)
		return cuda_refuse(
			dev, DEVICE_UNSUP, "host memory cannot be imported as memory of a GPU");
	m = cuda_mem_new(dev, gpu, desc->kind == DEVICE_DESC_FD ? CUDA_MEM_FDS : CUDA_MEM_IPC);
	if (!m)
		return DEVICE_NOMEM;
	m->base.bytes = desc->bytes;
	m->buffer_id = desc->buffer_id;
	rc = m->kind == CUDA_MEM_FDS ? cuda_import_descriptors(m, desc, fds)
				     : cuda_import_ipc_handle(m, desc);
	if (rc) {
		if (m->map || m->kind == CUDA_MEM_FDS)
			cuda_drop_memory(&m->base);
		else
			free(m);
		return rc;
	}
	m->addr = m->map + desc->offset;
	*ret_mem = &m->base;
	return 0;
}
