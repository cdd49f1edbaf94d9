#ifndef BPS_COMMON_DATA_REDUCE_KERNELS_H
#define BPS_COMMON_DATA_REDUCE_KERNELS_H
/* The inner loops of reduce.c, private to reduce.c: one table of functions per instruction set.
 *
 * The first part declares the tables. The second part has the code of all kernels. The source file
 * of each instruction set compiles the second part once. Before the source file includes this
 * header, it defines
 *   REDUCE_TABLE     name of the table to define
 *   REDUCE_VEC_BYTES width of a register: 16 (any CPU), 32 (AVX2, F16C) or 64 (AVX-512)
 * Some CPUs lack the instruction set for which a source file is compiled. So each source file must
 * define only its table and static functions. reduce.c calls these functions only after it has
 * checked the CPU.
 *
 * The kernels use the vector types of gcc and clang instead of intrinsics. So all instruction sets
 * share one source, except for a few helper functions. A kernel works on whole groups of elements.
 * reduce.c pads an incomplete last group. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/data/dtype.h"
#include "common/data/kernels_inline.h"

/* Size of a group in bytes: four times the size of the widest register. The accumulator of a kernel
 * consists of whole groups. */
#define REDUCE_GROUP_BYTES 256

/* Fold as reduce_fold does, or as reduce_means_fold does (then with `weights`). n_elems is a
 * multiple of REDUCE_GROUP_BYTES / size of an accumulator element. */
typedef void reduce_fold_fn(void *acc, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, bool is_first);
/* Divide by divisor (1: do not divide) and round to the element type. n_elems is a multiple of
 * REDUCE_GROUP_BYTES / size of an accumulator element. */
typedef void reduce_finish_fn(void *dst, const void *acc, size_t n_elems, uint32_t divisor);
/* Reduce as reduce_all does, or as reduce_means_all does (then with `weights`). n_elems is a
 * multiple of REDUCE_GROUP_BYTES / size of an accumulator element. */
typedef void reduce_whole_fn(void *dst, const void *const *src, const float *weights,
	unsigned n_src, size_t n_elems, uint32_t divisor);

#define REDUCE_DTYPES 10

struct reduce_table {
	/* Functions, indexed by dtype and op. OP_AVG has functions only for f16: they take means.
	 * For other averages, reduce.c calls the function of OP_SUM. The bitwise operations have
	 * functions only for u8: reduce.c passes the bytes of all integers to them. */
	reduce_fold_fn *fold[REDUCE_DTYPES][OP_COUNT];
	reduce_finish_fn *finish[REDUCE_DTYPES]; /* NULL for integers */
	/* NULL for types other than f16 and bf16 */
	reduce_whole_fn *whole[REDUCE_DTYPES][OP_AVG + 1];
};

extern const struct reduce_table reduce_portable, reduce_avx2, reduce_avx512;

#ifdef REDUCE_TABLE
#if REDUCE_VEC_BYTES > 16
#include <immintrin.h>
#endif

#define VECTOR(bytes) __attribute__((vector_size(bytes)))

typedef uint8_t v_u8 VECTOR(REDUCE_VEC_BYTES);
typedef int8_t v_i8 VECTOR(REDUCE_VEC_BYTES);
typedef uint32_t v_u32 VECTOR(REDUCE_VEC_BYTES);
typedef int32_t v_i32 VECTOR(REDUCE_VEC_BYTES);
typedef uint64_t v_u64 VECTOR(REDUCE_VEC_BYTES);
typedef int64_t v_i64 VECTOR(REDUCE_VEC_BYTES);
typedef float v_f32 VECTOR(REDUCE_VEC_BYTES);
typedef double v_f64 VECTOR(REDUCE_VEC_BYTES);

/* Vector register, whose elements may have any type. A function with a vec parameter also has the
 * parameter dtype, which gives the type of the elements. */
typedef v_u8 vec;

INLINE vec vec_load(const void *p)
{
	vec v;

	memcpy(&v, p, sizeof(v));
	return v;
}

INLINE v_u32 vec_select_u32(v_i32 mask, v_u32 yes, v_u32 no)
{
	return (yes & (v_u32)mask) | (no & ~(v_u32)mask);
}

