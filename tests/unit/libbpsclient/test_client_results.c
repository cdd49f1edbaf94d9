/* Results mapped copy-on-write, and copies of parts of a tensor. The fake agent sums a job of one
 * worker. One thread. */
#include <errno.h>
#include <sys/mman.h>

#include "tests/unit/client_rig.h"

#define MANY ((size_t)3 << 18) /* number of floats in a tensor whose result has several pages */

static void round_of(struct bps_tensor *t, float first, float last)
{
	float *in = bps_input(t);

	in[0] = first;
	in[bps_count(t) - 1] = last;
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
}

/* Get and return the result of the last round. Check that the result's first value is `first` and
 * its last value is `last`. Check that bps_results_last returns was_written: 1 if the caller has
 * written to the result, so that bps_results_last discards these writes; else 0. */
static float *take(struct bps_results *r, float first, float last, size_t n, int was_written)
{
	void *p = NULL;
	float *got;

	assert_int_equal(bps_results_last(r, &p), was_written);
	got = p;
	assert_true(got[0] == first && got[n - 1] == last);
	return got;
}

static void written_results(size_t n)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_results *r;
	float *odd, *even;
	struct bps_tensor *t;
	struct bps *b;

	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", n);
	assert_int_equal(bps_results_map(t, &r), 0);
	round_of(t, 1, 2);
	odd = take(r, 1, 2, n, 0);
	assert_ptr_not_equal(odd, bps_output(t));
	round_of(t, 3, 4);
	even = take(r, 3, 4, n, 0);
	assert_ptr_not_equal(odd, even);
	assert_true(odd[0] == 1 && odd[n - 1] == 2); /* round 3 will overwrite this result */
	even[n - 1] = 50;
	assert_true(((const float *)bps_output(t))[n - 1] == 4); /* the write is private */
	round_of(t, 5, 6);
	assert_ptr_equal(take(r, 5, 6, n, 0), odd);
	assert_true(even[n - 1] == 50);
	round_of(t, 7, 8);
	assert_ptr_equal(take(r, 7, 8, n, 1), even);
	assert_ptr_equal(take(r, 7, 8, n, 0), even);
	even[0] = 60;
	take(r, 7, 8, n, 1); /* the write is discarded even if no new round follows it */
	even[n - 1] = 70;
	assert_int_equal(bps_close(b, 0), 0);
	assert_true(even[0] == 7 && even[n - 1] == 70 && odd[0] == 5);
	bps_results_unmap(r);
	fake_agent_free(f);
}

static void writes_are_private_and_the_next_result_replaces_them(void **state)
{
	(void)state;
	written_results(2);
	written_results(1000);
	written_results(MANY);
}

static void results_in_locked_memory_are_right(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_results *r;
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", MANY);
	if (mlockall(MCL_CURRENT | MCL_FUTURE) < 0)
		skip(); /* RLIMIT_MEMLOCK is too low */
	assert_int_equal(bps_results_map(t, &r), 0);
	for (int i = 1; i <= 6; i++) {
		void *p;

		round_of(t, (float)i, (float)-i);
		assert_true(bps_results_last(r, &p) >= 0);
		assert_true(((float *)p)[0] == (float)i && ((float *)p)[MANY - 1] == (float)-i);
		((float *)p)[0] = 99;
	}
	munlockall();
	bps_results_unmap(r);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void results_that_do_not_exist_are_refused(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t, *integers;
	struct bps_results *r, *of_integers;
	struct bps *b;
	void *p;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 4);
	assert_int_equal(bps_declare(b, "i", BPS_I32, 4, &integers), 0);
	assert_int_equal(bps_results_map(NULL, &r), -EINVAL);
	assert_int_equal(bps_results_map(t, NULL), -EINVAL);
	assert_int_equal(bps_results_map(t, &r), 0);
	assert_int_equal(bps_results_last(NULL, &p), -EINVAL);
	assert_int_equal(bps_results_last(r, NULL), -EINVAL);
	assert_int_equal(bps_results_last(r, &p), -EINVAL);
	assert_error_has("call bps_push_pull");
	assert_int_equal(bps_results_map(integers, &of_integers), 0);
	assert_int_equal(bps_push_pull(integers, BPS_AVG, 0), 0);
	assert_int_equal(bps_wait(integers, 0), 0);
	assert_int_equal(bps_results_last(of_integers, &p), -EINVAL);
	assert_error_has("average of integers");
	bps_results_unmap(of_integers);
	bps_results_unmap(NULL);
	assert_int_equal(bps_suspend(b, 0), 0);
	assert_int_equal(bps_results_last(r, &p), BPS_ECLOSED);
	assert_int_equal(bps_results_map(t, &of_integers), BPS_ECLOSED);
	bps_results_unmap(r);
	bps_abort(b);
	fake_agent_free(f);
	unsetenv("BPS_FORCE_DISTRIBUTED");
	assert_int_equal(bps_open(NULL, &b), 0);
	assert_int_equal(bps_results_map(declare(b, "w", 4), &r), -EOPNOTSUPP);
	assert_error_has("one worker");
	assert_int_equal(bps_close(b, 0), 0);
}

static void parts_are_copied(size_t n)
{
	struct fake_agent *f = fake_agent_new();
	uint64_t n_bytes = n * sizeof(float);
	struct bps_tensor *t;
	struct bps *b;
	float *values = malloc(n_bytes), *got = malloc(n_bytes);

	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", n);
	for (size_t i = 0; i < n; i++)
		values[i] = (float)(i % 1000);
	assert_int_equal(bps_write(t, 0, values, n_bytes), 0);
	values[n - 1] = -1;
	assert_int_equal(bps_write(t, n_bytes - 4, &values[n - 1], 4), 0);
	assert_int_equal(bps_write(t, n_bytes, NULL, 0), 0);
	assert_int_equal(bps_read(t, 0, got, n_bytes), -EINVAL);
	assert_error_has("no round");
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_read(t, 4, got, n_bytes - 4), 0);
	assert_memory_equal(got, values + 1, n_bytes - 4);
	assert_int_equal(bps_read(t, 4, got, n_bytes - 3), -EINVAL);
	assert_error_has("do not lie in tensor 'w'");
	assert_int_equal(bps_read(t, UINT64_MAX, got, 4), -EINVAL);
	assert_int_equal(bps_write(t, 8, values, UINT64_MAX - 4), -EINVAL);
	assert_int_equal(bps_write(NULL, 0, values, 4), -EINVAL);
	assert_int_equal(bps_write(t, 0, NULL, 4), -EINVAL);
	assert_int_equal(bps_read(t, 0, NULL, 4), -EINVAL);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
	free(values);
	free(got);
}

static void parts_of_small_and_large_tensors_are_copied(void **state)
{
	(void)state;
	parts_are_copied(5);
	parts_are_copied(MANY);
}

static void input_in_flight_is_not_written(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	float value = 1;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_write(t, 0, &value, 4), BPS_EBUSY);
	bps_abort(b);
	fake_agent_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(writes_are_private_and_the_next_result_replaces_them),
		T(results_in_locked_memory_are_right),
		T(results_that_do_not_exist_are_refused),
		T(parts_of_small_and_large_tensors_are_copied),
		T(input_in_flight_is_not_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
