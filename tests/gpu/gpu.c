/* Helpers of the GPU programs. They load the driver at run time, make memory that can be shared,
 * measure time, compute percentiles, and print results as JSON. Only one thread of a process uses
 * these helpers at a time. */
#include "tests/gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct gpu_calls cu;

static struct {
	char text[512];
	int code;
} why;

#ifdef BPS_GPU_PTX
/* PTX text of the kernels. nvcc has made the text, and a zero byte ends it. */
__asm__(".section .rodata\n"
	".global gpu_ptx\n"
	"gpu_ptx: .incbin \"" BPS_GPU_PTX "\"\n"
	".byte 0\n"
	".previous\n");
extern const char gpu_ptx[];
#else
static const char gpu_ptx[] = "";
#endif

void gpu_say_why(int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why.text, sizeof(why.text), fmt, ap);
	va_end(ap);
	why.code = code;
}

void gpu_refused(CUresult rc, const char *call)
{
	const char *name = NULL;

	if (cu.cuGetErrorName)
		cu.cuGetErrorName(rc, &name);
	gpu_say_why((int)rc, "%s: %s (%d)", call, name ? name : "error", (int)rc);
}

const char *gpu_why(void)
{
	return why.text;
}

int gpu_last(void)
{
	return why.code;
}

bool gpu_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

	if (!lib)
		return gpu_fail("no CUDA driver: %s", dlerror());
#define X(call) cu.call = (__typeof__(cu.call))dlsym(lib, GPU_NAME(call));
	GPU_CALLS(X)
#undef X
	return CU(cuInit, 0);
}

bool gpu_context(CUdevice *ret)
{
	CUcontext ctx;

	return gpu_load() && CU(cuDeviceGet, ret, 0) &&
	       CU(cuDevicePrimaryCtxSetFlags, *ret, CU_CTX_SCHED_SPIN) &&
	       CU(cuDevicePrimaryCtxRetain, &ctx, *ret) && CU(cuCtxSetCurrent, ctx);
}

bool gpu_stream(CUstream *ret)
{
	return CU(cuStreamCreate, ret, CU_STREAM_NON_BLOCKING);
}

int gpu_attr(CUdevice dev, CUdevice_attribute attr)
{
	int v = -1;

	return CU(cuDeviceGetAttribute, &v, attr, dev) ? v : -1;
}

bool gpu_kernel(const char *name, CUfunction *ret)
{
	CUmodule module;

	if (!*gpu_ptx)
		return gpu_fail("built without nvcc, so there are no kernels");
	return CU(cuModuleLoadData, &module, gpu_ptx) && CU(cuModuleGetFunction, ret, module, name);
}

/* ---- memory ---- */

static CUmemAllocationProp vmm_prop(CUdevice dev)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev}};
}

bool gpu_vmm_map(CUdevice dev, const CUmemGenericAllocationHandle *handles, unsigned n,
	size_t bytes_each, CUdeviceptr *ret_at)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at = 0;

	if (!CU(cuMemAddressReserve, &at, n * bytes_each, 0, 0, 0))
		return false;
	for (unsigned i = 0; i < n; i++)
		if (!CU(cuMemMap, at + i * bytes_each, bytes_each, 0, handles[i], 0))
			return false;
	*ret_at = at;
	return CU(cuMemSetAccess, at, n * bytes_each, &access, 1);
}