/* vec_load_u16_as_u32 reads 16-bit numbers and extends each number with zeros to 32 bits.
 * vec_store_u32_as_u16 truncates 32-bit numbers to 16 bits and writes the results.
 * vec_load_f16_as_f32 reads f16 and converts to f32. vec_store_f32_as_f16 converts f32 to f16 and
 * writes the results.
 *
 * Only six functions have a version for each instruction set: these four functions, and also
 * vec_f32_may_have_nan and vec_f64_may_have_nan. Portable code cannot use the f16 instructions of
 * F16C, and cannot branch on a vector. Portable code can widen 16-bit vectors, but gcc 12 compiles
 * this inefficiently. */
#if REDUCE_VEC_BYTES == 64
INLINE v_u32 vec_load_u16_as_u32(const void *p)
{
	return (v_u32)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
}

INLINE void vec_store_u32_as_u16(void *p, v_u32 v)
{
	_mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)v));
}

INLINE v_f32 vec_load_f16_as_f32(const void *p)
{
	return (v_f32)_mm512_cvtph_ps(_mm256_loadu_si256(p));
}

INLINE void vec_store_f32_as_f16(void *p, v_f32 v)
{
	_mm256_storeu_si256(p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}
#elif REDUCE_VEC_BYTES == 32
INLINE v_u32 vec_load_u16_as_u32(const void *p)
{
	return (v_u32)_mm256_cvtepu16_epi32(_mm_loadu_si128(p));
}

INLINE void vec_store_u32_as_u16(void *p, v_u32 v)
{
	__m128i low = _mm256_castsi256_si128((__m256i)v);

	_mm_storeu_si128(p, _mm_packus_epi32(low, _mm256_extracti128_si256((__m256i)v, 1)));
}

INLINE v_f32 vec_load_f16_as_f32(const void *p)
{
	return (v_f32)_mm256_cvtph_ps(_mm_loadu_si128(p));
}

INLINE void vec_store_f32_as_f16(void *p, v_f32 v)
{
	_mm_storeu_si128(p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}
#else
typedef uint16_t v_u16 VECTOR(REDUCE_VEC_BYTES);

INLINE v_u32 vec_load_u16_as_u32(const void *p)
{
	uint64_t four;
	v_u16 h;

	memcpy(&four, p, sizeof(four));
	h = (v_u16)(v_u64){four, 0};
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return (v_u32)__builtin_shufflevector(h, h & 0, 0, 8, 1, 9, 2, 10, 3, 11);
#else
	return (v_u32)__builtin_shufflevector(h, h & 0, 8, 0, 9, 1, 10, 2, 11, 3);
#endif
}

INLINE void vec_store_u32_as_u16(void *p, v_u32 v)
{
	v_u16 h = (v_u16)v;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	h = __builtin_shufflevector(h, h, 0, 2, 4, 6, 0, 2, 4, 6);
#else
	h = __builtin_shufflevector(h, h, 1, 3, 5, 7, 1, 3, 5, 7);
#endif
	memcpy(p, &h, sizeof(h) / 2);
}

/* Convert f16 to f32 exactly. For a normal number only the bias of the exponent changes. A
 * subnormal number is normalised by a subtraction. Its bits become the fraction of a number between
 * 2^-14 and 2^-13, and then 2^-14 is subtracted. The function uses no f32 subnormals, because they
 * are slow or flushed to zero. */
INLINE v_f32 vec_load_f16_as_f32(const void *p)
{
	const int32_t rebias = (127 - 15) << 23, least = (127 - 14) << 23;
	v_u32 h = vec_load_u16_as_u32(p);
	v_i32 magnitude = (v_i32)(h & 0x7fff) << 13;
	v_f32 small = (v_f32)(magnitude + least) - (v_f32)((v_i32){0} + least);
	v_u32 f = vec_select_u32(magnitude < 1 << 23, (v_u32)small, (v_u32)(magnitude + rebias));

	f |= (v_u32)(magnitude >= 0x7c00 << 13) & 0x7f800000; /* exponent of infinity and NaN */
	return (v_f32)(f | (h & 0x8000) << 16);
}

/* Convert f32 to f16, round to nearest even, and store the result. For a normal result, use integer
 * operations on the bits of the number. First change the bias of the exponent. Then add 0xfff if
 * bit 13 is 0, or 0x1000 if bit 13 is 1. Then remove the 13 low bits. A carry increases the
 * exponent, up to infinity. To round a subnormal result, add 0.5f. The last bit of 0.5f has the
 * same weight as the last bit of an f16 subnormal. */
INLINE void vec_store_f32_as_f16(void *p, v_f32 v)
{
	const uint32_t rebias = (uint32_t)(15 - 127) << 23;
	v_u32 u = (v_u32)v & 0x7fffffff, sign = (v_u32)v >> 16 & 0x8000;
	v_u32 normal = (u + rebias + 0xfff + (u >> 13 & 1)) >> 13;
	v_u32 small = (v_u32)((v_f32)u + 0.5f) - 0x3f000000;
	v_u32 nan = (u >> 13 & 0x3ff) | 0x7e00;
	v_u32 h = vec_select_u32((v_i32)u < (127 - 14) << 23, small, normal);

	h = vec_select_u32((v_i32)u >= (127 + 16) << 23, (v_u32){0} + 0x7c00, h);
	vec_store_u32_as_u16(p, vec_select_u32((v_i32)u > 0x7f800000, nan, h) | sign);
}
#endif

INLINE v_f32 vec_load_bf16_as_f32(const void *p)
{
	return (v_f32)(vec_load_u16_as_u32(p) << 16);
}

/* Convert f32 to bf16, round to nearest even, and store the result. is_settled: the function
 * `settle` has replaced all NaNs in v. Rounding does not change the NaN that `settle` writes. */
INLINE void vec_store_f32_as_bf16(void *p, v_f32 v, bool is_settled)
{
	v_u32 u = (v_u32)v;
	v_u32 rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;

	if (!is_settled)
		rounded = vec_select_u32(v == v, rounded, u >> 16 | 0x40);
	vec_store_u32_as_u16(p, rounded);
}

/* Operations on integers. Sum and product use the unsigned type, for which overflow is defined. */
#define DEFINE_INT_OPS(type, utype)                                                                \
	INLINE type type##_apply(enum op op, type a, type b)                                       \
	{                                                                                          \
		type mask = (type)(op == OP_MIN ? a < b : a > b);                                  \
                                                                                                   \
		if (op == OP_SUM)                                                                  \
			return (type)((utype)a + (utype)b);                                        \
		if (op == OP_PROD)                                                                 \
			return (type)((utype)a * (utype)b);                                        \
		if (op == OP_BAND)                                                                 \
			return a & b;                                                              \
		if (op == OP_BOR)                                                                  \
			return a | b;                                                              \
		if (op == OP_BXOR)                                                                 \
			return a ^ b;                                                              \
		return (a & mask) | (b & ~mask);                                                   \
	}

DEFINE_INT_OPS(v_u8, v_u8)
DEFINE_INT_OPS(v_i8, v_u8)
DEFINE_INT_OPS(v_i32, v_u32)
DEFINE_INT_OPS(v_i64, v_u64)

/* Operations on floats. min returns `a` if a < b or `a` is a NaN, else `b`. max returns `a` if
 * a > b or `a` is a NaN, else `b`. Equal operands have different bits only when the operands are
 * zeros of different sign. For such zeros, min ORs the bits, which gives -0.0, and max ANDs the
 * bits, which gives +0.0. */
#define DEFINE_FLOAT_OPS(type, itype)                                                              \
	INLINE type type##_apply(enum op op, type a, type b)                                       \
	{                                                                                          \
		itype take_a = (op == OP_MIN ? a < b : a > b) | (a != a), equal = a == b;          \
		itype r = ((itype)a & take_a) | ((itype)b & ~take_a);                              \
                                                                                                   \
		if (op == OP_SUM)                                                                  \
			return a + b;                                                              \
		if (op == OP_PROD)                                                                 \
			return a * b;                                                              \
		if (op == OP_MIN)                                                                  \
			return (type)(r | ((itype)a & equal));                                     \
		return (type)(r & ((itype)a | ~equal));                                            \
	}                                                                                          \
                                                                                                   \
	INLINE type type##_settle(type v, itype nan)                                               \
	{                                                                                          \
		itype good = v == v;                                                               \
                                                                                                   \
		return (type)(((itype)v & good) | (nan & ~good));                                  \
	}

DEFINE_FLOAT_OPS(v_f32, v_i32)
DEFINE_FLOAT_OPS(v_f64, v_i64)

/* Return whether one of four registers contains a NaN. The portable version always returns true,
 * because the check would cost as much as replacing the NaNs. */
#if REDUCE_VEC_BYTES == 64
#define UNORDERED(type, a, b) _mm512_cmp_##type##_mask((a), (b), _CMP_UNORD_Q)
INLINE bool vec_f32_may_have_nan(v_f32 a, v_f32 b, v_f32 c, v_f32 d)
{
	return UNORDERED(ps, (__m512)a, (__m512)b) | UNORDERED(ps, (__m512)c, (__m512)d);
}

INLINE bool vec_f64_may_have_nan(v_f64 a, v_f64 b, v_f64 c, v_f64 d)
{
	return UNORDERED(pd, (__m512d)a, (__m512d)b) | UNORDERED(pd, (__m512d)c, (__m512d)d);
}
#elif REDUCE_VEC_BYTES == 32
INLINE bool vec_f32_may_have_nan(v_f32 a, v_f32 b, v_f32 c, v_f32 d)
{
	return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q),
		_mm256_cmp_ps((__m256)c, (__m256)d, _CMP_UNORD_Q)));
}

