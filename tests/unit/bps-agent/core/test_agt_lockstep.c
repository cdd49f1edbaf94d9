/* The agent keeps the connections of a job in step (bps-agent/core/lockstep.c). The job has 32
 * partitions of 32 KiB: 24 on server 0 and 8 on server 1. A connection sends only while the test
 * grants credit to the connection. */
#include "tests/unit/agt_world.h"

#define PARTS   8
#define TENSORS 4
#define TO_0    24
#define TO_1    8
/* A connection may send one more partition if it leads by at most 64 KiB (two partitions). 64 KiB
 * is a quarter of server 1's share. So three partitions may be sent in advance. */
#define LEAD       3
#define PART_BYTES (LARGE * sizeof(float))

static struct agt_world *divided(
	unsigned n_members, unsigned of_0, size_t credit_0, size_t credit_1)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = PARTS, .n_tensors = TENSORS,
		.n_members = n_members, .window = SIZE_MAX);

	for (unsigned t = 0; t < TENSORS; t++) {
		struct ctl_run runs[2] = {{.tensor = 10 + t, .n = of_0, .server = 0, .pgen = 6},
			{.tensor = 10 + t,
				.first = of_0,
				.n = PARTS - of_0,
				.server = 1,
				.pgen = 6}};

		agt_job_apply_placement(w->job, runs, 2);
	}
	tick(w, 0);
	fake_up(w->conn[1]);
	w->conn[0]->credit = credit_0;
	w->conn[1]->credit = credit_1;
	return w;
}

static struct agt_world *two_servers(size_t credit_0, size_t credit_1)
{
	return divided(3, TO_0 / TENSORS, credit_0, credit_1);
}

static void submit_tensors(struct agt_world *w)
{
	for (unsigned t = 0; t < TENSORS; t++)
		submit(w, t, 0, 1, 0);
	work(w);
}

static void connection_does_not_run_ahead_of_one_without_room(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);

	(void)state;
	submit_tensors(w);
	assert_int_equal(w->conn[0]->n_sent, 0);
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	for (unsigned n = 1; n <= TO_0; n++) {
		fake_grant(w->conn[0], 1);
		work(w);
		assert_int_equal(w->conn[0]->n_sent, n);
		/* For every three partitions that are sent to server 0, one further partition may
		 * be sent to server 1. */
		assert_int_equal(w->conn[1]->n_sent, LEAD + n / 3 > TO_1 ? TO_1 : LEAD + n / 3);
	}
	world_free(w);
}

static void connection_with_a_large_share_waits_for_a_small_one(void **state)
{
	struct agt_world *w = two_servers(SIZE_MAX, 0);

	(void)state;
	submit_tensors(w);
	assert_int_equal(w->conn[1]->n_sent, 0);
	/* A lead of two partitions is 64 KiB. At this lead a third partition may still be sent. */
	assert_int_equal(w->conn[0]->n_sent, LEAD);
	fake_grant(w->conn[1], TO_1);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, TO_0);
	assert_int_equal(w->conn[1]->n_sent, TO_1);
	world_free(w);
}

/* The transport takes four partitions at a time. So a connection may send one more partition if it
 * leads by at most four partitions, instead of 64 KiB. */
static void connection_may_lead_by_what_its_transport_takes_at_a_time(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);

	(void)state;
	w->x.base.ahead_bytes = (LEAD + 1) * PART_BYTES;
	submit_tensors(w);
	assert_int_equal(w->conn[0]->n_sent, 0);
	assert_int_equal(w->conn[1]->n_sent, LEAD + 2);
	world_free(w);
}

/* The first turn sends one partition. The next turn has a larger turn_bytes and sends three
 * partitions of the same connection. */
static void several_partitions_of_a_connection_are_sent_in_one_turn(void **state)
{
	struct agt_world *w = two_servers(SIZE_MAX, SIZE_MAX);

	(void)state;
	for (unsigned t = 0; t < TENSORS; t++)
		submit(w, t, 0, 1, 0);
	agt_core_run_queued_work(w->core);
	assert_int_equal(w->conn[0]->n_sent + w->conn[1]->n_sent, 1);
	w->core->cfg.turn_bytes = 3 * PART_BYTES;
	agt_core_run_queued_work(w->core);
	assert_int_equal(w->conn[0]->n_sent + w->conn[1]->n_sent, 4);
	assert_true(w->conn[0]->n_sent >= LEAD || w->conn[1]->n_sent >= LEAD);
	world_free(w);
}

