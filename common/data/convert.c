/* Conversions between f32 and other fractional types. The kernels for f16 and bf16 are in
 * convert_kernels.h, and those for block types in block_kernels.h. */
#include "common/data/convert.h"

#include "common/data/block.h"
#include "common/data/simd.h"

#define CONVERT_TABLE convert_portable
#include "common/data/convert_kernels.h"

static const struct convert_table *const tables[SIMD_COUNT] =
	SIMD_TABLES(convert_portable, convert_avx2, convert_avx512);

static void scale_f32_values(float *restrict to, const float *restrict from, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] * scale;
}

static void scale_f32_to_f64(
	double *restrict to, const float *restrict from, size_t n, double scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (double)from[i] * scale;
}

static void scale_f64_to_f32(
	float *restrict to, const double *restrict from, size_t n, double scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (float)(from[i] * scale);
}

void convert_from_f32(void *dst, const float *src, size_t n_values, float scale, enum dtype dtype)
{
	const struct convert_table *t = tables[simd_in_use()];

	if (dtype_is_block(dtype))
		block_encode(dst, src, NULL, n_values, scale, dtype);
	else if (dtype == DTYPE_BF16)
		t->bf16_from_f32(dst, src, n_values, scale);
	else if (dtype == DTYPE_F16)
		t->f16_from_f32(dst, src, n_values, scale);
	else if (dtype == DTYPE_F64)
		scale_f32_to_f64(dst, src, n_values, (double)scale);
	else
		scale_f32_values(dst, src, n_values, scale);
}

void convert_to_f32(float *dst, const void *src, size_t n_values, float scale, enum dtype dtype)
{
	const struct convert_table *t = tables[simd_in_use()];

	if (dtype_is_block(dtype))
		block_decode(dst, src, n_values, scale, dtype);
	else if (dtype == DTYPE_BF16)
		t->f32_from_bf16(dst, src, n_values, scale);
	else if (dtype == DTYPE_F16)
		t->f32_from_f16(dst, src, n_values, scale);
	else if (dtype == DTYPE_F64)
		scale_f64_to_f32(dst, src, n_values, (double)scale);
	else
		scale_f32_values(dst, src, n_values, scale);
}
