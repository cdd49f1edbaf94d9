/* Members that take part in a round and add nothing (W1 and W3 of docs/reference/faults.md). */
#include "tests/unit/srv_world.h"

static void say_abstain_op(struct srv_world *w, unsigned i, uint64_t r, enum op op)
{
	struct wire_msg m = key_msg(w, i, WIRE_CONTRIB, r);

	m.flags = WIRE_INLINE;
	m.contrib.op = (uint8_t)op;
	say(w, i, &m);
}

static void say_abstain(struct srv_world *w, unsigned i, uint64_t r)
{
	say_abstain_op(w, i, r, OP_SUM);
}

/* Expect that member i gets the sum of round 1 over the members in the mask `given`, divided by
 * `by`. */
static void expect_sum_of(struct srv_world *w, unsigned i, unsigned given, float by)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, 1);
	const float *v = bytes_at(w, &m);
	uint32_t workers = 0;

	assert_int_equal(m.len, bytes_of(w));
	assert_int_equal(crc32c(0, v, m.len), m.crc);
	for (unsigned k = 0; k < w->n_members; k++) {
		workers += given >> k & 1 ? w->m[k].workers : 0;
		assert_int_equal(member_set_has(&m.result.contributors, k), given >> k & 1);
	}
	assert_int_equal(m.result.workers, workers);
	for (size_t e = 0; e < w->n_elems; e++) {
		float want = 0;

		for (unsigned k = 0; k < w->n_members; k++)
			want += given >> k & 1 ? input(k, 1, e) : 0;
		assert_true(v[e] == want / by);
	}
}

static void member_that_abstains_gets_the_sum_of_the_others(void **state)
{
	static const uint32_t sizes[] = {SMALL, LARGE};

	(void)state;
	for (unsigned k = 0; k < 2; k++)
		for (unsigned abstains = 0; abstains < 3; abstains++) {
			struct srv_world *w = world(.n_members = 3, .n_elems = sizes[k]);

			for (unsigned i = 0; i < 3; i++) {
				if (i == abstains)
					say_abstain(w, i, 1);
				else
					say_contrib(w, i, 1);
			}
			settle(w);
			for (unsigned i = 0; i < 3; i++)
				expect_sum_of(w, i, 7 & ~(1u << abstains), 1);
			assert_int_equal(stats(w).abstentions, 1);
			world_free(w);
		}
}

static void average_is_divided_by_the_workers_that_gave_values(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL);

	(void)state;
	say_abstain_op(w, 1, 1, OP_AVG);
	for (unsigned i = 0; i < 3; i += 2) {
		struct wire_msg m = contrib_msg(w, i, 1, 0);

		m.contrib.op = OP_AVG;
		say(w, i, &m);
	}
	work(w);
	expect_sum_of(w, 1, 5, 1 + 3);
	world_free(w);
}

/* The memory of the result holds the sum of an earlier round. */
static void sum_without_contributors_is_zeros(void **state)
{
	static const struct {
		uint32_t n_elems;
		uint8_t dtype;
		enum op op;
	} rows[] = {{SMALL, DTYPE_F32, OP_SUM}, {LARGE, DTYPE_F32, OP_AVG},
		{SMALL, DTYPE_F32, OP_PROD}, {SMALL, DTYPE_F16, OP_AVG},
		{SMALL, DTYPE_BF16, OP_SUM}};

	(void)state;
	for (unsigned k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
		struct srv_world *w = world(.n_members = 2, .n_elems = rows[k].n_elems,
			.dtype = (uint8_t)(1 + rows[k].dtype));

		memset(w->m[0].contrib[0], 0x3c, BYTES_MAX);
		memset(w->m[1].contrib[0], 0x3c, BYTES_MAX);
		for (uint64_t r = 1; r <= 4; r++) {
			for (unsigned i = 0; i < 2; i++) {
				struct wire_msg m = payload_msg(w, i, WIRE_CONTRIB, r, 1, 0);

				m.contrib.op = (uint8_t)rows[k].op;
				m.contrib.workers = w->m[i].workers;
				if (r <= 2)
					say(w, i, &m);
				else
					say_abstain_op(w, i, r, rows[k].op);
			}
			settle(w);
			for (unsigned i = 0; i < 2; i++) {
				struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);
				const unsigned char *v = bytes_at(w, &m);

				assert_int_equal(m.result.workers, r <= 2 ? 3 : 0);
				assert_int_equal(crc32c(0, v, m.len), m.crc);
				for (uint32_t b = 0; r > 2 && b < m.len; b++)
					assert_int_equal(v[b], 0);
			}
		}
		world_free(w);
	}
}

