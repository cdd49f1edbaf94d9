/* Block types. Blocks are decoded with a plain loop over doubles that follows the text of block.h.
 * All instruction sets of this machine are compared with each other bit by bit. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/data/block.h"
#include "common/data/reduce.h"
#include "common/data/simd.h"

#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))
#define N_BLOCKS   9
#define VALUES_MAX 1024
#define N_MAX      ((size_t)N_BLOCKS * VALUES_MAX)
#define BYTES_MAX  (N_BLOCKS * 260)
#define N_SRC      7

static const enum dtype types[] = {DTYPE_Q8, DTYPE_Q4, DTYPE_SIGN};
static const char *const others[] = {"avx2", "avx512"};

static uint64_t random_state = 88172645463325252u;

static uint64_t random_u64(void) /* xorshift64, Marsaglia 2003 */
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* Return a number between -1 and 1. */
static double random_unit(void)
{
	return (double)(int64_t)random_u64() * 0x1p-63;
}

static void fill_random(float *x, size_t n, double size)
{
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(random_unit() * size);
}

static void fill_any_bytes(void *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((unsigned char *)p)[i] = (unsigned char)(random_u64() >> 20);
}

static unsigned words_of(enum dtype type)
{
	return type == DTYPE_Q8 ? 64 : type == DTYPE_Q4 ? 8 : 32;
}

static unsigned bits_of(enum dtype type)
{
	return type == DTYPE_Q8 ? 8 : type == DTYPE_Q4 ? 4 : 1;
}

static float scale_of(const unsigned char *block, enum dtype type)
{
	unsigned char bytes[4] = {0};
	float scale;

	if (type == DTYPE_Q4)
		memcpy(bytes + 2, block, 2);
	else
		memcpy(bytes, block, 4);
	memcpy(&scale, bytes, sizeof(scale));
	return scale;
}

static double value_of(const unsigned char *blocks, size_t i, enum dtype type)
{
	const unsigned char *block = blocks + i / dtype_values(type) * dtype_bytes(type);
	unsigned w = words_of(type), bits = bits_of(type), k = (unsigned)(i % dtype_values(type));
	const unsigned char *word = block + (type == DTYPE_Q4 ? 2 : 4) + k % w * 4;
	uint32_t u = (uint32_t)word[0] | (uint32_t)word[1] << 8 | (uint32_t)word[2] << 16 |
		     (uint32_t)word[3] << 24;
	int field = (int)(u >> (k / w * bits) & ((1u << bits) - 1));

	if (bits == 1)
		field = field ? -1 : 1;
	else if (field >= 1 << (bits - 1))
		field -= 1 << bits;
	return (double)scale_of(block, type) * field;
}

static void use_portable(void)
{
	assert_int_equal(simd_select("portable"), 0);
}

static void the_table_of_types_agrees_with_the_layout(void **state)
{
	(void)state;
	for (size_t t = 0; t < COUNT(types); t++) {
		size_t scale_bytes = types[t] == DTYPE_Q4 ? 2 : 4;

		assert_true(dtype_is_block(types[t]) && dtype_is_float(types[t]));
		assert_int_equal(
			dtype_values(types[t]), words_of(types[t]) * 32 / bits_of(types[t]));
		assert_int_equal(dtype_bytes(types[t]), scale_bytes + words_of(types[t]) * 4);
		assert_int_equal(dtype_acc_bytes(types[t]), dtype_values(types[t]) * sizeof(float));
		assert_int_equal(dtype_elems(types[t], 1), 1);
		assert_int_equal(dtype_elems(types[t], dtype_values(types[t])), 1);
		assert_int_equal(dtype_elems(types[t], dtype_values(types[t]) + 1), 2);
		for (unsigned op = 0; op < OP_COUNT + 1; op++)
			assert_int_equal(
				op_is_valid_for_dtype(op, types[t]), op == OP_SUM || op == OP_AVG);
	}
	assert_int_equal(dtype_elems(DTYPE_Q8, UINT64_MAX), UINT64_MAX / 256 + 1);
	assert_false(dtype_is_block(DTYPE_F32) || dtype_is_block(31) || dtype_is_block(35));
}

