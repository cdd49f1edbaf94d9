#ifndef BPS_TESTS_GPU_FAKE_CONTROL_H
#define BPS_TESTS_GPU_FAKE_CONTROL_H
/* Controls of the fake libcuda.so.1 (tests/gpu/fake/fake.h) beyond the driver's functions. A
 * program that is linked with the fake calls these; others use the environment:
 *
 *   FAKE_CUDA_GPUS=n       GPUs of this machine (1)
 *   FAKE_CUDA_VISIBLE=...  as CUDA_VISIBLE_DEVICES, ordinals only
 *   FAKE_CUDA_LINKS=nvlink|pci|none  between the GPUs (nvlink)
 *   FAKE_CUDA_PCI=a,b,...  addresses of the GPUs (0000:1a:00.0 and the next ones)
 *   FAKE_CUDA_NUMA=n,...   their nodes; -1: unknown (0 and 1 in turn)
 *   FAKE_CUDA_LACKS=n,...  device attributes that are 0
 *   FAKE_CUDA_FAULTS=...   see fakecuda_faults
 *   FAKE_CUDA_TRACE=file   one line per call and per piece of queued work as it runs
 *   FAKE_CUDA_DELAY_US=n   each piece of queued work starts up to n us late
 *   FAKE_NCCL_VERSION=n    result of ncclGetVersion (22809) */
#include <stdint.h>

/* Set the faults from now on, in place of earlier ones: "NAME:N=CODE,...". The N-th call (from 1,
 * counted from now) of function NAME (without _v2) returns CODE; "NAME:N+=CODE" each call from the
 * N-th on. NAME `work` is the N-th piece of queued work: from then on every call returns CODE. CODE
 * `hang` never returns, or never completes. Codes that are sticky with the driver are sticky here.
 * NULL or "" ends all faults and clears a sticky error. */
void fakecuda_faults(const char *spec);

/* Live objects: a program that closed all it opened sees zeros. */
struct fakecuda_live {
	unsigned contexts, handles, reservations, mappings, allocations, imports, pinned;
	unsigned streams, events, communicators;
};
void fakecuda_live(struct fakecuda_live *ret);

/* Return the calls of a function so far in this process (name without _v2). */
uint64_t fakecuda_calls(const char *name);

/* Copy bytes of device memory for the host to check, which a real GPU does not allow. */
void fakecuda_peek(uint64_t addr, void *dst, uint64_t bytes);
void fakecuda_poke(uint64_t addr, const void *src, uint64_t bytes);
#endif