/* The sum of members 1 and 2 waits for member 0, which abstains last. */
static void ordered_sum_does_not_wait_for_a_member_that_abstains(void **state)
{
	static const unsigned order[] = {3, 2, 1, 0};

	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct srv_world *w = world(.n_members = 4, .n_elems = k ? LARGE : SMALL,
			.flags = JOB_DETERMINISTIC, .staging = k ? 2 * SEGMENT : 0);

		for (unsigned i = 0; i < 4; i++) {
			if (order[i] % 2)
				say_contrib(w, order[i], 1);
			else
				say_abstain(w, order[i], 1);
			end_reads(w);
		}
		settle(w);
		for (unsigned i = 0; i < 4; i++)
			expect_sum_of(w, i, 10, 1);
		world_free(w);
	}
}

static void repeated_abstention_is_a_duplicate(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_abstain(w, 0, 1);
	say_abstain(w, 0, 1);
	say_contrib(w, 0, 1); /* values that come after the abstention are not added */
	assert_int_equal(stats(w).duplicates, 2);
	say_contrib(w, 1, 1);
	work(w);
	expect_sum_of(w, 0, 2, 1);
	say_abstain(w, 0, 1);
	expect_sum_of(w, 0, 2, 1);
	world_free(w);
}

static void member_that_abstains_after_it_offered_values_is_disconnected(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m = key_msg(w, 0, WIRE_CONTRIB, 1);

	(void)state;
	m.flags = WIRE_INLINE;
	say_contrib(w, 0, 1);
	fake_deliver(w->m[0].conn, &m);
	expect_closed(w, 0);
	check(w);
	world_free(w);
}

static void more_workers_than_the_member_has_are_refused(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);

	(void)state;
	m.contrib.workers = w->m[0].workers + 1;
	fake_deliver(w->m[0].conn, &m);
	expect_closed(w, 0);
	world_free(w);
}

static void fewer_workers_than_the_member_has_are_counted(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL);

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct wire_msg m = contrib_msg(w, i, 1, 0);

		m.contrib.workers = 1;
		m.contrib.op = OP_AVG;
		say(w, i, &m);
	}
	work(w);
	assert_int_equal(expect_msg(w, 0, WIRE_RESULT, 1).result.workers, 3);
	world_free(w);
}

static void sum_without_contributors_can_be_donated(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m;

	(void)state;
	say_key(w, 0, WIRE_HAVE, 1);
	say_abstain(w, 1, 1);
	expect_msg(w, 0, WIRE_HAVE_OK, 1);
	expect_msg(w, 0, WIRE_DONATE_REQ, 1);
	m = payload_msg(w, 0, WIRE_DONATE, 1, 2, 0); /* the memory is zero */
	m.result.n_members = 2;
	say(w, 0, &m);
	m = expect_msg(w, 1, WIRE_RESULT, 1);
	assert_int_equal(m.result.workers, 0);
	assert_false(member_set_has(&m.result.contributors, 0));
	world_free(w);
}

/* With one backup machine of three, the round waits for two members that have spoken. */
static void member_that_abstains_counts_as_one_that_has_spoken(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

	(void)state;
	say_key(w, 2, WIRE_HAVE, 0); /* the third member is here, but late */
	expect_msg(w, 2, WIRE_HAVE_OK, 0);
	say_abstain(w, 1, 1);
	tick(w, 10 * GRACE_MS);
	work(w);
	expect_nothing(w, 1);
	say_contrib(w, 0, 1);
	tick(w, 0);
	tick(w, GRACE_MS);
	work(w);
	expect_sum_of(w, 0, 1, 1);
	expect_sum_of(w, 1, 1, 1);
	world_free(w);
}

/* A member that took part too late learns it, whether it gives values or abstains. */
static void late_member_gets_the_result_with_the_flag_late(void **state)
{
	(void)state;
	for (unsigned abstains = 0; abstains < 2; abstains++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

		for (unsigned i = 0; i < 3; i++) {
			say_key(w, i, WIRE_HAVE, 0);
			expect_msg(w, i, WIRE_HAVE_OK, 0);
		}
		say_abstain(w, 0, 1);
		say_contrib(w, 1, 1);
		tick(w, 0);
		tick(w, GRACE_MS);
		work(w);
		if (abstains)
			say_abstain(w, 2, 1);
		else
			say_contrib(w, 2, 1);
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(expect_msg(w, i, WIRE_RESULT, 1).flags,
				i == 2 ? WIRE_INLINE | WIRE_LATE : WIRE_INLINE);
		world_free(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(member_that_abstains_gets_the_sum_of_the_others),
		cmocka_unit_test(average_is_divided_by_the_workers_that_gave_values),
		cmocka_unit_test(sum_without_contributors_is_zeros),
		cmocka_unit_test(ordered_sum_does_not_wait_for_a_member_that_abstains),
		cmocka_unit_test(repeated_abstention_is_a_duplicate),
		cmocka_unit_test(member_that_abstains_after_it_offered_values_is_disconnected),
		cmocka_unit_test(more_workers_than_the_member_has_are_refused),
		cmocka_unit_test(fewer_workers_than_the_member_has_are_counted),
		cmocka_unit_test(sum_without_contributors_can_be_donated),
		cmocka_unit_test(member_that_abstains_counts_as_one_that_has_spoken),
		cmocka_unit_test(late_member_gets_the_result_with_the_flag_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
