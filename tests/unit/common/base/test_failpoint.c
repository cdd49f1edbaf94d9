/* Failpoints: named places in the code at which faults can be injected. */
#include "common/base/failpoint.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"

static int disarm(void **state)
{
	(void)state;
	return failpoint_set(NULL, NULL);
}

static void points_that_are_not_named_do_nothing(void **state)
{
	(void)state;
	assert_int_equal(FAILPOINT(SCHED_LOG_FSYNC), 0);
	assert_int_equal(failpoint_set("scheduler.log.write=error:ENOSPC", NULL), 1);
	assert_int_equal(FAILPOINT(SCHED_LOG_FSYNC), 0);
}

static void error_fails_with_the_code_that_was_named(void **state)
{
	(void)state;
	failpoint_set("scheduler.log.write=error:ENOSPC server.job.new=error:BPS_EPROTO", NULL);
	assert_int_equal(FAILPOINT(SCHED_LOG_WRITE), -ENOSPC);
	assert_int_equal(FAILPOINT(SERVER_JOB_NEW), BPS_EPROTO);
}

static void counted_point_acts_the_given_number_of_times(void **state)
{
	(void)state;
	failpoint_set("server.result.before-send=drop,after=2,count=3", NULL);
	for (int i = 0; i < 10; i++)
		assert_int_equal(FAILPOINT(SERVER_RESULT_BEFORE_SEND),
			i >= 2 && i < 5 ? FAILPOINT_DROPPED : 0);
}

static uint64_t pattern(const char *faults)
{
	uint64_t bits = 0;

	failpoint_set(faults, NULL);
	for (int i = 0; i < 64; i++)
		bits |= (uint64_t)FAILPOINT(SERVER_RESULT_BEFORE_SEND) << i;
	return bits;
}

static void chance_is_the_same_from_the_same_seed(void **state)
{
	uint64_t a = pattern("seed=1 server.result.before-send=drop,prob=0.5");
	uint64_t b = pattern("seed=2 server.result.before-send=drop,prob=0.5");
	int n = __builtin_popcountll(a);

	(void)state;
	assert_true(a == pattern("seed=1 server.result.before-send=drop,prob=0.5"));
	assert_true(a != b);
	/* The number of set bits has a binomial distribution with 64 trials and probability 1/2.
	 * One seed in a million gives a number outside of 12..52. */
	assert_in_range(n, 12, 52);
}

static void wrong_faults_are_refused_with_what_is_meant(void **state)
{
	static const struct {
		const char *faults, *says;
	} wrong[] = {
		{"server.result.befor-send=drop", "did you mean 'server.result.before-send'?"},
		{"server.sum.start=drop",
			"failpoint server.sum.start does not support the action drop"},
		{"server.sum.start=error:EIO",
			"failpoint server.sum.start does not support the action error"},
		{"server.sum.start=crsh", "did you mean 'crash'?"},
		{"server.sum.start", "does not have the form POINT=ACTION"},
		{"server.sum.start=sleep", "sleep:200ms"},
		{"server.sum.start=sleep:5", "is not a time"},
		{"server.sum.start=hang:5s", "only the actions 'sleep' and 'error' have"},
		{"server.job.new=error:EFOO", "is not the name of an error"},
		{"server.sum.start=crash,count=0", "allowed: after=N"},
		{"server.sum.start=crash,prob=1.5", "allowed: after=N"},
		{"server.sum.start=crash,often", "allowed: after=N"},
		{"seed=x", "is not a number"},
	};
	struct err_text err;

	(void)state;
	assert_int_equal(failpoint_set("scheduler.log.write=error:EIO", NULL), 1);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(failpoint_set(wrong[i].faults, &err), -EINVAL);
		assert_non_null(strstr(err.s, wrong[i].says));
		assert_int_equal(failpoint_check(wrong[i].faults, &err), -EINVAL);
	}
	/* The rejected fault lists have not removed the fault that was set before. */
	assert_int_equal(FAILPOINT(SCHED_LOG_WRITE), -EIO);
}

static void *pass(void *arg)
{
	(void)arg;
	FAILPOINT(SERVER_THREAD_TICK);
	return NULL;
}

static void hanging_thread_goes_on_when_the_faults_change(void **state)
{
	pthread_t t;

	(void)state;
	failpoint_set("server.thread.tick=hang", NULL);
	assert_int_equal(pthread_create(&t, NULL, pass, NULL), 0);
	failpoint_set("", NULL);
	assert_int_equal(pthread_join(t, NULL), 0);
}

static void sleep_takes_its_time(void **state)
{
	uint64_t start = clock_now_ns();

	(void)state;
	failpoint_set("server.thread.tick=sleep:30ms,count=1", NULL);
	FAILPOINT(SERVER_THREAD_TICK);
	assert_true(clock_now_ns() - start >= 30000000);
	FAILPOINT(SERVER_THREAD_TICK);
}

static void crash_ends_the_process_as_sigkill_does(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	failpoint_set("server.thread.tick=crash", NULL);
	pid = fork();
	if (pid == 0) {
		FAILPOINT(SERVER_THREAD_TICK);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void each_program_lists_its_own_points(void **state)
{
	char *text = NULL;
	size_t n = 0, lines = 0;
	FILE *f = open_memstream(&text, &n);

	(void)state;
	failpoint_print(f, FP_SCHED | FP_SERVER | FP_AGENT | FP_CLIENT);
	fclose(f);
	for (char *p = text; (p = strchr(p, '\n')); p++)
		lines++;
	assert_int_equal(lines, FAILPOINT_COUNT);
	assert_true(lines >= 40);
	free(text);
	f = open_memstream(&text, &n);
	failpoint_print(f, FP_SERVER);
	fclose(f);
	assert_non_null(strstr(text, "server.result.before-send"));
	assert_null(strstr(text, "agent."));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(points_that_are_not_named_do_nothing, disarm),
		cmocka_unit_test_teardown(error_fails_with_the_code_that_was_named, disarm),
		cmocka_unit_test_teardown(counted_point_acts_the_given_number_of_times, disarm),
		cmocka_unit_test_teardown(chance_is_the_same_from_the_same_seed, disarm),
		cmocka_unit_test_teardown(wrong_faults_are_refused_with_what_is_meant, disarm),
		cmocka_unit_test_teardown(hanging_thread_goes_on_when_the_faults_change, disarm),
		cmocka_unit_test_teardown(sleep_takes_its_time, disarm),
		cmocka_unit_test_teardown(crash_ends_the_process_as_sigkill_does, disarm),
		cmocka_unit_test_teardown(each_program_lists_its_own_points, disarm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
