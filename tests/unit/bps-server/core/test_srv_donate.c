/* A server's core takes over a partition in a round for which some member already has the sum. That
 * member donates its sum to the other members. */
#include "tests/unit/srv_world.h"

static void sum_that_a_member_has_is_donated_to_the_rest(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = k ? LARGE : SMALL);
		struct wire_msg d;

		/* member 0 contributes to round 4, and so states that it has the sum of round 3 */
		say_contrib(w, 0, 4);
		say_key(w, 1, WIRE_HAVE, 4);
		expect_msg(w, 1, WIRE_HAVE_OK, 4);
		expect_nothing(w, 1);
		say_contrib(w, 2, 4);
		expect_msg(w, 1, WIRE_DONATE_REQ, 4);
		d = donate_msg(w, 1, 4);
		say(w, 1, &d);
		settle(w);
		expect_sum(w, 0, 4);
		expect_sum(w, 2, 4);
		expect_nothing(w, 1);
		assert_int_equal(stats(w).donations, 1);
		assert_int_equal(stats(w).staging_used, 0);
		world_free(w);
	}
}

static void no_donation_is_requested_when_all_have_the_sum(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		say_key(w, i, WIRE_HAVE, 4);
		expect_msg(w, i, WIRE_HAVE_OK, 4);
		expect_nothing(w, i);
	}
	contribute_all(w, 5);
	contribute_all(w, 6); /* round 6 uses the same slot as round 4 */
	expect_sum(w, 0, 5);
	expect_sum(w, 0, 6);
	world_free(w);
}

static void late_have_discards_the_sum(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = LARGE);
	struct wire_msg d;

	(void)state;
	say_contrib(w, 0, 4);
	end_read(w, 0, 0, 0);
	say_contrib(w, 1, 4); /* the bytes of member 1 are read, but not used */
	say_contrib(w, 2, 5); /* member 2 contributes to round 5, so it has the sum of round 4 */
	assert_int_equal(w->m[1].conn->n_reads, 1);
	expect_msg(w, 2, WIRE_DONATE_REQ, 4);
	end_read(w, 1, 0, 0);
	d = donate_msg(w, 2, 4);
	say(w, 2, &d);
	settle(w);
	expect_sum(w, 0, 4);
	expect_sum(w, 1, 4);
	/* contributions of member 0 to round 4 and of member 2 to round 5 */
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void next_donor_is_asked_when_one_is_lost(void **state)
{
	(void)state;
	/* k = 0: the donor is lost before it answers; k = 1: the donor is lost during the read of
	 * its sum; k = 2: the donor does not answer */
	for (unsigned k = 0; k < 3; k++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = LARGE);
		unsigned first, second;
		struct wire_msg d;

		say_key(w, 0, WIRE_HAVE, 4);
		say_key(w, 1, WIRE_HAVE, 4);
		say_contrib(w, 2, 4);
		expect_msg(w, 0, WIRE_HAVE_OK, 4);
		expect_msg(w, 1, WIRE_HAVE_OK, 4);
		first = w->m[0].conn->n_sent ? 0 : 1;
		second = 1 - first;
		expect_msg(w, first, WIRE_DONATE_REQ, 4);
		if (k == 1) {
			d = donate_msg(w, first, 4);
			say(w, first, &d);
			assert_int_equal(w->m[first].conn->n_reads, 1);
		}
		if (k == 2) {
			tick(w, 99);
			expect_nothing(w, second);
			tick(w, 1);
		} else {
			fake_down(w->m[first].conn, "cut");
			w->m[first].conn = NULL;
			check(w);
		}
		expect_msg(w, second, WIRE_DONATE_REQ, 4);
		d = donate_msg(w, second, 4);
		say(w, second, &d);
		settle(w);
		expect_sum(w, 2, 4);
		world_free(w);
	}
}

static void idle_donor_is_asked_again_on_its_next_connection(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg d;

	(void)state;
	say_key(w, 0, WIRE_HAVE, 4);
	fake_down(w->m[0].conn, "cut");
	say_contrib(w, 1, 4);
	connect_member(w, 0); /* the member sends nothing, because its HAVE was acknowledged */
	tick(w, 100);
	expect_msg(w, 0, WIRE_DONATE_REQ, 4);
	d = donate_msg(w, 0, 4);
	say(w, 0, &d);
	settle(w);
	expect_sum(w, 1, 4);
	world_free(w);
}

