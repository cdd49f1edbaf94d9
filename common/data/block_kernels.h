#ifndef BPS_COMMON_DATA_BLOCK_KERNELS_H
#define BPS_COMMON_DATA_BLOCK_KERNELS_H
/* The inner loops of block.c, private to block.c: one table of functions per instruction set.
 *
 * The first part declares the tables. The second part has the code of all kernels. The source file
 * of each instruction set compiles the second part once. Before the source file includes this
 * header, it defines BLOCK_TABLE, the name of the table to define. Some CPUs lack the instruction
 * set for which a source file is compiled. So each source file must define only its table and
 * static functions.
 *
 * All types share one source: the functions get the layout of a type as a constant. The compiler
 * vectorizes the loops, because they have no branches and their arrays do not overlap. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/data/dtype.h"
#include "common/data/kernels_inline.h"

struct block_functions {
	/* Encode or decode n_blocks whole blocks, as block_encode and block_decode do. */
	void (*encode)(unsigned char *dst, const float *src, float *residual, size_t n_blocks,
		float scale);
	void (*decode)(float *dst, const unsigned char *src, size_t n_blocks, float scale);
	/* Do what block_fold, block_finish and block_reduce_all do. */
	void (*fold)(
		float *acc, const void *const *src, unsigned n_src, size_t n_blocks, bool is_first);
	void (*finish)(unsigned char *dst, const float *acc, size_t n_blocks, uint32_t divisor);
	void (*reduce_all)(unsigned char *dst, const void *const *src, unsigned n_src,
		size_t n_blocks, uint32_t divisor);
};

#define BLOCK_DTYPES (DTYPE_SIGN - DTYPE_Q8 + 1)

/* Functions, indexed by dtype - DTYPE_Q8. */
struct block_table {
	struct block_functions types[BLOCK_DTYPES];
};

extern const struct block_table block_portable, block_avx2, block_avx512;

#ifdef BLOCK_TABLE
/* The layout of a block type (block.h). */
struct block_layout {
	unsigned words;       /* number of 32-bit words of a block */
	unsigned bits;        /* size of a field */
	unsigned scale_bytes; /* the upper bytes of the f32 scale */
	uint32_t scale_mask;  /* bits of the scale that are not truncated */
};

/* 16 bits of the scale times 8 bits of a field, 8 times 4, and 12 plus the 10 bits of a sum of 1024
 * values: each fits into the 24 bits of an f32. */
#define LAYOUT_Q8   ((struct block_layout){64, 8, 4, 0xffffff00})
#define LAYOUT_Q4   ((struct block_layout){8, 4, 2, 0xffff0000})
#define LAYOUT_SIGN ((struct block_layout){32, 1, 4, 0xfffff000})

#define WORDS_MAX    64
#define VALUES_MAX   1024
#define SOURCES_MAX  4           /* sources that one loop over an accumulator adds */
#define LEAST_BITS   0x00800000u /* 2^-126, the smallest normal number */
#define F32_INF_BITS 0x7f800000u
#define F32_NAN_BITS 0x7fc00000u
#define AHEAD_BYTES  1024 /* distance of prefetches; 512 and 2048 gained less (AVX2, from memory) */
#define TO_INTEGER   0x1.8p23f /* adding it rounds an f32 to an integer in the lower bits */

INLINE unsigned layout_fields(struct block_layout l)
{
	return 32 / l.bits;
}

INLINE unsigned layout_values(struct block_layout l)
{
	return l.words * layout_fields(l);
}

INLINE size_t layout_bytes(struct block_layout l)
{
	return l.scale_bytes + l.words * sizeof(uint32_t);
}

/* ---- decode ---- */

INLINE float block_load_scale(struct block_layout l, const unsigned char *block)
{
	uint32_t bits = 0;

	memcpy((unsigned char *)&bits + sizeof(bits) - l.scale_bytes, block, l.scale_bytes);
	/* A program may have written more bits, with which products would not be exact. */
	return f32_from_bits(bits & l.scale_mask);
}

