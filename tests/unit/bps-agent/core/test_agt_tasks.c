/* Tests of the agent's core with a transport that runs tasks and sends messages later, as I/O
 * threads do (A9 to A11). */
#include "tests/unit/agt_world.h"

#include <errno.h>

/* The message and the task that the core has handed to the transport last. */
static struct {
	struct xport_ops ops; /* the fake transport's functions, and `offer` and `run` */
	struct xconn *conn;
	struct wire_msg m;
	struct xport_task *task;
	unsigned n;
	int rc;
} later;

static int offer_later(
	struct xconn *c, const struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	assert_true(is_eager);
	if (later.rc < 0)
		return later.rc;
	assert_null(later.task);
	later.conn = c;
	later.m = *m;
	later.task = task;
	later.n++;
	return 0;
}

static void run_later(struct xport *x, struct xport_task *task)
{
	(void)x;
	assert_null(later.task);
	later.conn = NULL;
	later.task = task;
	later.n++;
}

/* Close nothing yet: the test calls fake_down. */
static void close_later(struct xconn *c, const char *why)
{
	(void)c;
	(void)why;
}

static struct agt_world *threaded_world(struct agt_shape shape)
{
	struct agt_world *w = world_new(shape);

	memset(&later, 0, sizeof(later));
	later.ops = *w->x.base.ops;
	later.ops.offer = offer_later;
	later.ops.run = run_later;
	later.ops.close = close_later;
	w->x.base.ops = &later.ops;
	return w;
}

/* Run the task, tell the core, and send the message if there is one. */
static void end_task(struct agt_world *w)
{
	struct xport_task *task = later.task;

	assert_non_null(task);
	later.task = NULL;
	task->run(task);
	w->x.base.ev->task_done(w->x.base.ctx, task);
	check(w);
	work(w);
}

static void result_is_ignored_while_a_task_uses_the_inputs(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE, .n_workers = 2});

	(void)state;
	submit_all(w, 1);
	assert_int_equal(later.n, 1);
	say_result(w, 0, 1);
	assert_int_equal(w->conn[0]->n_reads, 0);
	end_task(w);
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void partition_moves_only_after_its_task(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE});

	(void)state;
	submit_all(w, 1);
	tell_runs(w, 1, 6);
	tick(w, 0);
	fake_up(w->conn[1]);
	work(w);
	assert_int_equal(later.n, 1);
	expect_nothing(w, 1);
	end_task(w); /* the crc is known now, so the contribution needs no second task */
	assert_int_equal(expect_msg(w, 1, WIRE_CONTRIB, 1).pgen, 6);
	assert_int_equal(later.n, 1);
	say_result(w, 1, 1);
	end_read(w, 1, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void refused_task_is_offered_again(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE});

	(void)state;
	later.rc = -EAGAIN;
	submit_all(w, 1);
	check(w);
	later.rc = 0;
	w->x.base.ev->writable(w->x.base.ctx, &w->conn[0]->base);
	work(w);
	assert_int_equal(later.n, 1);
	end_task(w);
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void workers_hear_of_a_failure_after_the_last_task(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE});

	(void)state;
	submit_all(w, 1);
	agt_tensor_fail(w->t[0], BPS_EMISMATCH);
	check(w);
	agt_job_fail(w->job, BPS_EAGENT_LOST);
	check(w);
	assert_int_equal(w->n_done, 0);
	end_task(w);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_status, BPS_EMISMATCH);
	world_free(w);
}

static void freed_job_is_released_after_the_last_task(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE});

	(void)state;
	submit_all(w, 1);
	agt_job_free(w->job, released, w);
	w->job = NULL;
	check(w);
	assert_int_equal(w->n_releases, 0);
	end_task(w);
	assert_int_equal(w->n_releases, 1);
	assert_int_equal(w->n_done, 0);
	world_free(w);
}

