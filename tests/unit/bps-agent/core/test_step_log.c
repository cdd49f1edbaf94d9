/* Steps, and the division of their exposed time (bps-agent/core/step_log.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bps-agent/core/step_log.h"

#define US UINT64_C(1000)

static struct step_log steps;

/* A round from `began` on, in microseconds, whose six phases take 10 us each. */
static struct round_record even_round(uint64_t began, uint16_t last_member)
{
	return (struct round_record){.began_ns = began * US,
		.submitted_us = 10,
		.pushed_us = 20,
		.offered_us = 50,
		.done_us = 60,
		.wait_us = 10,
		.sum_us = 10,
		.last_member = last_member};
}

static void begin(uint64_t round, uint64_t now, uint64_t waited, uint32_t n_workers)
{
	step_log_round_begins(&steps, round, now * US, waited * US, n_workers);
}

static struct step_summary sum_up(void)
{
	struct step_summary s;
	uint64_t exposed_ns = 0;

	step_log_sum_up(&steps, &s);
	for (int p = 0; p < N_PHASES; p++)
		exposed_ns += s.sum.phase_ns[p];
	assert_int_equal(exposed_ns, s.sum.exposed_ns);
	assert_true(s.sum.exposed_ns <= s.sum.length_ns);
	return s;
}

static int reset(void **state)
{
	(void)state;
	memset(&steps, 0, sizeof(steps));
	return 0;
}

static void wait_is_divided_over_the_phases_that_it_covers(void **state)
{
	struct round_record r = even_round(100, 7);
	struct step_summary s;

	(void)state;
	begin(1, 100, 0, 1);
	step_log_divide_wait(&steps, &r, 125 * US);
	step_log_round_ends(&steps, 1000);
	begin(1, 180, 35, 1); /* another tensor's round 1: the step goes on */
	step_log_forget_members(&steps);
	step_log_divide_wait(&steps, &r, 125 * US);
	step_log_round_ends(&steps, 24);
	begin(2, 200, 38, 1);
	step_log_round_ends(&steps, 5); /* of the step in progress */
	s = sum_up();
	assert_int_equal(s.sum.bytes, 1024);
	assert_int_equal(s.n_steps, 1);
	assert_int_equal(s.sum.length_ns, 100 * US);
	assert_int_equal(s.sum.exposed_ns, 38 * US);
	assert_int_equal(s.sum.phase_ns[PHASE_LOCAL], 0);
	assert_int_equal(s.sum.phase_ns[PHASE_QUEUE], 0);
	assert_int_equal(s.sum.phase_ns[PHASE_PUSH], 5 * US);
	assert_int_equal(s.sum.phase_ns[PHASE_WAIT], 10 * US);
	assert_int_equal(s.sum.phase_ns[PHASE_SUM], 10 * US);
	/* the wake-up of 3 us is part of the pull */
	assert_int_equal(s.sum.phase_ns[PHASE_PULL], 13 * US);
	assert_int_equal(s.sum.last_member, 7);
	assert_int_equal(s.n_last, 1);
}

/* A thread waits for one round, and another thread's round begins and ends meanwhile. */
static void wait_from_before_a_round_is_not_local(void **state)
{
	struct round_record r = even_round(50, 0);
	struct step_summary s;

	(void)state;
	begin(1, 0, 0, 1);
	step_log_divide_wait(&steps, &r, 10 * US);
	begin(2, 200, 100, 1);
	s = sum_up();
	assert_int_equal(s.sum.phase_ns[PHASE_LOCAL], 10 * US);
	assert_int_equal(s.sum.phase_ns[PHASE_PULL], 50 * US);
}

static void times_are_means_of_the_workers(void **state)
{
	struct round_record r = even_round(0, 0);
	struct step_summary s;

	(void)state;
	begin(1, 0, 0, 2);
	step_log_divide_wait(&steps, &r, 0);
	step_log_divide_wait(&steps, &r, 50 * US);
	begin(2, 100, 70, 2);
	s = sum_up();
	assert_int_equal(s.sum.exposed_ns, 35 * US);
	assert_int_equal(s.sum.phase_ns[PHASE_LOCAL], 5 * US);
	assert_int_equal(s.sum.phase_ns[PHASE_PULL], 10 * US);
	assert_int_equal(s.sum.last_member, 0);
}

/* Trainers write their waits, so a step is never shorter than its exposed time. */
static void exposed_time_is_limited_to_the_step(void **state)
{
	struct round_record r = even_round(0, 1);
	uint64_t computing_ns;
	struct step_summary s;

	(void)state;
	begin(1, 0, 0, 1);
	step_log_divide_wait(&steps, &r, 0);
	begin(2, 50, 1000000, 1);
	assert_int_equal(sum_up().sum.exposed_ns, 50 * US);
	computing_ns = steps.computing_ns;
	begin(3, 80, 10, 1); /* the waits have become less */
	s = sum_up();
	assert_int_equal(s.sum.exposed_ns, 50 * US);
	assert_int_equal(s.sum.length_ns, 80 * US);
	assert_int_equal(steps.computing_ns - computing_ns, 30 * US);
}

/* A wait that began in the step before counts in both steps, each with its own part. */
static void wait_over_the_end_of_a_step_counts_once(void **state)
{
	struct round_record r = even_round(70, 2);
	struct step_summary s;

	(void)state;
	begin(1, 0, 0, 1);
	begin(2, 100, 30, 1);
	step_log_divide_wait(&steps, &r, 70 * US);
	begin(3, 200, 60, 1);
	s = sum_up();
	assert_int_equal(s.sum.exposed_ns, 60 * US);
	assert_int_equal(s.sum.phase_ns[PHASE_LOCAL], 0);
	assert_int_equal(s.sum.phase_ns[PHASE_WAIT], 10 * US);
}

static void member_that_was_last_most_often_is_named(void **state)
{
	struct step_summary s;

	(void)state;
	for (uint64_t step = 1; step <= 3 * STEPS_KEPT; step++) {
		uint64_t at = 100 * step;
		struct round_record one = even_round(at, 5);
		struct round_record two = even_round(at, step % 3 ? 9 : 5);

		begin(step, at, 60 * step, 1);
		step_log_divide_wait(&steps, &one, at * US + 35 * US);
		step_log_divide_wait(&steps, &two, at * US + 30 * US);
	}
	s = sum_up();
	assert_int_equal(s.n_steps, STEPS_KEPT);
	assert_int_equal(s.sum.last_member, 9);
	assert_true(s.n_last == 6 || s.n_last == 7);
	step_log_forget_members(&steps);
	assert_int_equal(sum_up().n_steps, 0);
}

static void member_number_outside_the_job_is_ignored(void **state)
{
	struct round_record r = even_round(0, UINT16_MAX);

	(void)state;
	begin(1, 0, 0, 1);
	step_log_divide_wait(&steps, &r, 0);
	begin(2, 100, 60, 1);
	assert_int_equal(sum_up().sum.last_member, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(wait_is_divided_over_the_phases_that_it_covers, reset),
		cmocka_unit_test_setup(wait_from_before_a_round_is_not_local, reset),
		cmocka_unit_test_setup(times_are_means_of_the_workers, reset),
		cmocka_unit_test_setup(exposed_time_is_limited_to_the_step, reset),
		cmocka_unit_test_setup(wait_over_the_end_of_a_step_counts_once, reset),
		cmocka_unit_test_setup(member_that_was_last_most_often_is_named, reset),
		cmocka_unit_test_setup(member_number_outside_the_job_is_ignored, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
