/* Limits of the process: texts, raising them, and trying threads. Children of the test lower limits
 * of their own. */
#include "common/os/limits.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/os/cgroup.h"

#define NOBODY 65534

/* Run fn in a child. Return whether fn has returned true. */
static bool in_child(bool (*fn)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(fn() ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool raises_soft_limits(void)
{
	static const int resources[] = {RLIMIT_NOFILE, RLIMIT_MEMLOCK};
	const struct rlimit low = {64, 128};
	struct rlimit r;
	bool is_raised = true;

	for (size_t i = 0; i < 2; i++)
		is_raised &= setrlimit((__rlimit_resource_t)resources[i], &low) == 0;
	is_raised &= limits_open_files() == 64;
	limits_raise();
	for (size_t i = 0; i < 2; i++)
		is_raised &= getrlimit((__rlimit_resource_t)resources[i], &r) == 0 &&
			     r.rlim_cur == 128 && r.rlim_max == 128;
	return is_raised && limits_open_files() == 128;
}

static void soft_limits_become_the_hard_ones(void **state)
{
	(void)state;
	assert_true(in_child(raises_soft_limits));
}

static bool explains_files(void)
{
	const struct rlimit low = {77, 77};
	struct err_text err;

	return setrlimit(RLIMIT_NOFILE, &low) == 0 &&
	       limits_explain(-EMFILE, "cannot x", &err) == -EMFILE &&
	       strstr(err.s, "cannot x: the limit of open files is 77: raise it (LimitNOFILE=");
}

static void text_names_the_limit_of_open_files(void **state)
{
	(void)state;
	assert_true(in_child(explains_files));
}

static void text_of_another_error_names_no_limit(void **state)
{
	struct err_text err;

	(void)state;
	assert_int_equal(limits_explain(-ENOENT, "cannot x", &err), -ENOENT);
	assert_string_equal(err.s, "cannot x: No such file or directory");
}

/* RLIMIT_NPROC does not bind root. */
static bool tries_threads_as_a_user(void)
{
	const struct rlimit low = {3, 3};
	struct err_text err;

	cgroup_set_paths("/nonexistent", "/nonexistent");
	if (limits_try_threads(8, &err) || (getuid() == 0 && setuid(NOBODY)) ||
		setrlimit(RLIMIT_NPROC, &low))
		return false;
	return limits_try_threads(8, &err) == -EAGAIN &&
	       strstr(err.s, "cannot start 12 threads: ") &&
	       strstr(err.s, "this user may have 3 processes and threads: raise the limit");
}

static void threads_beyond_the_limit_of_the_user_are_refused(void **state)
{
	(void)state;
	assert_true(in_child(tries_threads_as_a_user));
}

static void put_file(const char *folder, const char *name, const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void text_names_the_limit_of_the_control_group(void **state)
{
	char folder[] = "/tmp/bps-limits-XXXXXX", self[64], command[64];
	struct err_text err;

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(self, sizeof(self), "%s/self", folder);
	cgroup_set_paths(self, folder);
	put_file(folder, "self", "0::/\n");
	put_file(folder, "pids.max", "9\n");
	put_file(folder, "pids.current", "9\n");
	assert_int_equal(limits_explain(-EAGAIN, "cannot x", &err), -EAGAIN);
	assert_non_null(
		strstr(err.s, "cannot x: the control group allows 9 processes and threads"));
	put_file(folder, "pids.current", "8\n"); /* another limit was reached */
	assert_int_equal(limits_explain(-EAGAIN, "cannot x", &err), -EAGAIN);
	assert_null(strstr(err.s, "control group"));
	cgroup_set_paths("/proc/self/cgroup", "/sys/fs/cgroup");
	snprintf(command, sizeof(command), "rm -r %s", folder);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(soft_limits_become_the_hard_ones),
		cmocka_unit_test(text_names_the_limit_of_open_files),
		cmocka_unit_test(text_of_another_error_names_no_limit),
		cmocka_unit_test(threads_beyond_the_limit_of_the_user_are_refused),
		cmocka_unit_test(text_names_the_limit_of_the_control_group),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