static void blocks_have_these_bytes(void **state)
{
	static const unsigned char q8[] = {0, 0, 0, 0x3f, 0x7f, 0x81, 0, 0, 1, 0, 0, 0};
	static const unsigned char q4[] = {0x80, 0x3f, 0x97, 0, 0, 0, 2, 0, 0, 0};
	static const unsigned char sign[] = {0, 0, 0, 0x40, 3, 0, 0, 0, 0, 0, 0, 0x80};
	float x[VALUES_MAX] = {[0] = 63.5f, [1] = 0.5f, [64] = -63.5f};
	unsigned char got[260];

	(void)state;
	use_portable();
	block_encode(got, x, NULL, 256, 1, DTYPE_Q8);
	assert_memory_equal(got, q8, sizeof(q8));
	memset(x, 0, sizeof(x));
	x[0] = 7;
	x[1] = 2;
	x[8] = -7;
	block_encode(got, x, NULL, 64, 1, DTYPE_Q4);
	assert_memory_equal(got, q4, sizeof(q4));
	for (int i = 0; i < VALUES_MAX; i++)
		x[i] = i == 0 || i == 32 || i == 31 * 32 + 1 ? -2 : 2;
	block_encode(got, x, NULL, 1024, 1, DTYPE_SIGN);
	assert_memory_equal(got, sign, sizeof(sign));
}

/* The error of a value is at most half of the scale. The factor covers the rounding of
 * value / scale. */
static void decoded_values_are_within_half_a_scale(void **state)
{
	static float x[N_MAX], got[N_MAX];
	unsigned char blocks[BYTES_MAX];

	(void)state;
	use_portable();
	for (int exponent = -117; exponent < 127; exponent += 7) {
		for (size_t t = 0; t < 2; t++) {
			size_t n = N_BLOCKS * dtype_values(types[t]);

			fill_random(x, n, ldexp(1, exponent));
			block_encode(blocks, x, NULL, n, 1, types[t]);
			block_decode(got, blocks, n, 1, types[t]);
			for (size_t i = 0; i < n; i++) {
				double scale = (double)scale_of(
					blocks + i / dtype_values(types[t]) * dtype_bytes(types[t]),
					types[t]);

				assert_true((double)got[i] == value_of(blocks, i, types[t]));
				assert_true(fabs((double)got[i] - (double)x[i]) <=
					    scale / 2 * (1 + 0x1p-15));
			}
		}
	}
}

static void the_scale_of_sign_is_the_mean(void **state)
{
	static float x[VALUES_MAX];
	unsigned char block[132];

	(void)state;
	use_portable();
	for (int run = 0; run < 100; run++) {
		double mean = 0, scale;

		fill_random(x, VALUES_MAX, ldexp(1, run - 50));
		for (int i = 0; i < VALUES_MAX; i++)
			mean += fabs((double)x[i]) / VALUES_MAX;
		block_encode(block, x, NULL, VALUES_MAX, 1, DTYPE_SIGN);
		scale = (double)scale_of(block, DTYPE_SIGN);
		assert_true(scale <= mean * (1 + 0x1p-20) && scale >= mean * (1 - 0x1p-11));
		for (size_t i = 0; i < VALUES_MAX; i++)
			assert_true(
				value_of(block, i, DTYPE_SIGN) == copysign(scale, (double)x[i]));
	}
}

static void a_decoded_block_is_encoded_to_the_same_bytes(void **state)
{
	static float x[N_MAX];
	unsigned char first[BYTES_MAX], second[BYTES_MAX];

	(void)state;
	use_portable();
	for (int run = 0; run < 300; run++) {
		for (size_t t = 0; t < COUNT(types); t++) {
			size_t n = N_BLOCKS * dtype_values(types[t]);
			size_t bytes = N_BLOCKS * dtype_bytes(types[t]);

			fill_random(x, n, ldexp(1, run % 200 - 100));
			block_encode(first, x, NULL, n, 1, types[t]);
			block_decode(x, first, n, 1, types[t]);
			block_encode(second, x, NULL, n, 1, types[t]);
			assert_memory_equal(first, second, bytes);
		}
	}
}

