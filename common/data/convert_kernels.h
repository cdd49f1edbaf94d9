#ifndef BPS_COMMON_DATA_CONVERT_KERNELS_H
#define BPS_COMMON_DATA_CONVERT_KERNELS_H
/* The inner loops of convert.c for f16 and bf16, private to convert.c: one table of functions per
 * instruction set.
 *
 * The first part declares the tables. The second part has the code of all kernels. The source file
 * of each instruction set compiles the second part once. Before the source file includes this
 * header, it defines CONVERT_TABLE, the name of the table to define. Some CPUs lack the instruction
 * set for which a source file is compiled. So each source file must define only its table and
 * static functions.
 *
 * The product of two f32 is exact in f64, and is rounded once: to the nearest number, ties to even.
 * If scale is a power of two, the product is exact in f32 already, except for subnormal results.
 * Then the loops round the bits of the f32, which is four times faster. The loops have no branches,
 * and no loop converts between 16 and 64 bits. So the compiler vectorizes the loops. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/data/kernels_inline.h"

struct convert_table {
	void (*bf16_from_f32)(uint16_t *dst, const float *src, size_t n, float scale);
	void (*f16_from_f32)(uint16_t *dst, const float *src, size_t n, float scale);
	void (*f32_from_bf16)(float *dst, const uint16_t *src, size_t n, float scale);
	void (*f32_from_f16)(float *dst, const uint16_t *src, size_t n, float scale);
};

extern const struct convert_table convert_portable, convert_avx2, convert_avx512;

#ifdef CONVERT_TABLE
/* Number of values that a loop converts at a time. The buffer of 4 KiB stays in the L1 cache. */
#define STEP_VALUES 1024

/* Number of fraction bits: f64 has 52, f32 has 23, f16 has 10, bf16 has 7. Bias of the exponent:
 * f32 has 127, f16 has 15. */
#define BF16_DROPPED 45 /* bits by which the fraction of bf16 is shorter than that of f64: 52 - 7 */
#define F16_DROPPED  42
#define BF16_NORMAL  0x1p-126 /* smallest normal number of bf16 */
#define F16_NORMAL   0x1p-14
#define BF16_LEAST   0x1p-133 /* smallest bf16 number above 0 */
#define F16_LEAST    0x1p-24
#define F32_INF      0x7f800000u
#define F16_INF      0x7c00u
#define F16_NAN      0x7e00u
#define F16_REBIAS   0x38000000u /* difference of the biases: (127 - 15) << 23 */
#define F16_END      0x47800000u /* 2^16 in f32 */
#define F16_MIN      0x38800000u /* F16_NORMAL in f32 */
#define HALF         0x3f000000u /* 0.5 in f32; its last bit has the value F16_LEAST */

/* Round x to a type whose fraction is `dropped` bits shorter than that of f64. normal: the type's
 * smallest normal number. least: the type's smallest number above 0. The type's numbers below
 * `normal` are the multiples of `least`. To round x to such a multiple, the function adds `rounder`
 * to x and then subtracts `rounder` again. The last bit of `rounder` has the value `least`. */
INLINE double round_f64_ties_to_even(double x, unsigned dropped, double normal, double least)
{
	double rounder = 0x1.8p52 * least, small = (x + rounder) - rounder, large;
	uint64_t bits, below = (UINT64_C(1) << dropped) - 1;

	memcpy(&bits, &x, sizeof(bits));
	bits = (bits + (below >> 1) + (bits >> dropped & 1)) & ~below;
	memcpy(&large, &bits, sizeof(large));
	/* Return a NaN unchanged. The addition above can carry from the fraction of the NaN into
	 * the exponent. `large` is then not a NaN. */
	large = x == x ? large : x;
	small = __builtin_copysign(small, x);
	return __builtin_fabs(x) < normal ? small : large;
}

/* Return the f16 with the value of an f32, which is given as its bits. Unless the f16 is subnormal,
 * the caller has rounded the value to f16's precision. A value that is too large gives infinity. */
INLINE uint16_t f16_from_f32_bits(uint32_t bits)
{
	uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
	uint32_t normal = (size - F16_REBIAS) >> 13;
	uint32_t subnormal = bits_from_f32(f32_from_bits(size) + f32_from_bits(HALF)) - HALF;
	uint32_t h = size < F16_MIN ? subnormal : normal;

	h = size >= F16_END ? F16_INF : h;
	h = size > F32_INF ? F16_NAN : h;
	return (uint16_t)(sign | h);
}

INLINE float f32_from_f16_bits(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, size = h & 0x7fff;
	uint32_t normal = (size << 13) + F16_REBIAS;
	uint32_t subnormal = bits_from_f32(f32_from_bits(HALF + size) - f32_from_bits(HALF));
	uint32_t bits = size < 0x400 ? subnormal : normal;

	bits = size >= F16_INF ? (size << 13) | F32_INF : bits;
	return f32_from_bits(sign | bits);
}

