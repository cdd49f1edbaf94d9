/* Runs several programs at once and collects their output (subprocess.h). The caller interprets the
 * output. The functions block for a limited time. One thread. */
#include "bps-scheduler/bpsctl/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define CHILDREN_MAX 8

extern char **environ;

struct running_subprocess {
	struct subprocess *child;
	pid_t pid;
	/* pipe from the program's stdout and stderr; -1: closed, because all output was read */
	int fd;
	size_t used;
};

static int subprocess_spawn(struct running_subprocess *r)
{
	posix_spawn_file_actions_t actions;
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	rc = posix_spawn_file_actions_init(&actions);
	if (rc == 0) {
		posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
		posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
		posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
		rc = posix_spawn(&r->pid, r->child->argv[0], &actions, NULL,
			(char *const *)r->child->argv, environ);
		posix_spawn_file_actions_destroy(&actions);
	}
	close(ends[1]);
	if (rc) {
		close(ends[0]);
		return -rc;
	}
	r->fd = ends[0];
	return 0;
}

static void subprocess_read_output(struct running_subprocess *r)
{
	char more[512];
	size_t room = SUBPROCESS_TEXT_BYTES - 1 - r->used;
	ssize_t n = read(r->fd, room ? r->child->text + r->used : more, room ? room : sizeof(more));

	if (n > 0 && room)
		r->used += (size_t)n;
	r->child->text[r->used] = '\0';
	if (n > 0 || (n < 0 && errno == EINTR))
		return;
	close(r->fd);
	r->fd = -1;
}

/* Read the output of the programs until all of them have closed it, or the deadline passes. */
static void subprocesses_read_all(struct running_subprocess *runs, size_t n, uint64_t deadline_ms)
{
	for (;;) {
		struct pollfd p[CHILDREN_MAX];
		uint64_t now = clock_now_ms();
		size_t n_open = 0;

		for (size_t i = 0; i < n; i++) {
			p[i] = (struct pollfd){runs[i].fd, POLLIN, 0};
			n_open += runs[i].fd >= 0;
		}
		if (!n_open || now >= deadline_ms)
			return;
		if (poll(p, n, (int)(deadline_ms - now)) < 0 && errno != EINTR)
			return;
		for (size_t i = 0; i < n; i++)
			if (p[i].revents)
				subprocess_read_output(&runs[i]);
	}
}

static void subprocess_reap(struct running_subprocess *r)
{
	bool is_late = r->fd >= 0;

	if (r->pid <= 0)
		return;
	if (is_late) {
		kill(r->pid, SIGKILL);
		close(r->fd);
	}
	while (waitpid(r->pid, &r->child->status, 0) < 0 && errno == EINTR)
		;
	if (is_late)
		r->child->status = -ETIMEDOUT;
}

void subprocess_run_all(struct subprocess *children, size_t n, uint32_t timeout_ms)
{
	uint64_t deadline_ms = clock_now_ms() + timeout_ms;
	struct running_subprocess runs[CHILDREN_MAX];

	if (n > CHILDREN_MAX)
		n = CHILDREN_MAX;
	for (size_t i = 0; i < n; i++) {
		int rc;

		runs[i] = (struct running_subprocess){.child = &children[i], .fd = -1};
		children[i].text[0] = '\0';
		rc = subprocess_spawn(&runs[i]);
		children[i].status = rc;
		if (rc < 0)
			runs[i].pid = 0;
	}
	subprocesses_read_all(runs, n, deadline_ms);
	for (size_t i = 0; i < n; i++)
		subprocess_reap(&runs[i]);
}