static void extreme_values_stay_finite_and_small_blocks_become_zero(void **state)
{
	float x[VALUES_MAX], got[VALUES_MAX];
	unsigned char block[260];

	(void)state;
	use_portable();
	for (size_t t = 0; t < COUNT(types); t++) {
		size_t n = dtype_values(types[t]);

		for (size_t i = 0; i < n; i++)
			x[i] = i % 2 ? FLT_MAX : -FLT_MAX;
		block_encode(block, x, NULL, n, 1, types[t]);
		block_decode(got, block, n, 1, types[t]);
		for (size_t i = 0; i < n; i++)
			assert_true(
				isfinite(got[i]) && fabs((double)got[i] / (double)x[i] - 1) < 0.01);
		for (size_t i = 0; i < n; i++)
			x[i] = i % 2 ? 0x1p-126f : -FLT_TRUE_MIN;
		block_encode(block, x, NULL, n, 1, types[t]);
		block_decode(got, block, n, 1, types[t]);
		for (size_t i = 0; i < n; i++)
			assert_true(fpclassify(got[i]) == FP_ZERO);
		x[3] = 0x1p-115f;
		block_encode(block, x, NULL, n, 1, types[t]);
		assert_true(isnormal(scale_of(block, types[t])));
		/* around the smallest scale, the encoding of a decoded block is the block */
		for (float size = 0x1p-127f; size < 0x1p-114f; size *= 1.0001f) {
			unsigned char again[260];

			for (size_t i = 0; i < n; i++)
				x[i] = i == 7 ? size : 0;
			block_encode(block, x, NULL, n, 1, types[t]);
			block_decode(got, block, n, 1, types[t]);
			block_encode(again, got, NULL, n, 1, types[t]);
			assert_memory_equal(again, block, dtype_bytes(types[t]));
		}
	}
}

static void a_number_that_is_not_finite_makes_its_block_nan(void **state)
{
	static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
	float x[3 * VALUES_MAX], residual[3 * VALUES_MAX], got[3 * VALUES_MAX];
	unsigned char blocks[3 * 260];

	(void)state;
	use_portable();
	for (size_t t = 0; t < COUNT(types); t++) {
		size_t v = dtype_values(types[t]), bytes = dtype_bytes(types[t]);

		for (size_t b = 0; b < COUNT(bad); b++) {
			fill_random(x, 3 * v, 1);
			fill_random(residual, 3 * v, 0.1);
			x[v + b] = bad[b];
			block_encode(blocks, x, residual, 3 * v, 1, types[t]);
			block_decode(got, blocks, 3 * v, 1, types[t]);
			for (size_t i = 0; i < 3 * v; i++) {
				assert_int_equal(!!isnan(got[i]), i / v == 1);
				assert_true(i / v != 1 || fpclassify(residual[i]) == FP_ZERO);
			}
			/* the NaN has one form, and the integers are zeros */
			assert_int_equal(blocks[2 * bytes - 1], 0);
			assert_memory_equal(blocks + bytes,
				types[t] == DTYPE_Q4 ? "\xc0\x7f" : "\0\0\xc0\x7f",
				types[t] == DTYPE_Q4 ? 2 : 4);
		}
	}
}

static void an_incomplete_block_repeats_its_values(void **state)
{
	float x[2 * VALUES_MAX], full[2 * VALUES_MAX], residual[2 * VALUES_MAX];
	float got[2 * VALUES_MAX + 1];
	unsigned char want[2 * 260], blocks[2 * 260 + 1];

	(void)state;
	use_portable();
	for (size_t t = 0; t < COUNT(types); t++) {
		size_t v = dtype_values(types[t]);
		const size_t counts[] = {1, 2, v / 2 + 1, v - 1, v + 1, 2 * v - 3};

		for (size_t c = 0; c < COUNT(counts); c++) {
			size_t n = counts[c], begin = n / v * v,
			       bytes = (n / v + 1) * dtype_bytes(types[t]);

			fill_random(x, n, 1);
			for (size_t i = 0; i < begin + v; i++)
				full[i] = x[i < n ? i : begin + (i - begin) % (n - begin)];
			block_encode(want, full, NULL, begin + v, 3, types[t]);
			blocks[bytes] = 0x5a;
			block_encode(blocks, x, NULL, n, 3, types[t]);
			assert_memory_equal(blocks, want, bytes);
			for (size_t i = 0; i < COUNT(residual); i++)
				residual[i] = i < n ? 0 : 77;
			block_encode(blocks, x, residual, n, 3, types[t]);
			assert_memory_equal(blocks, want, bytes);
			assert_int_equal(blocks[bytes], 0x5a);
			got[n] = 55;
			block_decode(got, blocks, n, 2, types[t]);
			for (size_t i = 0; i < n; i++) {
				assert_true((double)got[i] == 2 * value_of(blocks, i, types[t]));
				assert_true(residual[i] == x[i] * 3 - got[i] / 2);
			}
			assert_true((int)residual[n] == 77 && (int)got[n] == 55);
		}
	}
}

