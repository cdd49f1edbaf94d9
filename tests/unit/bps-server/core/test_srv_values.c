/* Partitions of values: each delta is added once, members wait as their bound says, and a new
 * server goes on from the newest answer (V1 to V3 of docs/reference/values.md). */
#include "bps-server/core/values.h"
#include "tests/unit/srv_world.h"

#define VALUE(...) world(.mode = MODE_VALUE, __VA_ARGS__)

static void say_hold(struct srv_world *w, unsigned i, uint64_t r, uint64_t version)
{
	struct wire_msg m = key_msg(w, i, WIRE_HOLD, r);

	m.hold.version = version;
	say(w, i, &m);
}

/* All members state that they have no answer. */
static void begin(struct srv_world *w)
{
	for (unsigned i = 0; i < w->n_members; i++)
		say_hold(w, i, 0, 0);
	for (unsigned i = 0; i < w->n_members; i++)
		expect_msg(w, i, WIRE_HAVE_OK, 0);
}

/* Member i adds `v` to each element. */
static void say_delta(struct srv_world *w, unsigned i, uint64_t r, float v)
{
	struct wire_msg m;

	for (size_t e = 0; e < w->n_elems; e++)
		((float *)w->m[i].contrib[0])[e] = v;
	m = payload_msg(w, i, WIRE_CONTRIB, r, 1, 0);
	m.contrib.workers = w->m[i].workers;
	say(w, i, &m);
}

static struct wire_msg expect_answer(
	struct srv_world *w, unsigned i, uint64_t r, float want, uint64_t version)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);
	const float *v = bytes_at(w, &m);

	assert_int_equal(m.len, bytes_of(w));
	assert_int_equal(crc32c(0, v, m.len), m.crc);
	assert_true(m.result.version == version);
	for (size_t e = 0; e < w->n_elems; e++)
		assert_true(v[e] == want);
	return m;
}

static void first_round_is_the_sum_of_all(void **state)
{
	static const uint32_t sizes[] = {SMALL, LARGE};

	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w =
			VALUE(.n_members = 3, .n_elems = sizes[k], .stale = STALE_UNBOUNDED);

		begin(w);
		say_delta(w, 0, 1, 1);
		say_delta(w, 1, 1, 10);
		settle(w);
		expect_nothing(w, 0);
		say_delta(w, 2, 1, 100);
		settle(w);
		for (unsigned i = 0; i < 3; i++)
			expect_answer(w, i, 1, 111, 3);
		world_free(w);
	}
}

/* With the bound s, a member gets the answer to round r when all members have added r - s. */
static void member_waits_for_those_that_are_too_far_behind(void **state)
{
	(void)state;
	for (uint32_t stale = 0; stale < 3; stale++) {
		struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL, .stale = stale);
		uint64_t r = 2;

		begin(w);
		say_delta(w, 0, 1, 1);
		say_delta(w, 1, 1, 0);
		settle(w);
		expect_answer(w, 0, 1, 1, 2);
		expect_answer(w, 1, 1, 1, 2);
		for (; r <= 1 + stale; r++) {
			say_delta(w, 0, r, 1);
			settle(w);
			expect_answer(w, 0, r, (float)r, r + 1);
		}
		say_delta(w, 0, r, 1);
		settle(w);
		expect_nothing(w, 0);
		say_delta(w, 1, 2, 100);
		settle(w);
		expect_answer(w, 0, r, (float)(r + 100), r + 2);
		if (stale > 0)
			expect_answer(w, 1, 2, (float)(r + 100), r + 2);
		world_free(w);
	}
}

static void member_that_abstains_reads_the_value(void **state)
{
	struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL, .stale = STALE_UNBOUNDED);
	struct wire_msg m = key_msg(w, 1, WIRE_CONTRIB, 1);

	(void)state;
	begin(w);
	say_delta(w, 0, 1, 7);
	m.flags = WIRE_INLINE;
	say(w, 1, &m);
	settle(w);
	expect_answer(w, 0, 1, 7, 2);
	expect_answer(w, 1, 1, 7, 2);
	say_delta(w, 0, 2, 1);
	settle(w);
	expect_answer(w, 0, 2, 8, 3);
	m.round = 2;
	say(w, 1, &m);
	settle(w);
	expect_answer(w, 1, 2, 8, 4);
	world_free(w);
}

