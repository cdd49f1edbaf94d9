/* Tests of the agent's core. When partitions move to another server, the tests check which messages
 * the core sends again and which sums the core donates. After a restart of the agent, they check
 * what the core restores from the previous process. */
#include "tests/unit/agt_world.h"

/* ---- new placements ---- */

static void connect_to(struct agt_world *w, unsigned s)
{
	tick(w, 0);
	fake_up(w->conn[s]);
	work(w);
}

static void push_goes_to_the_new_server_at_once(void **state)
{
	(void)state;
	for (unsigned scene = 0; scene < SCENE_COUNT; scene++) {
		struct agt_world *w = make_scene(scene);
		unsigned n_reads = (unsigned)w->conn[0]->n_reads;

		tell_runs(w, 1, 6);
		connect_to(w, 1);
		/* a push does not move while the old server reads it */
		assert_int_equal(w->conn[1]->n_sent, 2 - n_reads);
		if (scene == SCENE_OFFERED) /* the agent declines an offer of the old server */
			assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
		if (n_reads) {
			end_read(w, 0, 0);
			assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
		}
		expect_nothing(w, 0);
		for (unsigned p = 0; p < 2; p++)
			assert_int_equal(expect_msg(w, 1, WIRE_CONTRIB, 1).pgen, 6);
		finish_scene(w, 1);
	}
}

static void smaller_pgen_is_never_applied(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	tell_runs(w, 1, 4);
	tell_runs(w, 1, 5);
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void partition_without_a_server_waits(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	tell_runs(w, CTL_NO_ID, 6);
	submit_all(w, 1);
	expect_nothing(w, 0);
	tell_runs(w, 0, 7);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void idle_partition_sends_have_until_it_is_acknowledged(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	one_round(w, 0, 1);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	tick(w, RETRY_MS);
	expect_msg(w, 1, WIRE_HAVE, 1);
	cut(w, 1);
	fake_up(w->conn[1]);
	work(w);
	expect_msg(w, 1, WIRE_HAVE, 1);
	say_key(w, 1, WIRE_AGAIN, 1);
	tick(w, AGAIN_MS);
	expect_msg(w, 1, WIRE_HAVE, 1);
	say_key(w, 1, WIRE_HAVE_OK, 1);
	tick(w, 100 * RETRY_MS);
	expect_nothing(w, 1);
	cut(w, 1);
	fake_up(w->conn[1]);
	work(w);
	expect_nothing(w, 1);
	world_free(w);
}

static void partition_without_a_round_sends_nothing(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	tick(w, 100 * RETRY_MS);
	expect_nothing(w, 1);
	world_free(w);
}

static void next_contribution_does_not_wait_for_an_unacknowledged_have(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	one_round(w, 0, 1);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	submit_all(w, 2);
	expect_msg(w, 1, WIRE_CONTRIB, 2);
	/* The contribution also reports that the agent has the sum of round 1. So the agent does
	 * not send HAVE again. */
	say_result(w, 1, 2);
	expect_delivered(w, 2, 2);
	tick(w, 100 * RETRY_MS);
	expect_nothing(w, 1);
	world_free(w);
}

static void waiting_push_moves_with_its_partition(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 3, .job_inflight = BYTES_MAX);

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	assert_int_equal(w->conn[1]->n_sent, 1);
	agt_job_fail(w->job, BPS_EQUOTA);
	check(w);
	assert_int_equal(w->done_status, BPS_EQUOTA);
	world_free(w);
}

static void have_is_sent_while_the_contribution_waits_for_the_window(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 2, .window = BYTES_MAX);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	for (unsigned p = 0; p < 2; p++) {
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		end_read(w, 0, 0);
	}
	assert_int_equal(w->n_done, 1);
	submit_all(w, 2);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	expect_msg(w, 1, WIRE_CONTRIB, 2);
	expect_nothing(w, 1);
	world_free(w);
}

static void got_is_sent_for_a_delivered_sum_when_its_partition_leaves(void **state)
{
	(void)state;
	/* k = 0: the partition is idle; 1: its next push waits; 2: its job has ended */
	for (unsigned k = 0; k < 3; k++) {
		struct agt_world *w = world(.n_elems = LARGE);

		one_round(w, 0, 1);
		/* GOT must be sent even when there is no credit at first */
		w->conn[0]->credit = 0;
		if (k == 1)
			submit_all(w, 2);
		if (k == 2) {
			agt_job_free(w->job, released, w);
			w->job = NULL;
			assert_int_equal(w->n_releases, 1);
		} else {
			tell_runs(w, 1, 6);
		}
		work(w);
		expect_nothing(w, 0);
		fake_grant(w->conn[0], 9);
		work(w);
		assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
		expect_nothing(w, 0);
		world_free(w);
	}
}

/* ---- donation ---- */

static void retained_sum_is_donated_on_request(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct agt_world *w = world(.n_elems = k & 1 ? LARGE : SMALL);
		struct wire_msg m, sum;

		one_round(w, 0, 1);
		one_round(w, 0, 2);
		sum = result_msg(w, 2, 0);
		if (k & 2) { /* send the requests during round 3 */
			submit_all(w, 3);
			expect_msg(w, 0, WIRE_CONTRIB, 3);
		}
		/* the agent does not have the sum of round 1 any more */
		say_key(w, 0, WIRE_DONATE_REQ, 1);
		/* the agent does not have the sum of round 3 yet */
		say_key(w, 0, WIRE_DONATE_REQ, 3);
		expect_nothing(w, 0);
		say_key(w, 0, WIRE_DONATE_REQ, 2);
		m = expect_msg(w, 0, WIRE_DONATE, 2);
		assert_int_equal(m.crc, sum.crc);
		assert_int_equal(m.result.workers, 3);
		assert_int_equal(m.result.n_members, 3);
		assert_int_equal(m.result.contributors.w[0], 7);
		/* the result had times, a donation has none (T3) */
		assert_int_equal(m.result.last, 0);
		assert_int_equal(m.result.wait_us, 0);
		assert_int_equal(m.result.sum_us, 0);
		assert_memory_equal(m.flags & WIRE_INLINE
					    ? m.payload
					    : fake_own(&w->x, m.segment, m.offset, m.len),
			w->a->out[0], m.len);
		world_free(w);
	}
}

