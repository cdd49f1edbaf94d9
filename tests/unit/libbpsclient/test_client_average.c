/* Averages of integers in the client library, with a fake agent. The sum of the integers may exceed
 * the range of their type. One thread makes all calls, except that another thread opens the second
 * worker of a job. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "tests/unit/client_rig.h"

#define COMPANION "__bps_avg.w"

struct opening {
	struct bps_options options;
	struct bps *b;
};

static void *open_main(void *arg)
{
	struct opening *o = arg;

	return bps_open(&o->options, &o->b) ? arg : NULL;
}

/* Open the two workers of a job. One thread can then make the calls of both workers in any order,
 * because only bps_open and bps_close wait for the other worker. */
static void open_two(struct fake_agent *f, struct bps *ret[2])
{
	struct opening o[2] = {{.options = options_of(f, 0, 2)}, {.options = options_of(f, 1, 2)}};
	pthread_t thread;
	void *failed;

	assert_int_equal(pthread_create(&thread, NULL, open_main, &o[1]), 0);
	assert_null(open_main(&o[0]));
	pthread_join(thread, &failed);
	assert_null(failed);
	ret[0] = o[0].b;
	ret[1] = o[1].b;
}

static void declare_both(
	struct bps *b[2], enum bps_dtype dtype, uint64_t n_elems, struct bps_tensor *ret[2])
{
	for (int i = 0; i < 2; i++)
		assert_int_equal(bps_declare(b[i], "w", dtype, n_elems, &ret[i]), 0);
}

static void round_of_both(struct bps_tensor *t[2], enum bps_op op)
{
	for (int i = 0; i < 2; i++)
		assert_int_equal(bps_push_pull(t[i], op, BPS_PRIORITY_AUTO), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(bps_wait(t[i], 0), 0);
}

static void abort_both(struct bps *b[2])
{
	bps_abort(b[0]);
	bps_abort(b[1]);
}

/* ---- values ---- */

#define CHECK_PAIRS(type, bps_type, ...)                                                           \
	do {                                                                                       \
		static const type pairs[][3] = {__VA_ARGS__};                                      \
		enum { N_ = sizeof(pairs) / sizeof(pairs[0]) };                                    \
		struct fake_agent *f = fake_agent_new();                                           \
		struct bps_tensor *t[2];                                                           \
		struct bps *b[2];                                                                  \
                                                                                                   \
		fake_agent_start(f);                                                               \
		open_two(f, b);                                                                    \
		declare_both(b, bps_type, N_, t);                                                  \
		for (int w = 0; w < 2; w++)                                                        \
			for (int i = 0; i < N_; i++)                                               \
				((type *)bps_input(t[w]))[i] = pairs[i][w];                        \
		round_of_both(t, BPS_AVG);                                                         \
		for (int w = 0; w < 2; w++)                                                        \
			for (int i = 0; i < N_; i++)                                               \
				assert_int_equal(                                                  \
					((const type *)bps_output(t[w]))[i], pairs[i][2]);         \
		abort_both(b);                                                                     \
		fake_agent_free(f);                                                                \
	} while (0)

static void average_is_the_floor_of_the_exact_mean_for_every_integer_type(void **state)
{
	(void)state;
	CHECK_PAIRS(uint8_t, BPS_U8, {200, 200, 200}, {255, 255, 255}, {255, 0, 127}, {0, 1, 0});
	CHECK_PAIRS(int8_t, BPS_I8, {127, 127, 127}, {-128, -128, -128}, {-128, 127, -1},
		{-1, -2, -2}, {-1, 0, -1});
	CHECK_PAIRS(int32_t, BPS_I32, {INT32_MAX, INT32_MAX, INT32_MAX},
		{INT32_MIN, INT32_MIN, INT32_MIN}, {INT32_MIN, INT32_MAX, -1}, {-1, 0, -1});
	CHECK_PAIRS(int64_t, BPS_I64, {INT64_MAX, INT64_MAX, INT64_MAX},
		{INT64_MIN, INT64_MIN, INT64_MIN}, {INT64_MIN, INT64_MAX, -1},
		{INT64_MAX, INT64_MAX - 1, INT64_MAX - 1},
		{INT64_MIN, INT64_MIN + 3, INT64_MIN + 1}, {-1, 0, -1}, {0, 1, 0},
		{4294967295, 4294967296, 4294967295}, {-4294967296, -4294967297, -4294967297},
		{-3, -4, -4});
}

static void sums_and_averages_of_one_tensor_may_follow_each_other(void **state)
{
	static const enum bps_op ops[] = {BPS_SUM, BPS_AVG, BPS_AVG, BPS_SUM, BPS_MAX, BPS_AVG};
	struct fake_agent *f = fake_agent_new();
	const uint8_t *last = NULL;
	struct bps_tensor *t[2];
	struct bps_info info;
	uint8_t want = 0;
	struct bps *b[2];

	(void)state;
	fake_agent_start(f);
	open_two(f, b);
	declare_both(b, BPS_U8, 1, t);
	for (size_t r = 0; r < sizeof(ops) / sizeof(ops[0]); r++) {
		bool is_average = ops[r] == BPS_AVG;

		for (int w = 0; w < 2; w++)
			*(uint8_t *)bps_input(t[w]) = (uint8_t)(is_average ? 200 + r : r);
		round_of_both(t, ops[r]);
		if (last) /* the previous result stays readable until the next submission */
			assert_int_equal(*last, want);
		/* The fake agent computes the mean for BPS_AVG. For each other operation, BPS_MAX
		 * included, the fake agent computes the sum. */
		want = (uint8_t)(is_average ? 200 + r : 2 * r);
		last = bps_output(t[0]);
		assert_int_equal(*last, want);
		assert_int_equal(bps_tensor_info(t[0], &info), 0);
		assert_int_equal(info.round, r + 1);
		assert_int_equal(info.contributors, 2);
		assert_int_equal(bps_contributors(t[0]), 2);
	}
	abort_both(b);
	fake_agent_free(f);
}

static void average_is_delivered_as_a_copy_by_wait_and_by_poll(void **state)
{
	struct fake_agent *f = fake_agent_new();
	uint8_t src[3] = {200, 201, 255}, dst[2][3] = {{0}};
	struct bps_tensor *t[2];
	struct bps *b[2];

	(void)state;
	f->is_mute = true;
	fake_agent_start(f);
	open_two(f, b);
	declare_both(b, BPS_U8, 3, t);
	for (int w = 0; w < 2; w++)
		assert_int_equal(bps_push_pull_copy(t[w], src, dst[w], BPS_AVG, 0), 0);
	assert_int_equal(bps_poll(t[0]), 0);
	assert_int_equal(bps_push_pull(t[0], BPS_AVG, 0), BPS_EBUSY);
	assert_int_equal(bps_push_pull(t[0], BPS_SUM, 0), BPS_EBUSY);
	assert_null(bps_output(t[0]));
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait(t[0], 0), 0);
	assert_int_equal(bps_poll(t[1]), 1);
	for (int w = 0; w < 2; w++) {
		assert_memory_equal(dst[w], src, 3);
		assert_memory_equal(bps_output(t[w]), src, 3);
	}
	abort_both(b);
	fake_agent_free(f);
}

