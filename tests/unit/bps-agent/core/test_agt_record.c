/* The record of each round: where its time went (bps-agent/core/round_record.h). */
#include "tests/unit/agt_world.h"

#include "bps-agent/core/round_record.h"

static void submit_one(struct agt_world *w, unsigned worker, uint64_t r)
{
	assert_int_equal(agt_tensor_submit(w->t[0], worker, r, OP_SUM, 0, false), 0);
	work(w);
}

static void expect_ends(const struct agt_world *w, uint32_t local, uint32_t queue, uint32_t push,
	uint32_t wait, uint32_t sum, uint32_t pull)
{
	const uint32_t want[N_PHASES] = {local, queue, push, wait, sum, pull};
	uint32_t ends[N_PHASES];

	round_record_phase_ends(&w->record, ends);
	for (int p = 0; p < N_PHASES; p++)
		assert_int_equal(ends[p], 1000 * want[p]);
}

static struct wire_msg timed_result(struct agt_world *w, uint64_t r, uint32_t wait, uint32_t sum)
{
	struct wire_msg m = result_msg(w, r, 0);

	m.result.last = 3;
	m.result.wait_us = 1000 * wait;
	m.result.sum_us = 1000 * sum;
	return m;
}

/* A result from a server that does not know the times. */
static void say_untimed_result(struct agt_world *w, uint64_t r)
{
	struct wire_msg m = timed_result(w, r, 0, 0);

	m.result.last = 0;
	say(w, 0, &m);
}

static void record_has_the_phases_in_order(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_workers = 2);
	uint64_t began_ns;
	struct wire_msg m;

	(void)state;
	tick(w, 5);
	began_ns = w->now_ns;
	submit_one(w, 1, 1);
	assert_int_equal(w->n_begun, 1);
	tick(w, 10);
	submit_one(w, 0, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	tick(w, 20);
	m = timed_result(w, 1, 9, 2);
	say(w, 0, &m);
	tick(w, 4);
	assert_int_equal(w->n_records, 0);
	end_read(w, 0, 0);
	assert_int_equal(w->n_records, 1);
	assert_int_equal(w->record.began_ns, began_ns);
	assert_int_equal(w->record.round, 1);
	assert_int_equal(w->record.tensor, 10);
	assert_int_equal(w->record.server, 0);
	assert_int_equal(w->record.last_member, 3);
	assert_int_equal(w->record.last_worker, 0);
	expect_ends(w, 10, 10, 19, 28, 30, 34);
	world_free(w);
}

/* The times of a server cannot be longer than the round at this agent. */
static void times_of_the_server_fit_in_the_round(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 1);
	struct wire_msg m;

	(void)state;
	submit_one(w, 0, 1);
	tick(w, 10);
	m = timed_result(w, 1, 4000, 3);
	say(w, 0, &m);
	expect_ends(w, 0, 0, 0, 7, 10, 10);
	submit_one(w, 0, 2);
	tick(w, 10);
	m = timed_result(w, 2, 4, 3000);
	say(w, 0, &m);
	expect_ends(w, 0, 0, 0, 0, 10, 10);
	world_free(w);
}

/* The record of a round has no times of the round before. */
static void times_of_an_earlier_round_are_not_told_again(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 1);
	struct wire_msg m;

	(void)state;
	submit_one(w, 0, 1);
	tick(w, 10);
	m = timed_result(w, 1, 5, 1);
	say(w, 0, &m);
	submit_one(w, 0, 2);
	tick(w, 3);
	say_untimed_result(w, 2);
	assert_int_equal(w->record.last_member, 0);
	expect_ends(w, 0, 0, 3, 3, 3, 3);
	world_free(w);
}

/* After a restart, a round that had landed ends at once; its record has no times. */
static void round_of_the_process_before_has_empty_phases(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 1, .n_parts = 2);
	struct wire_msg m;

	(void)state;
	submit_one(w, 0, 1);
	m = result_msg(w, 1, 1);
	say(w, 0, &m);
	restart(w);
	submit_one(w, 0, 1);
	w->pgen = 0;
	tell_runs(w, 0, 5);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
	tick(w, 2);
	say_untimed_result(w, 1);
	assert_int_equal(w->n_records, 1);
	expect_ends(w, 0, 0, 2, 2, 2, 2);
	world_free(w);
}

static void failed_round_has_no_record(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 1);

	(void)state;
	submit_one(w, 0, 1);
	agt_job_fail(w->job, BPS_ENOSERVER);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->n_records, 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(record_has_the_phases_in_order),
		cmocka_unit_test(times_of_the_server_fit_in_the_round),
		cmocka_unit_test(times_of_an_earlier_round_are_not_told_again),
		cmocka_unit_test(round_of_the_process_before_has_empty_phases),
		cmocka_unit_test(failed_round_has_no_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
