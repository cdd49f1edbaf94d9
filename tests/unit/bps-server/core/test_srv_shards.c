/* A tensor in shards (O1 of docs/reference/faults.md): only the owner of a partition gets the bytes
 * of its results. The others learn that a round is complete when the owner has its result. The job
 * has three members with the ranks 0; 1, 2; 3, 4, 5. All messages are about partition 0, which
 * belongs to rank 0, so to member 0. */
#include "tests/unit/srv_world.h"

#define N_RANKS 6

static void expect_empty_result(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);

	assert_int_equal(m.len, 0);
	assert_int_equal(m.crc, 0);
	assert_int_equal(m.result.workers, N_RANKS);
	assert_int_equal(m.result.n_members, 3);
	for (unsigned k = 0; k < 3; k++)
		assert_true(member_set_has(&m.result.contributors, k));
}

static struct srv_world *sharded_world(uint32_t n_elems)
{
	return world(.n_members = 3, .n_elems = n_elems, .n_parts = N_RANKS, .owner = OWNER_SHARDS);
}

static void others_are_told_when_the_owner_has_the_sum(void **state)
{
	(void)state;
	/* the owner states that it has the sum of round 1 by HAVE, or by its next contribution */
	for (unsigned k = 0; k < 4; k++) {
		struct srv_world *w = sharded_world(k & 1 ? LARGE : SMALL);

		contribute_all(w, 1);
		expect_sum(w, 0, 1);
		say_contrib(w, 1, 1); /* repeated, because no answer came */
		expect_nothing(w, 1);
		expect_nothing(w, 2);
		if (k & 2) {
			say_key(w, 0, WIRE_HAVE, 1);
			expect_msg(w, 0, WIRE_HAVE_OK, 1);
		} else {
			say_contrib(w, 0, 2);
		}
		expect_empty_result(w, 1, 1);
		expect_empty_result(w, 2, 1);
		expect_nothing(w, 1);
		say_contrib(w, 2, 1); /* repeated, because the answer was lost */
		expect_empty_result(w, 2, 1);
		for (unsigned i = 0; i < 3; i++)
			say_contrib(w, i, 2);
		settle(w);
		expect_sum(w, 0, 2);
		expect_nothing(w, 1);
		assert_int_equal(stats(w).retired, 0);
		world_free(w);
	}
}

static void bytes_of_a_result_are_sent_once(void **state)
{
	struct srv_world *w = sharded_world(LARGE);

	(void)state;
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	say_key(w, 0, WIRE_HAVE, 1);
	assert_int_equal(stats(w).offered_bytes, LARGE * sizeof(float));
	world_free(w);
}

static void member_that_goes_on_before_the_owner_loses_its_connection(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = sharded_world(SMALL);

		contribute_all(w, 1);
		expect_sum(w, 0, 1);
		if (k)
			say_key(w, 1, WIRE_HAVE, 1);
		else
			say_contrib(w, 1, 2);
		expect_closed(w, 1);
		world_free(w);
	}
}

static void contributors_are_donated_without_bytes(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = sharded_world(k ? LARGE : SMALL);
		struct wire_msg d;

		/* an earlier server has made round 4; only the owner knows */
		say_contrib(w, 1, 4);
		say_key(w, 0, WIRE_HAVE, 4);
		expect_msg(w, 0, WIRE_HAVE_OK, 4);
		say_contrib(w, 2, 4);
		expect_msg(w, 0, WIRE_DONATE_REQ, 4);
		d = donate_msg(w, 0, 4);
		d.len = d.crc = 0;
		d.flags = WIRE_INLINE;
		d.payload = NULL;
		say(w, 0, &d);
		expect_empty_result(w, 1, 4);
		expect_empty_result(w, 2, 4);
		expect_nothing(w, 0);
		world_free(w);
	}
}

static void donation_with_bytes_ends_the_connection(void **state)
{
	struct srv_world *w = sharded_world(SMALL);
	struct wire_msg d;

	(void)state;
	say_contrib(w, 1, 4);
	say_key(w, 0, WIRE_HAVE, 4);
	say_contrib(w, 2, 4);
	d = donate_msg(w, 0, 4);
	say(w, 0, &d);
	expect_closed(w, 0);
	world_free(w);
}

static void job_fails_when_the_owner_has_lost_the_result(void **state)
{
	struct srv_world *w = sharded_world(SMALL);

	(void)state;
	say_key(w, 1, WIRE_HAVE, 4);
	say_contrib(w, 0, 4);
	say_contrib(w, 2, 4);
	assert_int_equal(w->n_fails, 1);
	assert_int_equal(w->fail_code, BPS_EDIVERGED);
	assert_non_null(strstr(w->fail_text, "the owner of the result (agent 100, host h)"));
	world_free(w);
}

static void job_that_may_lose_an_owner_has_no_shards(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 3; k++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .n_parts = N_RANKS,
			.owner = OWNER_SHARDS, .flags = k == 1 ? JOB_SHRINK : 0, .backup = k == 2);

		assert_int_equal(w->n_fails, k > 0);
		assert_int_equal(w->fail_code, k ? BPS_EPROTO : 0);
		assert_int_equal(stats(w).parts, k ? 0 : N_RANKS);
		world_free(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_are_told_when_the_owner_has_the_sum),
		cmocka_unit_test(bytes_of_a_result_are_sent_once),
		cmocka_unit_test(member_that_goes_on_before_the_owner_loses_its_connection),
		cmocka_unit_test(contributors_are_donated_without_bytes),
		cmocka_unit_test(donation_with_bytes_ends_the_connection),
		cmocka_unit_test(job_fails_when_the_owner_has_lost_the_result),
		cmocka_unit_test(job_that_may_lose_an_owner_has_no_shards),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