static void job_of_one_worker_averages_without_a_companion(void **state)
{
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	unsetenv("BPS_FORCE_DISTRIBUTED");
	assert_int_equal(bps_open(NULL, &b), 0);
	assert_int_equal(bps_declare(b, "w", BPS_I8, 1, &t), 0);
	for (int8_t r = 1; r <= 3; r++) {
		*(int8_t *)bps_input(t) = (int8_t)-r;
		assert_int_equal(bps_push_pull(t, BPS_AVG, 0), 0);
		assert_int_equal(bps_wait(t, 0), 0);
		assert_int_equal(*(const int8_t *)bps_output(t), -r);
	}
	assert_int_equal(bps_close(b, 0), 0);
}

/* ---- errors ---- */

static void abstain_and_submit(struct bps_tensor *t[2], unsigned abstains)
{
	for (unsigned w = 0; w < 2; w++)
		assert_int_equal(abstains >> w & 1
					 ? bps_abstain(t[w], BPS_AVG, BPS_PRIORITY_AUTO)
					 : bps_push_pull(t[w], BPS_AVG, BPS_PRIORITY_AUTO),
			0);
	for (unsigned w = 0; w < 2; w++)
		assert_int_equal(bps_wait(t[w], 0), 0);
}

static void average_of_integers_is_that_of_the_workers_that_do_not_abstain(void **state)
{
	static const enum bps_dtype dtypes[] = {BPS_U8, BPS_I64};
	static const unsigned abstains[] = {0, 2, 1, 3, 0};
	static const int64_t want[] = {150, 100, 200, 0, 150};

	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct fake_agent *f = fake_agent_new();
		struct bps_tensor *t[2];
		struct bps_info info;
		struct bps *b[2];

		fake_agent_start(f);
		open_two(f, b);
		declare_both(b, dtypes[k], 1, t);
		for (unsigned r = 0; r < sizeof(abstains) / sizeof(abstains[0]); r++) {
			for (int w = 0; w < 2; w++) {
				if (dtypes[k] == BPS_U8)
					*(uint8_t *)bps_input(t[w]) = (uint8_t)(100 + 100 * w);
				else
					*(int64_t *)bps_input(t[w]) = 100 + 100 * w;
			}
			abstain_and_submit(t, abstains[r]);
			for (unsigned w = 0; w < 2; w++) {
				const void *out = bps_output(t[w]);

				assert_int_equal(dtypes[k] == BPS_U8 ? *(const uint8_t *)out
								     : *(const int64_t *)out,
					want[r]);
				assert_int_equal(bps_tensor_info(t[w], &info), 0);
				assert_int_equal(info.is_mine_missing, abstains[r] >> w & 1);
				assert_int_equal(
					info.contributors, 2 - __builtin_popcount(abstains[r]));
			}
		}
		for (int w = 0; w < 2; w++)
			bps_abort(b[w]);
		fake_agent_free(f);
	}
}

