/* Plain loops that sum arrays. sum.c compares the speed of these loops with the speed of the
 * server's sums. f16 and bf16 have f32 accumulators. The compiler vectorises f32 and f64 without
 * help. gcc 12 does not vectorise f16, so the conversions of f16 use intrinsics. The file is
 * compiled for the machine on which it is built. */
#include "tests/bench/probe/probe.h"

#include <stdbool.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "tests/unit/half.h"

#define PLAIN(name, type)                                                                          \
	static void name(type *restrict dst, const void *const *src, unsigned n, size_t n_elems)   \
	{                                                                                          \
		const type *a = src[0], *b = src[1], *c = src[n > 2 ? 2 : 0],                      \
			   *d = src[n > 3 ? 3 : 0];                                                \
                                                                                                   \
		if (n == 2)                                                                        \
			for (size_t i = 0; i < n_elems; i++)                                       \
				dst[i] = a[i] + b[i];                                              \
		else if (n == 3)                                                                   \
			for (size_t i = 0; i < n_elems; i++)                                       \
				dst[i] = a[i] + b[i] + c[i];                                       \
		else                                                                               \
			for (size_t i = 0; i < n_elems; i++)                                       \
				dst[i] = a[i] + b[i] + c[i] + d[i];                                \
		for (unsigned k = 4; k < n; k++)                                                   \
			for (size_t i = 0; i < n_elems; i++)                                       \
				dst[i] += ((const type *)src[k])[i];                               \
	}
PLAIN(sum_f32, float)
PLAIN(sum_f64, double)

#ifdef __AVX512F__
#define WIDE 16
typedef __m512 wide;

static inline wide f16_load(const uint16_t *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void f16_store(uint16_t *p, wide v)
{
	_mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__) && defined(__AVX2__)
#define WIDE 8
typedef __m256 wide;

static inline wide f16_load(const uint16_t *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline void f16_store(uint16_t *p, wide v)
{
	_mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
#else /* slow path for machines without instructions that convert f16 */
#define WIDE 1
typedef float wide;

static inline wide f16_load(const uint16_t *p)
{
	return (float)half_value(*p);
}

static inline void f16_store(uint16_t *p, wide v)
{
	*p = half_round((double)v);
}
#endif

static void sum_f16(uint16_t *restrict dst, const void *const *src, unsigned n, size_t n_elems)
{
	for (size_t i = 0; i + WIDE <= n_elems; i += WIDE) {
		wide acc = f16_load((const uint16_t *)src[0] + i);

		for (unsigned k = 1; k < n; k++)
			acc += f16_load((const uint16_t *)src[k] + i);
		f16_store(dst + i, acc);
	}
}

static inline float bf16_get(uint16_t h)
{
	uint32_t bits = (uint32_t)h << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Round to the nearest bf16; a tie goes to the even number. Operands are never NaN. */
static inline uint16_t bf16_put(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define BF16(k) bf16_get(((const uint16_t *)src[k])[i])
static void sum_bf16(uint16_t *restrict dst, const void *const *src, unsigned n, size_t n_elems)
{
	float acc[512];

	if (n == 2) {
		for (size_t i = 0; i < n_elems; i++)
			dst[i] = bf16_put(BF16(0) + BF16(1));
		return;
	}
	if (n == 4) {
		for (size_t i = 0; i < n_elems; i++)
			dst[i] = bf16_put(BF16(0) + BF16(1) + BF16(2) + BF16(3));
		return;
	}
	for (size_t at = 0; at < n_elems; at += 512) {
		size_t m = n_elems - at < 512 ? n_elems - at : 512;

		memset(acc, 0, sizeof(acc));
		for (unsigned k = 0; k < n; k++)
			for (size_t i = 0; i < m; i++)
				acc[i] += bf16_get(((const uint16_t *)src[k])[at + i]);
		for (size_t i = 0; i < m; i++)
			dst[at + i] = bf16_put(acc[i]);
	}
}

/* Define a function that adds one contribution to an accumulator in memory. */
#define ADD(name, type, acc_type, get)                                                             \
	static void name(                                                                          \
		acc_type *restrict acc, const type *restrict s, size_t n_elems, bool first)        \
	{                                                                                          \
		if (first)                                                                         \
			for (size_t i = 0; i < n_elems; i++)                                       \
				acc[i] = get(s[i]);                                                \
		else                                                                               \
			for (size_t i = 0; i < n_elems; i++)                                       \
				acc[i] += get(s[i]);                                               \
	}
#define SAME(v) (v)
ADD(add_f32, float, float, SAME)
ADD(add_f64, double, double, SAME)
ADD(add_bf16, uint16_t, float, bf16_get)

static void add_f16(float *restrict acc, const uint16_t *restrict s, size_t n_elems, bool first)
{
	for (size_t i = 0; i + WIDE <= n_elems; i += WIDE) {
		wide v = f16_load(s + i), a;

		if (!first) {
			memcpy(&a, acc + i, sizeof(a));
			v += a;
		}
		memcpy(acc + i, &v, sizeof(v));
	}
}

static void round_f16(uint16_t *restrict dst, const float *restrict acc, size_t n_elems)
{
	wide a;

	for (size_t i = 0; i + WIDE <= n_elems; i += WIDE) {
		memcpy(&a, acc + i, sizeof(a));
		f16_store(dst + i, a);
	}
}

static void round_bf16(uint16_t *restrict dst, const float *restrict acc, size_t n_elems)
{
	for (size_t i = 0; i < n_elems; i++)
		dst[i] = bf16_put(acc[i]);
}

void plain_add(
	void *dst, void *acc, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype)
{
	for (unsigned k = 0; k < n; k++) {
		if (dtype == DTYPE_F32)
			add_f32(dst, src[k], n_elems, k == 0);
		else if (dtype == DTYPE_F64)
			add_f64(dst, src[k], n_elems, k == 0);
		else if (dtype == DTYPE_F16)
			add_f16(acc, src[k], n_elems, k == 0);
		else if (dtype == DTYPE_BF16)
			add_bf16(acc, src[k], n_elems, k == 0);
		else
			probe_fail("no plain loop sums %s", dtype_name(dtype));
	}
	if (dtype == DTYPE_F16)
		round_f16(dst, acc, n_elems);
	else if (dtype == DTYPE_BF16)
		round_bf16(dst, acc, n_elems);
}

void plain_sum(void *dst, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype)
{
	switch ((int)dtype) {
	case DTYPE_F32:
		sum_f32(dst, src, n, n_elems);
		break;
	case DTYPE_F64:
		sum_f64(dst, src, n, n_elems);
		break;
	case DTYPE_F16:
		sum_f16(dst, src, n, n_elems);
		break;
	case DTYPE_BF16:
		sum_bf16(dst, src, n, n_elems);
		break;
	default:
		probe_fail("no plain loop sums %s", dtype_name(dtype));
	}
}
