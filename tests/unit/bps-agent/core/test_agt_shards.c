/* A tensor in shards (O1 of docs/reference/faults.md). The job has three machines with one worker
 * each. This agent's worker has rank 1. It owns partition 1 of three, and no other. */
#include "tests/unit/agt_world.h"

#define N_PARTS 3
#define MINE    1

static struct agt_world *sharded_world(uint32_t n_elems)
{
	return world(.n_elems = n_elems, .n_parts = N_PARTS, .owner = OWNER_SHARDS);
}

/* Return the server's statement that the owner of a partition has the sum of round r. */
static struct wire_msg empty_result(struct agt_world *w, uint64_t r, uint32_t part)
{
	struct wire_msg m = result_msg(w, r, part);

	m.flags = WIRE_INLINE;
	m.len = m.crc = 0;
	m.payload = NULL;
	m.segment = 0;
	m.offset = 0;
	return m;
}

static void answer(struct agt_world *w, uint64_t r, uint32_t part)
{
	struct wire_msg m = part == MINE ? result_msg(w, r, part) : empty_result(w, r, part);

	say(w, 0, &m);
	if (w->conn[0]->n_reads)
		end_read(w, 0, 0);
}

static void expect_contributions(struct agt_world *w, uint64_t r)
{
	for (unsigned p = 0; p < N_PARTS; p++)
		assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, r).part, p);
}

static void only_the_own_shard_is_written(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct agt_world *w = sharded_world(k ? LARGE : SMALL);
		const unsigned char *out = w->a->out[1];

		memset(w->a->out[1], 0xee, sizeof(w->a->out[1]));
		submit_all(w, 1);
		expect_contributions(w, 1);
		for (unsigned p = 0; p < N_PARTS; p++) {
			assert_int_equal(w->n_done, 0);
			answer(w, 1, p);
		}
		assert_int_equal(w->n_done, 1);
		assert_int_equal(w->done_status, 0);
		assert_int_equal(w->done_workers, 3);
		assert_int_equal(stats(w).pulled_bytes, bytes_of(w));
		for (uint32_t i = 0; i < N_PARTS * bytes_of(w); i++) {
			bool is_mine = i / bytes_of(w) == MINE;

			assert_int_equal(out[i],
				is_mine ? (unsigned char)(31 + MINE * 7 + i % bytes_of(w)) : 0xee);
		}
		world_free(w);
	}
}

/* Expect HAVE of the own partition, among contributions that are sent again. */
static void expect_have(struct agt_world *w, uint64_t r)
{
	const struct wire_msg *m;

	while ((m = fake_take(w->conn[0])) && m->type == WIRE_CONTRIB)
		assert_int_not_equal(m->part, MINE);
	assert_non_null(m);
	assert_int_equal(m->type, WIRE_HAVE);
	assert_int_equal(m->part, MINE);
	assert_int_equal(m->round, r);
}

static void owner_states_at_once_that_it_has_the_sum(void **state)
{
	struct agt_world *w = sharded_world(LARGE);

	(void)state;
	submit_all(w, 1);
	expect_contributions(w, 1);
	answer(w, 1, 0);
	expect_nothing(w, 0);
	answer(w, 1, MINE);
	assert_int_equal(expect_msg(w, 0, WIRE_HAVE, 1).part, MINE);
	tick(w, RETRY_MS); /* repeated until it is confirmed */
	expect_have(w, 1);
	cut(w, 0);
	fake_up(w->conn[0]);
	work(w);
	expect_have(w, 1);
	world_free(w);
}

static void result_of_another_owner_has_no_bytes(void **state)
{
	struct agt_world *w = sharded_world(SMALL);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	expect_contributions(w, 1);
	m = result_msg(w, 1, 0);
	say(w, 0, &m); /* bytes for partition 0, which is not of this agent */
	assert_true(w->conn[0]->is_closed);
	w->conn[0] = NULL;
	world_free(w);
	w = sharded_world(SMALL);
	submit_all(w, 1);
	expect_contributions(w, 1);
	m = empty_result(w, 1, MINE);
	say(w, 0, &m); /* no bytes for this agent's own partition */
	assert_true(w->conn[0]->is_closed);
	w->conn[0] = NULL;
	world_free(w);
}

static void donation_has_the_contributors_only(void **state)
{
	struct agt_world *w = sharded_world(LARGE);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	expect_contributions(w, 1);
	answer(w, 1, MINE);
	expect_msg(w, 0, WIRE_HAVE, 1);
	m = key_msg(w, WIRE_DONATE_REQ, 1);
	m.part = MINE;
	say(w, 0, &m);
	m = expect_msg(w, 0, WIRE_DONATE, 1);
	assert_int_equal(m.part, MINE);
	assert_int_equal(m.flags, WIRE_INLINE);
	assert_int_equal(m.len, 0);
	assert_int_equal(m.crc, 0);
	assert_int_equal(m.result.workers, 3);
	assert_int_equal(m.result.contributors.w[0], 7);
	world_free(w);
}

static void next_process_of_the_owner_states_what_it_has(void **state)
{
	struct agt_world *w = sharded_world(LARGE);

	(void)state;
	submit_all(w, 1);
	expect_contributions(w, 1);
	answer(w, 1, 0);
	answer(w, 1, MINE);
	restart(w);
	tell_runs(w, 0, 6);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
	for (unsigned p = 0; p < 2; p++)
		assert_in_range(expect_msg(w, 0, WIRE_HAVE, 1).part, 0, 1);
	submit_all(w, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).part, 2);
	answer(w, 1, 2);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_status, 0);
	world_free(w);
}

static void shards_that_do_not_fit_the_job_are_refused(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_parts = N_PARTS, .owner = OWNER_SHARDS,
		.is_unplanned = true, .n_workers = 5);
	struct ctl_tensor plan = {.tensor = 10,
		.name = "t",
		.shape = shape_from_dtype_and_count(w->dtype, (uint64_t)w->n_elems * N_PARTS),
		.part_elems = w->n_elems};

	(void)state;
	plan.shape.owner = OWNER_SHARDS; /* 12 values for 15 workers */
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), BPS_EPROTO);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_the_own_shard_is_written),
		cmocka_unit_test(owner_states_at_once_that_it_has_the_sum),
		cmocka_unit_test(result_of_another_owner_has_no_bytes),
		cmocka_unit_test(donation_has_the_contributors_only),
		cmocka_unit_test(next_process_of_the_owner_states_what_it_has),
		cmocka_unit_test(shards_that_do_not_fit_the_job_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
