#ifndef BPS_TESTS_GPU_FAKE_ELEM_H
#define BPS_TESTS_GPU_FAKE_ELEM_H
/* Elements of NCCL's types in plain arithmetic: integers in 64 bits, the rest in doubles. */
#include <nccl.h>
#include <stddef.h>

/* Return the bytes of one element; 0 for a type that the fake does not support. */
size_t elem_bytes(ncclDataType_t type);
/* dst[i] = src[0][i] op src[1][i] ... for n elements. */
void elem_reduce(
	void *dst, void *const *src, int n_src, size_t n, ncclDataType_t type, ncclRedOp_t op);
#endif
