/* Tests of the pushes of the agent's core. The tests check which partitions the core pushes, in
 * which order, and how many at a time. */
#include "tests/unit/agt_world.h"

static void pushes_stay_within_the_window(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 6, .window = 2 * BYTES_MAX);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 2);
	for (unsigned p = 0; p < 6; p++) {
		assert_true(stats(w).inflight_bytes <= 2 * BYTES_MAX);
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		end_read(w, 0, 0);
		assert_int_equal(w->conn[0]->n_sent, p < 4 ? p + 3 : 6);
	}
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void partition_larger_than_the_window_goes_alone(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 2, .window = 1);

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	world_free(w);
}

static void pushes_of_a_job_stay_within_its_bytes_in_flight(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 6, .job_inflight = 2 * BYTES_MAX);
	struct wire_msg m;
	char text[256];

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 2);
	assert_true(agt_job_describe_waits(w->job, text, sizeof(text)));
	assert_non_null(strstr(text, "4 partitions wait because the job has"));
	for (unsigned p = 0; p < 6; p++) {
		assert_true(agt_job_inflight(w->job) <= 2 * BYTES_MAX);
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		end_read(w, 0, 0);
		assert_int_equal(w->conn[0]->n_sent, p < 4 ? p + 3 : 6);
	}
	assert_int_equal(w->n_done, 1);
	assert_true(agt_job_describe_waits(w->job, text, sizeof(text)));
	assert_string_equal(text, "");
	world_free(w);
}

static void other_jobs_push_while_one_has_its_most_bytes_in_flight(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 3, .job_inflight = BYTES_MAX);
	struct agt_job *mine = w->job, *other;

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	other = w->job = second_job(w);
	add_tensor(w);
	tell_plan(w, 1);
	agt_job_apply_placement(
		other, &(struct ctl_run){.tensor = 11, .n = 3, .server = 0, .pgen = 5}, 1);
	submit(w, 1, 0, 1, 0);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 2);
	assert_int_equal(fake_take(w->conn[0])->job, JOB);
	assert_int_equal(fake_take(w->conn[0])->job, JOB + 1);
	w->job = mine;
	agt_job_free(other, NULL, NULL);
	world_free(w);
}

/* Check that a push stops counting against the limit if no answer arrives within RETRY_MS. w has
 * two partitions, and the limit has room for one of them. Frees w. */
static void check_unanswered_push_leaves_room(struct agt_world *w)
{
	submit_all(w, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).part, 0);
	expect_nothing(w, 0);
	tick(w, RETRY_MS);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).part, 0);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).part, 1);
	world_free(w);
}

static void push_that_stays_unanswered_leaves_its_jobs_bytes_to_others(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 2, .job_inflight = BYTES_MAX);

	(void)state;
	check_unanswered_push_leaves_room(w);
}

static void larger_limit_lets_waiting_pushes_go(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 4, .job_inflight = BYTES_MAX);

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	agt_core_set_job_inflight(w->core, 3 * BYTES_MAX);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 3);
	agt_core_set_job_inflight(w->core, 0);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 4);
	world_free(w);
}

static void partition_that_never_fits_is_refused(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .is_unplanned = true, .job_inflight = 1000);
	struct ctl_tensor plan = {.tensor = 10,
		.name = "t",
		.shape = shape_from_dtype_and_count(w->dtype, w->n_elems),
		.part_elems = w->n_elems};

	(void)state;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), BPS_EQUOTA);
	plan.part_elems = 250;
	w->n_parts = (w->n_elems + 249) / 250;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), 0);
	world_free(w);
}

/* Submit two tensors with these priorities, starting with tensor `first`, and check the order of
 * the six contributions. want[k]: tensor id (10 or 11) of contribution k. */
static void check_order(unsigned first, const uint16_t priority[2], const unsigned want[6])
{
	struct agt_world *w =
		world(.n_elems = LARGE, .n_parts = 3, .n_tensors = 2, .window = BYTES_MAX);

	submit(w, first, 0, 1, priority[first]);
	work(w); /* one partition of the first tensor is being pushed */
	submit(w, !first, 0, 1, priority[!first]);
	for (unsigned k = 0; k < 6; k++) {
		const struct wire_msg *c;
		struct wire_msg m;

		work(w);
		c = fake_take(w->conn[0]);
		assert_non_null(c);
		assert_int_equal(c->tensor, want[k]);
		assert_int_equal(c->priority, priority[want[k] - 10]);
		m = result_msg(w, 1, c->part);
		m.tensor = c->tensor;
		say(w, 0, &m);
		end_read(w, 0, 0);
	}
	assert_int_equal(w->n_done, 2);
	world_free(w);
}