static void repeated_delta_is_answered_and_not_added(void **state)
{
	struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL, .stale = STALE_UNBOUNDED);

	(void)state;
	begin(w);
	for (unsigned i = 0; i < 2; i++)
		say_delta(w, i, 1, 1);
	settle(w);
	expect_answer(w, 0, 1, 2, 2);
	say_delta(w, 0, 1, 1);
	settle(w);
	expect_answer(w, 0, 1, 2, 2);
	say_delta(w, 0, 2, 1);
	settle(w);
	expect_answer(w, 0, 2, 3, 3);
	say_delta(w, 0, 1, 1); /* late */
	settle(w);
	expect_nothing(w, 0);
	world_free(w);
}

/* While members read both copies, a third member waits. */
static void copy_is_not_overwritten_while_a_member_may_read_it(void **state)
{
	struct srv_world *w = VALUE(.n_members = 3, .n_elems = LARGE, .stale = STALE_UNBOUNDED);
	struct wire_msg first, second;

	(void)state;
	begin(w);
	for (unsigned i = 0; i < 3; i++)
		say_delta(w, i, 1, 1);
	settle(w);
	for (unsigned i = 0; i < 3; i++) {
		first = expect_answer(w, i, 1, 3, 3);
		if (i > 0)
			say_key(w, i, WIRE_GOT, 1);
	}
	say_delta(w, 1, 2, 10);
	settle(w);
	second = expect_answer(w, 1, 2, 13, 4);
	assert_int_not_equal(first.offset, second.offset);
	say_delta(w, 2, 2, 100);
	settle(w);
	expect_nothing(w, 2);
	assert_true(((const float *)bytes_at(w, &first))[0] == 3);
	say_key(w, 0, WIRE_GOT, 1);
	settle(w);
	expect_answer(w, 2, 2, 113, 5);
	assert_true(((const float *)bytes_at(w, &second))[0] == 13);
	world_free(w);
}

/* Member 0 has the newest version. It contains the delta of member 1's round 2, to which member 1
 * has no answer, but not that of member 2. */
static void new_server_goes_on_from_the_newest_answer(void **state)
{
	struct srv_world *w = VALUE(.n_members = 3, .n_elems = SMALL, .stale = STALE_UNBOUNDED);
	struct wire_msg m;
	float *v = (float *)w->m[0].result;

	(void)state;
	say_hold(w, 1, 1, 3);
	say_hold(w, 0, 2, 5);
	expect_nothing(w, 1);
	say_delta(w, 1, 2, 10);
	expect_msg(w, 1, WIRE_AGAIN, 2);
	say_hold(w, 2, 1, 3);
	expect_msg(w, 0, WIRE_DONATE_REQ, 2);
	for (size_t e = 0; e < SMALL; e++)
		v[e] = 42;
	m = payload_msg(w, 0, WIRE_DONATE, 2, 2, 0);
	m.result.n_members = 3;
	m.result.workers = 6;
	m.result.version = 5;
	m.result.contributors.w[0] = 4; /* only member 2 has added an odd number of deltas */
	say(w, 0, &m);
	expect_msg(w, 0, WIRE_HAVE_OK, 2);
	expect_msg(w, 1, WIRE_HAVE_OK, 1);
	expect_msg(w, 2, WIRE_HAVE_OK, 1);
	say_delta(w, 1, 2, 10);
	settle(w);
	expect_answer(w, 1, 2, 42, 5); /* was added already */
	say_delta(w, 2, 2, 100);
	settle(w);
	expect_answer(w, 2, 2, 142, 6);
	say_delta(w, 0, 3, 1000);
	settle(w);
	expect_answer(w, 0, 3, 1142, 7);
	world_free(w);
}

