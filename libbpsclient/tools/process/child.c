/* Starts, signals and reaps the processes that bpsrun and bps-keep need. The callers choose the
 * processes. All functions run in one thread. */
#include "libbpsclient/tools/process/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/os/limits.h"

int poll_timeout_left_ms(uint64_t deadline_ms)
{
	uint64_t now = clock_now_ms();

	if (!deadline_ms)
		return -1;
	return deadline_ms > now ? (int)(deadline_ms - now > INT_MAX ? INT_MAX : deadline_ms - now)
				 : 0;
}

/* Give the child its descriptors sp->fds with the numbers 3, 4, ..., as sd_listen_fds(3) expects.
 * First move all descriptors to high numbers, because a descriptor may have a number that another
 * descriptor needs. Runs in the child. */
static void child_install_listen_fds(const struct spawn_plan *sp)
{
	char text[16];

	for (unsigned i = 0; i < sp->n_fds; i++) {
		int high = fcntl(sp->fds[i], F_DUPFD_CLOEXEC, CHILD_FDS + sp->n_fds);

		if (high < 0)
			_exit(EXIT_OWN);
		/* fork(2) has copied the array, so the parent's array does not change */
		((int *)(uintptr_t)sp->fds)[i] = high;
	}
	for (unsigned i = 0; i < sp->n_fds; i++)
		dup2(sp->fds[i], 3 + (int)i);
	snprintf(text, sizeof(text), "%u", sp->n_fds);
	setenv("LISTEN_FDS", text, 1);
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
	setenv("LISTEN_FDNAMES", sp->fd_names, 1);
}

static void child_setup_and_exec(const struct spawn_plan *sp, pid_t parent)
{
	int null_fd = open("/dev/null", O_RDONLY);
	sigset_t none;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_OWN); /* bpsrun died before prctl took effect */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGTTOU, SIG_DFL);
	dup2(sp->in > 0 ? sp->in : null_fd, STDIN_FILENO);
	if (sp->out >= 0)
		dup2(sp->out, STDOUT_FILENO);
	if (sp->err >= 0)
		dup2(sp->err, STDERR_FILENO);
	if (sp->keep >= 0)
		fcntl(sp->keep, F_SETFD, 0);
	if (sp->n_fds)
		child_install_listen_fds(sp);
	if (sp->fd_limit)
		setrlimit(RLIMIT_NOFILE, sp->fd_limit);
	for (const char *const *e = sp->env; e && *e; e += 2)
		if (e[1])
			setenv(e[0], e[1], 1);
	execvp(sp->argv[0], sp->argv);
	output_print_message("cannot run '%s': %s", sp->argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

int child_spawn(struct bpsrun_child *c, const struct spawn_plan *sp)
{
	pid_t parent = getpid();
	struct err_text err;
	int rc;

	c->pid = fork();
	if (c->pid < 0) {
		c->pid = 0;
		rc = limits_explain(-errno, "cannot start a process: fork", &err);
		output_print_message("%s", err.s);
		return rc;
	}
	if (!c->pid)
		child_setup_and_exec(sp, parent);
	/* Parent and child both set the child's process group, because the parent may send
	 * a signal to the group before the child has run. */
	setpgid(c->pid, c->pid);
	c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	if (c->pidfd < 0) {
		rc = limits_explain(-errno, "cannot watch a process: pidfd_open", &err);
		output_print_message("%s", err.s);
		return rc;
	}
	fcntl(c->pidfd, F_SETFD, FD_CLOEXEC);
	return 0;
}

void child_signal_group(const struct bpsrun_child *c, int sig)
{
	if (c->pid)
		kill(-c->pid, sig);
}

/* Reap c if it has ended. ends_group: kill the processes that it has left behind in its group. */
static int child_reap(struct bpsrun_child *c, bool ends_group)
{
	siginfo_t si = {.si_pid = 0};
	int status;

	if (!c->pid || waitid(P_PID, (id_t)c->pid, &si, WEXITED | WNOHANG | WNOWAIT) < 0 ||
		!si.si_pid)
		return -1;
	/* The group's number cannot be reused before waitpid. */
	if (ends_group)
		kill(-c->pid, SIGKILL);
	if (waitpid(c->pid, &status, 0) != c->pid)
		return -1;
	close(c->pidfd);
	c->pidfd = -1;
	c->pid = 0;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int child_reap_if_ended(struct bpsrun_child *c)
{
	return child_reap(c, true);
}

int child_reap_alone_if_ended(struct bpsrun_child *c)
{
	return child_reap(c, false);
}

void child_stop_all(struct bpsrun_child *c, unsigned n, uint64_t grace_ms)
{
	uint64_t deadline = clock_now_ms() + grace_ms;
	struct pollfd p;

	for (unsigned i = 0; i < n; i++)
		child_signal_group(&c[i], SIGTERM);
	for (unsigned i = 0; i < n; i++) {
		if (!c[i].pid)
			continue;
		p = (struct pollfd){.fd = c[i].pidfd, .events = POLLIN};
		if (poll(&p, 1, poll_timeout_left_ms(deadline)) <= 0) {
			child_signal_group(&c[i], SIGKILL);
			poll(&p, 1, DAEMON_STOP_MS);
		}
		child_reap_if_ended(&c[i]);
	}
}
