/* Histograms of durations, and statistics about the worker whose contribution arrives last. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bps-server/core/arrivals.h"

#define MS UINT64_C(1000000)

static void durations_fall_into_the_bucket_that_ends_at_or_above_them(void **state)
{
	(void)state;
	assert_int_equal(histogram_bucket(0), 0);
	for (unsigned k = 0; k < HISTOGRAM_BUCKETS - 1; k++) {
		uint64_t bound = HISTOGRAM_FIRST_NS << k;

		assert_int_equal(histogram_bucket(bound), k);
		assert_int_equal(histogram_bucket(bound + 1), k + 1);
	}
	assert_int_equal(histogram_bucket(UINT64_MAX), HISTOGRAM_BUCKETS - 1);
}

static void quantiles_lie_in_the_bucket_of_the_value(void **state)
{
	struct histogram h = {.sum_ns = 0}, more = {.sum_ns = 0};

	(void)state;
	assert_int_equal(histogram_quantile(&h, 0.5), 0);
	for (unsigned i = 0; i < 99; i++)
		histogram_add(&h, 3 * MS);
	histogram_add(&more, 3000 * MS);
	histogram_merge(&h, &more);
	assert_int_equal(histogram_count(&h), 100);
	assert_int_equal(h.sum_ns, 99 * 3 * MS + 3000 * MS);
	assert_in_range(histogram_quantile(&h, 0.5), 16 * MS / 10, 32 * MS / 10);
	assert_in_range(histogram_quantile(&h, 0.999), 1638 * MS, 3277 * MS);
	for (unsigned i = 0; i < 1000; i++)
		histogram_add(&h, UINT64_MAX / 4000);
	assert_int_equal(
		histogram_quantile(&h, 0.9), HISTOGRAM_FIRST_NS << (HISTOGRAM_BUCKETS - 2));
}

/* Run a round of n members. The members other than `last` arrive 1 ms apart. Member `last` arrives
 * late_ms after all of them. */
static void one_round(struct arrivals *a, uint64_t round, uint64_t now_ns, uint16_t n,
	uint16_t last, uint64_t late_ms)
{
	struct arrivals_round r = {.n = 0};

	for (uint16_t m = 0; m < n; m++)
		if (m != last)
			arrivals_offer(&r, m, n, now_ns += MS);
	arrivals_offer(&r, last, n, now_ns + late_ms * MS);
	arrivals_complete(a, &r, round, 4096);
}

static struct arrivals *new_arrivals(unsigned n)
{
	struct arrivals *a = arrivals_new(n, 0);

	assert_non_null(a);
	for (unsigned i = 0; i < n; i++)
		a->members[i].agent = 100 + i;
	return a;
}

static void last_one_is_named_with_its_lag_behind_half_of_all(void **state)
{
	struct arrivals *a = new_arrivals(4);
	struct arrivals_job j = {.job = 1};

	(void)state;
	for (unsigned i = 1; i <= 10; i++)
		one_round(a, i, i * 100 * MS, 4, i <= 9 ? 2 : 0, 40);
	arrivals_report(a, &j);
	assert_int_equal(j.rounds, 10);
	assert_int_equal(j.round, 10);
	assert_int_equal(j.bytes, 40960);
	assert_int_equal(j.n_late, 2);
	assert_int_equal(j.late[0].agent, 102);
	assert_int_equal(j.late[0].window_last, 9);
	assert_int_equal(j.late[1].agent, 100);
	/* At 2 ms, half of the members had arrived. The last member arrived at 43 ms, so it was
	 * 41 ms late. */
	assert_in_range(histogram_quantile(&j.late[0].lag, 0.5), 25 * MS, 52 * MS);
	assert_int_equal(histogram_count(&j.wait), 10);
	free(a);
}

static void old_rounds_count_only_in_the_totals(void **state)
{
	struct arrivals *a = new_arrivals(2);
	struct arrivals_job j = {.job = 1};

	(void)state;
	one_round(a, 1, MS, 2, 0, 40);
	for (unsigned i = 1; i <= 2; i++) {
		arrivals_report(a, &j);
		assert_int_equal(j.late[0].window_last, 1);
		arrivals_roll_window(a, i * ARRIVALS_WINDOW_NS - 1);
		arrivals_report(a, &j);
		assert_int_equal(j.late[0].window_last, 1);
		arrivals_roll_window(a, i * ARRIVALS_WINDOW_NS);
	}
	arrivals_report(a, &j);
	assert_int_equal(j.late[0].window_last, 0);
	assert_int_equal(j.late[0].last, 1);
	assert_int_equal(histogram_count(&j.window_wait), 0);
	assert_int_equal(histogram_count(&j.wait), 1);
	free(a);
}

static void round_with_a_repeated_contribution_is_not_measured(void **state)
{
	struct arrivals *a = new_arrivals(2);
	struct arrivals_round r = {.n = 0};
	struct arrivals_job j = {.job = 1};

	(void)state;
	arrivals_offer(&r, 0, 2, MS);
	arrivals_offer(&r, 0, 2, 2 * MS);
	arrivals_offer(&r, 1, 2, 3 * MS);
	arrivals_complete(a, &r, 1, 4096);
	arrivals_report(a, &j);
	assert_int_equal(j.rounds, 1);
	assert_int_equal(j.n_late, 0);
	assert_int_equal(histogram_count(&j.wait), 0);
	free(a);
}

/* With backup machines, a round ends without the late members. Each of them counts as last, but the
 * round has waited only once. */