bool gpu_vmm_create(CUdevice dev, size_t bytes, struct gpu_vmm *ret)
{
	CUmemAllocationProp prop = vmm_prop(dev);
	size_t grain = 0;

	if (!CU(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return false;
	if (grain == 0)
		return gpu_fail("the granularity of memory is 0");
	ret->bytes = (bytes + grain - 1) / grain * grain;
	return CU(cuMemCreate, &ret->handle, ret->bytes, &prop, 0);
}

bool gpu_vmm_new(CUdevice dev, size_t bytes, struct gpu_vmm *ret)
{
	return gpu_vmm_create(dev, bytes, ret) &&
	       gpu_vmm_map(dev, &ret->handle, 1, ret->bytes, &ret->at);
}

bool gpu_vmm_export(const struct gpu_vmm *m, int *ret_fd)
{
	return CU(cuMemExportToShareableHandle, ret_fd, m->handle,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

bool gpu_vmm_take(int fd, CUmemGenericAllocationHandle *ret)
{
	return CU(cuMemImportFromShareableHandle, ret, (void *)(uintptr_t)fd,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

bool gpu_vmm_import(CUdevice dev, int fd, size_t bytes, struct gpu_vmm *ret)
{
	ret->bytes = bytes;
	return gpu_vmm_take(fd, &ret->handle) && gpu_vmm_map(dev, &ret->handle, 1, bytes, &ret->at);
}

void *gpu_map(int fd, size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

	if (at != MAP_FAILED)
		return at;
	gpu_fail("cannot map %zu bytes: %s", bytes, strerror(errno));
	return NULL;
}

void *gpu_memfd(size_t bytes, int *ret_fd)
{
	int fd = memfd_create("bps gpu test", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0) {
		gpu_fail("no memory of %zu bytes: %s", bytes, strerror(errno));
		return NULL;
	}
	*ret_fd = fd;
	return gpu_map(fd, bytes);
}

bool gpu_pin(void *host, size_t bytes, CUdeviceptr *ret_at)
{
	CUdeviceptr unused;

	return CU(cuMemHostRegister, host, bytes,
		       CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE) &&
	       CU(cuMemHostGetDevicePointer, ret_at ? ret_at : &unused, host, 0);
}

/* Return a word of the pattern. The word differs from the neighbouring words, and from words of
 * other seeds. */
static uint32_t word_at(size_t i, uint32_t seed)
{
	return (uint32_t)i * 2654435761u ^ seed * 40503u;
}

static uint32_t *staging_new(size_t bytes)
{
	void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (host == MAP_FAILED) {
		gpu_fail("out of memory");
		return NULL;
	}
	if (gpu_pin(host, bytes, NULL))
		return host;
	munmap(host, bytes);
	return NULL;
}

static void staging_free(void *host, size_t bytes)
{
	if (host && cu.cuMemHostUnregister)
		cu.cuMemHostUnregister(host);
	if (host)
		munmap(host, bytes);
}

bool gpu_fill(CUdeviceptr at, size_t bytes, uint32_t seed)
{
	uint32_t *host = staging_new(bytes);
	CUstream s;
	bool is_ok;

	for (size_t i = 0; host && i < bytes / sizeof(*host); i++)
		host[i] = word_at(i, seed);
	is_ok = host && gpu_stream(&s) && CU(cuMemcpyHtoDAsync, at, host, bytes, s) &&
		CU(cuStreamSynchronize, s);
	staging_free(host, bytes);
	return is_ok;
}

bool gpu_check(CUdeviceptr at, size_t bytes, uint32_t seed)
{
	uint32_t *host = staging_new(bytes);
	CUstream s;
	bool is_ok = host && gpu_stream(&s) && CU(cuMemcpyDtoHAsync, host, at, bytes, s) &&
		     CU(cuStreamSynchronize, s);

	for (size_t i = 0; is_ok && i < bytes / sizeof(*host); i++)
		if (host[i] != word_at(i, seed))
			is_ok = gpu_fail(
				"word %zu is %08x, not %08x", i, host[i], word_at(i, seed));
	staging_free(host, bytes);
	return is_ok;
}

/* ---- clock and figures ---- */

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct gpu_figures gpu_figures(double *v, size_t n)
{
	if (n == 0)
		return (struct gpu_figures){0};
	qsort(v, n, sizeof(*v), by_value);
	return (struct gpu_figures){.p50 = v[n / 2], .p99 = v[(n - 1) * 99 / 100], .max = v[n - 1]};
}

/* ---- answers ---- */

static void write_line(const char *item, bool is_ok, const char *rest)
{
	char line[2048];
	int n = snprintf(line, sizeof(line), "{\"item\":\"%s\",\"ok\":%s%s%s}\n", item,
		is_ok ? "true" : "false", *rest ? "," : "", rest);

	if (n > 0 && (size_t)n < sizeof(line) && write(STDOUT_FILENO, line, (size_t)n) != n)
		_exit(1); /* no process reads the output any more */
}

void gpu_answer(const char *item, bool is_ok, const char *fmt, ...)
{
	char rest[1536];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(rest, sizeof(rest), fmt, ap);
	va_end(ap);
	write_line(item, is_ok, rest);
}

const char *json_safe(const char *s)
{
	static char text[600];
	size_t n = 0;

	for (; *s && n < sizeof(text) - 1; s++)
		text[n++] = *s >= ' ' && *s <= '~' && *s != '"' && *s != '\\' ? *s : '?';
	text[n] = '\0';
	return text;
}

void answer_why(const char *item, bool is_skip)
{
	gpu_answer(item, is_skip, "\"%s\":\"%s\"", is_skip ? "skip" : "why", json_safe(gpu_why()));
}
