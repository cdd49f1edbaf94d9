/* bps_fill_f32 and bps_read_f32 in a job of one worker, compared with double arithmetic: rounding
 * to nearest even, subnormals, infinities and NaN. One thread. */
#include <errno.h>
#include <math.h>

#include "tests/unit/client_rig.h"
#include "tests/unit/half.h"

#define N_VALUES 5003 /* not a multiple of the block size of a conversion */

static uint32_t bits_of_float(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static float float_of_bits(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

static struct bps *open_alone(void)
{
	struct bps *b;

	unsetenv("BPS_FORCE_DISTRIBUTED");
	assert_int_equal(bps_open(NULL, &b), 0);
	return b;
}

static double bf16_number(uint16_t h)
{
	return (double)float_of_bits((uint32_t)h << 16);
}

/* Round to the nearest bf16 number, found by comparing with both neighbours. */
static uint16_t bf16_round(double v)
{
	uint16_t h = (uint16_t)(bits_of_float((float)fabs(v)) >> 16);
	double below, above;

	/* Start with the next smaller number, because the conversion to f32 may have rounded up. */
	h = h ? (uint16_t)(h - 1) : h;
	while (bf16_number((uint16_t)(h + 1)) <= fabs(v))
		h++;
	below = fabs(v) - bf16_number(h);
	above = bf16_number((uint16_t)(h + 1)) - fabs(v);
	if (above < below || (above == below && h & 1))
		h++;
	return (uint16_t)(h | (signbit(v) ? 0x8000 : 0));
}

/* Fill v with numbers of all sizes: random numbers, and numbers at or near the middle between two
 * numbers of f16 or bf16. */
static void make_values(float *v, int least_exponent, int most_exponent)
{
	uint32_t seed = 1;

	for (int i = 0; i < N_VALUES; i++) {
		int exponent = least_exponent + i % (most_exponent - least_exponent + 1);
		uint32_t fraction;

		seed = seed * 1664525 + 1013904223;
		fraction = seed >> 9;
		if (i % 3 == 1) /* just above or below the middle between two numbers of bf16 */
			fraction = (fraction & 0x7f0000) + 0x8000 + (fraction & 2) - 1;
		if (i % 3 == 2) /* the middle between two numbers of f16 */
			fraction = (fraction & 0x7fe000) + 0x1000;
		v[i] = (float)ldexp(1 + (double)fraction * 0x1p-23, exponent);
		v[i] = seed & 256 ? -v[i] : v[i];
	}
}

static void filled_values_are_rounded_once_to_the_nearest_even(void **state)
{
	static const float scales[] = {1, 0.5f, 1.0f / 3, -0.1f};
	static float small[N_VALUES], wide[N_VALUES];
	struct bps *b = open_alone();
	struct bps_tensor *half, *bf16, *single, *twice;

	(void)state;
	make_values(small, -27, 14);
	make_values(wide, -140, 126);
	assert_int_equal(bps_declare(b, "f16", BPS_F16, N_VALUES, &half), 0);
	assert_int_equal(bps_declare(b, "bf16", BPS_BF16, N_VALUES, &bf16), 0);
	assert_int_equal(bps_declare(b, "f32", BPS_F32, N_VALUES, &single), 0);
	assert_int_equal(bps_declare(b, "f64", BPS_F64, N_VALUES, &twice), 0);
	for (size_t s = 0; s < sizeof(scales) / sizeof(scales[0]); s++) {
		assert_int_equal(bps_fill_f32(half, small, scales[s]), 0);
		assert_int_equal(bps_fill_f32(bf16, wide, scales[s]), 0);
		assert_int_equal(bps_fill_f32(single, wide, scales[s]), 0);
		assert_int_equal(bps_fill_f32(twice, wide, scales[s]), 0);
		for (int i = 0; i < N_VALUES; i++) {
			double in_small = (double)small[i] * (double)scales[s];
			double in_wide = (double)wide[i] * (double)scales[s];

			assert_int_equal(((uint16_t *)bps_input(half))[i], half_round(in_small));
			assert_int_equal(((uint16_t *)bps_input(bf16))[i], bf16_round(in_wide));
			assert_true(((float *)bps_input(single))[i] == (float)in_wide);
			assert_true(((double *)bps_input(twice))[i] == in_wide);
		}
	}
	assert_int_equal(bps_close(b, 0), 0);
}

static void edges_of_the_types_are_kept(void **state)
{
	static const struct {
		float from;
		uint16_t f16, bf16;
	} edges[] = {{0, 0, 0}, {-0.0f, 0x8000, 0x8000}, {INFINITY, 0x7c00, 0x7f80},
		{-INFINITY, 0xfc00, 0xff80}, {65504, 0x7bff, 0x4780}, {65519, 0x7bff, 0x4780},
		{65520, 0x7c00, 0x4780}, {-1e30f, 0xfc00, 0xf14a}, {3.4e38f, 0x7c00, 0x7f80},
		{0x1p-24f, 1, 0x3380}, {0x1p-25f, 0, 0x3300}, {0x1.8p-25f, 1, 0x3340},
		{0x1p-133f, 0, 1}, {0x1p-134f, 0, 0}, {0x1.8p-134f, 0, 1},
		{-0x1p-149f, 0x8000, 0x8000}};
	enum { N = sizeof(edges) / sizeof(edges[0]) };
	struct bps_tensor *half, *bf16;
	struct bps *b = open_alone();
	float from[N + 1];

	(void)state;
	for (int i = 0; i < N; i++)
		from[i] = edges[i].from;
	/* a NaN whose bits would overflow if they were rounded */
	from[N] = float_of_bits(0x7fffffff);
	assert_int_equal(bps_declare(b, "f16", BPS_F16, N + 1, &half), 0);
	assert_int_equal(bps_declare(b, "bf16", BPS_BF16, N + 1, &bf16), 0);
	assert_int_equal(bps_fill_f32(half, from, 1), 0);
	assert_int_equal(bps_fill_f32(bf16, from, 1), 0);
	for (int i = 0; i < N; i++) {
		assert_int_equal(((uint16_t *)bps_input(half))[i], edges[i].f16);
		assert_int_equal(((uint16_t *)bps_input(bf16))[i], edges[i].bf16);
	}
	assert_true((((uint16_t *)bps_input(half))[N] & 0x7fff) > 0x7c00);
	assert_true((((uint16_t *)bps_input(bf16))[N] & 0x7fff) > 0x7f80);
	assert_int_equal(bps_close(b, 0), 0);
}

static void every_half_is_read_with_its_value(void **state)
{
	enum { N = 65536 };
	static float out[N];
	struct bps_tensor *half, *bf16;
	struct bps *b = open_alone();

	(void)state;
	assert_int_equal(bps_declare(b, "f16", BPS_F16, N, &half), 0);
	assert_int_equal(bps_declare(b, "bf16", BPS_BF16, N, &bf16), 0);
	assert_int_equal(bps_read_f32(half, out, 1), -EINVAL);
	assert_error_has("no round of tensor 'f16' is complete");
	for (int i = 0; i < N; i++)
		((uint16_t *)bps_input(half))[i] = ((uint16_t *)bps_input(bf16))[i] = (uint16_t)i;
	assert_int_equal(bps_push_pull(half, BPS_SUM, 0), 0);
	assert_int_equal(bps_push_pull(bf16, BPS_SUM, 0), 0);
	assert_int_equal(bps_read_f32(half, out, 2), 0);
	for (int i = 0; i < N; i++) {
		if ((i & 0x7fff) < 0x7c00)
			assert_true((double)out[i] == 2 * half_value((uint16_t)i));
		else
			assert_true((i & 0x7fff) == 0x7c00 ? isinf(out[i]) : isnan(out[i]));
	}
	assert_int_equal(bps_read_f32(bf16, out, 1), 0);
	for (int i = 0; i < N; i++)
		assert_true(isnan(out[i]) || bits_of_float(out[i]) == (uint32_t)i << 16);
	assert_int_equal(bps_close(b, 0), 0);
}

static void integers_missing_memory_and_busy_tensors_are_refused(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t, *integers;
	float value = 1;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	assert_int_equal(bps_declare(b, "i", BPS_I32, 1, &integers), 0);
	assert_int_equal(bps_fill_f32(integers, &value, 1), -EINVAL);
	assert_error_has("integer type i32");
	assert_int_equal(bps_read_f32(integers, &value, 1), -EINVAL);
	assert_int_equal(bps_fill_f32(NULL, &value, 1), -EINVAL);
	assert_int_equal(bps_fill_f32(t, NULL, 1), -EINVAL);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_fill_f32(t, &value, 1), BPS_EBUSY);
	bps_abort(b);
	fake_agent_free(f);
}

static void products_with_a_power_of_two_are_rounded_once(void **state)
{
	static float wide[N_VALUES], small[N_VALUES];
	struct bps *b = open_alone();
	struct bps_tensor *half, *bf16;

	(void)state;
	make_values(wide, -140, 100);
	make_values(small, -27, 14);
	assert_int_equal(bps_declare(b, "f16", BPS_F16, N_VALUES, &half), 0);
	assert_int_equal(bps_declare(b, "bf16", BPS_BF16, N_VALUES, &bf16), 0);
	for (int exponent = -20; exponent <= 1; exponent++) {
		float scale = (float)ldexp(exponent % 2 ? -1 : 1, exponent);

		assert_int_equal(bps_fill_f32(half, small, scale), 0);
		assert_int_equal(bps_fill_f32(bf16, wide, scale), 0);
		for (int i = 0; i < N_VALUES; i++) {
			assert_int_equal(((uint16_t *)bps_input(half))[i],
				half_round((double)small[i] * (double)scale));
			assert_int_equal(((uint16_t *)bps_input(bf16))[i],
				bf16_round((double)wide[i] * (double)scale));
		}
	}
	wide[0] = -3e38f;
	assert_int_equal(bps_fill_f32(half, wide, 2), 0);
	assert_int_equal(bps_fill_f32(bf16, wide, 2), 0);
	assert_int_equal(((uint16_t *)bps_input(half))[0], 0xfc00);
	assert_int_equal(((uint16_t *)bps_input(bf16))[0], 0xff80);
	assert_int_equal(bps_close(b, 0), 0);
}

static void blocks_are_filled_and_read_in_pieces(void **state)
{
	enum { N = 2 * 256 + 100 };
	struct bps *b = open_alone();
	struct bps_tensor *t;
	float x[N], residual[N] = {0}, got[N];

	(void)state;
	for (int i = 0; i < N; i++)
		x[i] = (float)(i % 255 - 127);
	assert_int_equal(bps_blocks(BPS_Q8, N), 3);
	assert_int_equal(bps_blocks(BPS_F32, N), N);
	assert_int_equal(bps_blocks((enum bps_dtype)3, N), 0);
	assert_int_equal(bps_declare(b, "q", BPS_Q8, N, &t), 0);
	assert_int_equal(bps_count(t), N);
	assert_int_equal(bps_fill_at_f32(t, 256, x + 256, N - 256, 2, residual + 256), 0);
	assert_int_equal(bps_fill_at_f32(t, 0, x, 256, 2, residual), 0);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_read_f32(t, got, 0.5f), 0);
	for (int i = 0; i < N; i++)
		assert_true(got[i] * 2 + residual[i] == x[i] * 2);
	memset(got, 0, sizeof(got));
	assert_int_equal(bps_read_at_f32(t, 512, got, 3, 1), 0);
	assert_true(got[2] + residual[514] == 2 * x[514] && got[3] == 0);
	assert_int_equal(bps_close(b, 0), 0);
}

