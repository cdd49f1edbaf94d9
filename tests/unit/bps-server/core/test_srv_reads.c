/* Tests of the reads in a server's core: which reads the core starts, when they start, and how
 * long the core keeps the sums that it offers. */
#include "tests/unit/srv_world.h"

#include <limits.h>

/* ---- B1: reads ---- */

static void read_cut_by_a_lost_connection_leaves_no_trace(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	fake_down(w->m[0].conn, "cut");
	check(w);
	say_contrib(w, 1, 1);
	settle(w);
	expect_nothing(w, 1);
	connect_member(w, 0);
	say_contrib(w, 0, 1);
	settle(w);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void contribution_survives_its_connection_once_it_is_read(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	end_read(w, 0, 0, 0);
	fake_down(w->m[0].conn, "cut");
	connect_member(w, 0);
	say_contrib(w, 1, 1);
	settle(w);
	expect_sum(w, 1, 1);
	expect_nothing(w, 0);
	say_contrib(w, 0, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void newer_connection_of_an_agent_replaces_the_older(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct fake_conn *old = w->m[0].conn;

	(void)state;
	say_contrib(w, 0, 1);
	connect_member(w, 0);
	assert_true(old->is_closed);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void connection_of_an_agent_that_is_gone_is_closed(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	srv_core_agent_gone(w->core, w->m[0].conn->base.peer_id);
	assert_true(w->m[0].conn->is_closed);
	assert_false(w->m[1].conn->is_closed);
	connect_member(w, 0); /* the member was not dead after all */
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void read_of_an_older_pgen_is_discarded(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	end_read(w, 0, 0, 0);
	assert_int_equal(stats(w).contributions, 0);
	assert_int_equal(stats(w).staging_used, 0);
	contribute_all(w, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void failed_read_waits_for_the_next_offer(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	end_read(w, 0, 0, -EIO);
	expect_nothing(w, 0);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void offer_in_an_unknown_segment_is_dropped(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);

	(void)state;
	m.segment = 50;
	say(w, 0, &m);
	m.segment = 1;
	m.offset = sizeof(w->m[0].contrib) - 1;
	say(w, 0, &m);
	assert_int_equal(w->m[0].conn->n_reads, 0);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void damaged_contribution_is_refused_with_its_crc(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = world(.n_members = 2, .n_elems = k ? LARGE : SMALL);
		struct wire_msg m = contrib_msg(w, 0, 1, 0), r;

		m.crc ^= 0x10;
		say(w, 0, &m);
		end_reads(w);
		r = expect_msg(w, 0, WIRE_BAD_CRC, 1);
		assert_int_equal(r.crc, m.crc);
		assert_int_equal(stats(w).contributions, 0);
		assert_int_equal(stats(w).crc_errors, 1);
		contribute_all(w, 1);
		expect_sum(w, 0, 1);
		world_free(w);
	}
}

/* ---- B3: offered sums ---- */

static void offered_sum_stays_unchanged_over_a_new_pgen(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg offer;

	(void)state;
	contribute_all(w, 1);
	offer = expect_sum(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	assert_int_equal(stats(w).retired, 1);
	for (unsigned i = 0; i < 2; i++) { /* round 1 again, with different bytes */
		struct wire_msg m;

		memset(w->m[i].contrib[0], 0x40, BYTES_MAX);
		m = payload_msg(w, i, WIRE_CONTRIB, 1, 1, 0);
		m.contrib.workers = w->m[i].workers;
		say(w, i, &m);
	}
	settle(w);
	assert_int_equal(stats(w).rounds, 2);
	assert_int_equal(crc32c(0, bytes_at(w, &offer), offer.len), offer.crc);
	world_free(w);
}

static uint32_t retired_after(enum wire_type type, uint64_t r, bool is_old_pgen, bool is_down)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m;
	uint32_t n;

	contribute_all(w, 1);
	say_key(w, 1, WIRE_GOT, 1);
	tell_plan(w, 1, SERVER, 6);
	assert_int_equal(stats(w).retired, 1);
	m = type == WIRE_CONTRIB ? contrib_msg(w, 0, r, 0) : key_msg(w, 0, type, r);
	m.pgen -= is_old_pgen;
	if (is_down)
		fake_down(w->m[0].conn, "cut");
	else
		say(w, 0, &m);
	check(w);
	n = stats(w).retired;
	world_free(w);
	return n;
}

static void offered_sum_is_kept_until_its_reader_has_it_or_is_gone(void **state)
{
	(void)state;
	assert_int_equal(retired_after(WIRE_GOT, 1, true, false), 0);
	assert_int_equal(retired_after(WIRE_GOT, 1, false, false), 1);
	assert_int_equal(retired_after(WIRE_GOT, 2, true, false), 1);
	assert_int_equal(retired_after(WIRE_HAVE, 1, false, false), 0);
	assert_int_equal(retired_after(WIRE_HAVE, 2, false, false), 0);
	assert_int_equal(retired_after(WIRE_CONTRIB, 1, false, false), 1);
	assert_int_equal(retired_after(WIRE_CONTRIB, 2, false, false), 0);
	assert_int_equal(retired_after(WIRE_CONTRIB, 2, true, false), 0);
	assert_int_equal(retired_after(WIRE_GOT, 1, true, true), 0);
}

static void offered_sums_outlive_their_job(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg offer;

	(void)state;
	contribute_all(w, 1);
	offer = expect_sum(w, 0, 1);
	srv_core_job_end(w->core, JOB);
	check(w);
	assert_int_equal(stats(w).retired, 1);
	assert_int_equal(crc32c(0, bytes_at(w, &offer), offer.len), offer.crc);
	say_key(w, 0, WIRE_GOT, 1);
	say_key(w, 1, WIRE_GOT, 1);
	assert_int_equal(stats(w).retired, 0);
	assert_int_equal(stats(w).sums_used, 0);
	world_free(w);
}

static void reads_without_end_fail_the_job_when_memory_is_used_up(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .sums = SEGMENT);

	(void)state;
	for (uint64_t pgen = 6; pgen < 12 && !w->n_fails; pgen++) {
		contribute_all(w, 1);
		tell_plan(w, 1, SERVER, pgen);
	}
	assert_int_equal(w->fail_code, BPS_EQUOTA);
	world_free(w);
}

/* ---- B5 and windows ---- */

static void reads_go_by_priority(void **state)
{
	static const uint16_t priorities[] = {5, 1, 9, 5, 0, 60000};
	static const unsigned want[] = {0, 5, 2, 3, 1, 4};
	struct srv_world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 6, .window = BYTES_MAX);

	(void)state;
	for (unsigned p = 0; p < 6; p++) {
		struct wire_msg m = contrib_msg(w, 0, 1, p);

		m.priority = priorities[p];
		say(w, 0, &m);
		assert_int_equal(w->m[0].conn->n_reads, 1);
	}
	for (unsigned k = 0; k < 6; k++) {
		const struct xport_read *r = fake_read_at(w->m[0].conn, 0);

		assert_non_null(r);
		assert_int_equal(r->offset / BYTES_MAX, want[k]);
		end_read(w, 0, 0, 0);
	}
	world_free(w);
}

static void reads_of_one_peer_stay_within_its_window(void **state)
{
	struct srv_world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .window = 3 * BYTES_MAX + 1);

	(void)state;
	for (unsigned p = 0; p < 8; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
			assert_true(w->m[i].conn->n_reads <= 3);
		}
	assert_int_equal(w->m[0].conn->n_reads, 3);
	assert_int_equal(w->m[1].conn->n_reads, 3);
	settle(w);
	assert_int_equal(stats(w).rounds, 8);
	world_free(w);
}

static void reads_that_the_transport_refuses_are_tried_again(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 8);

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		w->m[i].conn->read_limit = 2;
	for (unsigned p = 0; p < 8; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	settle(w);
	assert_int_equal(stats(w).rounds, 8);
	world_free(w);
}

static void answers_wait_for_credit(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 3);

	(void)state;
	w->m[0].conn->credit = 0;
	for (unsigned p = 0; p < 3; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	settle(w);
	assert_int_equal(w->m[0].conn->n_sent, 0);
	assert_int_equal(w->m[1].conn->n_sent, 3);
	fake_grant(w->m[0].conn, 2);
	check(w);
	assert_int_equal(w->m[0].conn->n_sent, 2);
	fake_grant(w->m[0].conn, 2);
	check(w);
	assert_int_equal(w->m[0].conn->n_sent, 3);
	world_free(w);
}

/* Make a world in which the results of partitions 0, 1 and 2 wait. The partitions were summed in
 * this order. Their priorities are 1, 3 and 2. */
static struct srv_world *three_results_wait(void)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 4);

	w->m[0].conn->room = 0;
	for (unsigned p = 0; p < 3; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			m.priority = (uint16_t)(p == 0 ? 1 : 4 - p);
			say(w, i, &m);
			settle(w);
		}
	assert_int_equal(stats(w).rounds, 3);
	assert_int_equal(w->m[0].conn->n_sent, 0);
	return w;
}

static void most_urgent_result_leaves_first(void **state)
{
	static const uint32_t order[] = {1, 2, 0};
	struct srv_world *w = three_results_wait();

	(void)state;
	for (unsigned k = 0; k < 3; k++) {
		fake_make_room(w->m[0].conn, 1);
		check(w);
		assert_int_equal(w->m[0].conn->n_sent, 1);
		assert_int_equal(fake_take(w->m[0].conn)->part, order[k]);
	}
	world_free(w);
}

static void small_answers_pass_results_that_wait(void **state)
{
	struct srv_world *w = three_results_wait();
	struct wire_msg m = key_msg(w, 0, WIRE_HAVE, 1);

	(void)state;
	m.part = 3;
	say(w, 0, &m);
	assert_int_equal(w->m[0].conn->n_sent, 1);
	assert_int_equal(fake_take(w->m[0].conn)->type, WIRE_HAVE_OK);
	world_free(w);
}

static void results_of_all_partitions_may_wait(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = PARTS_MAX);

	(void)state;
	w->m[0].conn->room = 0;
	for (unsigned p = 0; p < PARTS_MAX; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
			settle(w);
		}
	assert_int_equal(stats(w).rounds, PARTS_MAX);
	assert_int_equal(w->m[0].conn->n_sent, 0);
	fake_make_room(w->m[0].conn, PARTS_MAX);
	assert_int_equal(w->m[0].conn->n_sent, PARTS_MAX);
	world_free(w);
}

/* If a member repeats its contribution while the connection lasts, the server still offers a
 * waiting result only once. After a reconnection, the server offers the result only after the
 * member has repeated its contribution. */
static void results_that_wait_are_offered_once(void **state)
{
	struct srv_world *w = three_results_wait();
	struct wire_msg m = contrib_msg(w, 0, 1, 1);

	(void)state;
	say(w, 0, &m);
	fake_make_room(w->m[0].conn, SIZE_MAX);
	check(w);
	assert_int_equal(w->m[0].conn->n_sent, 3);
	world_free(w);

	w = three_results_wait();
	fake_down(w->m[0].conn, "lost");
	connect_member(w, 0);
	check(w);
	assert_int_equal(w->m[0].conn->n_sent, 0);
	say(w, 0, &m);
	assert_int_equal(w->m[0].conn->n_sent, 1);
	world_free(w);
}

/* ---- staging ---- */

/* Members offer all partitions in random order, and reads end in random order. A member that
 * receives AGAIN repeats the offer. Without AGAIN, a member repeats no offer. All rounds must
 * complete. */
static void press(struct srv_shape s, unsigned seed)
{
	struct srv_world *w = world_new(s);
	bool has_offered[MEMBERS_MAX][PARTS_MAX] = {{false}};
	unsigned todo = s.n_members * s.n_parts, idle = 0;

	srand(seed);
	while (stats(w).rounds < s.n_parts && idle < 2000) {
		unsigned i = (unsigned)rand() % s.n_members, p = (unsigned)rand() % s.n_parts;
		struct fake_conn *c = w->m[i].conn;
		const struct wire_msg *m;

		idle++;
		if (todo && rand() % 2 && !has_offered[i][p]) {
			struct wire_msg offer = contrib_msg(w, i, 1, p);

			has_offered[i][p] = true;
			todo--;
			idle = 0;
			say(w, i, &offer);
		} else if (c->n_reads) {
			end_read(w, i, (unsigned)rand() % (unsigned)c->n_reads, 0);
			idle = 0;
		} else if (rand() % 4 == 0 && srv_core_sum_slice(w->core)) {
			idle = 0;
		}
		check(w);
		while ((m = fake_take(c)))
			if (m->type == WIRE_AGAIN) {
				has_offered[i][m->part] = false;
				todo++;
			}
	}
	if (stats(w).rounds < s.n_parts)
		fail_msg("seed %u: %u of %u rounds, then no progress", seed,
			(unsigned)stats(w).rounds, s.n_parts);
	world_free(w);
}

static void little_staging_is_enough_in_any_order(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 15; seed++)
		for (unsigned k = 0; k < 4; k++)
			press((struct srv_shape){.n_members = 2 + seed % 4,
				      .n_elems = k & 1 ? LARGE : SMALL * 512,
				      .n_parts = PARTS_MAX,
				      .flags = k & 2 ? JOB_DETERMINISTIC : 0,
				      .staging = SEGMENT},
				seed);
}