INLINE bool vec_f64_may_have_nan(v_f64 a, v_f64 b, v_f64 c, v_f64 d)
{
	return _mm256_movemask_pd(_mm256_or_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_UNORD_Q),
		_mm256_cmp_pd((__m256d)c, (__m256d)d, _CMP_UNORD_Q)));
}
#else
INLINE bool vec_f32_may_have_nan(v_f32 a, v_f32 b, v_f32 c, v_f32 d)
{
	(void)a, (void)b, (void)c, (void)d;
	return true;
}

INLINE bool vec_f64_may_have_nan(v_f64 a, v_f64 b, v_f64 c, v_f64 d)
{
	(void)a, (void)b, (void)c, (void)d;
	return true;
}
#endif

/* The functions below are called with constants for dtype and op, so that the compiler makes one
 * specialised copy of them for each kernel. */

INLINE vec vec_load_source(enum dtype dtype, const void *p)
{
	switch (dtype) {
	case DTYPE_F16:
		return (vec)vec_load_f16_as_f32(p);
	case DTYPE_BF16:
		return (vec)vec_load_bf16_as_f32(p);
	default:
		return vec_load(p);
	}
}

INLINE vec vec_apply_operation(enum dtype dtype, enum op op, vec a, vec b)
{
	switch (dtype) {
	case DTYPE_I8:
		return (vec)v_i8_apply(op, (v_i8)a, (v_i8)b);
	case DTYPE_U8:
		return (vec)v_u8_apply(op, (v_u8)a, (v_u8)b);
	case DTYPE_I32:
		return (vec)v_i32_apply(op, (v_i32)a, (v_i32)b);
	case DTYPE_I64:
		return (vec)v_i64_apply(op, (v_i64)a, (v_i64)b);
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F32:
		return (vec)v_f32_apply(op, (v_f32)a, (v_f32)b);
	case DTYPE_F64:
		return (vec)v_f64_apply(op, (v_f64)a, (v_f64)b);
	default: /* block types have kernels of their own (block_kernels.h) */
		return a;
	}
}