static void failure_is_told_although_the_job_is_freed_meanwhile(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE});

	(void)state;
	submit_all(w, 1);
	agt_job_fail(w->job, BPS_EAGENT_LOST);
	agt_job_free(w->job, released, w);
	w->job = NULL;
	check(w);
	assert_int_equal(w->n_done + w->n_releases, 0);
	end_task(w);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_status, BPS_EAGENT_LOST);
	assert_int_equal(w->n_releases, 1);
	world_free(w);
}

static void read_that_finds_an_invalid_offer_waits(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE});
	unsigned n;

	(void)state;
	submit_all(w, 1);
	end_task(w);
	say_result(w, 0, 1);
	n = (unsigned)w->conn[0]->n_sent;
	end_read(w, 0, BPS_EPROTO);
	assert_int_equal(w->conn[0]->n_sent, n); /* no loop without a delay */
	tick(w, AGAIN_MS);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void damaged_contribution_is_computed_again_by_a_task(void **state)
{
	for (unsigned k = 0; k < 2; k++) { /* k = 1: the input has changed twice */
		struct agt_world *w = threaded_world((struct agt_shape){.n_elems = LARGE});
		struct wire_msg bad;

		(void)state;
		submit_all(w, 1);
		end_task(w);
		for (unsigned i = 0; i < 2; i++) {
			bad = key_msg(w, WIRE_BAD_CRC, 1);
			bad.crc = crc32c(0, w->a->in[0], bytes_of(w));
			w->a->in[0][0] = (unsigned char)(w->a->in[0][0] ^ k);
			say(w, 0, &bad);
			expect_nothing(w, 0);
			say(w, 0, &bad); /* a report that comes twice counts once */
			end_task(w);
			if (w->n_fails)
				break;
			assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).crc,
				crc32c(0, w->a->in[0], bytes_of(w)));
		}
		assert_int_equal(w->n_fails, k);
		assert_int_equal(w->fail_code, k ? BPS_EINPUT_CHANGED : 0);
		world_free(w);
	}
}

static void closing_link_sends_nothing_and_connects_again(void **state)
{
	struct agt_world *w = threaded_world((struct agt_shape){.n_elems = SMALL});

	(void)state;
	agt_core_server_changed(w->core, 0);
	check(w);
	submit_all(w, 1);
	agt_core_server_changed(w->core, 0); /* it is closing already */
	expect_nothing(w, 0);
	assert_int_equal(w->n_connects, 1);
	cut(w, 0);
	assert_int_equal(w->n_connects, 2);
	fake_up(w->conn[0]);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void sums_of_one_machine_run_as_tasks(void **state)
{
	struct agt_world *w = threaded_world(
		(struct agt_shape){.n_elems = LARGE, .n_workers = 2, .n_members = 1});

	(void)state;
	w->x.base.tasks_max = 1;
	submit_all(w, 1);
	assert_int_equal(later.n, 1);
	assert_int_equal(w->n_done, 0);
	while (later.task)
		end_task(w);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_workers, 2);
	for (unsigned i = 0; i < 4; i++)
		assert_true(((float *)(void *)w->a->out[1])[i] == input(0, 1, i) + input(1, 1, i));
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(result_is_ignored_while_a_task_uses_the_inputs),
		cmocka_unit_test(partition_moves_only_after_its_task),
		cmocka_unit_test(refused_task_is_offered_again),
		cmocka_unit_test(workers_hear_of_a_failure_after_the_last_task),
		cmocka_unit_test(freed_job_is_released_after_the_last_task),
		cmocka_unit_test(failure_is_told_although_the_job_is_freed_meanwhile),
		cmocka_unit_test(read_that_finds_an_invalid_offer_waits),
		cmocka_unit_test(damaged_contribution_is_computed_again_by_a_task),
		cmocka_unit_test(closing_link_sends_nothing_and_connects_again),
		cmocka_unit_test(sums_of_one_machine_run_as_tasks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