static void urgent_tensor_overtakes_what_is_not_pushed_yet(void **state)
{
	(void)state;
	check_order(0, (uint16_t[]){1, 2}, (unsigned[]){10, 11, 11, 11, 10, 10});
}

static void equal_priorities_are_pushed_in_the_order_of_their_rounds(void **state)
{
	(void)state;
	check_order(0, (uint16_t[]){1, 1}, (unsigned[]){10, 10, 10, 11, 11, 11});
	check_order(1, (uint16_t[]){1, 1}, (unsigned[]){11, 11, 11, 10, 10, 10});
}

/* Answer the next contribution. Expect that the contribution is for partition `part` of job JOB, in
 * round `round`. */
static void answer_next(struct agt_world *w, uint64_t round, uint32_t part)
{
	const struct wire_msg *c;
	struct wire_msg m;

	work(w);
	c = fake_take(w->conn[0]);
	assert_non_null(c);
	assert_int_equal(c->job, JOB);
	assert_int_equal(c->round, round);
	assert_int_equal(c->part, part);
	m = result_msg(w, round, part);
	say(w, 0, &m);
	end_read(w, 0, 0);
}

static void job_that_begins_later_does_not_overtake(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 3, .window = BYTES_MAX);
	struct agt_job *mine = w->job, *other;

	(void)state;
	for (uint64_t round = 1; round <= 3; round++) {
		submit(w, 0, 0, round, 1);
		for (uint32_t p = 0; p < 3; p++)
			answer_next(w, round, p);
	}
	submit(w, 0, 0, 4, 1);
	work(w);
	other = w->job = second_job(w);
	add_tensor(w);
	tell_plan(w, 1);
	agt_job_apply_placement(
		other, &(struct ctl_run){.tensor = 11, .n = 3, .server = 0, .pgen = 5}, 1);
	submit(w, 1, 0, 1, 1);
	w->job = mine;
	for (uint32_t p = 0; p < 3; p++)
		answer_next(w, 4, p);
	work(w);
	assert_int_equal(fake_take(w->conn[0])->job, JOB + 1);
	agt_job_free(other, NULL, NULL);
	world_free(w);
}

static void pushes_wait_for_credit(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_parts = 3);

	(void)state;
	w->conn[0]->credit = 1;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	fake_grant(w->conn[0], 1);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 2);
	fake_grant(w->conn[0], 9);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 3);
	world_free(w);
}

static void offers_wait_for_room_to_read(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 3);
	struct wire_msg m;

	(void)state;
	w->conn[0]->read_limit = 1;
	submit_all(w, 1);
	for (unsigned p = 0; p < 3; p++) {
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		assert_int_equal(w->conn[0]->n_reads, 1);
	}
	for (unsigned p = 0; p < 3; p++)
		end_read(w, 0, 0);
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void push_that_stays_unanswered_leaves_the_window_to_others(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 2, .window = BYTES_MAX);

	(void)state;
	check_unanswered_push_leaves_room(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pushes_stay_within_the_window),
		cmocka_unit_test(partition_larger_than_the_window_goes_alone),
		cmocka_unit_test(pushes_of_a_job_stay_within_its_bytes_in_flight),
		cmocka_unit_test(other_jobs_push_while_one_has_its_most_bytes_in_flight),
		cmocka_unit_test(push_that_stays_unanswered_leaves_its_jobs_bytes_to_others),
		cmocka_unit_test(larger_limit_lets_waiting_pushes_go),
		cmocka_unit_test(partition_that_never_fits_is_refused),
		cmocka_unit_test(urgent_tensor_overtakes_what_is_not_pushed_yet),
		cmocka_unit_test(equal_priorities_are_pushed_in_the_order_of_their_rounds),
		cmocka_unit_test(job_that_begins_later_does_not_overtake),
		cmocka_unit_test(pushes_wait_for_credit),
		cmocka_unit_test(offers_wait_for_room_to_read),
		cmocka_unit_test(push_that_stays_unanswered_leaves_the_window_to_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