static void value_waits_until_all_members_have_spoken(void **state)
{
	struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_hold(w, 0, 0, 0);
	say_hold(w, 0, 0, 0);
	expect_nothing(w, 0);
	tell_plan(w, 1, SERVER, 6);
	say_hold(w, 1, 0, 0);
	expect_nothing(w, 1);
	say_hold(w, 0, 0, 0);
	expect_msg(w, 0, WIRE_HAVE_OK, 0);
	world_free(w);
}

static void message_that_no_correct_member_sends_closes_its_connection(void **state)
{
	for (unsigned k = 0; k < 5; k++) {
		struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL);
		struct wire_msg m = key_msg(w, 1, WIRE_HOLD, 1);

		(void)state;
		begin(w);
		if (k == 0)
			m.hold.version = 3; /* an answer that this server has not given */
		else if (k == 1)
			m.round = 0, m.hold.version = 1;
		else if (k == 2)
			m = key_msg(w, 1, WIRE_HAVE, 0);
		else
			m = contrib_msg(w, 1, k == 3 ? 2 : 1, 0);
		if (k == 4)
			m.contrib.workers = 9;
		fake_deliver(w->m[1].conn, &m);
		check(w);
		expect_closed(w, 1);
		world_free(w);
	}
}

static void hold_for_a_sum_closes_the_connection(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m = key_msg(w, 0, WIRE_HOLD, 0);

	(void)state;
	fake_deliver(w->m[0].conn, &m);
	expect_closed(w, 0);
	world_free(w);
}

static void copy_that_is_read_outlives_a_new_pgen(void **state)
{
	struct srv_world *w = VALUE(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	begin(w);
	for (unsigned i = 0; i < 2; i++)
		say_delta(w, i, 1, 1);
	settle(w);
	m = expect_answer(w, 0, 1, 2, 2);
	expect_answer(w, 1, 1, 2, 2);
	tell_plan(w, 1, SERVER, 6);
	assert_int_equal(stats(w).retired, 1);
	begin(w);
	assert_int_equal(stats(w).retired, 0); /* HOLD under the new pgen releases it */
	for (unsigned i = 0; i < 2; i++)
		say_delta(w, i, 1, 5);
	settle(w);
	expect_answer(w, 0, 1, 10, 2);
	(void)m;
	world_free(w);
}

/* Two members lose their connections while their deltas are staged. They must not keep the two
 * copies from member 2. */
static void members_that_are_cut_off_hold_no_copy(void **state)
{
	struct srv_world *w = VALUE(.n_members = 3, .n_elems = LARGE, .stale = STALE_UNBOUNDED);

	(void)state;
	begin(w);
	for (unsigned i = 0; i < 3; i++)
		say_delta(w, i, 1, 1);
	settle(w);
	for (unsigned i = 0; i < 3; i++) {
		expect_answer(w, i, 1, 3, 3);
		say_key(w, i, WIRE_GOT, 1);
	}
	for (unsigned i = 0; i < 2; i++) {
		say_delta(w, i, 2, 10);
		end_reads(w);
		fake_down(w->m[i].conn, "cut"); /* the delta is staged, and not added yet */
		w->m[i].conn = NULL;
		work(w);
	}
	say_delta(w, 2, 2, 100);
	settle(w);
	expect_answer(w, 2, 2, 123, 6);
	world_free(w);
}

/* A member that reads an answer while the job fails sends GOT afterwards. */
static void got_of_a_failed_job_frees_its_copy(void **state)
{
	struct srv_world *w = VALUE(.n_members = 2, .n_elems = LARGE, .stale = STALE_UNBOUNDED);

	(void)state;
	begin(w);
	for (unsigned i = 0; i < 2; i++)
		say_delta(w, i, 1, 1);
	settle(w);
	expect_answer(w, 0, 1, 2, 2);
	expect_answer(w, 1, 1, 2, 2);
	TAILQ_FIRST(&w->core->jobs)->has_failed = true;
	say_key(w, 0, WIRE_GOT, 1);
	say_key(w, 1, WIRE_GOT, 1);
	srv_core_job_end(w->core, JOB);
	assert_int_equal(stats(w).retired, 0);
	world_free(w);
}

/* The version after the largest number would be 0, which agents take for a sum. */
static void largest_numbers_are_refused(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL);
		struct wire_msg m = key_msg(w, 1, WIRE_HOLD, k ? UINT64_MAX : 1);

		m.hold.version = k ? 1 : UINT64_MAX;
		fake_deliver(w->m[1].conn, &m);
		check(w);
		expect_closed(w, 1);
		world_free(w);
	}
}

