/* Ends all processes of a run, whichever process of it is killed. The guard and the runner watch
 * each other. Neither needs root, a control group or a namespace. If a user kills both at the same
 * time, the kernel still kills the daemons and the workers (child.c), but processes that workers
 * have started stay, and so does the private folder. */
#include "libbpsclient/tools/process/guard.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/os/limits.h"
#include "libbpsclient/tools/process/child.h"

#define SWEEP_POLL_MS 20 /* a killed process needs a moment to end */

/* Return the parent of a process; 0: the process has ended, or cannot be read. */
static pid_t process_parent(const char *pid)
{
	char path[288], text[512] = "";
	const char *after;
	int parent = 0, fd;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	/* the name of the program is in parentheses, and may itself have any characters */
	after = n > 0 ? strrchr(text, ')') : NULL;
	return after && sscanf(after, ") %*c %d", &parent) == 1 ? parent : 0;
}

/* Kill each present child of this process. */
static void kill_each_child(void)
{
	DIR *proc = opendir("/proc");
	const struct dirent *e;

	while (proc && (e = readdir(proc)))
		if (isdigit((unsigned char)e->d_name[0]) && process_parent(e->d_name) == getpid())
			kill((pid_t)atoi(e->d_name), SIGKILL);
	if (proc)
		closedir(proc);
}

void guard_kill_children(void)
{
	uint64_t deadline = clock_now_ms() + GUARD_SWEEP_MS;

	/* waitpid fails when there is no child */
	while (waitpid(-1, NULL, WNOHANG) >= 0 && clock_now_ms() < deadline) {
		kill_each_child();
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		poll(NULL, 0, SWEEP_POLL_MS);
	}
}

void guard_reap_adopted(int (*is_own)(const void *ctx, int pid), const void *ctx)
{
	siginfo_t si;

	for (;;) {
		si.si_pid = 0;
		if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) < 0 || !si.si_pid ||
			is_own(ctx, si.si_pid))
			return;
		waitpid(si.si_pid, NULL, 0);
	}
}

static int remove_tree_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

void guard_remove_folder(const char *dir)
{
	if (*dir)
		nftw(dir, remove_tree_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Handle what has arrived on standard input: a byte asks to stop the workers, as SIGTERM does.
 * Returns false when it is closed. */
static bool lifeline_serve(pid_t runner)
{
	char buf[64];
	ssize_t n = read(STDIN_FILENO, buf, sizeof(buf));

	if (n > 0)
		kill(runner, SIGTERM);
	return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

/* Pass signals on to the runner until it has ended. Returns its status, as waitpid(2) does. */
static int await_runner_end(pid_t runner, int runner_fd, int signal_fd, bool has_lifeline)
{
	struct pollfd p[] = {{.fd = runner_fd, .events = POLLIN},
		{.fd = signal_fd, .events = POLLIN},
		{.fd = has_lifeline ? STDIN_FILENO : -1, .events = POLLIN}};
	struct signalfd_siginfo si;
	int status = 0;

	while (!(p[0].revents & POLLIN)) {
		poll(p, 3, -1);
		if ((p[1].revents & POLLIN) && read(signal_fd, &si, sizeof(si)) == sizeof(si))
			kill(runner, (int)si.ssi_signo);
		if (p[2].revents && !lifeline_serve(runner)) {
			p[2].fd = -1;
			kill(runner, GUARD_DIED);
		}
	}
	waitpid(runner, &status, 0);
	return status;
}

static void guard_finish(pid_t runner, int status, const char *dir)
{
	if (WIFSIGNALED(status))
		output_print_message("the runner of the job, pid %d, was killed by signal %d (%s): "
				     "ending what it has started",
			(int)runner, WTERMSIG(status), strsignal(WTERMSIG(status)));
	guard_kill_children();
	guard_remove_folder(dir);
	exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

/* Make this process the runner. */
static int runner_begin(pid_t guard)
{
	setpgid(0, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	/* the runner writes to the terminal although its process group is in the background */
	signal(SIGTTOU, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, GUARD_DIED);
	if (getppid() != guard)
		raise(GUARD_DIED); /* the guard died before prctl took effect */
	return 0;
}

int guard_fork_runner(const char *dir, const sigset_t *signals, bool has_lifeline)
{
	pid_t guard = getpid(), runner;
	int signal_fd = signalfd(-1, signals, SFD_CLOEXEC), runner_fd = -1, rc;
	struct err_text err;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	runner = signal_fd < 0 ? -1 : fork();
	if (runner == 0) {
		close(signal_fd);
		return runner_begin(guard);
	}
	if (runner > 0)
		runner_fd = (int)syscall(SYS_pidfd_open, runner, 0);
	if (runner_fd >= 0) {
		fcntl(runner_fd, F_SETFD, FD_CLOEXEC);
		setpgid(runner, runner);
		guard_finish(
			runner, await_runner_end(runner, runner_fd, signal_fd, has_lifeline), dir);
	}
	rc = limits_explain(-errno, "cannot start a process: fork", &err);
	output_print_message("%s", err.s);
	if (runner > 0)
		kill(runner, SIGKILL);
	if (signal_fd >= 0)
		close(signal_fd);
	return rc;
}
