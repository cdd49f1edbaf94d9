/* Faults that end a wait or a job in the client library. The fake agent dies, becomes silent or
 * sends errors when the test orders it. */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/client_rig.h"

#define WHO "rank 1 on host b has not submitted it, for 3 s"

/* Check the fields of the last failure. */
static void assert_failure(int32_t rank, const char *host, const char *tensor)
{
	struct bps_failure failure;

	bps_last_failure(&failure);
	assert_int_equal(failure.rank, rank);
	assert_string_equal(failure.host, host);
	assert_string_equal(failure.tensor, tensor);
}

static void wait_that_times_out_names_missing_ranks_and_may_be_repeated(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	f->why = WHO;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "layer.0", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 20), BPS_ETIMEDOUT);
	assert_error_has("tensor 'layer.0' in job 'j', round 1, is not complete after 20 ms");
	assert_error_has(WHO);
	assert_failure(-1, "", "layer.0");
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void agent_that_does_not_explain_delays_the_time_out_by_its_bound_only(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	uint64_t start, took;
	struct bps *b;

	(void)state;
	f->is_mute = f->keeps_quiet = true;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	start = now_ms();
	assert_int_equal(bps_wait(t, 10), BPS_ETIMEDOUT);
	took = now_ms() - start;
	assert_true(took >= 900 && took < 5000);
	assert_error_has("did not report the reason");
	bps_abort(b);
	fake_agent_free(f);
}

static void agent_of_an_older_release_is_not_asked_for_traffic(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_traffic traffic;
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->is_old = true;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_traffic(b, &traffic), -EOPNOTSUPP);
	assert_error_has("the agent is of an older release");
	t = declare(b, "w", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void *wait_main(void *arg)
{
	return (void *)(intptr_t)bps_wait(arg, 0);
}

/* Start a thread that waits for a tensor, while the fake agent completes no round. Send the fake
 * agent the order `cmd`. Check that the wait ends with the error `code`. */
static void expect_wait_ends(enum fake_cmd cmd, int code)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	pthread_t waiter;
	uint64_t start;
	struct bps *b;
	void *rc;

	f->is_mute = true;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	*(char *)bps_input(t) = 1;
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(pthread_create(&waiter, NULL, wait_main, t), 0);
	while (!atomic_load(&f->trainers[0].c->trainer_waits))
		sched_yield();
	start = now_ms();
	fake_agent_order(f, cmd);
	pthread_join(waiter, &rc);
	assert_int_equal((int)(intptr_t)rc, code);
	assert_true(now_ms() - start < 1000);
	/* A server may still sum the submitted bytes, so the caller writes to other memory
	 * (session.h). */
	assert_int_equal(*(char *)bps_input(t), 1);
	*(char *)bps_input(t) = 2;
	assert_int_equal(*f->trainers[0].slots[0].in, 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), cmd == FAKE_FAIL_JOB ? code : BPS_EBUSY);
	assert_int_equal(bps_poll(t), code);
	assert_true(strlen(bps_last_error()) > 0);
	assert_int_equal(bps_close(b, 0), code);
	fake_agent_free(f);
}

static void death_of_the_agent_ends_a_wait_within_a_second(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_DIE, BPS_ENOAGENT);
	assert_error_has("is gone: the connection ended");
}

static void malformed_frame_from_the_agent_ends_a_wait(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_GARBAGE, BPS_EPROTO);
	assert_error_has("broke the protocol");
}

static void arena_without_memory_ends_a_wait(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_STRAY_ARENA, BPS_EPROTO);
}

static void failure_of_the_job_ends_a_wait_with_its_reason(void **state)
{
	(void)state;
	expect_wait_ends(FAKE_FAIL_JOB, BPS_EWORKER_LOST);
	assert_error_has("killed by signal 9");
	assert_failure(1, "b", "");
}

static void mismatch_is_the_error_of_the_first_push_pull(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->mismatch_name = "w";
	f->why = "rank 0 declared f32[1], rank 1 f32[2]";
	f->cause = (struct ctl_cause){1, "b"};
	fake_agent_start(f);
	b = open_one(f);
	assert_failure(-1, "", "");
	t = declare(b, "w", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), BPS_EMISMATCH);
	assert_error_has("rank 0 declared f32[1], rank 1 f32[2]");
	assert_failure(1, "b", "w");
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), BPS_EMISMATCH);
	assert_null(bps_output(t));
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