/* Return the integer in a field of a word. */
INLINE float block_field(struct block_layout l, uint32_t word, unsigned field)
{
	int32_t q = (int32_t)(word << (32 - l.bits - field * l.bits)) >> (32 - l.bits);

	return (float)(l.bits == 1 ? q | 1 : q);
}

/* Return sum + scale * integer. The product is exact (block.h), so a fused operation has the same
 * result as two operations. */
INLINE float add_product(float sum, float scale, float integer)
{
#ifdef __FMA__
	return __builtin_fmaf(scale, integer, sum);
#else
	return sum + scale * integer;
#endif
}

/* Decode a block of each of n sources, and add the values to `values`, in order. If is_first, leave
 * out the old content of `values`, and multiply the values of the first source by `factor`. n is a
 * constant from 1 to SOURCES_MAX. */
INLINE void block_add_sources(struct block_layout l, float *restrict values,
	const unsigned char *const *blocks, unsigned n, bool is_first, float factor)
{
	uint32_t words[SOURCES_MAX][WORDS_MAX];
	float scale[SOURCES_MAX];

	for (unsigned i = 0; i < n; i++) {
		scale[i] = block_load_scale(l, blocks[i]);
		memcpy(words[i], blocks[i] + l.scale_bytes, l.words * sizeof(uint32_t));
	}
	for (unsigned field = 0; field < layout_fields(l); field++) {
		float *restrict to = values + field * l.words;

		for (unsigned j = 0; j < l.words; j++) {
			float first = block_field(l, words[0][j], field), v;

			v = is_first ? scale[0] * first * factor
				     : add_product(to[j], scale[0], first);
			if (n > 1)
				v = add_product(v, scale[1], block_field(l, words[1][j], field));
			if (n > 2)
				v = add_product(v, scale[2], block_field(l, words[2][j], field));
			if (n > 3)
				v = add_product(v, scale[3], block_field(l, words[3][j], field));
			to[j] = v;
		}
	}
}

INLINE void block_decode_one(
	struct block_layout l, float *restrict values, const unsigned char *block, float factor)
{
	block_add_sources(l, values, &block, 1, true, factor);
}

INLINE void block_add_some(struct block_layout l, float *restrict values,
	const unsigned char *const *blocks, unsigned n, bool is_first)
{
	if (n == 1)
		block_add_sources(l, values, blocks, 1, is_first, 1);
	else if (n == 2)
		block_add_sources(l, values, blocks, 2, is_first, 1);
	else if (n == 3)
		block_add_sources(l, values, blocks, 3, is_first, 1);
	else
		block_add_sources(l, values, blocks, 4, is_first, 1);
}

/* Add one block of each source, at byte `at` of the source. */
INLINE void block_add_all(struct block_layout l, float *restrict values, const void *const *src,
	unsigned n_src, size_t at, bool is_first)
{
	for (unsigned begin = 0; begin < n_src; begin += SOURCES_MAX) {
		unsigned n = n_src - begin < SOURCES_MAX ? n_src - begin : SOURCES_MAX;
		const unsigned char *blocks[SOURCES_MAX];

		for (unsigned i = 0; i < n; i++) {
			blocks[i] = (const unsigned char *)src[begin + i] + at;
			for (size_t line = 0; line < layout_bytes(l); line += 64)
				__builtin_prefetch(blocks[i] + AHEAD_BYTES + line);
		}
		if (is_first && begin == 0)
			block_add_some(l, values, blocks, n, true);
		else
			block_add_some(l, values, blocks, n, false);
	}
}

/* ---- encode ---- */

/* Return the bits of the largest absolute value. For numbers that are not negative, the order of
 * the bits is the order of the numbers, and the bits of a NaN are larger than those of infinity. */
INLINE uint32_t block_largest_bits(struct block_layout l, const float *values)
{
	int32_t largest = 0;

	for (unsigned i = 0; i < layout_values(l); i++) {
		int32_t bits = (int32_t)(bits_from_f32(values[i]) & INT32_MAX);

		largest = bits > largest ? bits : largest;
	}
	return (uint32_t)largest;
}

/* Return the mean of the absolute values. All instruction sets add in the same order: one sum per
 * word, and then the halves of these sums. */