static void turn_ends_even_without_a_limit_on_its_bytes(void **state)
{
	struct agt_world *w = two_servers(SIZE_MAX, SIZE_MAX);

	(void)state;
	w->core->cfg.turn_bytes = UINT64_MAX;
	for (unsigned t = 0; t < TENSORS; t++)
		submit(w, t, 0, 1, 0);
	assert_true(agt_core_run_queued_work(w->core));
	assert_in_range(w->conn[0]->n_sent + w->conn[1]->n_sent, 2, 16);
	work(w);
	assert_int_equal(w->conn[0]->n_sent + w->conn[1]->n_sent, TO_0 + TO_1);
	world_free(w);
}

/* Two agents send equal shares to two servers. Each server receives only as many bytes as one agent
 * sends. With this amount, connections with unequal shares would not be kept in step. Connections
 * with equal shares are kept in step. */
static void equal_shares_are_kept_in_step_too(void **state)
{
	const unsigned half = TENSORS * PARTS / 2;
	struct agt_world *w = divided(2, PARTS / 2, 0, SIZE_MAX);

	(void)state;
	submit_tensors(w);
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	for (unsigned n = 1; n <= half; n++) {
		fake_grant(w->conn[0], 1);
		work(w);
		assert_int_equal(w->conn[0]->n_sent, n);
		assert_int_equal(w->conn[1]->n_sent, LEAD + n < half ? LEAD + n : half);
	}
	world_free(w);
}

static void urgent_partitions_are_not_held_by_less_urgent_ones(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);
	struct ctl_run run = {.tensor = 13, .n = PARTS, .server = 1, .pgen = 7};
	size_t n_before;

	(void)state;
	agt_job_apply_placement(w->job, &run, 1);
	tick(w, 0);
	for (unsigned t = 0; t < 3; t++)
		submit(w, t, 0, 1, 0);
	work(w);
	n_before = w->conn[1]->n_sent;
	/* server 1 has received three of its six partitions of the less urgent tensors */
	assert_int_equal(n_before, LEAD);
	for (size_t i = 0; i < n_before; i++)
		assert_int_not_equal(expect_msg(w, 1, WIRE_CONTRIB, 1).tensor, 13);
	submit(w, 3, 0, 1, 9);
	work(w);
	for (unsigned i = 0; i < PARTS; i++)
		assert_int_equal(expect_msg(w, 1, WIRE_CONTRIB, 1).tensor, 13);
	expect_nothing(w, 1);
	fake_grant(w->conn[0], TO_0);
	work(w);
	assert_int_equal(w->conn[1]->n_sent, 6 - n_before);
	world_free(w);
}

/* The connection to server 1 is held because the connection to server 0 is behind. The connection
 * to server 1 may send its urgent partitions once the connection to server 0 has no urgent
 * partitions left. */
static void urgent_partitions_are_sent_when_the_slower_connection_has_none_left(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);
	struct ctl_run run = {.tensor = 13, .n = PARTS, .server = 1, .pgen = 7};

	(void)state;
	agt_job_apply_placement(w->job, &run, 1);
	tick(w, 0);
	for (unsigned t = 0; t < TENSORS; t++)
		submit(w, t, 0, 1, t >= 2 ? 9 : 0);
	work(w);
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	fake_grant(w->conn[0], 6);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 6);
	assert_int_equal(w->conn[1]->n_sent, 2 + PARTS);
	world_free(w);
}

static void late_connection_holds_no_other(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);

	(void)state;
	submit_tensors(w);
	tick(w, 19);
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	tick(w, 2);
	assert_int_equal(w->conn[1]->n_sent, TO_1);
	world_free(w);
}

/* A connection is late when it has sent nothing for longer than expected. The expected time grows
 * with the mean gap between two sends. Other connections do not wait for a late connection. When
 * the late connection sends again, the other connections wait for it again. */
static void late_connection_holds_others_again_when_it_sends(void **state)
{
	struct agt_world *w = two_servers(0, 0);

	(void)state;
	submit_tensors(w);
	tick(w, 40);
	fake_grant(w->conn[0], 3);
	fake_grant(w->conn[1], SIZE_MAX / 2);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 3);
	assert_int_equal(w->conn[1]->n_sent, LEAD + 1);
	/* The first gap is 40 ms and raises the mean gap by 5 ms, an eighth of 40 ms. The next two
	 * gaps are 0 ms and reduce the mean gap. */
	tick(w, 21);
	assert_int_equal(w->conn[1]->n_sent, LEAD + 1);
	tick(w, 20);
	assert_int_equal(w->conn[1]->n_sent, TO_1);
	world_free(w);
}

static void lost_connection_holds_no_other(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);

	(void)state;
	submit_tensors(w);
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	fake_down(w->conn[0], "lost");
	check(w);
	work(w);
	assert_int_equal(w->conn[1]->n_sent, TO_1);
	world_free(w);
}

