/* A process can claim a name on its machine. A second claim fails, and the end of the holder frees
 * the name. */
#include "common/daemon/name_claim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534 /* a user id that exists on every system */

static const char *own_name(const char *what)
{
	static char name[160];

	snprintf(name, sizeof(name), "bps-test/%d/%s", (int)getpid(), what);
	return name;
}

static void second_claim_is_refused_and_names_the_holder(void **state)
{
	pid_t holder = 0;
	int fd, other = -1;

	(void)state;
	assert_int_equal(name_claim(own_name("a"), &fd, &holder), 0);
	assert_true(fd >= 0);
	assert_int_equal(name_claim(own_name("a"), &other, &holder), -EADDRINUSE);
	assert_int_equal(holder, getpid());
	assert_int_equal(name_claim(own_name("b"), &other, &holder), 0);
	close(other);
	close(fd);
	assert_int_equal(name_claim(own_name("a"), &fd, &holder), 0);
	close(fd);
}

/* Start a process of user `uid` that claims `name` and then waits. Returns the pid. */
static pid_t holder_of(const char *name, uid_t uid)
{
	int pipe_fds[2], fd = -1;
	char byte;
	pid_t child, holder = 0;

	assert_int_equal(pipe(pipe_fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		byte = setuid(uid) == 0 && name_claim(name, &fd, &holder) == 0 ? 'y' : 'n';
		if (write(pipe_fds[1], &byte, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(pipe_fds[1]);
	assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
	assert_int_equal(byte, 'y');
	close(pipe_fds[0]);
	return child;
}

static void end(pid_t child)
{
	int status;

	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
}

static void name_is_free_after_the_holder_was_killed(void **state)
{
	const char *name = own_name("killed");
	pid_t child = holder_of(name, geteuid()), holder = 0;
	int fd;

	(void)state;
	assert_int_equal(name_claim(name, &fd, &holder), -EADDRINUSE);
	assert_int_equal(holder, child);
	end(child);
	assert_int_equal(name_claim(name, &fd, &holder), 0);
	close(fd);
}

static void other_user_cannot_block_a_name(void **state)
{
	const char *name = own_name("squatted");
	pid_t child, holder = 0;
	int fd = 0;

	(void)state;
	if (geteuid() != 0)
		skip();
	child = holder_of(name, NOBODY);
	assert_int_equal(name_claim(name, &fd, &holder), 0);
	assert_int_equal(fd, -1);
	end(child);
}

static void holder_is_named_after_many_refused_claims(void **state)
{
	pid_t holder;
	int fd, other;

	(void)state;
	assert_int_equal(name_claim(own_name("asked"), &fd, &holder), 0);
	for (int i = 0; i < 100; i++) {
		holder = 0;
		assert_int_equal(name_claim(own_name("asked"), &other, &holder), -EADDRINUSE);
		assert_int_equal(holder, getpid());
		name_claim_drain(fd);
	}
	name_claim_drain(-1);
	close(fd);
}

static void long_names_are_cut(void **state)
{
	char name[300];
	pid_t holder = 0;
	int fd;

	(void)state;
	memset(name, 'x', sizeof(name));
	snprintf(name + 200, 100, "%d", (int)getpid());
	memcpy(name, own_name(""), strlen(own_name("")));
	assert_int_equal(name_claim(name, &fd, &holder), 0);
	assert_int_equal(name_claim(name, &fd, &holder), -EADDRINUSE);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(second_claim_is_refused_and_names_the_holder),
		cmocka_unit_test(name_is_free_after_the_holder_was_killed),
		cmocka_unit_test(other_user_cannot_block_a_name),
		cmocka_unit_test(holder_is_named_after_many_refused_claims),
		cmocka_unit_test(long_names_are_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