/* Replace each NaN by the NaN that reduce.h specifies. */
INLINE vec vec_canonicalize_nan(enum dtype dtype, vec v)
{
	switch (dtype) {
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F32:
		return (vec)v_f32_settle((v_f32)v, (v_i32){0} + 0x7fc00000);
	case DTYPE_F64:
		return (vec)v_f64_settle((v_f64)v, (v_i64){0} + 0x7ff8000000000000);
	default:
		return v;
	}
}

INLINE bool vec_may_have_nan(enum dtype dtype, vec a, vec b, vec c, vec d)
{
	switch (dtype) {
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F32:
		return vec_f32_may_have_nan((v_f32)a, (v_f32)b, (v_f32)c, (v_f32)d);
	case DTYPE_F64:
		return vec_f64_may_have_nan((v_f64)a, (v_f64)b, (v_f64)c, (v_f64)d);
	default:
		return false;
	}
}

INLINE bool dtype_is_half_float(enum dtype dtype)
{
	return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

INLINE void vec_finish_and_store(
	enum dtype dtype, unsigned char *dst, vec v, bool divide, uint32_t divisor, bool is_settled)
{
	if (divide)
		v = dtype == DTYPE_F64 ? (vec)((v_f64)v / (double)divisor)
				       : (vec)((v_f32)v / (float)divisor);
	if (dtype == DTYPE_F16)
		vec_store_f32_as_f16(dst, (v_f32)v);
	else if (dtype == DTYPE_BF16)
		vec_store_f32_as_bf16(dst, (v_f32)v, is_settled);
	else
		memcpy(dst, &v, sizeof(v));
}

/* Store the accumulator register v, in which `settle` has replaced all NaNs. If divisor is 0, store
 * v unchanged. Otherwise, divide v by divisor, round the quotient to dtype, and store the result.
 * The caller passes the divisor 0 as a constant, so that the compiler removes the branch. */
INLINE void vec_store_accumulator(
	enum dtype dtype, unsigned char *to, size_t at, vec v, uint32_t divisor)
{
	if (divisor)
		vec_finish_and_store(dtype, to + at / (dtype_is_half_float(dtype) ? 2 : 1), v,
			divisor != 1, divisor, true);
	else
		memcpy(to + at, &v, sizeof(v));
}

/* Load a register of source i, and multiply by the weight of the source if there are weights. */
INLINE vec vec_load_weighted(enum dtype dtype, const void *p, const float *weights, unsigned i)
{
	vec v = vec_load_source(dtype, p);

	return weights ? (vec)((v_f32)v * weights[i]) : v;
}

/* Fold all sources into acc. The first operand is src[0] if is_first, else acc. Each step loads
 * four registers of the first operand, folds n_more other sources into the registers in order, and
 * stores the registers with `put`. With one register per step instead of four, the overhead of the
 * loop over the sources would take most of the time. acc may be src[0], because each step loads
 * before it stores. The compiler can unroll the loop over the sources if n_more is a constant.
 * weights: one weight for each source, only for f16. NULL as a constant: there are no weights. */
INLINE void kernel_fold_n_sources(enum dtype dtype, enum op op, unsigned char *acc,
	const void *const *src, const float *weights, size_t acc_bytes, bool is_first,
	unsigned n_more, uint32_t divisor)
{
	enum { STEP = REDUCE_VEC_BYTES };
	const unsigned shrink = dtype_is_half_float(dtype) ? 2 : 1;

	for (size_t at = 0; at < acc_bytes; at += 4 * STEP) {
		unsigned char *a = acc + at;
		vec v0, v1, v2, v3;

		if (is_first) {
			const unsigned char *s = (const unsigned char *)src[0] + at / shrink;

			v0 = vec_load_weighted(dtype, s, weights, 0);
			v1 = vec_load_weighted(dtype, s + 1 * STEP / shrink, weights, 0);
			v2 = vec_load_weighted(dtype, s + 2 * STEP / shrink, weights, 0);
			v3 = vec_load_weighted(dtype, s + 3 * STEP / shrink, weights, 0);
		} else {
			v0 = vec_load(a);
			v1 = vec_load(a + 1 * STEP);
			v2 = vec_load(a + 2 * STEP);
			v3 = vec_load(a + 3 * STEP);
		}
		for (unsigned i = 0; i < n_more; i++) {
			const unsigned src_idx = is_first + i;
			const unsigned char *s = (const unsigned char *)src[src_idx] + at / shrink;
			vec s0 = vec_load_weighted(dtype, s, weights, src_idx);
			vec s1 = vec_load_weighted(dtype, s + 1 * STEP / shrink, weights, src_idx);
			vec s2 = vec_load_weighted(dtype, s + 2 * STEP / shrink, weights, src_idx);
			vec s3 = vec_load_weighted(dtype, s + 3 * STEP / shrink, weights, src_idx);

			v0 = vec_apply_operation(dtype, op, v0, s0);
			v1 = vec_apply_operation(dtype, op, v1, s1);
			v2 = vec_apply_operation(dtype, op, v2, s2);
			v3 = vec_apply_operation(dtype, op, v3, s3);
		}
		if (vec_may_have_nan(dtype, v0, v1, v2, v3)) {
			v0 = vec_canonicalize_nan(dtype, v0);
			v1 = vec_canonicalize_nan(dtype, v1);
			v2 = vec_canonicalize_nan(dtype, v2);
			v3 = vec_canonicalize_nan(dtype, v3);
		}
		vec_store_accumulator(dtype, acc, at, v0, divisor);
		vec_store_accumulator(dtype, acc, at + 1 * STEP, v1, divisor);
		vec_store_accumulator(dtype, acc, at + 2 * STEP, v2, divisor);
		vec_store_accumulator(dtype, acc, at + 3 * STEP, v3, divisor);
	}
}

INLINE void kernel_fold_sources(enum dtype dtype, enum op op, void *acc, const void *const *src,
	unsigned n_src, size_t acc_bytes, bool is_first)
{
	if (n_src == 1 && !is_first)
		kernel_fold_n_sources(dtype, op, acc, src, NULL, acc_bytes, false, 1, 0);
	else if (n_src == 2 && !is_first)
		kernel_fold_n_sources(dtype, op, acc, src, NULL, acc_bytes, false, 2, 0);
	else
		kernel_fold_n_sources(
			dtype, op, acc, src, NULL, acc_bytes, is_first, n_src - is_first, 0);
}

/* Reduce all sources to dst. The accumulator is only in registers, not in memory. */
INLINE void kernel_reduce_whole(enum dtype dtype, enum op op, void *dst, const void *const *src,
	unsigned n_src, size_t acc_bytes, uint32_t divisor)
{
	if (divisor != 1)
		kernel_fold_n_sources(
			dtype, op, dst, src, NULL, acc_bytes, true, n_src - 1, divisor);
	else if (n_src == 2)
		kernel_fold_n_sources(dtype, op, dst, src, NULL, acc_bytes, true, 1, 1);
	else
		kernel_fold_n_sources(dtype, op, dst, src, NULL, acc_bytes, true, n_src - 1, 1);
}

INLINE void kernel_finish_values(enum dtype dtype, unsigned char *dst, const unsigned char *acc,
	size_t acc_bytes, uint32_t divisor)
{
	const unsigned shrink = dtype_is_half_float(dtype) ? 2 : 1;

	if (divisor == 1)
		for (size_t at = 0; at < acc_bytes; at += REDUCE_VEC_BYTES)
			vec_finish_and_store(
				dtype, dst + at / shrink, vec_load(acc + at), false, 1, false);
	else
		for (size_t at = 0; at < acc_bytes; at += REDUCE_VEC_BYTES)
			vec_finish_and_store(
				dtype, dst + at / shrink, vec_load(acc + at), true, divisor, false);
}

#define DEFINE_FOLD(dtype, op, acc_size)                                                           \
	static void fold_##dtype##_##op(void *acc, const void *const *src, const float *weights,   \
		unsigned n_src, size_t n_elems, bool is_first)                                     \
	{                                                                                          \
		(void)weights;                                                                     \
		kernel_fold_sources(                                                               \
			DTYPE_##dtype, OP_##op, acc, src, n_src, n_elems *(acc_size), is_first);   \
	}
#define DEFINE_FOLDS(dtype, acc_size)                                                              \
	DEFINE_FOLD(dtype, SUM, acc_size)                                                          \
	DEFINE_FOLD(dtype, PROD, acc_size)                                                         \
	DEFINE_FOLD(dtype, MAX, acc_size)                                                          \
	DEFINE_FOLD(dtype, MIN, acc_size)
#define DEFINE_FINISH(dtype, acc_size)                                                             \
	static void finish_##dtype(void *dst, const void *acc, size_t n_elems, uint32_t divisor)   \
	{                                                                                          \
		kernel_finish_values(DTYPE_##dtype, dst, acc, n_elems *(acc_size), divisor);       \
	}
#define DEFINE_WHOLE(dtype, op, acc_size)                                                          \
	static void whole_##dtype##_##op(void *dst, const void *const *src, const float *weights,  \
		unsigned n_src, size_t n_elems, uint32_t divisor)                                  \
	{                                                                                          \
		(void)weights;                                                                     \
		kernel_reduce_whole(                                                               \
			DTYPE_##dtype, OP_##op, dst, src, n_src, n_elems *(acc_size), divisor);    \
	}
#define DEFINE_WHOLES(dtype, acc_size)                                                             \
	DEFINE_WHOLE(dtype, SUM, acc_size)                                                         \
	DEFINE_WHOLE(dtype, PROD, acc_size)                                                        \
	DEFINE_WHOLE(dtype, MAX, acc_size)                                                         \
	DEFINE_WHOLE(dtype, MIN, acc_size)
#define WHOLE_OF(dtype, op) .whole[DTYPE_##dtype][OP_##op] = whole_##dtype##_##op
#define WHOLES_OF(dtype)                                                                           \
	WHOLE_OF(dtype, SUM), WHOLE_OF(dtype, PROD), WHOLE_OF(dtype, MAX), WHOLE_OF(dtype, MIN)
#define FOLD_OF(dtype, op) .fold[DTYPE_##dtype][OP_##op] = fold_##dtype##_##op
#define FOLDS_OF(dtype)                                                                            \
	FOLD_OF(dtype, SUM), FOLD_OF(dtype, PROD), FOLD_OF(dtype, MAX), FOLD_OF(dtype, MIN)

DEFINE_FOLDS(I8, 1)
DEFINE_FOLDS(U8, 1)
DEFINE_FOLD(U8, BAND, 1)
DEFINE_FOLD(U8, BOR, 1)
DEFINE_FOLD(U8, BXOR, 1)
DEFINE_FOLDS(I32, 4)
DEFINE_FOLDS(I64, 8)
DEFINE_FOLDS(F16, 4)
DEFINE_FOLDS(BF16, 4)
DEFINE_FOLDS(F32, 4)
DEFINE_FOLDS(F64, 8)
DEFINE_FINISH(F16, 4)
DEFINE_FINISH(BF16, 4)
DEFINE_FINISH(F32, 4)
DEFINE_FINISH(F64, 8)
DEFINE_WHOLES(F16, 4)
DEFINE_WHOLES(BF16, 4)

static void fold_F16_AVG(void *acc, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, bool is_first)
{
	kernel_fold_n_sources(
		DTYPE_F16, OP_SUM, acc, src, weights, n_elems * 4, is_first, n_src - is_first, 0);
}

static void whole_F16_AVG(void *dst, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, uint32_t divisor)
{
	kernel_fold_n_sources(
		DTYPE_F16, OP_SUM, dst, src, weights, n_elems * 4, true, n_src - 1, divisor);
}

const struct reduce_table REDUCE_TABLE = {
	FOLDS_OF(I8),
	FOLDS_OF(U8),
	FOLD_OF(U8, BAND),
	FOLD_OF(U8, BOR),
	FOLD_OF(U8, BXOR),
	FOLDS_OF(I32),
	FOLDS_OF(I64),
	FOLDS_OF(F16),
	FOLDS_OF(BF16),
	FOLDS_OF(F32),
	FOLDS_OF(F64),
	.finish[DTYPE_F16] = finish_F16,
	.finish[DTYPE_BF16] = finish_BF16,
	.finish[DTYPE_F32] = finish_F32,
	.finish[DTYPE_F64] = finish_F64,
	WHOLES_OF(F16),
	WHOLES_OF(BF16),
	FOLD_OF(F16, AVG),
	WHOLE_OF(F16, AVG),
};
#endif
#endif
