/* Tests how the agent's core handles tensors in device memory. The core requests that inputs are
 * copied to host memory (staging), and that sums are copied back to the devices. */
#include "tests/unit/agt_world.h"

static void stage(struct agt_world *w, uint32_t part, uint64_t r)
{
	assert_int_equal(agt_part_staged(w->t[0], part, r), 0);
	check(w);
	work(w);
}

static void one_device_round(struct agt_world *w, uint64_t r)
{
	submit_all(w, r);
	stage(w, 0, r);
	expect_msg(w, 0, WIRE_CONTRIB, r);
	say_result(w, 0, r);
	end_read(w, 0, 0);
	assert_int_equal(agt_tensor_unstaged(w->t[0], r), 0);
	check(w);
}

static void one_round_of_two_parts(struct agt_world *w, uint64_t r)
{
	struct wire_msg m;

	submit_all(w, r);
	for (uint32_t part = 0; part < 2; part++) {
		stage(w, part, r);
		expect_msg(w, 0, WIRE_CONTRIB, r);
		m = result_msg(w, r, part);
		say(w, 0, &m);
	}
}

/* Restart the agent. Its next process has a connection at once. */
static void connect_again(struct agt_world *w)
{
	restart(w);
	tell_runs(w, 0, w->pgen);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
	while (fake_take(w->conn[0]))
		; /* skip HAVE, which the agent sends for the sum that it holds */
}

static void device_partition_is_pushed_when_its_own_bytes_are_staged(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 3, .n_workers = 2, .n_in = 1);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->staged_round, 1);
	expect_nothing(w, 0);
	stage(w, 1, 1);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.part, 1);
	/* the machine's one input contains the contributions of its two workers */
	assert_int_equal(m.contrib.workers, 2);
	expect_nothing(w, 0);
	assert_int_equal(agt_part_staged(w->t[0], 1, 1), -EINVAL);
	assert_int_equal(agt_part_staged(w->t[0], 0, 2), -EINVAL);
	assert_int_equal(agt_part_staged(w->t[0], 3, 1), -EINVAL);
	stage(w, 0, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void device_round_is_done_when_its_sums_are_on_the_devices(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_parts = 2, .n_in = 2);
	struct wire_msg m;

	(void)state;
	for (uint64_t r = 1; r <= 3; r++) {
		submit_all(w, r);
		for (uint32_t part = 0; part < 2; part++) {
			stage(w, part, r);
			expect_msg(w, 0, WIRE_CONTRIB, r);
			m = result_msg(w, r, part);
			say(w, 0, &m);
			assert_int_equal(w->n_unstaged, 2 * (r - 1) + part + 1);
		}
		assert_int_equal(w->n_done, r - 1);
		assert_int_equal(agt_tensor_submit(w->t[0], 0, r + 1, OP_SUM, 0, false), BPS_EBUSY);
		assert_int_equal(agt_tensor_unstaged(w->t[0], r + 1), -EINVAL);
		assert_int_equal(agt_tensor_unstaged(w->t[0], r), 0);
		check(w);
		expect_delivered(w, r, (unsigned)r);
		assert_int_equal(agt_tensor_unstaged(w->t[0], r), -EINVAL);
	}
	world_free(w);
}

static void device_inputs_are_summed_as_workers_are(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 3, .n_in = 2);
	const float *sum = (const float *)w->a->staging;

	(void)state;
	submit_all(w, 1);
	stage(w, 0, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).contrib.workers, 3);
	for (size_t e = 0; e < SMALL; e++)
		assert_true(sum[e] == input(0, 1, e) + input(1, 1, e));
	world_free(w);
}

static void result_does_not_overwrite_what_is_being_staged(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_in = 1);

	(void)state;
	submit_all(w, 1);
	say_result(w, 0, 1); /* the other machines completed the round without this machine */
	expect_nothing(w, 0);
	assert_int_equal(w->n_unstaged, 0);
	stage(w, 0, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	assert_int_equal(w->n_unstaged, 1);
	world_free(w);
}

/* On the wire, a job that has grown counts its rounds from 1 again. */
static void result_of_a_grown_job_does_not_overwrite_staging_either(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_in = 1, .is_unplanned = true);
	struct wire_msg m;

	(void)state;
	w->kept[0][0].landed = w->kept[0][0].base = 1;
	tell_plan(w, 0);
	tell_runs(w, 0, 5);
	tick(w, 0);
	fake_up(w->conn[0]);
	submit_all(w, 1);
	assert_int_equal(agt_tensor_unstaged(w->t[0], 1), 0);
	w->n_unstaged = 0;
	submit_all(w, 2);
	m = result_msg(w, 1, 0);
	say(w, 0, &m);
	assert_int_equal(w->n_unstaged, 0);
	stage(w, 0, 2);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say(w, 0, &m);
	assert_int_equal(w->n_unstaged, 1);
	world_free(w);
}

