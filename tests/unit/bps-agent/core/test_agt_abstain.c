/* Workers that take part in a round and add nothing (W1 and W2 of docs/reference/faults.md). */
#include "tests/unit/agt_world.h"

/* Submit a round of all workers. abstains: bit i is set if worker i abstains. */
static void submit_some(struct agt_world *w, uint64_t r, unsigned abstains)
{
	for (unsigned i = 0; i < w->n_workers; i++) {
		float *v = (float *)w->a->in[i];

		for (size_t e = 0; e < (size_t)w->n_elems * w->n_parts; e++)
			v[e] = input(i, r, e);
		assert_int_equal(agt_tensor_submit(w->t[0], i, r, OP_SUM, 0, abstains >> i & 1), 0);
		check(w);
	}
	work(w);
}

static void expect_values(const struct agt_world *w, const float *v, unsigned abstains)
{
	for (size_t e = 0; e < (size_t)w->n_elems * w->n_parts; e++) {
		float want = 0;

		for (unsigned i = 0; i < w->n_workers; i++)
			want += abstains >> i & 1 ? 0 : input(i, 1, e);
		assert_true(v[e] == want);
	}
}

static void contribution_without_values_has_no_bytes(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_workers = 2);
	struct wire_msg m;

	(void)state;
	submit_some(w, 1, 3);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.flags, WIRE_INLINE);
	assert_int_equal(m.len, 0);
	assert_int_equal(m.crc, 0);
	assert_int_equal(m.contrib.workers, 0);
	assert_int_equal(stats(w).pushed_bytes, 0);
	m = result_msg(w, 1, 0);
	m.result.workers = 4;
	m.result.contributors.w[0] = 7 & ~(1u << MEMBER);
	say(w, 0, &m);
	end_read(w, 0, 0);
	assert_int_equal(w->done_round, 1);
	assert_int_equal(w->done_status, 0);
	assert_int_equal(w->done_workers, 4);
	assert_false(agt_tensor_contributors(w->t[0]).has_mine);
	assert_false(agt_tensor_contributors(w->t[0]).is_late);
	submit_some(w, 2, 3);
	m = result_msg(w, 2, 0);
	m.flags |= WIRE_LATE;
	say(w, 0, &m);
	end_read(w, 0, 0);
	assert_true(agt_tensor_contributors(w->t[0]).is_late);
	restart(w);
	assert_true(agt_tensor_contributors(w->t[0]).is_late);
	world_free(w);
}

static void inputs_of_workers_that_abstain_are_not_summed(void **state)
{
	(void)state;
	for (unsigned abstains = 1; abstains < 7; abstains++) {
		struct agt_world *w = world(.n_elems = SMALL, .n_workers = 3);
		struct wire_msg m;

		submit_some(w, 1, abstains);
		m = expect_msg(w, 0, WIRE_CONTRIB, 1);
		assert_int_equal(m.contrib.workers, 3 - __builtin_popcount(abstains));
		assert_int_equal(m.crc, crc32c(0, m.payload, m.len));
		expect_values(w, m.payload, abstains);
		/* the next round has the values of all workers again */
		say_result(w, 0, 1);
		submit_some(w, 2, 0);
		assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 2).contrib.workers, 3);
		world_free(w);
	}
}

/* With one worker there is nothing to add, so the bytes are not copied. */
static void input_of_the_only_worker_with_values_is_sent_from_its_place(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_workers = 3);
	struct wire_msg m;

	(void)state;
	submit_some(w, 1, 5);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.segment, SEGMENT);
	assert_int_equal(m.offset, sizeof(w->a->in[0]));
	assert_int_equal(m.crc, crc32c(0, w->a->in[1], m.len));
	assert_int_equal(m.contrib.workers, 1);
	world_free(w);
}

static void restarted_agent_abstains_again(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);

	(void)state;
	one_round(w, 0, 1);
	submit_some(w, 2, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 2).len, 0);
	restart(w);
	submit_some(w, 2, 1);
	w->pgen = 0;
	tell_runs(w, 0, 5);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
	expect_msg(w, 0, WIRE_HAVE, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 2).len, 0);
	world_free(w);
}

static void job_of_one_machine_sums_the_inputs_that_are_given(void **state)
{
	(void)state;
	for (unsigned abstains = 0; abstains < 8; abstains++) {
		struct agt_world *w =
			world(.n_elems = SMALL, .n_parts = 2, .n_members = 1, .n_workers = 3);

		memset(w->a->out, 0x55, sizeof(w->a->out));
		submit_some(w, 1, abstains);
		assert_int_equal(w->n_done, 1);
		assert_int_equal(w->done_workers, 3 - __builtin_popcount(abstains));
		expect_values(w, (const float *)w->a->out[1], abstains);
		world_free(w);
	}
}

static void sum_without_contributors_is_a_misfit_where_values_were_given(void **state)
{
	(void)state;
	for (unsigned abstains = 0; abstains < 2; abstains++) {
		struct agt_world *w = world(.n_elems = SMALL);
		struct wire_msg m = result_msg(w, 1, 0);

		m.result.workers = 0;
		m.result.contributors.w[0] = 0;
		submit_some(w, 1, abstains);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
		fake_deliver(w->conn[0], &m);
		check(w);
		assert_int_equal(w->n_done, abstains);
		if (abstains)
			assert_int_equal(w->done_workers, 0);
		world_free(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(contribution_without_values_has_no_bytes),
		cmocka_unit_test(inputs_of_workers_that_abstain_are_not_summed),
		cmocka_unit_test(input_of_the_only_worker_with_values_is_sent_from_its_place),
		cmocka_unit_test(restarted_agent_abstains_again),
		cmocka_unit_test(job_of_one_machine_sums_the_inputs_that_are_given),
		cmocka_unit_test(sum_without_contributors_is_a_misfit_where_values_were_given),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