/* Place tensor 1 on the server: 4 partitions of 64 KiB. */
static void add_large_tensor(struct srv_world *w)
{
	struct ctl_tensor t = {.tensor = 1,
		.name = "u",
		.shape = shape_from_dtype_and_count(DTYPE_F32, 4 << 14),
		.part_elems = 1 << 14};
	struct ctl_run run = {
		.tensor = 1, .n = 4, .server = SERVER, .instance = INSTANCE, .pgen = 5};
	struct ctl_plan plan = {
		.job = JOB, .tensors = &t, .n_tensors = 1, .runs = &run, .n_runs = 1};

	srv_core_apply_plan(w->core, &plan);
}

/* Offer a contribution to partition p of tensor 0, or to partition p - PARTS_MAX of tensor 1. */
static void say_contrib_of_either_tensor(struct srv_world *w, unsigned i, unsigned p)
{
	struct wire_msg m = payload_msg(w, i, WIRE_CONTRIB, 1, 1, 0);

	m.part = p % PARTS_MAX;
	m.tensor = p / PARTS_MAX;
	m.len = m.tensor ? 4 << 14 : m.len;
	m.crc = crc32c(0, w->m[i].contrib[0], m.len);
	m.priority = (uint16_t)((unsigned)rand() % 4 + 2 * m.tensor);
	m.contrib.workers = w->m[i].workers;
	say(w, i, &m);
}

