/* Tensors in CUDA memory, with the CUDA driver that the training process itself has loaded. The
 * library does not link CUDA. This file looks up the entry points in the loaded libcuda.so.1 by
 * their versioned names, such as cuMemHostRegister_v2. Without cuda.h at build time,
 * cuda_get_device_uuid returns an error, and no other function is called. Thread: any. */
#include <errno.h>

#include "libbpsclient/gpu.h"

#if !defined(BPS_NO_CUDA) && defined(__has_include)
#if __has_include(<cuda.h>)
#define HAS_CUDA_H
#endif
#endif

#ifdef HAS_CUDA_H

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The functions of CUDA that this file uses, and their versioned names in libcuda.so.1. */
#define ENTRIES(X)                                                                                 \
	X(cuCtxGetCurrent, "cuCtxGetCurrent")                                                      \
	X(cuCtxGetDevice, "cuCtxGetDevice")                                                        \
	X(cuCtxSetCurrent, "cuCtxSetCurrent")                                                      \
	X(cuCtxSynchronize, "cuCtxSynchronize")                                                    \
	X(cuDeviceGetUuid, "cuDeviceGetUuid_v2")                                                   \
	X(cuGetErrorString, "cuGetErrorString")                                                    \
	X(cuMemHostRegister, "cuMemHostRegister_v2")                                               \
	X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2")                               \
	X(cuMemHostUnregister, "cuMemHostUnregister")                                              \
	X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")                        \
	X(cuMemAddressReserve, "cuMemAddressReserve")                                              \
	X(cuMemAddressFree, "cuMemAddressFree")                                                    \
	X(cuMemMap, "cuMemMap")                                                                    \
	X(cuMemUnmap, "cuMemUnmap")                                                                \
	X(cuMemSetAccess, "cuMemSetAccess")                                                        \
	X(cuMemRelease, "cuMemRelease")                                                            \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")                              \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle")                            \
	X(cuPointerGetAttribute, "cuPointerGetAttribute")                                          \
	X(cuMemGetAddressRange, "cuMemGetAddressRange_v2")                                         \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle")                                                  \
	X(cuStreamWriteValue64, "cuStreamWriteValue64_v2")                                         \
	X(cuStreamWaitValue64, "cuStreamWaitValue64_v2")

struct cuda_entries {
#define X(f, name) __typeof__(f) *p_##f;
	ENTRIES(X)
#undef X
};

/* The two variables below are written under load_mutex. They are constant after a load has
 * succeeded. */
static struct cuda_entries cu;
static bool is_loaded;
/* serialises load_cuda_entry_points_once() */
static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;

static int resolve_cuda_entry_points(struct err_text *err)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int rc = 0;

	if (!lib)
		return err_set(
			err, BPS_EDEVICE, "this process has no CUDA (no libcuda.so.1 is loaded)");
#define X(f, name)                                                                                 \
	cu.p_##f = (__typeof__(f) *)(uintptr_t)dlsym(lib, name);                                   \
	if (!cu.p_##f && !rc)                                                                      \
		rc = err_set(err, BPS_EDEVICE,                                                     \
			"this process's CUDA driver lacks %s: install a newer driver", name);
	ENTRIES(X)
#undef X
	/* the process itself keeps the library loaded */
	dlclose(lib);
	return rc;
}

/* Look up the entry points, unless an earlier call has done so. After a failure the next call tries
 * again, because the process may have loaded CUDA meanwhile. */
static int load_cuda_entry_points_once(struct err_text *err)
{
	int rc = 0;

	pthread_mutex_lock(&load_mutex);
	if (!is_loaded)
		rc = resolve_cuda_entry_points(err);
	is_loaded = rc == 0;
	pthread_mutex_unlock(&load_mutex);
	return rc;
}

static int cuda_result_to_error(CUresult rc, const char *what, struct err_text *err)
{
	const char *text = NULL;

	if (rc == CUDA_SUCCESS)
		return 0;
	cu.p_cuGetErrorString(rc, &text);
	return err_set(
		err, BPS_EDEVICE, "%s: %s (CUDA error %d)", what, text ? text : "?", (int)rc);
}

