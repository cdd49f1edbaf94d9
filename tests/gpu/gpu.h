#ifndef BPS_TESTS_GPU_GPU_H
#define BPS_TESTS_GPU_GPU_H
/* Helpers of the programs in tests/gpu: calls of the CUDA driver, a clock, and answers as lines of
 * JSON. The driver is loaded at run time, so that a program can report a missing driver.
 *
 * Only one thread of a process uses these helpers at a time. gpu_load fills the table cu. All other
 * code only reads the table. */
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
	X(cuMemcpy2DAsync)                                                                         \
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

/* Table of the driver's functions. cuda.h defines macros such as cuMemAlloc, which expands to
 * cuMemAlloc_v2. The field therefore has the name cuMemAlloc_v2, and source code can write
 * cu.cuMemAlloc. */
struct gpu_calls {
#define X(call) __typeof__(call) *call;
	GPU_CALLS(X)
#undef X
};
extern struct gpu_calls cu;

#define GPU_NAME_(call) #call
#define GPU_NAME(call)  GPU_NAME_(call)
/* Call the driver. Return true if the call succeeded. Otherwise gpu_why returns the reason. */
#define CU(call, ...) gpu_ok(cu.call ? cu.call(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND, GPU_NAME(call))
void gpu_refused(CUresult rc, const char *call);
static inline bool gpu_ok(CUresult rc, const char *call)
{
	if (rc != CUDA_SUCCESS)
		gpu_refused(rc, call);
	return rc == CUDA_SUCCESS;
}
/* Return the text that describes the last failure in this process. */
const char *gpu_why(void);
int gpu_last(void); /* CUresult of the last failure, or the code that gpu_fail_as set */
/* Set the text and the negative code of a failure, for gpu_why and gpu_last. gpu_fail sets the code
 * to -1. */
void gpu_say_why(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline bool gpu_false(void)
{
	return false;
}
#define gpu_fail_as(code, ...) (gpu_say_why(code, __VA_ARGS__), gpu_false())
#define gpu_fail(...)          gpu_fail_as(-1, __VA_ARGS__)

/* Load the driver and initialise it. A process that forks must call this only after the fork. */
bool gpu_load(void);
/* Load the driver, and make the first GPU's primary context current. The context's flags make a
 * thread poll in a busy loop while the thread waits for the GPU. */
bool gpu_context(CUdevice *ret);
bool gpu_stream(CUstream *ret);
int gpu_attr(CUdevice dev, CUdevice_attribute attr);
/* Load the module of kernels.cu, and find one of its functions. */
bool gpu_kernel(const char *name, CUfunction *ret);

/* ---- memory ---- */
/* A range of GPU memory that another process can import through a file descriptor. */
struct gpu_vmm {
	CUdeviceptr at;
	size_t bytes;
	CUmemGenericAllocationHandle handle;
};
/* Make and map a range. Its size is rounded up to the granularity. */
bool gpu_vmm_new(CUdevice dev, size_t bytes, struct gpu_vmm *ret);
/* Make the handle of a range without mapping the range. */
bool gpu_vmm_create(CUdevice dev, size_t bytes, struct gpu_vmm *ret);
/* Map n handles of the same size side by side into one reservation. */
bool gpu_vmm_map(CUdevice dev, const CUmemGenericAllocationHandle *handles, unsigned n,
	size_t bytes_each, CUdeviceptr *ret_at);
bool gpu_vmm_export(const struct gpu_vmm *m, int *ret_fd);
/* Import a handle from a descriptor. The caller still has to close fd. */
bool gpu_vmm_take(int fd, CUmemGenericAllocationHandle *ret);
bool gpu_vmm_import(CUdevice dev, int fd, size_t bytes, struct gpu_vmm *ret);
/* Return a mapped memfd of the given size. NULL: an error, and gpu_why returns the reason. */
void *gpu_memfd(size_t bytes, int *ret_fd);
void *gpu_map(int fd, size_t bytes);
/* Register host memory with the GPU; ret_at may be NULL. */
bool gpu_pin(void *host, size_t bytes, CUdeviceptr *ret_at);
/* Write or check `bytes` bytes of a pattern that depends on the seed. The bytes pass through a
 * pinned buffer, which these functions allocate and free. */
bool gpu_fill(CUdeviceptr at, size_t bytes, uint32_t seed);
bool gpu_check(CUdeviceptr at, size_t bytes, uint32_t seed);

/* ---- clock and figures ---- */
uint64_t now_ns(void);
/* Compute percentiles and the maximum of the n values in v. Sorts v. */
struct gpu_figures {
	double p50, p99, max;
} gpu_figures(double *v, size_t n);

/* ---- answers: one line of JSON each, in one write ---- */
/* Print the answer of an item. is_ok: false when the item does not work or misses its limit. fmt:
 * more fields of the JSON object, such as `"a":1`, or "". */
void gpu_answer(const char *item, bool is_ok, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Report that an item could not run, with the text of gpu_why as the reason. is_skip: report the
 * item as skipped instead of failed, because the machine lacks hardware or software. */
void answer_why(const char *item, bool is_skip);
/* Escape s for use between quotes in JSON. The result is valid until the next call in this
 * process. */
const char *json_safe(const char *s);
#endif