/* Offer contributions of both tensors in random order, end their reads and add them up, until
 * n_rounds rounds are done. The member with the index `late` offers nothing for tensor 0. */
static void press_two_tensors(unsigned seed, unsigned late, unsigned n_rounds)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = 5000, .n_parts = PARTS_MAX,
		.flags = JOB_DETERMINISTIC, .staging = 2 * SEGMENT);
	bool has_offered[3][PARTS_MAX + 4] = {{false}};
	unsigned idle = 0;

	add_large_tensor(w);
	srand(seed);
	while (stats(w).rounds < n_rounds && idle < 3000) {
		unsigned i = (unsigned)rand() % 3, p = (unsigned)rand() % (PARTS_MAX + 4);

		idle++;
		if (rand() % 2 && !has_offered[i][p] && (i != late || p >= PARTS_MAX)) {
			has_offered[i][p] = true;
			say_contrib_of_either_tensor(w, i, p);
			idle = 0;
		} else if (w->m[i].conn->n_reads) {
			end_read(w, i, (unsigned)rand() % (unsigned)w->m[i].conn->n_reads, 0);
			idle = 0;
		} else if (rand() % 4 == 0) {
			srv_core_sum_slice(w->core);
		}
		check(w);
	}
	if (stats(w).rounds < n_rounds)
		fail_msg("seed %u: %u rounds, then no progress", seed, (unsigned)stats(w).rounds);
	world_free(w);
}