static void connection_within_a_host_neither_waits_nor_holds_others(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);

	(void)state;
	fake_down(w->conn[1], "moved");
	tick(w, 1);
	w->conn[1]->base.is_same_host = true;
	fake_up(w->conn[1]);
	submit_tensors(w);
	assert_int_equal(w->conn[1]->n_sent, TO_1);
	world_free(w);
	w = two_servers(SIZE_MAX, 0);
	fake_down(w->conn[1], "moved");
	tick(w, 1);
	w->conn[1]->base.is_same_host = true;
	fake_up(w->conn[1]);
	w->conn[1]->credit = 0;
	submit_tensors(w);
	assert_int_equal(w->conn[0]->n_sent, TO_0);
	world_free(w);
}

/* All partitions move to server `to`. Before the move, connection 1 waits for connection 0, which
 * has no credit. */
static void shares_change_when_partitions_move(void **state)
{
	(void)state;
	for (uint32_t to = 0; to < 2; to++) {
		struct agt_world *w = two_servers(0, SIZE_MAX);

		submit_tensors(w);
		assert_int_equal(w->conn[1]->n_sent, LEAD);
		tell_runs(w, to, 7);
		tick(w, 0);
		fake_grant(w->conn[0], TO_0 + TO_1);
		work(w);
		assert_int_equal(w->conn[to]->n_sent, TO_0 + TO_1 + (to ? LEAD : 0));
		world_free(w);
	}
}

/* Connection 0 has 12 partitions to send. When it has sent 8 of them, connection 1 gets the
 * partitions of a further tensor. The progress of connection 1 then starts at the progress of
 * connection 0. */
static void connection_that_starts_later_starts_at_the_others_progress(void **state)
{
	struct agt_world *w = two_servers(0, 0);
	struct ctl_run run = {.tensor = 13, .n = PARTS, .server = 1, .pgen = 7};
	unsigned ms = 0;

	(void)state;
	agt_job_apply_placement(w->job, &run, 1);
	tick(w, 0);
	for (unsigned t = 0; t < 2; t++)
		submit(w, t, 0, 1, 0);
	for (unsigned n = 0; n < 8; n++) {
		fake_grant(w->conn[0], 1);
		fake_grant(w->conn[1], 1);
		tick(w, 1);
	}
	assert_int_equal(w->conn[0]->n_sent, 8);
	submit(w, 3, 0, 1, 0);
	for (; w->conn[0]->n_sent < 12 || w->conn[1]->n_sent < 4 + PARTS; ms++) {
		fake_grant(w->conn[0], 1);
		fake_grant(w->conn[1], 1);
		tick(w, 1);
		assert_true(ms < 100);
	}
	assert_in_range(ms, 4, 5); /* server 0 gets its last four partitions, one per ms */
	world_free(w);
}

/* The agent sends the offers of a lost connection again. The repeated offers do not count as
 * progress. */
static void repeated_offers_do_not_count_as_progress(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);
	unsigned n = 6;

	(void)state;
	tick(w, 1);
	submit_tensors(w);
	fake_grant(w->conn[0], n);
	work(w);
	assert_int_equal(w->conn[1]->n_sent, LEAD + 2);
	cut(w, 1);
	fake_up(w->conn[1]);
	work(w);
	assert_in_range(w->conn[1]->n_sent, LEAD + 2, TO_1 - 1);
	for (; n < TO_0 && w->conn[1]->n_sent < TO_1; n++) {
		fake_grant(w->conn[0], 1);
		work(w);
	}
	assert_in_range(n, 7, 12);
	world_free(w);
}

static void time_without_a_connection_does_not_lengthen_later_holds(void **state)
{
	struct agt_world *w = two_servers(0, 0);

	(void)state;
	submit_tensors(w);
	fake_down(w->conn[0], "lost");
	w->connect_rc = -ENOTCONN;
	for (unsigned i = 0; i < 20; i++)
		tick(w, 50);
	w->connect_rc = 0;
	tick(w, 1000);
	w->conn[0]->credit = 1;
	fake_up(w->conn[0]);
	work(w);
	fake_grant(w->conn[1], SIZE_MAX / 2);
	work(w);
	assert_in_range(w->conn[1]->n_sent, 1, TO_1 - 1);
	tick(w, 25);
	assert_int_equal(w->conn[1]->n_sent, TO_1);
	world_free(w);
}

static void held_connection_does_not_count_as_late(void **state)
{
	struct agt_world *w = two_servers(0, 1);

	(void)state;
	submit_tensors(w);
	assert_int_equal(w->conn[1]->n_sent, 1);
	fake_grant(w->conn[1], LEAD - 1);
	work(w);
	tick(w, 19);
	/* the connection to server 1 is at its lead limit and has no credit */
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	fake_grant(w->conn[0], TO_0 - 1);
	tick(w, 1);
	/* the connection to server 0 waits for the connection to server 1 */
	assert_in_range(w->conn[0]->n_sent, LEAD * 3, TO_0 - 2);
	tick(w, 18);
	assert_in_range(w->conn[0]->n_sent, LEAD * 3, TO_0 - 2);
	tick(w, 3);
	assert_int_equal(w->conn[0]->n_sent, TO_0 - 1);
	world_free(w);
}