/* The wait reports a failed tensor although another tensor is not done. Other workers may not have
 * received the failure yet, so the failed tensor's bytes may still be summed (session.h). */
static void failed_tensor_is_reported_to_the_wait_for_some(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t[2];
	size_t idx[2];
	struct bps *b;

	(void)state;
	f->mismatch_name = "b";
	f->mute_name = "a";
	fake_agent_start(f);
	b = open_one(f);
	t[0] = declare(b, "a", 1);
	t[1] = declare(b, "b", 1);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait_some(t, 2, 0, idx), 1);
	assert_int_equal(idx[0], 1);
	assert_int_equal(bps_poll(t[1]), BPS_EMISMATCH);
	fake_agent_order(f, FAKE_DIE);
	t[1] = NULL;
	assert_int_equal(bps_wait_some(t, 2, 0, idx), BPS_ENOAGENT);
	assert_error_has("tensor 'a'");
	bps_abort(b);
	fake_agent_free(f);
}

static void copy_into_a_tensor_that_has_failed_does_not_touch_its_bytes(void **state)
{
	struct fake_agent *f = fake_agent_new();
	const float first = 1, second = 2;
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	f->mismatch_name = "w";
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	assert_int_equal(bps_push_pull_copy(t, &first, NULL, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 20), BPS_ETIMEDOUT);
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_push_pull_copy(t, &second, NULL, BPS_SUM, 0), BPS_EMISMATCH);
	assert_memory_equal(f->trainers[0].slots[0].in, &first, sizeof(first));
	bps_abort(b);
	fake_agent_free(f);
}

static void collective_behind_one_that_has_failed_does_not_touch_its_bytes(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps *b;
	char c = 1;

	(void)state;
	f->is_mute = true;
	f->mismatch_name = "__bps.bytes.64.0";
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_broadcast(b, &c, 1, 0, 20), BPS_ETIMEDOUT);
	fake_agent_order(f, FAKE_SPEAK);
	c = 2;
	assert_int_equal(bps_broadcast(b, &c, 1, 0, 20), BPS_EMISMATCH);
	assert_int_equal(*f->trainers[0].slots[0].in, 1);
	bps_abort(b);
	fake_agent_free(f);
}

static void close_returns_the_jobs_end(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps *b;

	(void)state;
	f->refuses_finish = true;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_close(b, 0), BPS_EWORKER_LOST);
	assert_error_has("rank 1 was lost");
	assert_failure(1, "b", "");
	fake_agent_free(f);
}

static void close_without_the_other_workers_times_out(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps *b;

	(void)state;
	f->why = "rank 1 has not finished";
	fake_agent_start(f);
	b = open_one(f);
	/* from here on, the agent uses the size only to decide whether all workers have finished */
	f->size = 2;
	assert_int_equal(bps_close(b, 20), BPS_ETIMEDOUT);
	assert_error_has("rank 1 has not finished");
	fake_agent_free(f);
}

static void forked_child_is_refused_and_the_parent_goes_on(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t, *u;
	struct bps *b;
	int status, ok;
	pid_t pid;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		ok = bps_push_pull(t, BPS_SUM, 0) == BPS_EFORKED && bps_wait(t, 1) == BPS_EFORKED &&
		     bps_poll(t) == BPS_EFORKED && bps_barrier(b, 1) == BPS_EFORKED &&
		     bps_declare(b, "x", BPS_F32, 1, &u) == BPS_EFORKED &&
		     bps_close(b, 1) == BPS_EFORKED;
		_exit(ok ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(wait_that_times_out_names_missing_ranks_and_may_be_repeated),
		T(agent_that_does_not_explain_delays_the_time_out_by_its_bound_only),
		T(agent_of_an_older_release_is_not_asked_for_traffic),
		T(death_of_the_agent_ends_a_wait_within_a_second),
		T(malformed_frame_from_the_agent_ends_a_wait),
		T(arena_without_memory_ends_a_wait),
		T(failure_of_the_job_ends_a_wait_with_its_reason),
		T(mismatch_is_the_error_of_the_first_push_pull),
		T(failed_tensor_is_reported_to_the_wait_for_some),
		T(copy_into_a_tensor_that_has_failed_does_not_touch_its_bytes),
		T(collective_behind_one_that_has_failed_does_not_touch_its_bytes),
		T(close_returns_the_jobs_end),
		T(close_without_the_other_workers_times_out),
		T(forked_child_is_refused_and_the_parent_goes_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