static void members_that_a_round_did_not_wait_for_count_as_last(void **state)
{
	struct arrivals *a = new_arrivals(4);
	struct arrivals_round r = {.n = 0};
	struct arrivals_job j = {.job = 1};

	(void)state;
	arrivals_offer(&r, 0, 4, MS);
	arrivals_offer(&r, 1, 4, 2 * MS);
	arrivals_record_late_member(a, &r, 3, true, 42 * MS);
	arrivals_record_late_member(a, &r, 2, false, 42 * MS);
	arrivals_complete(a, &r, 1, 4096);
	for (unsigned i = 0; i < 3; i++) {
		unsigned n_recent = i < 2; /* the round is in the present or the previous window */

		arrivals_report(a, &j);
		assert_int_equal(j.rounds, 1);
		assert_int_equal(j.n_late, 2);
		assert_int_equal(j.late[0].agent, 102);
		assert_int_equal(j.late[1].agent, 103);
		for (unsigned k = 0; k < 2; k++) {
			assert_int_equal(j.late[k].last, 1);
			assert_int_equal(j.late[k].window_last, n_recent);
			assert_int_equal(histogram_count(&j.late[k].lag), n_recent);
			assert_int_equal(j.late[k].lag.n[histogram_bucket(40 * MS)], n_recent);
		}
		assert_int_equal(histogram_count(&j.wait), 1);
		assert_int_equal(j.wait.sum_ns, 41 * MS);
		assert_int_equal(histogram_count(&j.window_wait), n_recent);
		arrivals_roll_window(a, (i + 1) * ARRIVALS_WINDOW_NS);
	}
	free(a);
}

static void only_the_worst_of_many_members_are_reported(void **state)
{
	struct arrivals *a = new_arrivals(64);
	struct arrivals_job j = {.job = 1};

	(void)state;
	for (uint16_t m = 0; m < 64; m++)
		for (unsigned i = 0; i <= m; i++)
			one_round(a, 1, 0, 64, m, 5);
	arrivals_report(a, &j);
	assert_int_equal(j.n_late, ARRIVALS_LATE_MAX);
	for (unsigned k = 0; k < ARRIVALS_LATE_MAX; k++)
		assert_int_equal(j.late[k].agent, 163 - k);
	free(a);
}

static void threads_are_added_up_by_job_and_agent(void **state)
{
	struct arrivals *a = new_arrivals(2);
	struct arrivals_figures all = {.n_jobs = 0}, one = {.n_jobs = 1};
	struct ctl_beat_job jobs[ARRIVALS_JOBS_MAX];
	struct ctl_beat_late late[ARRIVALS_JOBS_MAX * ARRIVALS_LATE_MAX];

	(void)state;
	for (unsigned i = 1; i <= 3; i++)
		one_round(a, i, i * MS, 2, 1, 10);
	one.jobs[0].job = 7;
	arrivals_report(a, &one.jobs[0]);
	arrivals_merge(&all, &one);
	one_round(a, 9, MS, 2, 0, 10);
	arrivals_report(a, &one.jobs[0]);
	arrivals_merge(&all, &one);
	one.jobs[0].job = 8;
	arrivals_merge(&all, &one);
	assert_int_equal(arrivals_fill_beat(&all, jobs, late), 2);
	assert_int_equal(jobs[0].job, 7);
	assert_int_equal(jobs[0].rounds, 7);
	assert_int_equal(jobs[0].round, 9);
	assert_int_equal(jobs[0].window_rounds, 7);
	assert_int_equal(jobs[0].n_late, 2);
	assert_int_equal(jobs[0].late[0].agent, 101);
	assert_int_equal(jobs[0].late[0].rounds, 6);
	assert_in_range(jobs[0].late[0].lag_us, 6400, 12800);
	assert_int_equal(jobs[0].late[1].rounds, 1);
	assert_ptr_equal(jobs[1].late, jobs[0].late + 2);
	for (unsigned i = 0; i < 2 * ARRIVALS_JOBS_MAX; i++) {
		one.jobs[0].job = 100 + i;
		arrivals_merge(&all, &one);
	}
	assert_int_equal(all.n_jobs, ARRIVALS_JOBS_MAX);
	free(a);
}

static void known_time_is_never_told_as_zero(void **state)
{
	(void)state;
	assert_int_equal(arrivals_known_us(0), 1);
	assert_int_equal(arrivals_known_us(999), 1);
	assert_int_equal(arrivals_known_us(1999), 1);
	assert_int_equal(arrivals_known_us(2000), 2);
	assert_int_equal(arrivals_known_us(UINT64_MAX), UINT32_MAX);
	assert_int_equal(arrivals_known_us(UINT32_MAX * UINT64_C(1000) + 999), UINT32_MAX);
	assert_int_equal(arrivals_known_us(UINT32_MAX * UINT64_C(1000) - 1), UINT32_MAX - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(durations_fall_into_the_bucket_that_ends_at_or_above_them),
		cmocka_unit_test(quantiles_lie_in_the_bucket_of_the_value),
		cmocka_unit_test(last_one_is_named_with_its_lag_behind_half_of_all),
		cmocka_unit_test(old_rounds_count_only_in_the_totals),
		cmocka_unit_test(round_with_a_repeated_contribution_is_not_measured),
		cmocka_unit_test(members_that_a_round_did_not_wait_for_count_as_last),
		cmocka_unit_test(only_the_worst_of_many_members_are_reported),
		cmocka_unit_test(threads_are_added_up_by_job_and_agent),
		cmocka_unit_test(known_time_is_never_told_as_zero),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
