#ifndef BPS_TESTS_GPU_FAKE_ELEM_H
#define BPS_TESTS_GPU_FAKE_ELEM_H
/* Elements of NCCL's types. Integers are computed in 64 bits, other types in doubles. */
#include <nccl.h>
#include <stddef.h>

/* Return the size of an element in bytes, or 0 if the fake does not support the type. */
size_t elem_bytes(ncclDataType_t type);
/* Compute dst[i] = src[0][i] op src[1][i] op ... for n elements. */
void elem_reduce(
	void *dst, void *const *src, int n_src, size_t n, ncclDataType_t type, ncclRedOp_t op);
#endif
