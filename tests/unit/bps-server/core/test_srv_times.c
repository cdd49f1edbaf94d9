/* The figures of a round in RESULT: which member came last, how long the receiving member waited
 * for it, and how long the sum took (T3 of docs/reference/round-times.md). */
#include "tests/unit/srv_world.h"

static void expect_times(struct srv_world *w, unsigned i, uint64_t r, unsigned last,
	uint32_t wait_us, uint32_t sum_us)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);

	assert_int_equal(m.result.last, last);
	assert_int_equal(m.result.wait_us, wait_us);
	assert_int_equal(m.result.sum_us, sum_us);
}

/* Members 1, 2 and 0 contribute in this order, with these times between them. */
static void contribute_apart(struct srv_world *w, uint64_t r, uint64_t first_ms, uint64_t last_ms)
{
	say_contrib(w, 1, r);
	tick(w, first_ms);
	say_contrib(w, 2, r);
	tick(w, last_ms);
	say_contrib(w, 0, r);
}

static void say_abstention(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = key_msg(w, i, WIRE_CONTRIB, r);

	m.flags = WIRE_INLINE;
	m.contrib.op = OP_SUM;
	say(w, i, &m);
}

static void each_member_gets_its_own_wait_and_the_last_member(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL);

	(void)state;
	contribute_apart(w, 1, 5, 7);
	work(w);
	expect_times(w, 0, 1, 1, 1, 1);
	expect_times(w, 1, 1, 1, 12000, 1);
	expect_times(w, 2, 1, 1, 7000, 1);
	world_free(w);
}

static void time_of_the_sum_begins_when_the_last_bytes_are_there(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = LARGE);

	(void)state;
	contribute_apart(w, 1, 5, 7);
	tick(w, 3);
	end_reads(w);
	tick(w, 4);
	settle(w);
	tick(w, 50); /* not part of the sum */
	expect_times(w, 0, 1, 1, 1, 4000);
	expect_times(w, 1, 1, 1, 12000, 4000);
	expect_times(w, 2, 1, 1, 7000, 4000);
	world_free(w);
}

static void each_use_of_a_slot_has_times_of_its_own(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL);

	(void)state;
	for (uint64_t r = 1; r <= 6; r++) {
		contribute_apart(w, r, r, 10);
		tick(w, r);
		work(w);
		expect_times(w, 0, r, 1, 1, (uint32_t)r * 1000);
		expect_times(w, 1, r, 1, (uint32_t)(10 + r) * 1000, (uint32_t)r * 1000);
		expect_times(w, 2, r, 1, 10000, (uint32_t)r * 1000);
	}
	world_free(w);
}

static void repeated_offer_and_repeated_answer_keep_the_first_arrival(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	tick(w, 5);
	fake_down(w->m[0].conn, "cut"); /* the read ends, and the offer is repeated */
	connect_member(w, 0);
	say_contrib(w, 0, 1);
	tick(w, 5);
	say_contrib(w, 1, 1);
	settle(w);
	expect_times(w, 0, 1, 2, 10000, 1);
	expect_times(w, 1, 1, 2, 1, 1);
	tick(w, 5);
	say_contrib(w, 0, 1);
	expect_times(w, 0, 1, 2, 10000, 1);
	world_free(w);
}

static void times_begin_again_with_a_new_pgen(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 1, 1);
	say_contrib(w, 0, 1);
	tick(w, 50);
	tell_plan(w, 1, SERVER, 6);
	say_contrib(w, 0, 1);
	tick(w, 2);
	say_contrib(w, 1, 1);
	work(w);
	expect_times(w, 0, 1, 2, 2000, 1);
	expect_times(w, 1, 1, 2, 1, 1);
	world_free(w);
}

static void donated_result_has_no_times(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = LARGE);
	struct wire_msg d;

	(void)state;
	contribute_apart(w, 1, 5, 7);
	settle(w);
	for (unsigned i = 0; i < 3; i++)
		expect_sum(w, i, 1);
	tell_plan(w, 1, SERVER, 6);
	/* the slot had times before, and offers of this round arrived */
	say_contrib(w, 1, 1);
	tick(w, 5);
	say_contrib(w, 2, 1);
	say_key(w, 0, WIRE_HAVE, 1);
	expect_msg(w, 0, WIRE_DONATE_REQ, 1);
	expect_msg(w, 0, WIRE_HAVE_OK, 1);
	d = donate_msg(w, 0, 1);
	d.result.last = 3;
	d.result.wait_us = d.result.sum_us = 77;
	say(w, 0, &d);
	settle(w);
	expect_times(w, 1, 1, 0, 0, 0);
	expect_times(w, 2, 1, 0, 0, 0);
	world_free(w);
}