/* Make the context of bps_gpu_open current on this thread. *ret_old: the thread's previous context,
 * or NULL. cuda_context_restore_previous() restores the previous context. */
static int cuda_context_make_current(
	const struct client_gpu *g, CUcontext *ret_old, struct err_text *err)
{
	int rc = cuda_result_to_error(cu.p_cuCtxGetCurrent(ret_old), "no CUDA context", err);

	if (rc == 0 && *ret_old != g->ctx)
		rc = cuda_result_to_error(
			cu.p_cuCtxSetCurrent(g->ctx), "cannot use the CUDA context", err);
	return rc;
}

static void cuda_context_restore_previous(const struct client_gpu *g, CUcontext old)
{
	if (old != g->ctx)
		cu.p_cuCtxSetCurrent(old);
}

static int cuda_get_device_uuid(
	struct client_gpu *g, uint8_t ret[GPU_UUID_BYTES], struct err_text *err)
{
	CUcontext ctx = NULL;
	CUdevice dev;
	CUuuid uuid;
	int rc;

	rc = load_cuda_entry_points_once(err);
	if (rc < 0)
		return rc;
	rc = cuda_result_to_error(cu.p_cuCtxGetCurrent(&ctx), "no CUDA context", err);
	if (rc < 0)
		return rc;
	if (!ctx)
		return err_set(err, BPS_EDEVICE,
			"the calling thread has no current CUDA context: choose a device first");
	rc = cuda_result_to_error(cu.p_cuCtxGetDevice(&dev), "no CUDA device", err);
	if (rc == 0)
		rc = cuda_result_to_error(
			cu.p_cuDeviceGetUuid(&uuid, dev), "cannot get the GPU's UUID", err);
	if (rc < 0)
		return rc;
	memcpy(ret, uuid.bytes, GPU_UUID_BYTES);
	g->ctx = ctx;
	return 0;
}

static int cuda_pin_counter_page(struct client_gpu *g, struct err_text *err)
{
	CUcontext old;
	CUdeviceptr addr = 0;
	int rc = cuda_context_make_current(g, &old, err);

	if (rc < 0)
		return rc;
	rc = cuda_result_to_error(
		cu.p_cuMemHostRegister(g->slots, g->page_bytes,
			CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE),
		"cannot register the counter page with CUDA (is the limit on locked memory too "
		"low?)",
		err);
	if (rc == 0) {
		rc = cuda_result_to_error(cu.p_cuMemHostGetDevicePointer(&addr, g->slots, 0),
			"the GPU cannot access the counter page", err);
		if (rc < 0)
			cu.p_cuMemHostUnregister(g->slots);
	}
	g->page_addr = addr;
	cuda_context_restore_previous(g, old);
	return rc;
}

static void cuda_unpin_counter_page(struct client_gpu *g)
{
	CUcontext old;
	if (cuda_context_make_current(g, &old, NULL) < 0)
		return;
	cu.p_cuMemHostUnregister(g->slots);
	cuda_context_restore_previous(g, old);
}

struct cuda_mapping {
	CUdeviceptr addr;
	size_t bytes, chunk;
	unsigned n_mapped;
};

static void cuda_mapping_destroy(struct cuda_mapping *h)
{
	for (unsigned i = 0; i < h->n_mapped; i++)
		cu.p_cuMemUnmap(h->addr + i * h->chunk, h->chunk);
	if (h->addr)
		cu.p_cuMemAddressFree(h->addr, h->bytes);
	free(h);
}