INLINE float block_mean(struct block_layout l, const float *values)
{
	const float weight = 1.0f / (float)layout_values(l);
	float sums[WORDS_MAX];

	for (unsigned j = 0; j < l.words; j++) {
		float sum = 0;

#pragma GCC unroll 32
		for (unsigned field = 0; field < layout_fields(l); field++)
			sum += f32_from_bits(
				       bits_from_f32(values[field * l.words + j]) & INT32_MAX) *
			       weight;
		sums[j] = sum;
	}
	for (unsigned half = l.words / 2; half; half /= 2)
		for (unsigned j = 0; j < half; j++)
			sums[j] += sums[j + half];
	/* cppcheck-suppress uninitvar ; l.words is a constant above 0 */
	return sums[0];
}

INLINE void block_store_scale(struct block_layout l, unsigned char *block, uint32_t bits)
{
	memcpy(block, (unsigned char *)&bits + sizeof(bits) - l.scale_bytes, l.scale_bytes);
}

INLINE void block_store_fields(
	struct block_layout l, unsigned char *block, const float *restrict values, float factor)
{
	const uint32_t mask = (uint32_t)((1u << l.bits) - 1);
	uint32_t words[WORDS_MAX];

	for (unsigned j = 0; j < l.words; j++) {
		uint32_t word = 0;

#pragma GCC unroll 32
		for (unsigned field = 0; field < layout_fields(l); field++) {
			float v = values[field * l.words + j];
			uint32_t q = l.bits == 1 ? bits_from_f32(v) >> 31
						 : bits_from_f32(v * factor + TO_INTEGER) & mask;

			word |= q << (field * l.bits);
		}
		words[j] = word;
	}
	/* cppcheck-suppress uninitvar ; l.words is a constant above 0 */
	memcpy(block + l.scale_bytes, words, l.words * sizeof(uint32_t));
}

/* Encode one block. Returns false if the block is NaN. */
INLINE bool block_encode_one(
	struct block_layout l, unsigned char *block, const float *restrict values)
{
	const float top = l.bits == 1 ? 1 : (float)((1 << (l.bits - 1)) - 1);
	uint32_t largest = block_largest_bits(l, values), scale;

	if (l.bits == 1)
		scale = bits_from_f32(block_mean(l, values));
	else
		scale = bits_from_f32(f32_from_bits(largest) / top);
	/* A mean of the largest numbers may be rounded up to infinity. */
	scale = (scale < F32_INF_BITS ? scale : F32_INF_BITS - 1) & l.scale_mask;
	if (scale < LEAST_BITS || largest >= F32_INF_BITS) {
		memset(block, 0, layout_bytes(l));
		if (largest >= F32_INF_BITS)
			block_store_scale(l, block, F32_NAN_BITS);
		return largest < F32_INF_BITS;
	}
	block_store_scale(l, block, scale);
	block_store_fields(l, block, values, 1 / f32_from_bits(scale));
	return true;
}

/* ---- whole arrays ---- */

INLINE void block_encode_with_residual(struct block_layout l, unsigned char *block,
	const float *restrict src, float *restrict residual, float scale)
{
	float wanted[VALUES_MAX], got[VALUES_MAX];

	for (unsigned i = 0; i < layout_values(l); i++)
		wanted[i] = src[i] * scale + residual[i];
	if (block_encode_one(l, block, wanted)) {
		block_decode_one(l, got, block, 1);
		for (unsigned i = 0; i < layout_values(l); i++)
			residual[i] = wanted[i] - got[i];
	} else {
		memset(residual, 0, layout_values(l) * sizeof(*residual));
	}
}

INLINE void blocks_encode(struct block_layout l, unsigned char *dst, const float *src,
	float *residual, size_t n_blocks, float scale)
{
	float wanted[VALUES_MAX];

	for (size_t b = 0; b < n_blocks; b++) {
		unsigned char *block = dst + b * layout_bytes(l);
		const float *values = src + b * layout_values(l);

		if (residual) {
			block_encode_with_residual(
				l, block, values, residual + b * layout_values(l), scale);
		} else if (bits_from_f32(scale) == bits_from_f32(1)) {
			block_encode_one(l, block, values);
		} else {
			for (unsigned i = 0; i < layout_values(l); i++)
				wanted[i] = values[i] * scale;
			block_encode_one(l, block, wanted);
		}
	}
}