/* Each round stores the error of its values in the residual, and the next round adds it. So the
 * sum of all decoded values differs from the sum of all values by the last residual. */
static void residuals_telescope(void **state)
{
	enum { ROUNDS = 2000 };
	static float x[N_MAX], residual[N_MAX], got[N_MAX];
	static double sum_in[N_MAX], sum_out[N_MAX];
	unsigned char blocks[BYTES_MAX];

	(void)state;
	use_portable();
	for (size_t t = 0; t < COUNT(types); t++) {
		size_t n = dtype_values(types[t]);

		memset(residual, 0, sizeof(residual));
		memset(sum_in, 0, sizeof(sum_in));
		memset(sum_out, 0, sizeof(sum_out));
		for (int round = 0; round < ROUNDS; round++) {
			fill_random(x, n, 1);
			block_encode(blocks, x, residual, n, 0.5f, types[t]);
			block_decode(got, blocks, n, 1, types[t]);
			for (size_t i = 0; i < n; i++) {
				sum_in[i] += (double)x[i] / 2;
				sum_out[i] += (double)got[i];
			}
		}
		/* each round rounds p = x / 2 + e once, and |p| stays below 16 */
		for (size_t i = 0; i < n; i++)
			assert_true(fabs(sum_in[i] - sum_out[i] - (double)residual[i]) <=
				    ROUNDS * 0x1p-20);
	}
}

static void sums_are_added_in_order_and_encoded_once(void **state)
{
	static float x[N_MAX], sum[N_MAX];
	static unsigned char blocks[N_SRC][BYTES_MAX], want[BYTES_MAX], got[BYTES_MAX];
	const void *src[N_SRC];

	(void)state;
	use_portable();
	for (size_t t = 0; t < COUNT(types); t++) {
		size_t n = N_BLOCKS * dtype_values(types[t]);

		for (unsigned n_src = 1; n_src <= N_SRC; n_src++) {
			for (unsigned s = 0; s < n_src; s++) {
				fill_random(x, n, 1);
				block_encode(blocks[s], x, NULL, n, 1, types[t]);
				for (size_t i = 0; i < n; i++)
					sum[i] = (s ? sum[i] : 0) +
						 (float)value_of(blocks[s], i, types[t]);
				src[s] = blocks[s];
			}
			block_encode(want, sum, NULL, n, 1, types[t]);
			reduce_all(got, src, n_src, N_BLOCKS, types[t], OP_SUM, 5);
			assert_memory_equal(got, want, N_BLOCKS * dtype_bytes(types[t]));
			for (size_t i = 0; i < n; i++)
				sum[i] /= 5;
			block_encode(want, sum, NULL, n, 1, types[t]);
			reduce_all(got, src, n_src, N_BLOCKS, types[t], OP_AVG, 5);
			assert_memory_equal(got, want, N_BLOCKS * dtype_bytes(types[t]));
		}
	}
}