static void abstention_is_an_arrival(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) { /* the abstention comes last, or first */
		struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

		if (k)
			say_abstention(w, 1, 1);
		else
			say_contrib(w, 0, 1);
		tick(w, 4);
		if (k)
			say_contrib(w, 0, 1);
		else
			say_abstention(w, 1, 1);
		work(w);
		expect_times(w, 0, 1, k ? 1 : 2, k ? 1 : 4000, 1);
		expect_times(w, 1, 1, k ? 1 : 2, k ? 4000 : 1, 1);
		world_free(w);
	}
}

static struct srv_world *world_with_backup(unsigned n_members, uint16_t backup)
{
	struct srv_world *w = world(.n_members = n_members, .n_elems = SMALL, .backup = backup);

	for (unsigned i = 0; i < n_members; i++) {
		say_key(w, i, WIRE_HAVE, 0);
		expect_msg(w, i, WIRE_HAVE_OK, 0);
	}
	return w;
}

static void backup_round_with_all_members_has_times_as_any_other(void **state)
{
	struct srv_world *w = world_with_backup(3, 1);

	(void)state;
	contribute_apart(w, 1, 5, 7);
	work(w);
	expect_times(w, 0, 1, 1, 1, 1);
	expect_times(w, 1, 1, 1, 12000, 1);
	expect_times(w, 2, 1, 1, 7000, 1);
	world_free(w);
}

static void round_that_is_cut_was_waiting_for_its_missing_member(void **state)
{
	struct srv_world *w = world_with_backup(3, 1);

	(void)state;
	say_contrib(w, 0, 1);
	tick(w, 5);
	say_contrib(w, 1, 1);
	tick(w, 0);
	tick(w, GRACE_MS);
	tick(w, 1);
	work(w);
	say_contrib(w, 2, 1);
	expect_times(w, 0, 1, 3, (5 + GRACE_MS) * 1000, 1000);
	expect_times(w, 1, 1, 3, GRACE_MS * 1000, 1000);
	expect_times(w, 2, 1, 0, 0, 0); /* nothing waited for this member any more */
	world_free(w);
}

static void round_that_is_cut_without_two_members_names_none(void **state)
{
	struct srv_world *w = world_with_backup(4, 2);

	(void)state;
	say_contrib(w, 3, 1);
	say_contrib(w, 1, 1);
	tick(w, 0);
	tick(w, GRACE_MS);
	work(w);
	expect_times(w, 1, 1, 0, GRACE_MS * 1000, 1);
	expect_times(w, 3, 1, 0, GRACE_MS * 1000, 1);
	world_free(w);
}

static void answers_of_values_have_no_times(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL, .mode = MODE_VALUE);
	struct wire_msg m;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		say_key(w, i, WIRE_HOLD, 0);
		tick(w, 3);
	}
	for (unsigned i = 0; i < 2; i++) {
		expect_msg(w, i, WIRE_HAVE_OK, 0);
		m = contrib_msg(w, i, 1, 0);
		m.contrib.crc_prev = 0;
		say(w, i, &m);
		tick(w, 5);
		work(w);
	}
	for (unsigned i = 0; i < 2; i++)
		expect_times(w, i, 1, 0, 0, 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_member_gets_its_own_wait_and_the_last_member),
		cmocka_unit_test(time_of_the_sum_begins_when_the_last_bytes_are_there),
		cmocka_unit_test(each_use_of_a_slot_has_times_of_its_own),
		cmocka_unit_test(repeated_offer_and_repeated_answer_keep_the_first_arrival),
		cmocka_unit_test(times_begin_again_with_a_new_pgen),
		cmocka_unit_test(donated_result_has_no_times),
		cmocka_unit_test(abstention_is_an_arrival),
		cmocka_unit_test(backup_round_with_all_members_has_times_as_any_other),
		cmocka_unit_test(round_that_is_cut_was_waiting_for_its_missing_member),
		cmocka_unit_test(round_that_is_cut_without_two_members_names_none),
		cmocka_unit_test(answers_of_values_have_no_times),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
