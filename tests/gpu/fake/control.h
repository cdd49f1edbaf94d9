#ifndef BPS_TESTS_GPU_FAKE_CONTROL_H
#define BPS_TESTS_GPU_FAKE_CONTROL_H
/* How a test controls the fake libcuda.so.1 (tests/gpu/fake/fake.h). The functions in this file
 * are for programs that are linked with the fake. In all programs, the fake reads these environment
 * variables (defaults are in parentheses):
 *
 *   FAKE_CUDA_GPUS=n       number of GPUs of this machine (1)
 *   FAKE_CUDA_VISIBLE=...  like CUDA_VISIBLE_DEVICES, but only numbers
 *   FAKE_CUDA_LINKS=nvlink|pci|none  links between the GPUs (nvlink)
 *   FAKE_CUDA_PCI=a,b,...  PCI addresses of the GPUs (0000:1a:00.0 and the next ones)
 *   FAKE_CUDA_NUMA=n,...   NUMA nodes of the GPUs; -1: unknown (0 and 1 alternately)
 *   FAKE_CUDA_LACKS=n,...  device attributes whose value is 0
 *   FAKE_CUDA_FAULTS=...   see fakecuda_faults
 *   FAKE_CUDA_TRACE=file   write a line per call, and per piece of queued work that runs
 *   FAKE_CUDA_DELAY_US=n   start each piece of queued work up to n us late
 *   FAKE_NCCL_VERSION=n    result of ncclGetVersion (22809) */
#include <stdint.h>

/* Replace all faults: "NAME:N=CODE,...". The N-th call of function NAME returns CODE. The next call
 * is number 1. NAME has no suffix such as _v2. With "NAME:N+=CODE", the N-th call and all later
 * calls return CODE. If NAME is `work`, the N-th piece of queued work fails, and from then on every
 * call returns CODE. If CODE is `hang`, the call or the work blocks until the faults are replaced.
 * Codes that are sticky in the driver are sticky in the fake, too. NULL or "" ends all faults and
 * clears a sticky error. */
void fakecuda_faults(const char *spec);

/* Numbers of objects that exist. They are zero when a program has closed everything that it
 * opened. */
struct fakecuda_live {
	unsigned contexts, handles, reservations, mappings, allocations, imports, pinned;
	unsigned streams, events, communicators;
};
void fakecuda_live(struct fakecuda_live *ret);

/* Return the number of calls of a function in this process. The name has no suffix such as _v2. */
uint64_t fakecuda_calls(const char *name);

/* Copy bytes from or to device memory, so that the host can check or set them. With a real GPU this
 * is not possible. */
void fakecuda_peek(uint64_t addr, void *dst, uint64_t bytes);
void fakecuda_poke(uint64_t addr, const void *src, uint64_t bytes);
#endif
