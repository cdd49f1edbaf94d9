#ifndef BPS_TESTS_GPU_GPU_H
#define BPS_TESTS_GPU_GPU_H
/* What the programs of tests/gpu share: the CUDA driver, taken at run time so that a program can
 * say that there is none; answers as lines of JSON; a clock.
 *
 * One thread per process at a time. cu is filled by gpu_load and read only afterwards. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#define GPU_CALLS(X)                                                                               \
	X(cuInit)                                                                                  \
	X(cuDriverGetVersion)                                                                      \
	X(cuGetErrorName)                                                                          \
	X(cuDeviceGet)                                                                             \
	X(cuDeviceGetCount)                                                                        \
	X(cuDeviceGetName)                                                                         \
	X(cuDeviceGetUuid)                                                                         \
	X(cuDeviceGetPCIBusId)                                                                     \
	X(cuDeviceGetAttribute)                                                                    \
	X(cuDeviceTotalMem)                                                                        \
	X(cuDevicePrimaryCtxRetain)                                                                \
	X(cuDevicePrimaryCtxSetFlags)                                                              \
	X(cuCtxSetCurrent)                                                                         \
	X(cuCtxGetCurrent)                                                                         \
	X(cuPointerGetAttribute)                                                                   \
	X(cuMemGetInfo)                                                                            \
	X(cuMemAlloc)                                                                              \
	X(cuMemFree)                                                                               \
	X(cuMemGetAddressRange)                                                                    \
	X(cuMemHostAlloc)                                                                          \
	X(cuMemHostUnregister)                                                                     \
	X(cuMemHostRegister)                                                                       \
	X(cuMemHostGetDevicePointer)                                                               \
	X(cuMemGetAllocationGranularity)                                                           \
	X(cuMemCreate)                                                                             \
	X(cuMemRelease)                                                                            \
	X(cuMemRetainAllocationHandle)                                                             \
	X(cuMemAddressReserve)                                                                     \
	X(cuMemAddressFree)                                                                        \
	X(cuMemMap)                                                                                \
	X(cuMemUnmap)                                                                              \
	X(cuMemSetAccess)                                                                          \
	X(cuMemExportToShareableHandle)                                                            \
	X(cuMemImportFromShareableHandle)                                                          \
	X(cuIpcGetMemHandle)                                                                       \
	X(cuIpcOpenMemHandle)                                                                      \
	X(cuIpcCloseMemHandle)                                                                     \
	X(cuMemcpyDtoHAsync)                                                                       \
	X(cuMemcpyHtoDAsync)                                                                       \
	X(cuMemcpyDtoDAsync)                                                                       \
	X(cuStreamCreate)                                                                          \
	X(cuStreamSynchronize)                                                                     \
	X(cuStreamQuery)                                                                           \
	X(cuStreamWaitValue64)                                                                     \
	X(cuStreamWriteValue64)                                                                    \
	X(cuEventCreate)                                                                           \
	X(cuEventRecord)                                                                           \
	X(cuEventSynchronize)                                                                      \
	X(cuModuleLoadData)                                                                        \
	X(cuModuleGetFunction)                                                                     \
	X(cuLaunchKernel)

/* Fields have the names that cuda.h gives the calls, such as cuMemAlloc_v2; cu.cuMemAlloc is
 * right. */
struct gpu_calls {
#define X(call) __typeof__(call) *call;
	GPU_CALLS(X)
#undef X
};
extern struct gpu_calls cu;

#define GPU_NAME_(call) #call
#define GPU_NAME(call)  GPU_NAME_(call)
/* Call the driver: true when it succeeded, else gpu_why has the sentence. */
#define CU(call, ...) gpu_ok(cu.call ? cu.call(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND, GPU_NAME(call))
void gpu_refused(CUresult rc, const char *call);
static inline bool gpu_ok(CUresult rc, const char *call)
{
	if (rc != CUDA_SUCCESS)
		gpu_refused(rc, call);
	return rc == CUDA_SUCCESS;
}
/* Of the last failure in this process. */
const char *gpu_why(void);
int gpu_last(void); /* its CUresult, or what gpu_fail_as said */
/* Say why oneself; it is false. code: for gpu_last, below 0; gpu_fail says -1. */
void gpu_say_why(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline bool gpu_false(void)
{
	return false;
}
#define gpu_fail_as(code, ...) (gpu_say_why(code, __VA_ARGS__), gpu_false())
#define gpu_fail(...)          gpu_fail_as(-1, __VA_ARGS__)

/* Find the driver and initialise it. Not before a fork. */
bool gpu_load(void);
/* The same, and the first GPU's primary context, current, whose waits spin. */
bool gpu_context(CUdevice *ret);
bool gpu_stream(CUstream *ret);
int gpu_attr(CUdevice dev, CUdevice_attribute attr);
/* A module of kernels.cu, and one of its functions. */
bool gpu_kernel(const char *name, CUfunction *ret);

/* ---- memory ---- */
/* A range of the GPU that can be shared by descriptor. */
struct gpu_vmm {
	CUdeviceptr at;
	size_t bytes;
	CUmemGenericAllocationHandle handle;
};
/* bytes is rounded up to the granularity. */
bool gpu_vmm_new(CUdevice dev, size_t bytes, struct gpu_vmm *ret);
/* The handle alone, not mapped. */
bool gpu_vmm_create(CUdevice dev, size_t bytes, struct gpu_vmm *ret);
/* n handles of one size side by side in one reservation. */
bool gpu_vmm_map(CUdevice dev, const CUmemGenericAllocationHandle *handles, unsigned n,
	size_t bytes_each, CUdeviceptr *ret_at);
bool gpu_vmm_export(const struct gpu_vmm *m, int *ret_fd);
/* fd stays the caller's. */
bool gpu_vmm_take(int fd, CUmemGenericAllocationHandle *ret);
bool gpu_vmm_import(CUdevice dev, int fd, size_t bytes, struct gpu_vmm *ret);
/* A memfd of bytes, mapped; NULL with a sentence. */
void *gpu_memfd(size_t bytes, int *ret_fd);
void *gpu_map(int fd, size_t bytes);
/* Let the GPU reach it; ret_at may be NULL. */
bool gpu_pin(void *host, size_t bytes, CUdeviceptr *ret_at);
/* Write, or check, a pattern that depends on seed, through pinned memory of the same size. */
bool gpu_fill(CUdeviceptr at, size_t bytes, uint32_t seed);
bool gpu_check(CUdeviceptr at, size_t bytes, uint32_t seed);

/* ---- clock and figures ---- */
uint64_t now_ns(void);
/* Sorts v. */
struct gpu_figures {
	double p50, p99, max;
} gpu_figures(double *v, size_t n);

/* ---- answers: one line of JSON each, in one write ---- */
/* is_ok: false when a bar is missed or the thing does not work. fmt: what follows in the object, ""
 * or `"a":1`. */
void gpu_answer(const char *item, bool is_ok, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* It could not be done, for gpu_why; is_skip: not this machine's fault, it only lacks something. */
void answer_why(const char *item, bool is_skip);
/* s for use between quotes in JSON; per process, until the next call. */
const char *json_safe(const char *s);
#endif
