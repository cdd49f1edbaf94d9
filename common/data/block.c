/* Block types: choose the kernels, and fill an incomplete last block. */
#include "common/data/block.h"

#include "common/data/simd.h"

#define BLOCK_TABLE block_portable
#include "common/data/block_kernels.h"

static const struct block_table *const tables[SIMD_COUNT] =
	SIMD_TABLES(block_portable, block_avx2, block_avx512);

static const struct block_functions *block_functions_get(enum dtype dtype)
{
	return &tables[simd_in_use()]->types[dtype - DTYPE_Q8];
}

/* Fill an array of `total` values with its first n values again and again. */
static void repeat_values(float *values, size_t n, size_t total)
{
	for (size_t i = n; i < total; i++)
		values[i] = values[i - n];
}

void block_encode(void *dst, const float *src, float *residual, size_t n_values, float scale,
	enum dtype dtype)
{
	const struct block_functions *fn = block_functions_get(dtype);
	size_t per_block = dtype_values(dtype), n_blocks = n_values / per_block;
	size_t n_whole = n_blocks * per_block, n_rest = n_values - n_whole;
	unsigned char *last = (unsigned char *)dst + n_blocks * dtype_bytes(dtype);
	float values[VALUES_MAX], residuals[VALUES_MAX];

	fn->encode(dst, src, residual, n_blocks, scale);
	if (!n_rest)
		return;
	memcpy(values, src + n_whole, n_rest * sizeof(*values));
	repeat_values(values, n_rest, per_block);
	if (!residual) {
		fn->encode(last, values, NULL, 1, scale);
		return;
	}
	memcpy(residuals, residual + n_whole, n_rest * sizeof(*residuals));
	repeat_values(residuals, n_rest, per_block);
	fn->encode(last, values, residuals, 1, scale);
	memcpy(residual + n_whole, residuals, n_rest * sizeof(*residuals));
}

void block_decode(float *dst, const void *src, size_t n_values, float scale, enum dtype dtype)
{
	const struct block_functions *fn = block_functions_get(dtype);
	size_t per_block = dtype_values(dtype), n_blocks = n_values / per_block;
	size_t n_whole = n_blocks * per_block;
	float values[VALUES_MAX];

	fn->decode(dst, src, n_blocks, scale);
	if (n_whole == n_values)
		return;
	fn->decode(values, (const unsigned char *)src + n_blocks * dtype_bytes(dtype), 1, scale);
	memcpy(dst + n_whole, values, (n_values - n_whole) * sizeof(*values));
}

void block_fold(void *acc, const void *const *src, unsigned n_src, size_t n_elems, enum dtype dtype,
	bool is_first)
{
	block_functions_get(dtype)->fold(acc, src, n_src, n_elems, is_first);
}

void block_finish(void *dst, const void *acc, size_t n_elems, enum dtype dtype, uint32_t divisor)
{
	block_functions_get(dtype)->finish(dst, acc, n_elems, divisor);
}

void block_reduce_all(void *dst, const void *const *src, unsigned n_src, size_t n_elems,
	enum dtype dtype, uint32_t divisor)
{
	block_functions_get(dtype)->reduce_all(dst, src, n_src, n_elems, divisor);
}