static int cuda_mapping_import_chunk(struct cuda_mapping *h, int fd, struct err_text *err)
{
	CUmemGenericAllocationHandle handle;
	int rc = cuda_result_to_error(
		cu.p_cuMemImportFromShareableHandle(
			&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		"cannot import device memory", err);

	if (rc < 0)
		return rc;
	rc = cuda_result_to_error(
		cu.p_cuMemMap(h->addr + h->n_mapped * h->chunk, h->chunk, 0, handle, 0),
		"cannot map device memory", err);
	cu.p_cuMemRelease(handle); /* the mapping keeps the memory allocated */
	if (rc == 0)
		h->n_mapped++;
	return rc;
}

static int cuda_mapping_map_all_chunks(
	struct cuda_mapping *h, const int *fds, unsigned n_fds, struct err_text *err)
{
	CUmemAccessDesc access = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdevice dev;
	int rc = cuda_result_to_error(cu.p_cuCtxGetDevice(&dev), "no CUDA device", err);

	if (rc == 0)
		rc = cuda_result_to_error(cu.p_cuMemAddressReserve(&h->addr, h->bytes, 0, 0, 0),
			"cannot reserve addresses for device memory", err);
	for (unsigned i = 0; rc == 0 && i < n_fds; i++)
		rc = cuda_mapping_import_chunk(h, fds[i], err);
	access.location.id = dev;
	if (rc == 0)
		rc = cuda_result_to_error(cu.p_cuMemSetAccess(h->addr, h->bytes, &access, 1),
			"cannot allow access to device memory", err);
	return rc;
}

static int cuda_map_executor_memory(struct client_gpu *g, const struct gpu_memory *m,
	const int *fds, unsigned n_fds, void **ret_ptr, void **ret_handle, struct err_text *err)
{
	CUcontext old;
	struct cuda_mapping *h;
	int rc;

	if (m->kind != GPU_MEMORY_FD || !n_fds || !m->chunk_bytes ||
		m->chunk_bytes > UINT64_MAX / n_fds || m->offset ||
		m->bytes > m->chunk_bytes * n_fds)
		return err_set(err, BPS_EPROTO, "the executor sent memory that cannot be mapped");
	h = calloc(1, sizeof(*h));
	if (!h)
		return err_set(err, -ENOMEM, "out of memory");
	h->chunk = m->chunk_bytes;
	h->bytes = m->chunk_bytes * n_fds;
	rc = cuda_context_make_current(g, &old, err);
	if (rc < 0) {
		free(h);
		return rc;
	}
	rc = cuda_mapping_map_all_chunks(h, fds, n_fds, err);
	if (rc < 0) {
		cuda_mapping_destroy(h);
	} else {
		*ret_ptr = (void *)(uintptr_t)h->addr;
		*ret_handle = h;
	}
	cuda_context_restore_previous(g, old);
	return rc;
}

static void cuda_unmap_executor_memory(
	struct client_gpu *g, void *ptr, uint64_t bytes, void *handle)
{
	CUcontext old;
	(void)ptr;
	(void)bytes;
	if (cuda_context_make_current(g, &old, NULL) < 0)
		return;
	cuda_mapping_destroy(handle);
	cuda_context_restore_previous(g, old);
}

/* ---- the trainer's own memory ---- */

static int export_legacy_ipc_handle(CUdeviceptr addr, uint64_t bytes, struct gpu_memory *ret,
	char *handle, struct err_text *err)
{
	CUdeviceptr base = 0;
	CUipcMemHandle ipc;
	size_t size = 0;
	int rc = cuda_result_to_error(cu.p_cuMemGetAddressRange(&base, &size, addr),
		"the address is not in device memory", err);

	if (rc == 0 && (addr < base || addr - base > size || bytes > size - (addr - base)))
		rc = err_set(err, -EINVAL, "the memory extends beyond its CUDA allocation");
	if (rc == 0)
		rc = cuda_result_to_error(
			cu.p_cuIpcGetMemHandle(&ipc, base), "cannot share device memory", err);
	if (rc < 0)
		return rc;
	memcpy(handle, &ipc, sizeof(ipc));
	ret->kind = GPU_MEMORY_IPC;
	ret->chunk_bytes = size;
	ret->offset = addr - base;
	ret->handle = (struct blob){handle, sizeof(ipc)};
	return 0;
}

static int export_mapping(CUdeviceptr base, struct err_text *err)
{
	CUmemGenericAllocationHandle handle;
	int fd = -1;
	int rc = cuda_result_to_error(
		cu.p_cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)base),
		"cannot find the memory behind a mapping", err);

	if (rc < 0)
		return rc;
	rc = cuda_result_to_error(cu.p_cuMemExportToShareableHandle(
					  &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		"cannot share device memory", err);
	cu.p_cuMemRelease(handle);
	if (rc < 0)
		return rc;
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

static int find_mapping_of_address(
	CUdeviceptr at, CUdeviceptr *ret_base, size_t *ret_size, struct err_text *err)
{
	int rc = cuda_result_to_error(
		cu.p_cuPointerGetAttribute(ret_base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at),
		"cannot find a mapping's base", err);

	if (rc == 0)
		rc = cuda_result_to_error(
			cu.p_cuPointerGetAttribute(ret_size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at),
			"cannot find a mapping's size", err);
	if (rc == 0 && (*ret_base > at || at - *ret_base >= *ret_size))
		rc = err_set(err, BPS_EDEVICE,
			"the mapping that the CUDA driver reports for address 0x%llx does not "
			"contain this address: the mapping has %zu bytes at 0x%llx",
			(unsigned long long)at, *ret_size, (unsigned long long)*ret_base);
	return rc;
}

/* Export the mappings that contain the memory. Each mapping becomes a descriptor. All mappings must
 * have the same size. Returns the number of descriptors. Errors: -EOPNOTSUPP, BPS_EDEVICE. */
static int share_mappings(CUdeviceptr addr, uint64_t bytes, struct gpu_memory *ret, int *fds,
	unsigned max, struct err_text *err)
{
	CUdeviceptr at = addr, end = addr + bytes;
	unsigned n = 0;
	int rc = 0;

	while (at < end && rc >= 0) {
		CUdeviceptr base = 0;
		size_t size = 0;

		rc = find_mapping_of_address(at, &base, &size, err);
		if (rc < 0)
			break;
		if (n && size != ret->chunk_bytes)
			rc = err_set(err, -EOPNOTSUPP,
				"this memory has a mapping of %zu bytes and others of %llu bytes, "
				"but all its mappings must have the same size: allocate memory "
				"with bps_gpu_alloc, and copy the values into it",
				size, (unsigned long long)ret->chunk_bytes);
		else if (n == max)
			rc = err_set(err, -EOPNOTSUPP,
				"this memory lies in more than %u mappings: import it in pieces",
				max);
		else
			rc = export_mapping(base, err);
		if (rc < 0)
			break;
		if (n == 0) {
			ret->chunk_bytes = size;
			ret->offset = addr - base;
		}
		fds[n++] = rc;
		at = base + size;
	}
	if (rc >= 0) {
		ret->kind = GPU_MEMORY_FD;
		return (int)n;
	}
	while (n > 0)
		close(fds[--n]);
	return rc;
}

static int cuda_share_trainer_memory(struct client_gpu *g, const void *ptr, uint64_t bytes,
	struct gpu_memory *ret, char *handle, int *fds, unsigned max, struct err_text *err)
{
	CUcontext old;
	CUdeviceptr addr = (CUdeviceptr)(uintptr_t)ptr;
	unsigned long long types = 0, buffer_id = 0;
	int is_legacy = 0;
	int rc = cuda_context_make_current(g, &old, err);

	if (rc < 0)
		return rc;
	cu.p_cuPointerGetAttribute(
		&is_legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, addr);
	cu.p_cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, addr);
	cu.p_cuPointerGetAttribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, addr);
	*ret = (struct gpu_memory){.version = GPU_MEMORY_VERSION,
		.uuid = {g->uuid, GPU_UUID_BYTES},
		.bytes = bytes,
		.buffer_id = buffer_id};
	/* The order of these tests matters. Memory from cuMemAlloc has no handle, so descriptors of
	 * this memory cannot be exported. But a driver may report that they can. */
	if (is_legacy)
		rc = export_legacy_ipc_handle(addr, bytes, ret, handle, err);
	else if (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		rc = share_mappings(addr, bytes, ret, fds, max, err);
	else
		rc = err_set(err, -EOPNOTSUPP,
			"CUDA cannot share this memory (perhaps the memory is managed, is not on "
			"the GPU, or comes from a pool; handle types 0x%llx): copy the values into "
			"memory from bps_gpu_alloc",
			types);
	cuda_context_restore_previous(g, old);
	return rc;
}