static void staging_goes_on_over_a_new_placement(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_in = 1);

	(void)state;
	one_device_round(w, 1);
	submit_all(w, 2);
	tell_runs(w, 1, 6);
	tick(w, 0);
	fake_up(w->conn[1]);
	work(w);
	expect_msg(w, 1, WIRE_HAVE, 1); /* other members may wait for this HAVE */
	expect_nothing(w, 1);
	stage(w, 0, 2);
	expect_msg(w, 1, WIRE_CONTRIB, 2);
	world_free(w);
}

static void device_tensor_of_one_machine_needs_no_server(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 2, .n_members = 1, .n_in = 2);
	const float *sum = (const float *)w->a->out[1];

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->n_unstaged, 0);
	stage(w, 0, 1);
	assert_int_equal(w->n_unstaged, 1);
	for (size_t e = 0; e < SMALL; e++)
		assert_true(sum[e] == input(0, 1, e) + input(1, 1, e));
	assert_int_equal(agt_tensor_unstaged(w->t[0], 1), 0);
	assert_int_equal(w->done_workers, 2);
	world_free(w);
}

/* Rule K6: after a restart of the agent the last round runs again, because its sum may not have
 * reached the devices. */
static void restarted_agent_runs_the_last_round_again(void **state)
{
	(void)state;
	for (unsigned was_told = 0; was_told < 2; was_told++) {
		struct agt_world *w = world(.n_elems = SMALL, .n_parts = 2, .n_in = 1);
		struct wire_msg m;

		one_round_of_two_parts(w, 1);
		assert_int_equal(agt_tensor_unstaged(w->t[0], 1), 0);
		one_round_of_two_parts(w, 2);
		if (was_told)
			assert_int_equal(agt_tensor_unstaged(w->t[0], 2), 0);
		connect_again(w);
		assert_int_equal(agt_tensor_round(w->t[0]), 1);
		w->n_unstaged = w->n_done = 0;
		submit_all(w, 2);
		assert_int_equal(w->staged_round, 2);
		assert_int_equal(w->n_unstaged, 2);
		expect_nothing(w, 0);
		assert_int_equal(agt_part_staged(w->t[0], 0, 2), -EINVAL);
		assert_int_equal(agt_tensor_unstaged(w->t[0], 2), 0);
		assert_int_equal(w->n_done, 1);
		submit_all(w, 3);
		stage(w, 0, 3);
		expect_msg(w, 0, WIRE_CONTRIB, 3);
		m = result_msg(w, 3, 0);
		say(w, 0, &m);
		world_free(w);
	}
}

static void restarted_agent_waits_for_sums_that_have_not_landed(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_parts = 2, .n_in = 1);
	struct wire_msg m;

	(void)state;
	one_round_of_two_parts(w, 1);
	assert_int_equal(agt_tensor_unstaged(w->t[0], 1), 0);
	submit_all(w, 2);
	stage(w, 1, 2);
	expect_msg(w, 0, WIRE_CONTRIB, 2);
	m = result_msg(w, 2, 1);
	say(w, 0, &m);
	connect_again(w);
	assert_int_equal(agt_tensor_round(w->t[0]), 1);
	w->n_unstaged = 0;
	submit_all(w, 2);
	/* the core has only the sum of partition 1, and hands back only this sum */
	assert_int_equal(w->n_unstaged, 1);
	assert_int_equal(agt_tensor_unstaged(w->t[0], 2), -EINVAL);
	stage(w, 0, 2);
	expect_msg(w, 0, WIRE_CONTRIB, 2);
	m = result_msg(w, 2, 0);
	say(w, 0, &m);
	assert_int_equal(agt_tensor_unstaged(w->t[0], 2), 0);
	world_free(w);
}

static void failed_job_stages_no_more_partitions(void **state)
{
	(void)state;
	for (unsigned when = 0; when < 3; when++) {
		struct agt_world *w = world(.n_elems = SMALL, .n_in = 1);

		submit_all(w, 1);
		if (when > 0) {
			stage(w, 0, 1);
			expect_msg(w, 0, WIRE_CONTRIB, 1);
		}
		if (when > 1)
			say_result(w, 0, 1);
		agt_job_fail(w->job, BPS_EWORKER_LOST);
		check(w);
		assert_int_equal(w->done_status, BPS_EWORKER_LOST);
		assert_int_equal(agt_part_staged(w->t[0], 0, 1), -EINVAL);
		assert_int_equal(agt_tensor_unstaged(w->t[0], 1), -EINVAL);
		world_free(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_partition_is_pushed_when_its_own_bytes_are_staged),
		cmocka_unit_test(device_round_is_done_when_its_sums_are_on_the_devices),
		cmocka_unit_test(device_inputs_are_summed_as_workers_are),
		cmocka_unit_test(result_does_not_overwrite_what_is_being_staged),
		cmocka_unit_test(result_of_a_grown_job_does_not_overwrite_staging_either),
		cmocka_unit_test(staging_goes_on_over_a_new_placement),
		cmocka_unit_test(device_tensor_of_one_machine_needs_no_server),
		cmocka_unit_test(restarted_agent_runs_the_last_round_again),
		cmocka_unit_test(restarted_agent_waits_for_sums_that_have_not_landed),
		cmocka_unit_test(failed_job_stages_no_more_partitions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