static void operation_other_than_sum_fails_the_job(void **state)
{
	struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m;

	(void)state;
	begin(w);
	m = contrib_msg(w, 1, 1, 0);
	m.contrib.op = OP_MAX;
	say(w, 1, &m);
	assert_int_equal(w->fail_code, BPS_EMISMATCH);
	assert_non_null(strstr(w->fail_text, "operation max to a value"));
	world_free(w);
}

static void got_of_a_failed_job_frees_its_sum(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	contribute_all(w, 1);
	TAILQ_FIRST(&w->core->jobs)->has_failed = true;
	say_key(w, 0, WIRE_GOT, 1);
	say_key(w, 1, WIRE_GOT, 1);
	srv_core_job_end(w->core, JOB);
	assert_int_equal(stats(w).retired, 0);
	world_free(w);
}

static void job_counts_the_rounds_of_the_slowest_member(void **state)
{
	struct srv_world *w = VALUE(.n_members = 2, .n_elems = SMALL, .stale = STALE_UNBOUNDED);
	const struct arrivals *a = TAILQ_FIRST(&w->core->jobs)->arrivals;

	(void)state;
	begin(w);
	say_delta(w, 0, 1, 1);
	settle(w);
	expect_nothing(w, 0);
	assert_int_equal(a->rounds, 0);
	say_delta(w, 1, 1, 1);
	settle(w);
	expect_answer(w, 0, 1, 2, 2);
	expect_answer(w, 1, 1, 2, 2);
	assert_int_equal(a->rounds, 1);
	for (uint64_t r = 2; r < 5; r++) {
		say_delta(w, 0, r, 1);
		settle(w);
		expect_answer(w, 0, r, (float)r + 1, r + 1);
		assert_int_equal(a->round, 1);
	}
	say_delta(w, 1, 2, 1);
	settle(w);
	expect_answer(w, 1, 2, 6, 6);
	assert_int_equal(a->round, 2);
	assert_int_equal(a->rounds, 2);
	assert_int_equal(a->bytes, 2 * 2 * bytes_of(w));
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_round_is_the_sum_of_all),
		cmocka_unit_test(member_waits_for_those_that_are_too_far_behind),
		cmocka_unit_test(member_that_abstains_reads_the_value),
		cmocka_unit_test(repeated_delta_is_answered_and_not_added),
		cmocka_unit_test(copy_is_not_overwritten_while_a_member_may_read_it),
		cmocka_unit_test(new_server_goes_on_from_the_newest_answer),
		cmocka_unit_test(value_waits_until_all_members_have_spoken),
		cmocka_unit_test(message_that_no_correct_member_sends_closes_its_connection),
		cmocka_unit_test(hold_for_a_sum_closes_the_connection),
		cmocka_unit_test(copy_that_is_read_outlives_a_new_pgen),
		cmocka_unit_test(members_that_are_cut_off_hold_no_copy),
		cmocka_unit_test(got_of_a_failed_job_frees_its_copy),
		cmocka_unit_test(largest_numbers_are_refused),
		cmocka_unit_test(operation_other_than_sum_fails_the_job),
		cmocka_unit_test(got_of_a_failed_job_frees_its_sum),
		cmocka_unit_test(job_counts_the_rounds_of_the_slowest_member),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