/* ---- streams ---- */

static CUdeviceptr counter_device_address(
	const struct client_gpu *g, const _Atomic uint64_t *counter)
{
	return g->page_addr + (uint64_t)((const char *)counter - (const char *)g->slots);
}

/* Queue an operation on a counter. fn: cuStreamWriteValue64 or cuStreamWaitValue64. */
static int stream_queue_counter_operation(struct client_gpu *g,
	__typeof__(cu.p_cuStreamWriteValue64) fn, void *stream, _Atomic uint64_t *counter,
	uint64_t value, unsigned flags, struct err_text *err)
{
	CUcontext old;
	int rc = cuda_context_make_current(g, &old, err);

	if (rc < 0)
		return rc;
	rc = cuda_result_to_error(fn(stream, counter_device_address(g, counter), value, flags),
		"cannot queue an operation on the stream", err);
	cuda_context_restore_previous(g, old);
	return rc;
}

static int cuda_stream_write_counter(struct client_gpu *g, void *stream, _Atomic uint64_t *counter,
	uint64_t value, struct err_text *err)
{
	/* By default CUDA writes the value after the earlier work of the stream. */
	return stream_queue_counter_operation(g, cu.p_cuStreamWriteValue64, stream, counter, value,
		CU_STREAM_WRITE_VALUE_DEFAULT, err);
}

