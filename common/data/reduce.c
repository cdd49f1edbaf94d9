/* Element-wise reduction: split the elements into groups, and pad an incomplete last group. The
 * inner loops are in reduce_kernels.h. Any thread may call the functions. */
#include "common/data/reduce.h"

#include <string.h>

#include "common/data/block.h"
#include "common/data/simd.h"

#define REDUCE_TABLE     reduce_portable
#define REDUCE_VEC_BYTES 16 /* width of the registers of SSE2, NEON and VSX */
#include "common/data/reduce_kernels.h"

static const struct reduce_table *const tables[SIMD_COUNT] =
	SIMD_TABLES(reduce_portable, reduce_avx2, reduce_avx512);

static const struct reduce_table *reduce_table_get(void)
{
	return tables[simd_in_use()];
}

/* The elements of the sources after the last whole group, in padded buffers, because kernels work
 * on whole groups. */
struct rest {
	unsigned char mem[REDUCE_MAX_SRC][REDUCE_GROUP_BYTES];
	const void *src[REDUCE_MAX_SRC];
};

/* Copy n elements from element `begin` on of each source. elem: size of an element in bytes. */
static void reduce_copy_remainder(struct rest *ret, const void *const *src, unsigned n_src,
	size_t begin, size_t n, size_t elem)
{
	memset(ret->mem, 0, n_src * sizeof(ret->mem[0]));
	for (unsigned i = 0; i < n_src; i++) {
		memcpy(ret->mem[i], (const unsigned char *)src[i] + begin * elem, n * elem);
		ret->src[i] = ret->mem[i];
	}
}

static void reduce_fold_elements(void *acc, const void *const *src, const float *weights,
	unsigned n_src, size_t n_elems, enum dtype dtype, enum op op, bool is_first)
{
	reduce_fold_fn *fn = reduce_table_get()->fold[dtype][op];
	size_t acc_size = dtype_acc_bytes(dtype), group = REDUCE_GROUP_BYTES / acc_size;
	size_t n_rest = n_elems % group, n_whole = n_elems - n_rest;
	unsigned char *acc_rest = (unsigned char *)acc + n_whole * acc_size;
	unsigned char pad_acc[REDUCE_GROUP_BYTES] = {0};
	struct rest rest;

	if (n_whole)
		fn(acc, src, weights, n_src, n_whole, is_first);
	if (!n_rest)
		return;
	reduce_copy_remainder(&rest, src, n_src, n_whole, n_rest, dtype_bytes(dtype));
	if (!is_first)
		memcpy(pad_acc, acc_rest, n_rest * acc_size);
	fn(pad_acc, rest.src, weights, n_src, group, is_first);
	memcpy(acc_rest, pad_acc, n_rest * acc_size);
}

void reduce_fold(void *acc, const void *const *src, unsigned n_src, size_t n_elems,
	enum dtype dtype, enum op op, bool is_first)
{
	if (dtype_is_block(dtype)) {
		block_fold(acc, src, n_src, n_elems, dtype, is_first);
		return;
	}
	if (op_is_bitwise(op)) {
		/* bitwise operations are the same for all integers */
		n_elems *= dtype_bytes(dtype);
		dtype = DTYPE_U8;
	}
	reduce_fold_elements(
		acc, src, NULL, n_src, n_elems, dtype, op == OP_AVG ? OP_SUM : op, is_first);
}

void reduce_means_fold(void *acc, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, bool is_first)
{
	reduce_fold_elements(acc, src, weights, n_src, n_elems, DTYPE_F16, OP_AVG, is_first);
}

static int64_t floor_div(int64_t x, uint32_t divisor)
{
	int64_t d = divisor, q = x / d;

	return x % d < 0 ? q - 1 : q;
}

/* Divide without vector instructions, because AVX2 and AVX-512 have no instruction that divides
 * integers. Averages of integers are rare. */
#define FLOOR_DIV_ALL(type)                                                                        \
	for (size_t i = 0; i < n_elems; i++) {                                                     \
		type x;                                                                            \
                                                                                                   \
		memcpy(&x, from + i * sizeof(x), sizeof(x));                                       \
		x = (type)floor_div(x, divisor);                                                   \
		memcpy(to + i * sizeof(x), &x, sizeof(x));                                         \
	}