static void damaged_donation_is_asked_for_again(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = world(.n_members = 2, .n_elems = k ? LARGE : SMALL);
		struct wire_msg d;

		say_key(w, 0, WIRE_HAVE, 4);
		expect_msg(w, 0, WIRE_HAVE_OK, 4);
		say_contrib(w, 1, 4);
		expect_msg(w, 0, WIRE_DONATE_REQ, 4);
		d = donate_msg(w, 0, 4);
		d.crc ^= 1;
		say(w, 0, &d);
		end_reads(w);
		expect_nothing(w, 1);
		tick(w, 100);
		expect_msg(w, 0, WIRE_DONATE_REQ, 4);
		d.crc ^= 1;
		say(w, 0, &d);
		settle(w);
		expect_sum(w, 1, 4);
		assert_int_equal(stats(w).crc_errors, 1);
		world_free(w);
	}
}

static void donation_waits_for_staging(void **state)
{
	struct srv_world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .staging = SEGMENT);
	struct wire_msg m;

	(void)state;
	for (unsigned p = 1; p < 8; p++) {
		m = contrib_msg(w, 0, 1, p);
		say(w, 0, &m);
	}
	assert_int_equal(w->m[0].conn->n_reads, 4);
	say_key(w, 0, WIRE_HAVE, 4);
	say_contrib(w, 1, 4);
	m = donate_msg(w, 0, 4);
	say(w, 0, &m);
	assert_int_equal(w->m[0].conn->n_reads, 4);
	settle(w);
	while (w->m[1].conn->n_sent > 1)
		fake_take(w->m[1].conn);
	expect_sum(w, 1, 4);
	world_free(w);
}

static void unrequested_donation_is_dropped(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg d = donate_msg(w, 0, 1);

	(void)state;
	say(w, 0, &d);
	say_contrib(w, 1, 1);
	say(w, 0, &d);
	say_contrib(w, 0, 1);
	work(w);
	expect_sum(w, 1, 1);
	say(w, 0, &d);
	assert_int_equal(stats(w).duplicates, 3);
	world_free(w);
}

static void contribution_to_a_donated_round_gets_the_donation(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg d;

	(void)state;
	say_key(w, 0, WIRE_HAVE, 4);
	say_contrib(w, 1, 4);
	/* the sum will be donated, so the bytes of member 1 are not needed */
	assert_int_equal(w->m[1].conn->n_reads, 0);
	d = donate_msg(w, 0, 4);
	say(w, 0, &d);
	settle(w);
	expect_sum(w, 1, 4);
	say_contrib(w, 1, 4);
	expect_sum(w, 1, 4);
	world_free(w);
}

static void donated_sum_waits_by_the_priority_it_was_asked_with(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 2);
	struct wire_msg m;

	(void)state;
	w->m[1].conn->room = 0;
	/* Partition 1 has an ordinary sum with priority 1. */
	for (unsigned i = 0; i < 2; i++) {
		m = contrib_msg(w, i, 1, 1);
		m.priority = 1;
		say(w, i, &m);
		settle(w);
	}
	/* Partition 0: member 0 has the sum. Member 1 contributes with priority 9. */
	say_key(w, 0, WIRE_HAVE, 1);
	m = contrib_msg(w, 1, 1, 0);
	m.priority = 9;
	say(w, 1, &m);
	m = donate_msg(w, 0, 1);
	say(w, 0, &m);
	settle(w);
	assert_int_equal(w->m[1].conn->n_sent, 0);
	fake_make_room(w->m[1].conn, 1);
	assert_int_equal(w->m[1].conn->n_sent, 1);
	assert_int_equal(fake_take(w->m[1].conn)->part, 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(donated_sum_waits_by_the_priority_it_was_asked_with),
		cmocka_unit_test(sum_that_a_member_has_is_donated_to_the_rest),
		cmocka_unit_test(no_donation_is_requested_when_all_have_the_sum),
		cmocka_unit_test(late_have_discards_the_sum),
		cmocka_unit_test(next_donor_is_asked_when_one_is_lost),
		cmocka_unit_test(idle_donor_is_asked_again_on_its_next_connection),
		cmocka_unit_test(damaged_donation_is_asked_for_again),
		cmocka_unit_test(donation_waits_for_staging),
		cmocka_unit_test(unrequested_donation_is_dropped),
		cmocka_unit_test(contribution_to_a_donated_round_gets_the_donation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