static int cuda_stream_wait_counter(struct client_gpu *g, void *stream, _Atomic uint64_t *counter,
	uint64_t value, uint64_t deadline_ns, struct err_text *err)
{
	(void)deadline_ns; /* the call returns at once; the stream waits, without a deadline */
	return stream_queue_counter_operation(
		g, cu.p_cuStreamWaitValue64, stream, counter, value, CU_STREAM_WAIT_VALUE_GEQ, err);
}

static void cuda_wait_for_queued_work(struct client_gpu *g)
{
	CUcontext old;
	if (cuda_context_make_current(g, &old, NULL) < 0)
		return;
	/* if the GPU has failed, the call returns at once, because no work runs any more */
	cu.p_cuCtxSynchronize();
	cuda_context_restore_previous(g, old);
}

#else

static int reject_uuid_without_cuda(
	struct client_gpu *g, uint8_t ret[GPU_UUID_BYTES], struct err_text *err)
{
	(void)g;
	(void)ret;
	return err_set(err, BPS_EDEVICE, "this libbpsclient was built without CUDA's headers");
}

#define cuda_get_device_uuid       reject_uuid_without_cuda
#define cuda_pin_counter_page      NULL
#define cuda_unpin_counter_page    NULL
#define cuda_map_executor_memory   NULL
#define cuda_unmap_executor_memory NULL
#define cuda_share_trainer_memory  NULL
#define cuda_stream_write_counter  NULL
#define cuda_stream_wait_counter   NULL
#define cuda_wait_for_queued_work  NULL

#endif

const struct client_gpu_driver client_gpu_driver_cuda = {
	.name = "cuda",
	.uuid = cuda_get_device_uuid,
	.pin = cuda_pin_counter_page,
	.unpin = cuda_unpin_counter_page,
	.map = cuda_map_executor_memory,
	.unmap = cuda_unmap_executor_memory,
	.share = cuda_share_trainer_memory,
	.write = cuda_stream_write_counter,
	.wait = cuda_stream_wait_counter,
	.settle = cuda_wait_for_queued_work,
};