/* Early contributions of small partitions are scattered over the staging memory. A large
 * contribution then finds no contiguous room. The contributions that complete the sums of the small
 * partitions are queued behind the large contribution. The server must not deadlock. */
static void scattered_staging_does_not_stop_ordered_sums(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 60; seed++)
		press_two_tensors(seed, UINT_MAX, PARTS_MAX + 4);
}

static void reads_that_end_after_staging_ran_out_are_added_up(void **state)
{
	struct srv_world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .staging = SEGMENT);

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		for (unsigned p = 0; p < 8; p++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	assert_int_equal(w->m[0].conn->n_reads, 4); /* the reads use all of the staging memory */
	assert_int_equal(w->m[1].conn->n_reads, 0);
	settle(w);
	assert_int_equal(stats(w).rounds, 8);
	world_free(w);
}

static void ordered_contribution_that_was_early_goes_on_when_it_is_next(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 3,
		.flags = JOB_DETERMINISTIC, .staging = SEGMENT);

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		for (unsigned p = 0; p < 3; p++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	assert_int_equal(w->m[0].conn->n_reads, 3);
	/* The staging memory has room for four contributions, and two of them may be early. The
	 * third contribution of the first member has taken one of these places. */
	assert_int_equal(w->m[1].conn->n_reads, 1);
	for (unsigned p = 0; p < 3; p++)
		end_read(w, 0, 0, 0);
	work(w);
	assert_int_equal(w->m[1].conn->n_reads, 3);
	settle(w);
	assert_int_equal(stats(w).rounds, 3);
	world_free(w);
}