static void job_of_one_worker_that_abstains_gets_zeros(void **state)
{
	struct bps_tensor *t;
	struct bps_info info;
	struct bps *b;

	(void)state;
	unsetenv("BPS_FORCE_DISTRIBUTED");
	assert_int_equal(bps_open(NULL, &b), 0);
	assert_int_equal(bps_declare(b, "t", BPS_F32, 1, &t), 0);
	for (int r = 0; r < 4; r++) {
		*(float *)bps_input(t) = 7;
		assert_int_equal(
			r % 2 ? bps_abstain(t, BPS_AVG, 0) : bps_push_pull(t, BPS_AVG, 0), 0);
		assert_int_equal(bps_wait(t, 0), 0);
		assert_true(*(const float *)bps_output(t) == (r % 2 ? 0 : 7));
		assert_int_equal(bps_contributors(t), !(r % 2));
		assert_int_equal(bps_tensor_info(t, &info), 0);
		assert_int_equal(info.is_mine_missing, r % 2);
	}
	assert_int_equal(bps_close(b, 0), 0);
}

static void group_with_an_average_that_is_refused_submits_nothing(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t[2];
	struct bps *b;

	(void)state;
	f->refused_name = COMPANION;
	fake_agent_start(f);
	b = open_one(f);
	t[0] = declare(b, "float", 1);
	assert_int_equal(bps_declare(b, "w", BPS_U8, 1, &t[1]), 0);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_AVG, 0), BPS_EQUOTA);
	assert_string_equal(bps_last_error(), "tensor 'w' in job 'j': limit 1 MiB");
	assert_int_equal(atomic_load(&f->submissions), 0);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait_group(t, 2, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void failure_of_an_average_names_the_tensor_and_leaves_the_last_result(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->mismatch_name = COMPANION;
	f->why = "tensor '" COMPANION "' is declared as i32[1] and as i32[2]";
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "w", BPS_U8, 1, &t), 0);
	*(uint8_t *)bps_input(t) = 7;
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_push_pull(t, BPS_AVG, 0), 0);
	assert_int_equal(bps_wait(t, 0), BPS_EMISMATCH);
	assert_string_equal(bps_last_error(), "push_pull of tensor 'w' in job 'j', round 2: "
					      "tensor 'w' is declared as i32[1] and as i32[2]");
	assert_int_equal(*(const uint8_t *)bps_output(t), 7);
	assert_int_equal(bps_poll(t), BPS_EMISMATCH);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), BPS_EMISMATCH);
	bps_abort(b);
	fake_agent_free(f);
}

static void failure_of_the_tensor_ends_the_wait_for_its_average(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->mismatch_name = "w";
	f->why = "rank 0 declares u8[1], rank 1 i8[1]";
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "w", BPS_U8, 1, &t), 0);
	assert_int_equal(bps_push_pull(t, BPS_AVG, 0), 0);
	assert_int_equal(bps_wait(t, 0), BPS_EMISMATCH);
	assert_error_has("rank 1 i8[1]");
	assert_null(bps_output(t));
	bps_abort(b);
	fake_agent_free(f);
}

static void late_average_is_reported_with_the_round_of_the_tensor(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->why = "waits for rank 1";
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "w", BPS_U8, 1, &t), 0);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	f->mute_name = COMPANION;
	assert_int_equal(bps_push_pull(t, BPS_AVG, 0), 0);
	assert_int_equal(bps_wait(t, 20), BPS_ETIMEDOUT);
	assert_error_has("tensor 'w' in job 'j', round 2, is not complete after 20 ms");
	assert_int_equal(bps_poll(t), 0);
	assert_int_equal(*(const uint8_t *)bps_output(t), 0); /* still the result of round 1 */
	bps_abort(b);
	fake_agent_free(f);
}

static void names_of_companions_cannot_be_declared_and_must_fit(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	char longest[256];
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, COMPANION, BPS_I32, 1, &t), -EINVAL);
	assert_error_has("are reserved");
	memset(longest, 'n', 255);
	longest[255] = 0;
	assert_int_equal(bps_declare(b, longest, BPS_U8, 1, &t), 0);
	assert_int_equal(bps_push_pull(t, BPS_AVG, 0), -EINVAL);
	assert_error_has("at most 245 bytes");
	longest[245] = 0;
	assert_int_equal(bps_declare(b, longest, BPS_U8, 1, &t), 0);
	assert_int_equal(bps_push_pull(t, BPS_AVG, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(average_of_integers_is_that_of_the_workers_that_do_not_abstain),
		cmocka_unit_test(job_of_one_worker_that_abstains_gets_zeros),
		T(average_is_the_floor_of_the_exact_mean_for_every_integer_type),
		T(sums_and_averages_of_one_tensor_may_follow_each_other),
		T(average_is_delivered_as_a_copy_by_wait_and_by_poll),
		T(job_of_one_worker_averages_without_a_companion),
		T(group_with_an_average_that_is_refused_submits_nothing),
		T(failure_of_an_average_names_the_tensor_and_leaves_the_last_result),
		T(failure_of_the_tensor_ends_the_wait_for_its_average),
		T(late_average_is_reported_with_the_round_of_the_tensor),
		T(names_of_companions_cannot_be_declared_and_must_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