static void wrong_pieces_are_refused_and_change_nothing(void **state)
{
	enum { N = 700 };
	struct bps *b = open_alone();
	float x[N] = {1}, residual[N];
	struct bps_tensor *q, *f;
	unsigned char before[3 * 260];

	(void)state;
	for (int i = 0; i < N; i++)
		residual[i] = 5;
	assert_int_equal(bps_declare(b, "q", BPS_Q8, N, &q), 0);
	assert_int_equal(bps_declare(b, "f", BPS_F32, N, &f), 0);
	assert_int_equal(bps_fill_f32(q, x, 1), 0);
	memcpy(before, bps_input(q), sizeof(before));
	assert_int_equal(bps_fill_at_f32(q, 100, x, 1, 1, residual), -EINVAL);
	assert_error_has("has blocks of 256 values, and value 100 is inside of a block");
	assert_int_equal(bps_fill_at_f32(q, 512, x, N - 511, 1, residual), -EINVAL);
	assert_error_has("values 512 to 701 do not lie in tensor 'q', which has 700 values");
	assert_int_equal(bps_fill_at_f32(q, UINT64_MAX - 255, x, 256, 1, residual), -EINVAL);
	assert_int_equal(bps_fill_at_f32(f, 0, x, N, 1, residual), -EINVAL);
	assert_error_has("has type f32: only q8, q4 and sign take a residual");
	assert_int_equal(bps_read_at_f32(q, 1, x, 1, 1), -EINVAL);
	assert_error_has("inside of a block");
	assert_int_equal(bps_push_pull(q, BPS_MAX, 0), -EINVAL);
	assert_error_has("max is an operation on single values, not on q8");
	assert_memory_equal(bps_input(q), before, sizeof(before));
	for (int i = 0; i < N; i++)
		assert_true(residual[i] == 5);
	assert_int_equal(bps_close(b, 0), 0);
}

static void a_busy_block_tensor_keeps_the_residual(void **state)
{
	struct fake_agent *f = fake_agent_new();
	float x[256] = {1}, residual[256] = {3};
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "q", BPS_Q8, 256, &t), 0);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_fill_at_f32(t, 0, x, 256, 1, residual), BPS_EBUSY);
	assert_true(residual[0] == 3);
	bps_abort(b);
	fake_agent_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(filled_values_are_rounded_once_to_the_nearest_even),
		T(edges_of_the_types_are_kept),
		T(every_half_is_read_with_its_value),
		T(integers_missing_memory_and_busy_tensors_are_refused),
		T(products_with_a_power_of_two_are_rounded_once),
		T(blocks_are_filled_and_read_in_pieces),
		T(wrong_pieces_are_refused_and_change_nothing),
		T(a_busy_block_tensor_keeps_the_residual),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