static void answer(struct agt_world *w, unsigned server)
{
	const struct wire_msg *sent;

	while ((sent = fake_take(w->conn[server]))) {
		struct wire_msg m;

		if (sent->type != WIRE_CONTRIB)
			continue;
		w->pgen = sent->pgen;
		m = result_msg(w, sent->round, sent->part);
		m.tensor = sent->tensor;
		say(w, server, &m);
		end_read(w, server, 0);
	}
}

/* In some rounds connections are not kept in step, so that each card can show its full speed. In
 * these rounds the second card has priority. */
static void equal_shares_are_free_in_some_rounds(void **state)
{
	const unsigned half = TENSORS * PARTS / 2;
	struct agt_world *w = divided(3, PARTS / 2, SIZE_MAX, SIZE_MAX);

	(void)state;
	submit_tensors(w);
	for (uint64_t round = 2; round <= 3; round++) {
		answer(w, 0);
		answer(w, 1);
		w->conn[0]->credit = 0;
		for (unsigned t = 0; t < TENSORS; t++)
			submit(w, t, 0, round, 0);
		work(w);
		assert_int_equal(w->conn[0]->n_sent, 0);
		assert_int_equal(w->conn[1]->n_sent, round == 2 ? half : LEAD);
		fake_grant(w->conn[0], SIZE_MAX / 2);
		work(w);
	}
	world_free(w);
}

/* Bytes that were sent in one round do not count as progress in the next round. */
static void each_burst_counts_from_zero(void **state)
{
	struct agt_world *w = two_servers(SIZE_MAX, SIZE_MAX);

	(void)state;
	submit_tensors(w);
	answer(w, 0);
	answer(w, 1);
	assert_int_equal(w->n_done, TENSORS);
	w->conn[0]->credit = 0;
	for (unsigned t = 0; t < TENSORS; t++)
		submit(w, t, 0, 2, 0);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 0);
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	world_free(w);
}

/* Two jobs share the same connections. The agent keeps the connections in step for each job
 * separately, so no job waits for the other job. */
static void jobs_do_not_wait_for_each_other(void **state)
{
	struct agt_world *w = two_servers(0, SIZE_MAX);
	struct agt_job *mine = w->job, *other;
	struct agt_tensor *t = w->t[TENSORS - 1];

	(void)state;
	submit_tensors(w);
	assert_int_equal(w->conn[1]->n_sent, LEAD);
	other = w->job = second_job(w);
	w->n_tensors--;
	add_tensor(w);
	tell_plan(w, TENSORS - 1);
	agt_job_apply_placement(other,
		&(struct ctl_run){.tensor = 10 + TENSORS - 1, .n = PARTS, .server = 1, .pgen = 8},
		1);
	submit(w, TENSORS - 1, 0, 1, 0);
	work(w);
	assert_int_equal(w->conn[1]->n_sent, LEAD + PARTS);
	w->job = mine;
	w->t[TENSORS - 1] = t;
	agt_job_free(other, released, w);
	w->n_releases = 0;
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connection_does_not_run_ahead_of_one_without_room),
		cmocka_unit_test(connection_with_a_large_share_waits_for_a_small_one),
		cmocka_unit_test(connection_may_lead_by_what_its_transport_takes_at_a_time),
		cmocka_unit_test(several_partitions_of_a_connection_are_sent_in_one_turn),
		cmocka_unit_test(turn_ends_even_without_a_limit_on_its_bytes),
		cmocka_unit_test(equal_shares_are_kept_in_step_too),
		cmocka_unit_test(equal_shares_are_free_in_some_rounds),
		cmocka_unit_test(urgent_partitions_are_not_held_by_less_urgent_ones),
		cmocka_unit_test(
			urgent_partitions_are_sent_when_the_slower_connection_has_none_left),
		cmocka_unit_test(late_connection_holds_no_other),
		cmocka_unit_test(late_connection_holds_others_again_when_it_sends),
		cmocka_unit_test(lost_connection_holds_no_other),
		cmocka_unit_test(connection_within_a_host_neither_waits_nor_holds_others),
		cmocka_unit_test(shares_change_when_partitions_move),
		cmocka_unit_test(connection_that_starts_later_starts_at_the_others_progress),
		cmocka_unit_test(repeated_offers_do_not_count_as_progress),
		cmocka_unit_test(time_without_a_connection_does_not_lengthen_later_holds),
		cmocka_unit_test(held_connection_does_not_count_as_late),
		cmocka_unit_test(each_burst_counts_from_zero),
		cmocka_unit_test(jobs_do_not_wait_for_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