/* The second member waits for tensor 1 before it submits tensor 0. Meanwhile early contributions of
 * tensor 0 stay in the staging memory. The sums of tensor 1, whose partitions are larger, must not
 * wait for them. */
static void early_contributions_of_one_tensor_do_not_stop_another(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 60; seed++)
		press_two_tensors(seed, 1, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connection_of_an_agent_that_is_gone_is_closed),
		cmocka_unit_test(read_cut_by_a_lost_connection_leaves_no_trace),
		cmocka_unit_test(contribution_survives_its_connection_once_it_is_read),
		cmocka_unit_test(newer_connection_of_an_agent_replaces_the_older),
		cmocka_unit_test(read_of_an_older_pgen_is_discarded),
		cmocka_unit_test(failed_read_waits_for_the_next_offer),
		cmocka_unit_test(offer_in_an_unknown_segment_is_dropped),
		cmocka_unit_test(damaged_contribution_is_refused_with_its_crc),
		cmocka_unit_test(offered_sum_stays_unchanged_over_a_new_pgen),
		cmocka_unit_test(offered_sum_is_kept_until_its_reader_has_it_or_is_gone),
		cmocka_unit_test(offered_sums_outlive_their_job),
		cmocka_unit_test(reads_without_end_fail_the_job_when_memory_is_used_up),
		cmocka_unit_test(reads_go_by_priority),
		cmocka_unit_test(reads_of_one_peer_stay_within_its_window),
		cmocka_unit_test(reads_that_the_transport_refuses_are_tried_again),
		cmocka_unit_test(answers_wait_for_credit),
		cmocka_unit_test(most_urgent_result_leaves_first),
		cmocka_unit_test(small_answers_pass_results_that_wait),
		cmocka_unit_test(results_of_all_partitions_may_wait),
		cmocka_unit_test(results_that_wait_are_offered_once),
		cmocka_unit_test(little_staging_is_enough_in_any_order),
		cmocka_unit_test(scattered_staging_does_not_stop_ordered_sums),
		cmocka_unit_test(reads_that_end_after_staging_ran_out_are_added_up),
		cmocka_unit_test(ordered_contribution_that_was_early_goes_on_when_it_is_next),
		cmocka_unit_test(early_contributions_of_one_tensor_do_not_stop_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