static void finish_integers(
	void *dst, const void *acc, size_t n_elems, enum dtype dtype, uint32_t divisor)
{
	const unsigned char *from = acc;
	unsigned char *to = dst;

	if (dtype == DTYPE_I8)
		FLOOR_DIV_ALL(int8_t)
	else if (dtype == DTYPE_U8)
		FLOOR_DIV_ALL(uint8_t)
	else if (dtype == DTYPE_I32)
		FLOOR_DIV_ALL(int32_t)
	else
		FLOOR_DIV_ALL(int64_t)
}

static void reduce_finish_floats(
	void *dst, const void *acc, size_t n_elems, enum dtype dtype, uint32_t divisor)
{
	reduce_finish_fn *fn = reduce_table_get()->finish[dtype];
	unsigned char pad_acc[REDUCE_GROUP_BYTES] = {0}, pad_dst[REDUCE_GROUP_BYTES];
	size_t acc_size = dtype_acc_bytes(dtype), size = dtype_bytes(dtype);
	size_t n_rest = n_elems % (REDUCE_GROUP_BYTES / acc_size), n_whole = n_elems - n_rest;

	if (n_whole)
		fn(dst, acc, n_whole, divisor);
	if (n_rest) {
		memcpy(pad_acc, (const unsigned char *)acc + n_whole * acc_size, n_rest * acc_size);
		fn(pad_dst, pad_acc, REDUCE_GROUP_BYTES / acc_size, divisor);
		memcpy((unsigned char *)dst + n_whole * size, pad_dst, n_rest * size);
	}
}

void reduce_finish(
	void *dst, const void *acc, size_t n_elems, enum dtype dtype, enum op op, uint32_t divisor)
{
	bool is_same_type = dtype_bytes(dtype) == dtype_acc_bytes(dtype);

	if (op != OP_AVG)
		divisor = 1;
	if (dtype_is_block(dtype)) {
		block_finish(dst, acc, n_elems, dtype, divisor);
	} else if (divisor == 1 && is_same_type) {
		if (dst != acc && n_elems)
			memcpy(dst, acc, n_elems * dtype_bytes(dtype));
	} else if (reduce_table_get()->finish[dtype]) {
		reduce_finish_floats(dst, acc, n_elems, dtype, divisor);
	} else {
		finish_integers(dst, acc, n_elems, dtype, divisor);
	}
}

static void reduce_fold_and_finish(void *dst, const void *const *src, const float *weights,
	unsigned n_src, size_t n_elems, enum dtype dtype, enum op op, uint32_t divisor)
{
	reduce_whole_fn *fn = reduce_table_get()->whole[dtype][op];
	size_t elem = dtype_bytes(dtype), group = REDUCE_GROUP_BYTES / dtype_acc_bytes(dtype);
	size_t n_rest = n_elems % group, n_whole = n_elems - n_rest;
	unsigned char out[REDUCE_GROUP_BYTES];
	struct rest rest;

	if (n_whole)
		fn(dst, src, weights, n_src, n_whole, divisor);
	if (!n_rest)
		return;
	reduce_copy_remainder(&rest, src, n_src, n_whole, n_rest, elem);
	fn(out, rest.src, weights, n_src, group, divisor);
	memcpy((unsigned char *)dst + n_whole * elem, out, n_rest * elem);
}

void reduce_all(void *dst, const void *const *src, unsigned n_src, size_t n_elems, enum dtype dtype,
	enum op op, uint32_t divisor)
{
	if (dtype_is_block(dtype)) {
		block_reduce_all(dst, src, n_src, n_elems, dtype, op == OP_AVG ? divisor : 1);
	} else if (dtype_bytes(dtype) == dtype_acc_bytes(dtype)) {
		reduce_fold(dst, src, n_src, n_elems, dtype, op, true);
		reduce_finish(dst, dst, n_elems, dtype, op, divisor);
	} else if (op == OP_AVG) {
		reduce_fold_and_finish(dst, src, NULL, n_src, n_elems, dtype, OP_SUM, divisor);
	} else {
		reduce_fold_and_finish(dst, src, NULL, n_src, n_elems, dtype, op, 1);
	}
}

void reduce_means_all(void *dst, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, uint32_t divisor)
{
	reduce_fold_and_finish(dst, src, weights, n_src, n_elems, DTYPE_F16, OP_AVG, divisor);
}
