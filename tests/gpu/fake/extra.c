/* Driver functions that only the programs of tests/gpu call. With these functions, the programs
 * can run on the fake driver. Kernels compute nothing and only take time. Memory has no limit. */
#include "tests/gpu/fake/fake.h"

#include <sys/mman.h>
#include <time.h>

#define KERNEL_NS 50000

FAKE_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned flags)
{
	CUresult r = fake_enter(__func__, "%d %u", (int)dev, flags);

	return r ? r : fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	CUresult r = fake_enter(__func__, "%p", (void *)ret_free);

	if (r)
		return r;
	*ret_free = *ret_total = (size_t)1 << 36;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **ret, size_t bytes, unsigned flags)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)flags;
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ret = p;
	return cuMemHostRegister(
		p, bytes, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
}

FAKE_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
	struct timespec pause = {.tv_nsec = 2000};
	CUresult r = cuEventQuery(event);

	while (r == CUDA_ERROR_NOT_READY) {
		nanosleep(&pause, NULL);
		r = cuEventQuery(event);
	}
	return r;
}

FAKE_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *ret, const void *image)
{
	CUresult r = fake_enter(__func__, "%p", image);

	if (r)
		return r;
	fake_current();
	if (!image)
		fake_misuse("a module of nothing");
	*ret = (CUmodule)(uintptr_t)1;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *ret, CUmodule module, const char *name)
{
	CUresult r = fake_enter(__func__, "%s", name);

	if (r)
		return r;
	if (module != (CUmodule)(uintptr_t)1)
		fake_misuse("a function of no module");
	*ret = (CUfunction)(uintptr_t)1;
	return fake_leave(CUDA_SUCCESS);
}

static void kernel(void *arg)
{
	struct timespec t = {.tv_nsec = KERNEL_NS};

	(void)arg;
	nanosleep(&t, NULL);
}

FAKE_EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned grid_x, unsigned grid_y,
	unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
	CUstream stream, void **args, void **extra)
{
	CUresult r = fake_enter(__func__, "%u %u %u %u %u %u %u", grid_x, grid_y, grid_z, block_x,
		block_y, block_z, shared);
	struct fake_work *w;

	(void)args;
	(void)extra;
	if (r)
		return r;
	if (f != (CUfunction)(uintptr_t)1)
		fake_misuse("a launch of no function");
	w = fake_work_new(WORK_CALL);
	w->fn = kernel;
	fake_queue(fake_stream(stream), w);
	return fake_leave(CUDA_SUCCESS);
}
