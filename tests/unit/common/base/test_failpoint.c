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

/* Run `act` in a child process. Return what the child wrote to stderr. */
static const char *stderr_of(void (*act)(void))
{
	static char text[1024];
	size_t n = 0;
	ssize_t r;
	int fds[2];
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		act();
		_exit(0);
	}
	close(fds[1]);
	while ((r = read(fds[0], text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)r;
	text[n] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	return text;
}

static void crash_at_the_second_pass(void)
{
	failpoint_set("server.thread.tick=crash,after=1", NULL);
	FAILPOINT(SERVER_THREAD_TICK);
	if (write(STDERR_FILENO, "first\n", 6) == 6)
		FAILPOINT(SERVER_THREAD_TICK);
}

static void first_action_is_reported_before_a_crash(void **state)
{
	const char *text = stderr_of(crash_at_the_second_pass);

	(void)state;
	assert_int_equal(strncmp(text,
				 "first\n<4>a fault is injected: point=server.thread.tick "
				 "action=crash pid=",
				 72),
		0);
}

static void drop_often(void)
{
	for (int i = 0; i < 2; i++) {
		failpoint_set("server.result.before-send=drop,count=3", NULL);
		for (int pass = 0; pass < 5; pass++)
			FAILPOINT(SERVER_RESULT_BEFORE_SEND);
	}
	FAILPOINT(SERVER_THREAD_TICK);
}

static void each_setting_of_the_faults_reports_one_action_of_a_point(void **state)
{
	const char *line = stderr_of(drop_often);
	unsigned n = 0;

	(void)state;
	for (; (line = strstr(line, "a fault is injected: ")); line++)
		n++;
	assert_int_equal(n, 2);
}

static void actions_are_counted_over_all_settings(void **state)
{
	uint64_t before = failpoint_acted(FP_SERVER_RESULT_BEFORE_SEND);

	(void)state;
	for (int i = 0; i < 2; i++) {
		failpoint_set("server.result.before-send=drop,after=1,count=3", NULL);
		for (int pass = 0; pass < 5; pass++)
			FAILPOINT(SERVER_RESULT_BEFORE_SEND);
	}
	assert_int_equal(failpoint_acted(FP_SERVER_RESULT_BEFORE_SEND) - before, 6);
	assert_string_equal(
		failpoint_name(FP_SERVER_RESULT_BEFORE_SEND), "server.result.before-send");
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
		cmocka_unit_test_teardown(first_action_is_reported_before_a_crash, disarm),
		cmocka_unit_test_teardown(
			each_setting_of_the_faults_reports_one_action_of_a_point, disarm),
		cmocka_unit_test_teardown(actions_are_counted_over_all_settings, disarm),
		cmocka_unit_test_teardown(each_program_lists_its_own_points, disarm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
