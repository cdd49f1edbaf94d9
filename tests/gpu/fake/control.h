#ifndef BPS_TESTS_GPU_FAKE_CONTROL_H
#define BPS_TESTS_GPU_FAKE_CONTROL_H
/* What a test asks of the fake libcuda.so.1 (tests/gpu/fake/fake.h says what that is) beyond the
 * driver's functions. A program that is linked with the fake calls these; others use the
 * environment:
 *
 *   FAKE_CUDA_GPUS=n       GPUs of this machine (1)
 *   FAKE_CUDA_VISIBLE=...  as CUDA_VISIBLE_DEVICES, ordinals only
 *   FAKE_CUDA_LINKS=nvlink|pci|none  between the GPUs (nvlink)
 *   FAKE_CUDA_PCI=a,b,...  addresses of the GPUs (0000:1a:00.0 and those behind it)
 *   FAKE_CUDA_NUMA=n,...   their nodes; -1: not known (0 and 1 in turn)
 *   FAKE_CUDA_LACKS=n,...  device attributes that are 0
 *   FAKE_CUDA_FAULTS=...   see fakecuda_faults
 *   FAKE_CUDA_TRACE=file   one line per call and per piece of queued work as it runs
 *   FAKE_CUDA_DELAY_US=n   each piece of queued work begins up to n us late
 *   FAKE_NCCL_VERSION=n    what ncclGetVersion says (22809) */
#include <stdint.h>

/* Faults from now on, instead of those there were: "NAME:N=CODE,...". The N-th call (from 1,
 * counted from now) of function NAME (without _v2) returns CODE; "NAME:N+=CODE" each from the N-th.
 * NAME `work` is the N-th piece of queued work: CODE is then what everything answers from there on.
 * CODE `hang` never returns, or never completes. Codes that are sticky with the driver are sticky
 * here. NULL or "" ends all faults and forgets a sticky error. */
void fakecuda_faults(const char *spec);

/* What lives: a program that closed all it opened sees zeros. */
struct fakecuda_live {
	unsigned contexts, handles, reservations, mappings, allocations, imports, pinned;
	unsigned streams, events, communicators;
};
void fakecuda_live(struct fakecuda_live *ret);

/* Calls of a function so far in this process (without _v2). */
uint64_t fakecuda_calls(const char *name);

/* Bytes of device memory for the host to look at, which on a real GPU nobody can. */
void fakecuda_peek(uint64_t addr, void *dst, uint64_t bytes);
void fakecuda_poke(uint64_t addr, const void *src, uint64_t bytes);
#endif