INLINE float f32_from_bf16_bits(uint16_t h)
{
	return f32_from_bits((uint32_t)h << 16);
}

INLINE void step_to_bf16_in_f64(
	uint16_t *restrict to, const float *restrict from, size_t n, double scale)
{
	float step[STEP_VALUES];

	for (size_t i = 0; i < n; i++)
		step[i] = (float)round_f64_ties_to_even(
			(double)from[i] * scale, BF16_DROPPED, BF16_NORMAL, BF16_LEAST);
	for (size_t i = 0; i < n; i++)
		to[i] = (uint16_t)(bits_from_f32(step[i]) >> 16);
}

INLINE void step_to_f16_in_f64(
	uint16_t *restrict to, const float *restrict from, size_t n, double scale)
{
	float step[STEP_VALUES];

	for (size_t i = 0; i < n; i++)
		step[i] = (float)round_f64_ties_to_even(
			(double)from[i] * scale, F16_DROPPED, F16_NORMAL, F16_LEAST);
	for (size_t i = 0; i < n; i++)
		to[i] = f16_from_f32_bits(bits_from_f32(step[i]));
}

/* Return whether scale is a normal power of two. */
INLINE bool scale_is_power_of_two(float scale)
{
	uint32_t bits = bits_from_f32(scale) & 0x7fffffff;

	return !(bits & 0x7fffff) && bits && bits < F32_INF;
}

INLINE uint16_t bf16_from_f32_rounded(uint32_t bits)
{
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (uint16_t)((bits & 0x7fffffff) > F32_INF ? bits >> 16 | 0x40 : rounded);
}

/* Add half of f16's last bit to a normal number before the fraction is truncated. A carry increases
 * the exponent, up to infinity. The addition in f16_from_f32_bits rounds subnormal results. */
INLINE uint16_t f16_from_f32_rounded(uint32_t bits)
{
	uint32_t size = bits & 0x7fffffff;
	uint32_t rounded = (size + 0xfff + (size >> 13 & 1)) & ~0x1fffu;

	size = size < F16_MIN || size > F32_INF ? size : rounded;
	return f16_from_f32_bits((bits & 0x80000000) | size);
}

/* Convert a step whose products are exact in f32. Returns false if a product that is not 0 is
 * subnormal, so that it may have been rounded already. */
INLINE bool step_to_bf16_in_f32(
	uint16_t *restrict to, const float *restrict from, size_t n, float scale)
{
	uint32_t has_subnormal = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits = bits_from_f32(from[i] * scale);
		uint32_t is_small = (bits & F32_INF) == 0;
		uint32_t is_zero = (bits_from_f32(from[i]) & 0x7fffffff) == 0;

		has_subnormal |= is_small & ~is_zero;
		to[i] = bf16_from_f32_rounded(bits);
	}
	return !(has_subnormal & 1);
}

INLINE void step_to_f16_in_f32(
	uint16_t *restrict to, const float *restrict from, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = f16_from_f32_rounded(bits_from_f32(from[i] * scale));
}

static void bf16_from_f32(uint16_t *dst, const float *src, size_t n_values, float scale)
{
	bool is_exact = scale_is_power_of_two(scale);

	for (size_t i = 0; i < n_values; i += STEP_VALUES) {
		size_t n = n_values - i < STEP_VALUES ? n_values - i : STEP_VALUES;

		if (!is_exact || !step_to_bf16_in_f32(dst + i, src + i, n, scale))
			step_to_bf16_in_f64(dst + i, src + i, n, (double)scale);
	}
}

/* f16's smallest numbers are normal in f32, and smaller products become 0. So subnormal products
 * need no second attempt. */
static void f16_from_f32(uint16_t *dst, const float *src, size_t n_values, float scale)
{
	bool is_exact = scale_is_power_of_two(scale);

	for (size_t i = 0; i < n_values; i += STEP_VALUES) {
		size_t n = n_values - i < STEP_VALUES ? n_values - i : STEP_VALUES;

		if (is_exact)
			step_to_f16_in_f32(dst + i, src + i, n, scale);
		else
			step_to_f16_in_f64(dst + i, src + i, n, (double)scale);
	}
}

static void f32_from_bf16(float *restrict dst, const uint16_t *restrict src, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = f32_from_bf16_bits(src[i]) * scale;
}

static void f32_from_f16(float *restrict dst, const uint16_t *restrict src, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = f32_from_f16_bits(src[i]) * scale;
}

const struct convert_table CONVERT_TABLE = {
	bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_f16};
#endif
#endif
