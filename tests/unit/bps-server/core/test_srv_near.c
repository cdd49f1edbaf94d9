/* Tests of members on the server's host. The server reads the contributions of these members in
 * place, without a copy. Such a read is called a loan. */
#include "tests/unit/srv_world.h"

static void bring_near(struct srv_world *w, unsigned i)
{
	w->m[i].conn->base.is_same_host = true;
}

/* Send a contribution without a CRC, as a member on the server's host does. */
static void say_near(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = contrib_msg(w, i, r, 0);

	m.crc = m.contrib.crc_prev = 0;
	say(w, i, &m);
}

static void expect_near_sum(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);

	assert_int_equal(crc32c(0, bytes_at(w, &m), m.len), sum_crc(w, r));
}

static void offer_of_a_peer_on_this_host_is_summed_where_it_lies(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = LARGE);

	(void)state;
	bring_near(w, 0);
	bring_near(w, 2);
	for (uint64_t r = 1; r <= 4; r++) {
		say_near(w, 0, r);
		say_near(w, 2, r);
		assert_int_equal(w->x.n_loans, 2);
		assert_int_equal(stats(w).staging_used, 0);
		assert_false(is_reading(w));
		say_contrib(w, 1, r);
		settle(w);
		/* the loans have ended before a member receives the sum */
		assert_int_equal(w->x.n_loans, 0);
		expect_near_sum(w, 0, r);
		expect_sum(w, 1, r); /* the sum for a member on another host has a CRC */
		expect_near_sum(w, 2, r);
	}
	assert_int_equal(stats(w).crc_errors, 0);
	world_free(w);
}

/* A removed member that was not notified yet may still receive the sum of an old round. By then,
 * the members that continue have overwritten their inputs. So a job that may shrink does not sum in
 * place. */
static void offer_within_one_host_is_read_and_checked_when_the_job_may_shrink(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE, .flags = JOB_SHRINK);

	(void)state;
	bring_near(w, 0);
	say_contrib(w, 0, 1);
	assert_int_equal(w->x.n_loans, 0);
	assert_true(is_reading(w));
	memset(w->m[0].contrib[0], 0xee, BYTES_MAX);
	end_read(w, 0, 0, 0);
	expect_msg(w, 0, WIRE_BAD_CRC, 1);
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	settle(w);
	expect_near_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void small_contribution_within_one_host_needs_no_crc(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	bring_near(w, 0);
	bring_near(w, 1);
	for (uint64_t r = 1; r <= 3; r++) {
		say_near(w, 0, r);
		say_near(w, 1, r);
		work(w);
		expect_near_sum(w, 0, r);
		expect_near_sum(w, 1, r);
	}
	assert_int_equal(stats(w).crc_errors, 0);
	world_free(w);
}

static void loan_outlives_its_connection_and_still_counts(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	bring_near(w, 0);
	say_near(w, 0, 1);
	fake_down(w->m[0].conn, "cut");
	check(w);
	assert_int_equal(w->x.n_loans, 1);
	connect_member(w, 0); /* the member reconnects over the network */
	say_contrib(w, 1, 1);
	settle(w);
	assert_int_equal(w->x.n_loans, 0);
	expect_sum(w, 1, 1);
	say_contrib(w, 0, 1);
	expect_sum(w, 0, 1);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void loan_ends_when_its_slot_is_cleared(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	bring_near(w, 0);
	say_near(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	assert_int_equal(w->x.n_loans, 0);
	say_near(w, 0, 1);
	assert_int_equal(w->x.n_loans, 1);
	/* HAVE states that a sum exists, so the input must not be summed again */
	say_key(w, 1, WIRE_HAVE, 1);
	assert_int_equal(w->x.n_loans, 0);
	world_free(w);
}

static void sum_without_crc_gets_one_for_a_member_on_the_network(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	bring_near(w, 0);
	bring_near(w, 1);
	say_near(w, 0, 1);
	say_near(w, 1, 1);
	fake_down(w->m[1].conn, "cut");
	bring_near(w, 0);
	work(w);
	fake_take(w->m[0].conn);
	connect_member(w, 1);
	say_contrib(w, 1, 1);
	expect_sum(w, 1, 1);
	/* Only one of the two members states a CRC of the previous result, so the server cannot
	 * compare two CRCs. */
	say_near(w, 0, 2);
	m = contrib_msg(w, 1, 2, 0);
	say(w, 1, &m);
	settle(w);
	expect_near_sum(w, 0, 2);
	expect_sum(w, 1, 2);
	assert_int_equal(w->n_fails, 0);
	world_free(w);
}

static void invalid_offer_within_one_host_is_dropped(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);

	(void)state;
	bring_near(w, 0);
	m.segment = 9;
	say(w, 0, &m);
	m.segment = 1;
	m.offset = sizeof(w->m[0].contrib) - 8;
	say(w, 0, &m);
	assert_int_equal(w->x.n_loans, 0);
	say_near(w, 0, 1);
	say_contrib(w, 1, 1);
	settle(w);
	expect_sum(w, 1, 1);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(offer_of_a_peer_on_this_host_is_summed_where_it_lies),
		cmocka_unit_test(offer_within_one_host_is_read_and_checked_when_the_job_may_shrink),
		cmocka_unit_test(small_contribution_within_one_host_needs_no_crc),
		cmocka_unit_test(loan_outlives_its_connection_and_still_counts),
		cmocka_unit_test(loan_ends_when_its_slot_is_cleared),
		cmocka_unit_test(sum_without_crc_gets_one_for_a_member_on_the_network),
		cmocka_unit_test(invalid_offer_within_one_host_is_dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
