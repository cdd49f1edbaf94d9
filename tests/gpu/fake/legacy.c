/* Functions of the fake driver that allocate memory with cuMemAlloc, share such memory with other
 * processes by IPC handles, and return the attributes of addresses. */
#include "tests/gpu/fake/fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The content of the 64 bytes of a handle. The importer opens the exporter's descriptor through
 * /proc. The kernel allows this only if both processes belong to one user. The driver has the same
 * restriction for its handles. */
struct ipc {
	char magic[8];
	int pid, fd;
	uint64_t bytes;
};
_Static_assert(sizeof(struct ipc) <= sizeof(CUipcMemHandle), "ipc");
#define MAGIC "fakeipc"

/* Allocate memory. The size is rounded up to whole blocks of 2 MiB, the block size of the driver.
 * The fake never places two allocations in one block. */
FAKE_EXPORT CUresult CUDAAPI cuMemAlloc(CUdeviceptr *ret, size_t bytes)
{
	CUresult r = fake_enter(__func__, "%zu", bytes);
	struct fake_ctx *c;
	struct fake_area *a;
	size_t size;

	if (r)
		return r;
	c = fake_current();
	if (!bytes)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	size = (bytes + FAKE_GRAIN - 1) / FAKE_GRAIN * FAKE_GRAIN;
	a = fake_area_new(
		AREA_ALLOC, size, fake_handle_new(fake_memfd(size, c->dev), size, c->dev));
	a->ctx = c;
	*ret = a->addr;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemFree(CUdeviceptr addr)
{
	CUresult r = fake_enter(__func__, "%#llx", addr);
	struct fake_area *a;

	if (r)
		return r;
	a = fake_find(addr);
	if (!a || a->kind != AREA_ALLOC || a->addr != addr)
		fake_misuse("cuMemFree of %#llx, which is no allocation (any more)", addr);
	fake_area_free(a);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr addr)
{
	CUresult r = fake_enter(__func__, "%#llx", addr);
	struct fake_area *a;
	struct fake_map *m;

	if (r)
		return r;
	a = fake_find(addr);
	m = a ? fake_find_map(a, addr) : NULL;
	if (!a || (a->kind == AREA_RESERVED && !m))
		return fake_leave(CUDA_ERROR_NOT_FOUND);
	*base = a->addr + (m ? m->offset : 0);
	*size = m ? m->bytes : a->bytes;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *ret, CUdeviceptr addr)
{
	CUresult r = fake_enter(__func__, "%#llx", addr);
	struct ipc ipc = {.magic = MAGIC};
	struct fake_area *a;

	if (r)
		return r;
	a = fake_find(addr);
	if (!a || a->kind != AREA_ALLOC || a->addr != addr)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	ipc.pid = getpid();
	ipc.fd = a->handle->fd;
	ipc.bytes = a->bytes;
	memset(ret, 0, sizeof(*ret));
	memcpy(ret, &ipc, sizeof(ipc));
	return fake_leave(CUDA_SUCCESS);
}

static CUresult open_ipc(const struct ipc *ipc, int *ret_fd, size_t *ret_bytes, int *ret_dev)
{
	char path[48];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc->pid, ipc->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_dev = fake_memfd_dev(fd, ret_bytes);
	if (*ret_dev < 0 || *ret_bytes != ipc->bytes) {
		close(fd);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*ret_fd = fd;
	return CUDA_SUCCESS;
}

/* Open a handle of another process. The process that made the handle is refused. */
FAKE_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle(
	CUdeviceptr *ret, CUipcMemHandle handle, unsigned flags)
{
	CUresult r = fake_enter(__func__, "%u", flags);
	struct fake_ctx *c;
	struct fake_area *a;
	struct ipc ipc;
	size_t bytes;
	int fd, dev;

	if (r)
		return r;
	c = fake_current();
	memcpy(&ipc, &handle, sizeof(ipc));
	if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memcmp(ipc.magic, MAGIC, sizeof(MAGIC)))
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	if (ipc.pid == getpid())
		return fake_leave(CUDA_ERROR_INVALID_CONTEXT);
	r = open_ipc(&ipc, &fd, &bytes, &dev);
	if (r)
		return fake_leave(r);
	if (dev != c->dev && !fake.links) {
		close(fd);
		return fake_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	}
	a = fake_area_new(AREA_IPC, bytes, fake_handle_new(fd, bytes, dev));
	a->ctx = c;
	*ret = a->addr;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr addr)
{
	CUresult r = fake_enter(__func__, "%#llx", addr);
	struct fake_area *a;

	if (r)
		return r;
	a = fake_find(addr);
	if (!a || a->kind != AREA_IPC || a->addr != addr)
		fake_misuse("cuIpcCloseMemHandle of %#llx, which is not open", addr);
	fake_area_free(a);
	return fake_leave(CUDA_SUCCESS);
}

static CUresult tell(void *ret, CUpointer_attribute attr, struct fake_area *a, struct fake_map *m)
{
	struct fake_handle *h = m ? m->handle : a->handle;

	switch (attr) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)ret = h ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)ret = 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)ret = h ? h->dev : a->ctx->dev;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(int *)ret = a->kind == AREA_ALLOC;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(int *)ret = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)ret = NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)ret =
			m && h->is_exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)ret = m ? m->buffer_id : a->buffer_id;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(CUdeviceptr *)ret = a->addr + (m ? m->offset : 0);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)ret = m ? m->bytes : a->bytes;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

FAKE_EXPORT CUresult CUDAAPI cuPointerGetAttribute(
	void *ret, CUpointer_attribute attr, CUdeviceptr addr)
{
	CUresult r = fake_enter(__func__, "%d %#llx", (int)attr, addr);
	struct fake_area *a;
	struct fake_map *m;

	if (r)
		return r;
	a = fake_find(addr);
	m = a ? fake_find_map(a, addr) : NULL;
	if (!a || (a->kind == AREA_RESERVED && !m))
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	return fake_leave(tell(ret, attr, a, m));
}