static void nothing_is_donated_to_an_older_pgen(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);
	struct wire_msg m;

	(void)state;
	say_key(w, 0, WIRE_DONATE_REQ, 1); /* the agent has no sum yet */
	one_round(w, 0, 1);
	m = key_msg(w, WIRE_DONATE_REQ, 1);
	m.pgen--;
	say(w, 0, &m);
	expect_nothing(w, 0);
	world_free(w);
}

/* ---- restart ---- */

static void come_back(struct agt_world *w)
{
	w->pgen = 0;
	tell_runs(w, 0, 5);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
}

static void restarted_agent_sends_the_same_contribution_and_echo(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct wire_msg was, is;

	(void)state;
	one_round(w, 0, 1);
	submit_all(w, 2);
	was = expect_msg(w, 0, WIRE_CONTRIB, 2);
	restart(w);
	assert_int_equal(agt_tensor_round(w->t[0]), 1);
	assert_int_equal(w->t[0]->submitted[0], 1);
	assert_int_equal(agt_tensor_submit(w->t[0], 0, 2, OP_SUM, 0, false), 0);
	come_back(w);
	expect_msg(w, 0, WIRE_HAVE, 1);
	is = expect_msg(w, 0, WIRE_CONTRIB, 2);
	assert_int_equal(is.crc, was.crc);
	assert_int_equal(is.len, was.len);
	assert_int_equal(is.contrib.crc_prev, was.contrib.crc_prev);
	assert_int_not_equal(is.contrib.crc_prev, 0);
	say_result(w, 0, 2);
	end_read(w, 0, 0);
	expect_delivered(w, 2, 2);
	world_free(w);
}

static void restarted_agent_has_landed_sums_and_requests_the_rest(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_parts = 2);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	m = result_msg(w, 1, 0);
	say(w, 0, &m);
	restart(w);
	assert_int_equal(agt_tensor_round(w->t[0]), 0);
	assert_int_equal(agt_tensor_submit(w->t[0], 0, 1, OP_SUM, 0, false), 0);
	come_back(w);
	m = expect_msg(w, 0, WIRE_HAVE, 1);
	assert_int_equal(m.part, 0);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.part, 1);
	expect_nothing(w, 0);
	m = result_msg(w, 1, 1);
	say(w, 0, &m);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void restarted_agent_donates_sums_from_before_the_restart(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);
	struct wire_msg m;

	(void)state;
	one_round(w, 0, 1);
	restart(w);
	assert_int_equal(agt_tensor_contributors(w->t[0]).least, 3);
	come_back(w);
	expect_msg(w, 0, WIRE_HAVE, 1);
	say_key(w, 0, WIRE_DONATE_REQ, 1);
	m = expect_msg(w, 0, WIRE_DONATE, 1);
	assert_int_equal(m.result.workers, 3);
	assert_true(member_set_has(&m.result.contributors, 2));
	assert_int_equal(m.crc, crc32c(0, m.payload, m.len));
	world_free(w);
}

static void contradictory_kept_state_is_not_used(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_parts = 2, .is_unplanned = true);
	struct ctl_tensor plan = {.tensor = 10,
		.name = "t",
		.shape = shape_from_dtype_and_count(DTYPE_F32, (uint64_t)2 * w->n_elems),
		.part_elems = w->n_elems};

	(void)state;
	w->kept[0][0].landed = 3;
	w->kept[0][1].landed = 1;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), BPS_EPROTO);
	w->kept[0][1].landed = 2;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), 0);
	assert_int_equal(agt_tensor_round(w->t[0]), 2);
	check(w);
	assert_int_equal(agt_tensor_submit(w->t[0], 0, 3, OP_SUM, 0, false), 0);
	check(w);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(restarted_agent_sends_the_same_contribution_and_echo),
		cmocka_unit_test(restarted_agent_has_landed_sums_and_requests_the_rest),
		cmocka_unit_test(restarted_agent_donates_sums_from_before_the_restart),
		cmocka_unit_test(contradictory_kept_state_is_not_used),
		cmocka_unit_test(waiting_push_moves_with_its_partition),
		cmocka_unit_test(push_goes_to_the_new_server_at_once),
		cmocka_unit_test(smaller_pgen_is_never_applied),
		cmocka_unit_test(partition_without_a_server_waits),
		cmocka_unit_test(idle_partition_sends_have_until_it_is_acknowledged),
		cmocka_unit_test(partition_without_a_round_sends_nothing),
		cmocka_unit_test(next_contribution_does_not_wait_for_an_unacknowledged_have),
		cmocka_unit_test(have_is_sent_while_the_contribution_waits_for_the_window),
		cmocka_unit_test(got_is_sent_for_a_delivered_sum_when_its_partition_leaves),
		cmocka_unit_test(retained_sum_is_donated_on_request),
		cmocka_unit_test(nothing_is_donated_to_an_older_pgen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
