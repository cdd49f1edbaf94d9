/* Functions for tests with two processes. two_start starts this program again, with a role as its
 * argument. A socket carries messages and descriptors. Each wait for a message has a deadline. */
#include "tests/gpu/cuda/two.h"

#include <dirent.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static _Noreturn void give_up(const char *what)
{
	perror(what);
	abort();
}

static pid_t spawn(const char *path, const char *role, char **env, int from, int to)
{
	char *argv[] = {(char *)(uintptr_t)path, (char *)(uintptr_t)role, NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, from, to);
	if (to == STDOUT_FILENO)
		posix_spawn_file_actions_adddup2(&actions, from, STDERR_FILENO);
	if (posix_spawn(&pid, path, &actions, NULL, argv, env))
		give_up(path);
	posix_spawn_file_actions_destroy(&actions);
	return pid;
}

struct two two_start(const char *role)
{
	int pair[2];
	struct two t;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		give_up("socketpair");
	/* If the descriptor already is TWO_FD, dup2 in spawn() would keep its close-on-exec flag.
	 * Duplicate the descriptor to a different number first. */
	if (pair[1] == TWO_FD) {
		pair[1] = dup(TWO_FD);
		close(TWO_FD);
	}
	t.fd = pair[0];
	t.pid = spawn("/proc/self/exe", role, environ, pair[1], TWO_FD);
	close(pair[1]);
	return t;
}

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(DEVICE_FDS_MAX * sizeof(int))];
};

bool two_send(int fd, const struct two_message *m)
{
	union control control = {0};
	struct iovec iov = {(void *)(uintptr_t)m, sizeof(*m)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	size_t bytes = (size_t)m->n_fds * sizeof(int);

	if (m->n_fds) {
		struct cmsghdr *c;

		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(bytes);
		c = CMSG_FIRSTHDR(&msg);
		if (!c)
			give_up("no room for descriptors");
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(c), m->fds, bytes);
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(*m);
}

bool two_receive(int fd, struct two_message *ret)
{
	union control control;
	struct iovec iov = {ret, sizeof(*ret)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control)};
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct cmsghdr *c;

	memset(ret, 0, sizeof(*ret));
	if (poll(&p, 1, TWO_TIMEOUT_S * 1000) != 1)
		give_up("no answer from the other process");
	if (recvmsg(fd, &msg, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*ret))
		return false;
	c = CMSG_FIRSTHDR(&msg);
	if (c)
		memcpy(ret->fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
	return true;
}

int two_end(struct two *t)
{
	int status;

	close(t->fd);
	if (waitpid(t->pid, &status, 0) != t->pid)
		give_up("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void two_kill(struct two *t)
{
	kill(t->pid, SIGKILL);
	if (two_end(t) != 128 + SIGKILL)
		give_up("the other process had already ended");
}

static size_t copy_environment(char **ret, size_t max, const char *const *more)
{
	size_t n = 0;

	for (; *more; more++)
		ret[n++] = (char *)(uintptr_t)*more;
	for (char **e = environ; *e && n < max - 1; e++)
		ret[n++] = *e;
	ret[n] = NULL;
	return n;
}

int two_run(const char *path, const char *const *env, char *ret_out, size_t out_bytes)
{
	char *all[256];
	size_t n = 0;
	struct two t;
	int pipes[2];
	ssize_t got;

	if (pipe(pipes))
		give_up("pipe");
	copy_environment(all, sizeof(all) / sizeof(all[0]), env);
	t.pid = spawn(path, NULL, all, pipes[1], STDOUT_FILENO);
	close(pipes[1]);
	while (n < out_bytes - 1 && (got = read(pipes[0], ret_out + n, out_bytes - 1 - n)) > 0)
		n += (size_t)got;
	ret_out[n] = 0;
	t.fd = pipes[0];
	return two_end(&t);
}

unsigned two_count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	if (!dir)
		give_up("/proc/self/fd");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}