static void passes_of_any_size_give_the_bytes_of_one_pass(void **state)
{
	static float acc[N_MAX];
	static unsigned char blocks[N_SRC][BYTES_MAX], want[BYTES_MAX], got[BYTES_MAX];
	const void *src[N_SRC];

	(void)state;
	use_portable();
	for (unsigned s = 0; s < N_SRC; s++)
		src[s] = blocks[s];
	for (size_t t = 0; t < COUNT(types); t++) {
		for (unsigned s = 0; s < N_SRC; s++) {
			fill_random(acc, N_BLOCKS * dtype_values(types[t]), 1);
			block_encode(blocks[s], acc, NULL, N_BLOCKS * dtype_values(types[t]), 1,
				types[t]);
		}
		reduce_all(want, src, N_SRC, N_BLOCKS, types[t], OP_AVG, 3);
		for (unsigned first = 1; first < N_SRC; first++) {
			reduce_fold(acc, src, first, N_BLOCKS, types[t], OP_AVG, true);
			reduce_fold(
				acc, src + first, N_SRC - first, N_BLOCKS, types[t], OP_AVG, false);
			reduce_finish(got, acc, N_BLOCKS, types[t], OP_AVG, 3);
			assert_memory_equal(got, want, N_BLOCKS * dtype_bytes(types[t]));
		}
	}
}

/* Results that one instruction set computes from the same input. */
struct outputs {
	unsigned char encoded[BYTES_MAX], with_residual[BYTES_MAX], sum[BYTES_MAX], mean[BYTES_MAX];
	float residual[N_MAX], decoded[N_MAX];
};

static void compute_outputs(struct outputs *ret, const float *x, const float *residual,
	const void *const *src, enum dtype type)
{
	size_t n = N_BLOCKS * dtype_values(type) - 3;

	memset(ret, 0, sizeof(*ret));
	memcpy(ret->residual, residual, n * sizeof(*residual));
	block_encode(ret->encoded, x, NULL, n, 1, type);
	block_encode(ret->with_residual, x, ret->residual, n, 1.0f / 3, type);
	block_decode(ret->decoded, src[0], n, 1.0f / 3, type);
	reduce_all(ret->sum, src, N_SRC, N_BLOCKS, type, OP_SUM, 1);
	reduce_all(ret->mean, src, N_SRC, N_BLOCKS, type, OP_AVG, 7);
}

static void all_instruction_sets_give_the_same_bits_for_any_bits(void **state)
{
	static float x[N_MAX], residual[N_MAX];
	static unsigned char blocks[N_SRC][BYTES_MAX + 1];
	static struct outputs want, got;
	const void *src[N_SRC];

	(void)state;
	for (unsigned s = 0; s < N_SRC; s++)
		src[s] = blocks[s] + 1; /* blocks have no alignment */
	for (int run = 0; run < 60; run++) {
		bool has_any = run % 2; /* any bits, so that most blocks are NaN */

		for (size_t t = 0; t < COUNT(types); t++) {
			fill_random(x, N_MAX, ldexp(1, run - 30));
			fill_random(residual, N_MAX, ldexp(1, run - 35));
			if (has_any)
				fill_any_bytes(x + run % 7 * VALUES_MAX, VALUES_MAX * sizeof(*x));
			for (unsigned s = 0; s < N_SRC; s++) {
				fill_any_bytes(blocks[s], BYTES_MAX + 1);
				if (!has_any)
					block_encode(blocks[s] + 1, x, NULL,
						N_BLOCKS * dtype_values(types[t]), (float)s,
						types[t]);
			}
			use_portable();
			compute_outputs(&want, x, residual, src, types[t]);
			for (size_t o = 0; o < COUNT(others); o++) {
				if (simd_select(others[o]) < 0)
					continue;
				compute_outputs(&got, x, residual, src, types[t]);
				assert_memory_equal(&got, &want, sizeof(got));
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_of_types_agrees_with_the_layout),
		cmocka_unit_test(blocks_have_these_bytes),
		cmocka_unit_test(decoded_values_are_within_half_a_scale),
		cmocka_unit_test(the_scale_of_sign_is_the_mean),
		cmocka_unit_test(a_decoded_block_is_encoded_to_the_same_bytes),
		cmocka_unit_test(extreme_values_stay_finite_and_small_blocks_become_zero),
		cmocka_unit_test(a_number_that_is_not_finite_makes_its_block_nan),
		cmocka_unit_test(an_incomplete_block_repeats_its_values),
		cmocka_unit_test(residuals_telescope),
		cmocka_unit_test(sums_are_added_in_order_and_encoded_once),
		cmocka_unit_test(passes_of_any_size_give_the_bytes_of_one_pass),
		cmocka_unit_test(all_instruction_sets_give_the_same_bits_for_any_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
