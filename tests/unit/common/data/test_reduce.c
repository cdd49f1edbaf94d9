/* The reduction kernels. Each instruction set of this machine is compared with a simple loop over
 * doubles or 64-bit integers. All instruction sets are compared with each other bit by bit. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/data/reduce.h"
#include "common/data/simd.h"

/* The thread sanitizer makes the code twenty times slower. Larger arrays would not test more parts
 * of the code. */
#ifdef __SANITIZE_THREAD__
#define MAX_ELEMS ((1u << 16) + 3)
#else
#define MAX_ELEMS ((1u << 20) + 3)
#endif
#define N_SRC      3
#define MISALIGN   1 /* bytes by which each buffer is off its natural alignment */
#define DIVISOR    3
#define N_SPECIALS 20000

static const enum dtype dtypes[] = {
	DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32, DTYPE_I8, DTYPE_U8};
static const size_t sizes[] = {0, 1, 2, 3, 17, 4095, MAX_ELEMS};
static const char *const isas[] = {"portable", "avx2", "avx512"};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Buffers for the largest case in the widest type, each followed by guard bytes. */
struct bufs {
	unsigned char *src[N_SRC], *acc, *dst, *other_acc, *other_dst;
};

static uint64_t random_state = 88172645463325252u;

static uint64_t random_u64(void) /* xorshift64, Marsaglia 2003 */
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static double f16_value(uint16_t h)
{
	int exponent = h >> 10 & 31, fraction = h & 0x3ff;
	double sign = h & 0x8000 ? -1 : 1;

	if (exponent == 31)
		return fraction ? NAN : sign * INFINITY;
	return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static double bf16_value(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return (double)f;
}

static bool is_float(enum dtype dtype)
{
	return dtype == DTYPE_F64 || dtype == DTYPE_F32 || dtype == DTYPE_F16 ||
	       dtype == DTYPE_BF16;
}

static double float_at(const unsigned char *p, size_t i, enum dtype dtype)
{
	double d;
	float f;
	uint16_t h;

	switch (dtype) {
	case DTYPE_F64:
		memcpy(&d, p + i * 8, 8);
		return d;
	case DTYPE_F32:
		memcpy(&f, p + i * 4, 4);
		return (double)f;
	default:
		memcpy(&h, p + i * 2, 2);
		return dtype == DTYPE_F16 ? f16_value(h) : bf16_value(h);
	}
}

static int64_t int_at(const unsigned char *p, size_t i, enum dtype dtype)
{
	int64_t l;
	int32_t w;

	switch (dtype) {
	case DTYPE_I64:
		memcpy(&l, p + i * 8, 8);
		return l;
	case DTYPE_I32:
		memcpy(&w, p + i * 4, 4);
		return w;
	case DTYPE_I8:
		return (int8_t)p[i];
	default:
		return p[i];
	}
}

/* Return the lower bits of x as an element of dtype. */
static int64_t wrap(uint64_t x, enum dtype dtype)
{
	switch (dtype) {
	case DTYPE_I64:
		return (int64_t)x;
	case DTYPE_I32:
		return (int32_t)(uint32_t)x;
	case DTYPE_I8:
		return (int8_t)(uint8_t)x;
	default:
		return (uint8_t)x;
	}
}

/* Fill a buffer. Integers get random bits. Floats get a magnitude from 2^-4 to 4, so that nothing
 * overflows. */
static void fill(unsigned char *p, size_t n_elems, enum dtype dtype)
{
	for (size_t i = 0; i < n_elems; i++) {
		uint64_t x = random_u64();
		double d = (x & 1 ? -1 : 1) * (0.0625 + (double)(x >> 11) * 0x1p-53 * 3.9375);
		float f = (float)d;
		uint32_t u;
		uint16_t h;

		memcpy(&u, &f, sizeof(u));
		if (dtype == DTYPE_F64) {
			memcpy(p + i * 8, &d, 8);
		} else if (dtype == DTYPE_F32) {
			memcpy(p + i * 4, &f, 4);
		} else if (dtype == DTYPE_BF16) {
			h = (uint16_t)(u >> 16);
			memcpy(p + i * 2, &h, 2);
		} else if (dtype == DTYPE_F16) { /* exponents from 2^-4 to 2^1, and any fraction */
			h = (uint16_t)((x >> 32 & 0x83ff) | (11 + (x >> 16 & 0xff) % 6) << 10);
			memcpy(p + i * 2, &h, 2);
		} else {
			memcpy(p + i * dtype_bytes(dtype), &x, dtype_bytes(dtype));
		}
	}
}

static double float_op(enum op op, double a, double b)
{
	switch (op) {
	case OP_PROD:
		return a * b;
	case OP_MAX:
		return a > b ? a : b;
	case OP_MIN:
		return a < b ? a : b;
	default:
		return a + b;
	}
}

static int64_t int_op(enum op op, int64_t a, int64_t b, enum dtype dtype)
{
	switch (op) {
	case OP_PROD:
		return wrap((uint64_t)a * (uint64_t)b, dtype);
	case OP_MAX:
		return a > b ? a : b;
	case OP_MIN:
		return a < b ? a : b;
	case OP_BAND:
		return a & b;
	case OP_BOR:
		return a | b;
	case OP_BXOR:
		return a ^ b;
	default:
		return wrap((uint64_t)a + (uint64_t)b, dtype);
	}
}

/* Return the largest relative error of rounding to a normal number of the type. */
static double unit_roundoff(enum dtype dtype)
{
	switch (dtype) {
	case DTYPE_F64:
		return 0x1p-53;
	case DTYPE_F32:
		return 0x1p-24;
	case DTYPE_F16:
		return 0x1p-11;
	default:
		return 0x1p-8;
	}
}

/* Return the largest allowed difference from the exact result `want`. Let u be the unit roundoff of
 * the accumulator. The accumulator is rounded once for each operand after the first, and once in a
 * division. Each rounding error is relative to a partial result. For sums, `magnitude` is sum |x|,
 * the upper limit of each partial result. For averages, `magnitude` is sum |x| / DIVISOR. For
 * products, `magnitude` is the magnitude of the exact product, because each later factor scales the
 * error and the result alike. To first order, the error for k operands is k * u * magnitude. The
 * bound is doubled to cover higher orders and the rounding of the reference. Results of the types
 * f16 and bf16 are rounded once more. Inputs are not subnormal, because they are at least 2^-4. But
 * sums may cancel to less than 2^-14, where neighbouring f16 numbers differ by 2^-24. */
static double bound(enum dtype dtype, enum op op, double magnitude, double want)
{
	double acc = unit_roundoff(dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32);
	double b = 2 * (N_SRC + 1) * acc * magnitude;

	if (op == OP_MIN || op == OP_MAX)
		return 0;
	if (dtype == DTYPE_F16 || dtype == DTYPE_BF16)
		b += unit_roundoff(dtype) * (fabs(want) + b);
	return dtype == DTYPE_F16 ? b + 0x1p-25 : b;
}

static void check_float(const struct bufs *b, size_t i, enum dtype dtype, enum op op)
{
	double want = float_at(b->src[0], i, dtype), magnitude = fabs(want);
	double got = float_at(b->dst, i, dtype);

	for (int s = 1; s < N_SRC; s++) {
		double x = float_at(b->src[s], i, dtype);

		want = float_op(op, want, x);
		magnitude = op == OP_PROD ? fabs(want) : magnitude + fabs(x);
	}
	if (op == OP_AVG) {
		want /= DIVISOR;
		magnitude /= DIVISOR;
	}
	if (!(fabs(got - want) <= bound(dtype, op, magnitude, want)))
		fail_msg("%s %s %s [%zu]: got %.17g, want %.17g", simd_name(), dtype_name(dtype),
			op_name(op), i, got, want);
}

static void check_int(const struct bufs *b, size_t i, enum dtype dtype, enum op op)
{
	int64_t want = int_at(b->src[0], i, dtype), got = int_at(b->dst, i, dtype);

	for (int s = 1; s < N_SRC; s++)
		want = int_op(op, want, int_at(b->src[s], i, dtype), dtype);
	if (op == OP_AVG) {
		int64_t below = want % DIVISOR < 0;

		want = want / DIVISOR - below;
	}
	if (got != want)
		fail_msg("%s %s %s [%zu]: got %lld, want %lld", simd_name(), dtype_name(dtype),
			op_name(op), i, (long long)got, (long long)want);
}

static void run(const struct bufs *b, size_t n_elems, enum dtype dtype, enum op op)
{
	reduce_fold(b->acc, (const void *const *)b->src, N_SRC, n_elems, dtype, op, true);
	reduce_finish(b->dst, b->acc, n_elems, dtype, op, DIVISOR);
	for (unsigned n_src = 1; n_src <= N_SRC; n_src++) {
		reduce_fold(b->acc, (const void *const *)b->src, n_src, n_elems, dtype, op, true);
		reduce_finish(b->dst, b->acc, n_elems, dtype, op, DIVISOR);
		reduce_all(b->other_dst, (const void *const *)b->src, n_src, n_elems, dtype, op,
			DIVISOR);
		assert_memory_equal(b->other_dst, b->dst, n_elems * dtype_bytes(dtype));
	}
}

/* Check all elements at both ends of a large array, and every 61st element between. */
static void check(const struct bufs *b, size_t n_elems, enum dtype dtype, enum op op)
{
	for (size_t i = 0; i<n_elems; i += i> 4096 && i + 700 < n_elems ? 61 : 1) {
		if (is_float(dtype))
			check_float(b, i, dtype, op);
		else
			check_int(b, i, dtype, op);
	}
}

static int setup(void **state)
{
	struct bufs *b = calloc(1, sizeof(*b));
	unsigned char **all[] = {
		&b->src[0], &b->src[1], &b->src[2], &b->acc, &b->dst, &b->other_acc, &b->other_dst};

	if (!b)
		return -1;
	for (size_t i = 0; i < COUNT(all); i++) {
		*all[i] = calloc(MAX_ELEMS + 2, 8);
		if (!*all[i])
			return -1;
		*all[i] += MISALIGN;
	}
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct bufs *b = *state;

	for (int i = 0; i < N_SRC; i++)
		free(b->src[i] - MISALIGN);
	free(b->acc - MISALIGN);
	free(b->dst - MISALIGN);
	free(b->other_acc - MISALIGN);
	free(b->other_dst - MISALIGN);
	free(b);
	return simd_select("portable");
}

static void every_dtype_and_op_matches_the_plain_loop_at_every_size(void **state)
{
	struct bufs *b = *state;

	for (size_t t = 0; t < COUNT(dtypes); t++) {
		for (int s = 0; s < N_SRC; s++)
			fill(b->src[s], MAX_ELEMS, dtypes[t]);
		for (unsigned isa = 0; isa < COUNT(isas); isa++) {
			if (simd_select(isas[isa]) < 0)
				continue;
			for (unsigned op = 0; op_is_valid_for_dtype(op, dtypes[t]); op++) {
				for (size_t n = 0; n < COUNT(sizes); n++) {
					run(b, sizes[n], dtypes[t], op);
					check(b, sizes[n], dtypes[t], op);
				}
			}
		}
	}
}

static void nothing_beyond_the_last_element_is_written(void **state)
{
	struct bufs *b = *state;

	for (size_t t = 0; t < COUNT(dtypes); t++) {
		size_t size = dtype_bytes(dtypes[t]), acc_size = dtype_acc_bytes(dtypes[t]);

		for (unsigned isa = 0; isa < COUNT(isas); isa++) {
			if (simd_select(isas[isa]) < 0)
				continue;
			for (size_t n = 0; n < 300; n++) {
				memset(b->acc + n * acc_size, 0xa5, 8);
				memset(b->dst + n * size, 0xa5, 8);
				run(b, n, dtypes[t], OP_AVG);
				assert_memory_equal(
					b->acc + n * acc_size, "\xa5\xa5\xa5\xa5\xa5", 5);
				assert_memory_equal(b->dst + n * size, "\xa5\xa5\xa5\xa5\xa5", 5);
			}
		}
	}
}

/* The sources are means of 1, 3 and 2 values. Large means show that nothing overflows f16. */
static void check_means(const struct bufs *b, size_t n)
{
	static const float weights[N_SRC] = {1, 3, 2};
	const void *const *src = (const void *const *)b->src;

	memset(b->dst + 2 * n, 0xa5, 8);
	reduce_means_all(b->dst, src, weights, N_SRC, n, 6);
	assert_memory_equal(b->dst + 2 * n, "\xa5\xa5\xa5\xa5\xa5", 5);
	for (int s = 0; s < N_SRC; s++)
		reduce_means_fold(b->acc, src + s, weights + s, 1, n, s == 0);
	reduce_finish(b->other_dst, b->acc, n, DTYPE_F16, OP_AVG, 6);
	assert_memory_equal(b->other_dst, b->dst, 2 * n);
	reduce_means_fold(b->acc, src, weights, N_SRC, n, true);
	reduce_finish(b->other_dst, b->acc, n, DTYPE_F16, OP_AVG, 6);
	assert_memory_equal(b->other_dst, b->dst, 2 * n);
	for (size_t i = 0; i < n; i++) {
		double want = 0, got = float_at(b->dst, i, DTYPE_F16);

		for (int s = 0; s < N_SRC; s++)
			want += (double)weights[s] * float_at(b->src[s], i, DTYPE_F16) / 6;
		if (!(fabs(got - want) <= fabs(want) * 0x1p-10))
			fail_msg("%s [%zu]: got %.17g, want %.17g", simd_name(), i, got, want);
	}
}

static void means_of_f16_are_weighted(void **state)
{
	struct bufs *b = *state;

	for (int s = 0; s < N_SRC; s++)
		for (size_t i = 0; i < 300; i++) {
			uint16_t h = (uint16_t)(0x7000 + random_u64() % 0xc00); /* 8192 to 65504 */

			memcpy(b->src[s] + 2 * i, &h, 2);
		}
	for (unsigned isa = 0; isa < COUNT(isas); isa++)
		for (size_t n = 0; n < 300 && simd_select(isas[isa]) == 0; n++)
			check_means(b, n);
}

/* Store an element with random bits. For a third of the elements of a float type, store instead a
 * value that kernels often get wrong. */
static void special(unsigned char *p, enum dtype dtype)
{
	/* The values for f64. Tables of the narrower types have the corresponding bits. */
	static const uint64_t f64[] = {0, 0x8000000000000000, 1, 0x800fffffffffffff,
		0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, 0xfff8000000000123,
		0x7fefffffffffffff, 0x0010000000000000};
	static const uint32_t f32[] = {0, 0x80000000, 1, 0x807fffff, 0x7f800000, 0xff800000,
		0x7f800001, 0xffc00123, 0x7f7fffff, 0x00800000, 0x477fefff, 0x477ff000, 0x33000000,
		0x33000001, 0x387fffff, 0x38800000};
	static const uint16_t f16[] = {
		0, 0x8000, 1, 0x83ff, 0x7c00, 0xfc00, 0x7c01, 0xfe12, 0x7bff, 0x0400};
	static const uint16_t bf16[] = {
		0, 0x8000, 1, 0x807f, 0x7f80, 0xff80, 0x7f81, 0xffc1, 0x7f7f, 0x0080};
	uint64_t x = random_u64(), pick = x >> 40;
	bool is_picked = (x >> 32 & 0xff) % 3 == 0;

	if (dtype == DTYPE_F64 && is_picked)
		memcpy(p, &f64[pick % COUNT(f64)], 8);
	else if (dtype == DTYPE_F32 && is_picked)
		memcpy(p, &f32[pick % COUNT(f32)], 4);
	else if (dtype == DTYPE_F16 && is_picked)
		memcpy(p, &f16[pick % COUNT(f16)], 2);
	else if (dtype == DTYPE_BF16 && is_picked)
		memcpy(p, &bf16[pick % COUNT(bf16)], 2);
	else
		memcpy(p, &x, dtype_bytes(dtype));
}

static void fill_special(struct bufs *b, size_t n_elems, enum dtype dtype)
{
	for (int s = 0; s < N_SRC; s++)
		for (size_t i = 0; i < n_elems; i++)
			special(b->src[s] + i * dtype_bytes(dtype), dtype);
}

static void all_instruction_sets_give_the_same_bits_for_any_bits(void **state)
{
	struct bufs *b = *state;

	for (size_t t = 0; t < COUNT(dtypes); t++) {
		enum dtype dtype = dtypes[t];
		size_t n = N_SPECIALS + 7;

		fill_special(b, n, dtype);
		for (unsigned op = 0; op_is_valid_for_dtype(op, dtype); op++) {
			assert_int_equal(simd_select("portable"), 0);
			run(b, n, dtype, op);
			memcpy(b->other_acc, b->acc, n * dtype_acc_bytes(dtype));
			memcpy(b->other_dst, b->dst, n * dtype_bytes(dtype));
			for (unsigned isa = 1; isa < COUNT(isas); isa++) {
				if (simd_select(isas[isa]) < 0)
					continue;
				memset(b->acc, 0x5a, n * dtype_acc_bytes(dtype));
				memset(b->dst, 0x5a, n * dtype_bytes(dtype));
				run(b, n, dtype, op);
				assert_memory_equal(
					b->acc, b->other_acc, n * dtype_acc_bytes(dtype));
				assert_memory_equal(b->dst, b->other_dst, n * dtype_bytes(dtype));
			}
		}
	}
}

static float f32_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* Return op(x, y). The function computes this value in 100 elements of an array and checks that all
 * results are equal. The elements cover full vectors and the padded remainder. */
static uint32_t fold_two(float x, float y, enum op op)
{
	float a[128], c[128], acc[128];
	const void *src[] = {a, c};
	uint32_t u;

	for (int i = 0; i < 128; i++) {
		a[i] = x;
		c[i] = y;
	}
	reduce_fold(acc, src, 2, 100, DTYPE_F32, op, true);
	for (int i = 1; i < 100; i++)
		assert_memory_equal(&acc[i], &acc[0], sizeof(float));
	memcpy(&u, acc, sizeof(u));
	return u;
}

static void min_and_max_propagate_nan_and_order_the_zeros(void **state)
{
	(void)state;
	for (unsigned isa = 0; isa < COUNT(isas); isa++) {
		if (simd_select(isas[isa]) < 0)
			continue;
		for (unsigned op = OP_MAX; op <= OP_MIN; op++) {
			assert_int_equal(fold_two(NAN, 1, op), 0x7fc00000);
			assert_int_equal(fold_two(1, NAN, op), 0x7fc00000);
			assert_int_equal(fold_two(f32_bits(0xff800001), INFINITY, op), 0x7fc00000);
			assert_int_equal(fold_two(f32_bits(0xffc00123), NAN, op), 0x7fc00000);
			assert_int_equal(fold_two(0.0f, -0.0f, op), op == OP_MIN ? 0x80000000 : 0);
			assert_int_equal(fold_two(-0.0f, 0.0f, op), op == OP_MIN ? 0x80000000 : 0);
			assert_int_equal(fold_two(-0.0f, -0.0f, op), 0x80000000);
		}
		assert_int_equal(fold_two(INFINITY, -INFINITY, OP_SUM), 0x7fc00000);
		assert_int_equal(fold_two(INFINITY, 0, OP_PROD), 0x7fc00000);
	}
}

static void one_nan_in_any_place_becomes_the_nan_without_payload(void **state)
{
	const uint64_t nan64 = 0xfff8000000000123, want64 = 0x7ff8000000000000;
	const uint32_t nan32 = 0xffc00123, want32 = 0x7fc00000;

	(void)state;
	for (unsigned isa = 0; isa < COUNT(isas); isa++) {
		if (simd_select(isas[isa]) < 0)
			continue;
		for (size_t at = 0; at < 200; at++) {
			double a64[200] = {0}, b64[200] = {0};
			float a32[200] = {0}, b32[200] = {0};
			const void *src64[] = {b64}, *src32[] = {b32};

			memcpy(&b64[at], &nan64, sizeof(nan64));
			memcpy(&b32[at], &nan32, sizeof(nan32));
			reduce_fold(a64, src64, 1, 200, DTYPE_F64, OP_SUM, false);
			reduce_fold(a32, src32, 1, 200, DTYPE_F32, OP_SUM, false);
			assert_memory_equal(&a64[at], &want64, 8);
			assert_memory_equal(&a32[at], &want32, 4);
		}
	}
}

struct half_bits {
	enum dtype dtype;
	uint16_t nan, inf, minus_inf, want;
};

static void nans_of(const struct half_bits *h, unsigned n_src, enum op op)
{
	uint16_t a[131] = {0}, b[131] = {0}, c[131] = {0}, got[131];
	const void *src[] = {a, b, c};

	for (size_t at = 0; at < COUNT(a); at++) {
		size_t other = (at + 1) % COUNT(a);

		a[at] = h->nan;
		a[other] = h->inf;
		b[other] = h->minus_inf;
		reduce_all(got, src, n_src, COUNT(got), h->dtype, op, 3);
		for (size_t i = 0; i < COUNT(got); i++)
			assert_int_equal(got[i], i == at || i == other ? h->want : 0);
		a[at] = a[other] = b[other] = 0;
	}
}

/* When an operand is NaN, or when infinities of opposite signs are added, a single pass returns the
 * default NaN of the half type. */
static void nans_of_halves_become_one_in_a_single_pass(void **state)
{
	const struct half_bits f16 = {DTYPE_F16, 0xfd23, 0x7c00, 0xfc00, 0x7e00};
	const struct half_bits bf16 = {DTYPE_BF16, 0xffa3, 0x7f80, 0xff80, 0x7fc0};

	(void)state;
	for (unsigned isa = 0; isa < COUNT(isas); isa++) {
		if (simd_select(isas[isa]) < 0)
			continue;
		for (unsigned n_src = 2; n_src <= 3; n_src++) {
			nans_of(&f16, n_src, OP_SUM);
			nans_of(&f16, n_src, OP_AVG);
			nans_of(&bf16, n_src, OP_SUM);
			nans_of(&bf16, n_src, OP_AVG);
		}
	}
}

static void the_accumulator_may_be_the_first_source_and_the_destination(void **state)
{
	struct bufs *b = *state;
	const size_t n = 4095;

	for (size_t t = 0; t < COUNT(dtypes); t++) {
		size_t bytes = n * dtype_bytes(dtypes[t]);
		const void *src[N_SRC] = {b->acc, b->src[1], b->src[2]};

		if (dtype_bytes(dtypes[t]) != dtype_acc_bytes(dtypes[t]))
			continue;
		for (int s = 0; s < N_SRC; s++)
			fill(b->src[s], n, dtypes[t]);
		for (unsigned isa = 0; isa < COUNT(isas); isa++) {
			if (simd_select(isas[isa]) < 0)
				continue;
			for (unsigned op = 0; op_is_valid_for_dtype(op, dtypes[t]); op++) {
				run(b, n, dtypes[t], op);
				memcpy(b->acc, b->src[0], bytes);
				reduce_fold(b->acc, src, N_SRC, n, dtypes[t], op, true);
				reduce_finish(b->acc, b->acc, n, dtypes[t], op, DIVISOR);
				assert_memory_equal(b->acc, b->dst, bytes);
			}
		}
	}
}

/* There are special passes for one and two sources. Their results must equal those of the general
 * pass. */
static void folds_of_any_number_of_sources_add_in_order(void **state)
{
	struct bufs *b = *state;
	const size_t n = 1000;

	for (size_t t = 0; t < COUNT(dtypes); t++) {
		size_t acc_bytes = n * dtype_acc_bytes(dtypes[t]);
		const void *src[REDUCE_MAX_SRC];

		for (int s = 0; s < N_SRC; s++)
			fill(b->src[s], n, dtypes[t]);
		for (unsigned i = 0; i < REDUCE_MAX_SRC; i++)
			src[i] = b->src[i % N_SRC];
		for (unsigned isa = 0; isa < COUNT(isas); isa++) {
			if (simd_select(isas[isa]) < 0)
				continue;
			for (unsigned k = 1; k <= REDUCE_MAX_SRC; k++) {
				reduce_fold(b->acc, src, 1, n, dtypes[t], OP_SUM, true);
				memcpy(b->other_acc, b->acc, acc_bytes);
				for (unsigned i = 0; i < k; i++)
					reduce_fold(b->other_acc, src + i, 1, n, dtypes[t], OP_SUM,
						false);
				reduce_fold(b->acc, src, k, n, dtypes[t], OP_SUM, false);
				assert_memory_equal(b->acc, b->other_acc, acc_bytes);
			}
		}
	}
}

static void every_half_survives_the_way_to_f32_and_back(void **state)
{
	static uint16_t all[65536], back[65536];
	static float wide[65536];
	const enum dtype halves[] = {DTYPE_F16, DTYPE_BF16};
	const void *src[] = {all};

	(void)state;
	for (unsigned i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	for (size_t t = 0; t < COUNT(halves); t++) {
		for (unsigned isa = 0; isa < COUNT(isas); isa++) {
			if (simd_select(isas[isa]) < 0)
				continue;
			reduce_fold(wide, src, 1, 65536, halves[t], OP_SUM, true);
			reduce_finish(back, wide, 65536, halves[t], OP_SUM, 1);
			for (unsigned i = 0; i < 65536; i++) {
				double want = float_at((unsigned char *)all, i, halves[t]);

				if (isnan(want)) {
					assert_true(isnan(wide[i]));
					assert_true(isnan(
						float_at((unsigned char *)back, i, halves[t])));
				} else {
					assert_true((double)wide[i] == want);
					assert_int_equal(back[i], i);
				}
			}
		}
	}
}

/* Round each midpoint between neighbouring f16 or bf16 numbers, and the f32 values just above and
 * below the midpoint. The midpoint must be rounded to the even neighbour. The other two values must
 * be rounded to the nearer neighbour. If the bits of two neighbours are read as integers, these
 * integers differ by 1. */
static void rounding_is_to_the_nearest_half_and_ties_go_to_even(void **state)
{
	static float wide[3 * 32768];
	static uint16_t got[3 * 32768];
	const enum dtype halves[] = {DTYPE_F16, DTYPE_BF16};
	const uint16_t n_finite[] = {0x7c00, 0x7f80};

	(void)state;
	for (size_t t = 0; t < COUNT(halves); t++) {
		unsigned n = n_finite[t];

		for (uint16_t h = 0; (unsigned)h < n; h++) {
			uint16_t next = (uint16_t)(h + 1);
			double low = float_at((unsigned char *)&h, 0, halves[t]), high;

			/* The largest number has no upper neighbour. Use the value that its
			 * upper neighbour would have with a wider exponent. */
			if (next == n)
				high = ldexp(1, halves[t] == DTYPE_F16 ? 16 : 128);
			else
				high = float_at((unsigned char *)&next, 0, halves[t]);
			wide[3 * h + 1] = (float)((low + high) / 2);
			wide[3 * h] = nextafterf(wide[3 * h + 1], 0);
			wide[3 * h + 2] = nextafterf(wide[3 * h + 1], INFINITY);
		}
		for (unsigned isa = 0; isa < COUNT(isas); isa++) {
			if (simd_select(isas[isa]) < 0)
				continue;
			reduce_finish(got, wide, 3 * n, halves[t], OP_SUM, 1);
			for (unsigned h = 0; h < n; h++) {
				assert_int_equal(got[3 * h], h);
				assert_int_equal(got[3 * h + 1], h + (h & 1));
				assert_int_equal(got[3 * h + 2], h + 1);
			}
		}
	}
}

static void nans_become_quiet_halves_and_keep_their_sign(void **state)
{
	const uint32_t nans[] = {0x7f800001, 0xff800001, 0x7fc00000, 0xffffffff};
	uint16_t got[4];

	(void)state;
	for (unsigned isa = 0; isa < COUNT(isas); isa++) {
		if (simd_select(isas[isa]) < 0)
			continue;
		reduce_finish(got, nans, 4, DTYPE_F16, OP_SUM, 1);
		assert_int_equal(got[0], 0x7e00);
		assert_int_equal(got[1], 0xfe00);
		assert_int_equal(got[2], 0x7e00);
		assert_int_equal(got[3], 0xffff);
		reduce_finish(got, nans, 4, DTYPE_BF16, OP_SUM, 1);
		assert_int_equal(got[0], 0x7fc0);
		assert_int_equal(got[1], 0xffc0);
		assert_int_equal(got[2], 0x7fc0);
		assert_int_equal(got[3], 0xffff);
	}
}

static void integer_averages_round_to_the_floor(void **state)
{
	const int32_t x[] = {-7, -6, -1, 0, 1, 6, 7, INT32_MIN, INT32_MAX};
	const int32_t want[] = {-3, -2, -1, 0, 0, 2, 2, -715827883, 715827882};
	const int64_t least = INT64_MIN;
	int32_t got[COUNT(x)];
	int64_t got64;

	(void)state;
	reduce_finish(got, x, COUNT(x), DTYPE_I32, OP_AVG, 3);
	assert_memory_equal(got, want, sizeof(want));
	reduce_finish(&got64, &least, 1, DTYPE_I64, OP_AVG, UINT32_MAX);
	assert_true(got64 == -2147483649);
}

static void an_unknown_instruction_set_is_refused(void **state)
{
	(void)state;
	assert_int_equal(simd_select("portable"), 0);
	assert_true(simd_select("avx1024") < 0);
	assert_string_equal(simd_name(), "portable");
	assert_null(simd_refused_choice());
	setenv("BPS_SIMD", "avx1024", 1);
	assert_string_equal(simd_refused_choice(), "avx1024");
	setenv("BPS_SIMD", "portable", 1);
}

static void *isa_name(void *arg)
{
	(void)arg;
	return (void *)(uintptr_t)simd_name();
}

static void bitwise_operations_are_for_integers(void **state)
{
	(void)state;
	for (size_t t = 0; t < COUNT(dtypes); t++)
		for (unsigned op = 0; op < OP_COUNT + 2; op++)
			assert_int_equal(op_is_valid_for_dtype(op, dtypes[t]),
				op <= OP_AVG || (op <= OP_BXOR && !is_float(dtypes[t])));
	assert_false(op_is_valid_for_dtype(OP_SUM, 3));
	assert_string_equal(op_name(OP_BAND), "band");
	assert_string_equal(op_name(OP_BXOR), "bxor");
}

/* Run this test first, because other tests would choose the instruction set before the threads
 * do. */
static void threads_that_meet_at_first_use_choose_what_the_environment_says(void **state)
{
	pthread_t threads[4];
	void *name;

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, isa_name, NULL), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &name);
		assert_string_equal(name, "portable");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_that_meet_at_first_use_choose_what_the_environment_says),
		cmocka_unit_test(every_dtype_and_op_matches_the_plain_loop_at_every_size),
		cmocka_unit_test(nothing_beyond_the_last_element_is_written),
		cmocka_unit_test(means_of_f16_are_weighted),
		cmocka_unit_test(all_instruction_sets_give_the_same_bits_for_any_bits),
		cmocka_unit_test(min_and_max_propagate_nan_and_order_the_zeros),
		cmocka_unit_test(one_nan_in_any_place_becomes_the_nan_without_payload),
		cmocka_unit_test(nans_of_halves_become_one_in_a_single_pass),
		cmocka_unit_test(the_accumulator_may_be_the_first_source_and_the_destination),
		cmocka_unit_test(folds_of_any_number_of_sources_add_in_order),
		cmocka_unit_test(every_half_survives_the_way_to_f32_and_back),
		cmocka_unit_test(rounding_is_to_the_nearest_half_and_ties_go_to_even),
		cmocka_unit_test(nans_become_quiet_halves_and_keep_their_sign),
		cmocka_unit_test(integer_averages_round_to_the_floor),
		cmocka_unit_test(bitwise_operations_are_for_integers),
		cmocka_unit_test(an_unknown_instruction_set_is_refused),
	};

	setenv("BPS_SIMD", "portable", 1);
	return cmocka_run_group_tests(tests, setup, teardown);
}