INLINE void blocks_decode(
	struct block_layout l, float *dst, const unsigned char *src, size_t n_blocks, float scale)
{
	for (size_t b = 0; b < n_blocks; b++)
		block_decode_one(l, dst + b * layout_values(l), src + b * layout_bytes(l), scale);
}

INLINE void blocks_fold(struct block_layout l, float *acc, const void *const *src, unsigned n_src,
	size_t n_blocks, bool is_first)
{
	for (size_t b = 0; b < n_blocks; b++)
		block_add_all(
			l, acc + b * layout_values(l), src, n_src, b * layout_bytes(l), is_first);
}

INLINE void block_divide_and_encode(
	struct block_layout l, unsigned char *block, const float *restrict sum, uint32_t divisor)
{
	float quotient[VALUES_MAX];

	if (divisor == 1) {
		block_encode_one(l, block, sum);
		return;
	}
	for (unsigned i = 0; i < layout_values(l); i++)
		quotient[i] = sum[i] / (float)divisor;
	block_encode_one(l, block, quotient);
}

INLINE void blocks_finish(struct block_layout l, unsigned char *dst, const float *acc,
	size_t n_blocks, uint32_t divisor)
{
	for (size_t b = 0; b < n_blocks; b++)
		block_divide_and_encode(
			l, dst + b * layout_bytes(l), acc + b * layout_values(l), divisor);
}

INLINE void blocks_reduce_all(struct block_layout l, unsigned char *dst, const void *const *src,
	unsigned n_src, size_t n_blocks, uint32_t divisor)
{
	float sum[VALUES_MAX];

	for (size_t b = 0; b < n_blocks; b++) {
		block_add_all(l, sum, src, n_src, b * layout_bytes(l), true);
		block_divide_and_encode(l, dst + b * layout_bytes(l), sum, divisor);
	}
}

#define DEFINE_BLOCK_FUNCTIONS(type)                                                               \
	static void encode_##type(unsigned char *dst, const float *src, float *residual,           \
		size_t n_blocks, float scale)                                                      \
	{                                                                                          \
		blocks_encode(LAYOUT_##type, dst, src, residual, n_blocks, scale);                 \
	}                                                                                          \
	static void decode_##type(                                                                 \
		float *dst, const unsigned char *src, size_t n_blocks, float scale)                \
	{                                                                                          \
		blocks_decode(LAYOUT_##type, dst, src, n_blocks, scale);                           \
	}                                                                                          \
	static void block_fold_##type(float *acc, const void *const *src, unsigned n_src,          \
		size_t n_blocks, bool is_first)                                                    \
	{                                                                                          \
		blocks_fold(LAYOUT_##type, acc, src, n_src, n_blocks, is_first);                   \
	}                                                                                          \
	static void block_finish_##type(                                                           \
		unsigned char *dst, const float *acc, size_t n_blocks, uint32_t divisor)           \
	{                                                                                          \
		blocks_finish(LAYOUT_##type, dst, acc, n_blocks, divisor);                         \
	}                                                                                          \
	static void block_reduce_all_##type(unsigned char *dst, const void *const *src,            \
		unsigned n_src, size_t n_blocks, uint32_t divisor)                                 \
	{                                                                                          \
		blocks_reduce_all(LAYOUT_##type, dst, src, n_src, n_blocks, divisor);              \
	}
#define BLOCK_FUNCTIONS(type)                                                                      \
	.types[DTYPE_##type - DTYPE_Q8] = {encode_##type, decode_##type, block_fold_##type,        \
		block_finish_##type, block_reduce_all_##type}

DEFINE_BLOCK_FUNCTIONS(Q8)
DEFINE_BLOCK_FUNCTIONS(Q4)
DEFINE_BLOCK_FUNCTIONS(SIGN)

const struct block_table BLOCK_TABLE = {
	BLOCK_FUNCTIONS(Q8), BLOCK_FUNCTIONS(Q4), BLOCK_FUNCTIONS(SIGN)};
#endif
#endif
