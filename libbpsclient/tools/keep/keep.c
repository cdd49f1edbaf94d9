/* bps-keep: run bps-agent where no systemd runs, and keep the agent's file descriptors. When the
 * agent crashes, bps-keep starts it again with these descriptors, so the jobs of its trainers go
 * on. The store of descriptors and the start of processes are bpsrun's (process/).
 *
 *   RUN ── the agent has crashed, or hangs ── RUN (with the descriptors) ── ... ── exit
 *    └── TERM, INT ── STOP (later KILL) ── exit
 *
 * Executors, which the agent has started, live on when the agent crashes, and end when the stored
 * descriptors are closed. So signals go to the agent alone, as with KillMode=process of systemd.
 *
 * bps-keep is the first process of a container, or any other process. It reaps the processes whose
 * parents have ended. It is a subreaper, because the first process of a container is not process 1
 * if the pod shares the host's process numbers (hostPID). One thread. See bps-keep(8). */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/os/limits.h"
#include "libbpsclient/tools/process/child.h"
#include "libbpsclient/tools/process/fdstore_server.h"
#include "libbpsclient/tools/process/guard.h"
#include "libbpsclient/tools/process/private_folder.h"

/* Give up when the agent has ended STARTS_MAX times within STARTS_MS, as bps-agent.service does. An
 * agent that ends for a temporary reason pauses before, so it stays below this rate. */
#define STARTS_MAX 20
#define STARTS_MS  25000
/* Time after which an agent that no longer sends WATCHDOG=1 is killed, as WatchdogSec= of
 * bps-agent.service */
#define WATCHDOG_MS 2000
/* If bps-keep itself was delayed by this time, so was the agent: wait once more. */
#define DELAYED_MS 200
/* Time between TERM and KILL. Kubernetes kills a pod after 30 s by default. */
#define STOP_MS 20000
/* Time for executors (bps-agent-cuda) to end after their descriptors were closed */
#define REST_MS 2000

static const char usage[] =
	"usage: bps-keep [--] COMMAND [ARG...]\n"
	"       bps-keep --help | --version\n"
	"Run COMMAND, usually bps-agent, and start it again when it crashes, with the\n"
	"file descriptors that it has stored. bps-keep(8) describes it (`man bps-keep`).\n";

struct keeper {
	char *const *argv;
	char dir[PRIVATE_FOLDER_BYTES]; /* has the socket of the store */
	struct bpsrun_child agent;
	int signal_fd;
	int child_fd;                   /* readable when a child has ended, also an adopted one */
	uint64_t starts_ms[STARTS_MAX]; /* times of the last starts; the next one is at n_starts */
	unsigned n_starts;
	bool is_stopping;
	uint64_t kill_ms;     /* when to send KILL after TERM; 0: never */
	uint64_t watchdog_ms; /* when the agent counts as hung; 0: it is not ready yet */
	int result;           /* exit code; -1: bps-keep goes on */
};

/* Start the agent with the descriptors that are stored. */
static int keeper_start_agent(struct keeper *k)
{
	char notify[PRIVATE_FOLDER_BYTES + 16], *names = NULL;
	char watchdog[16];
	const char *env[] = {"NOTIFY_SOCKET", notify, "WATCHDOG_USEC", watchdog, NULL};
	struct spawn_plan plan = {.argv = k->argv, .env = env, .out = -1, .err = -1, .keep = -1};
	int *fds = NULL, rc;

	snprintf(notify, sizeof(notify), "%s/notify", k->dir);
	snprintf(watchdog, sizeof(watchdog), "%d", WATCHDOG_MS * 1000);
	fdstore_server_take_watchdog(k->agent.fdstore); /* that of the process before */
	k->watchdog_ms = 0;
	plan.n_fds = fdstore_server_fds(k->agent.fdstore, &fds, &names);
	plan.fds = fds;
	plan.fd_names = names;
	k->starts_ms[k->n_starts++ % STARTS_MAX] = clock_now_ms();
	rc = child_spawn(&k->agent, &plan);
	if (plan.n_fds) {
		free(fds);
		free(names);
	}
	return rc;
}

/* Return whether the agent ends too often: its start STARTS_MAX starts ago is less than STARTS_MS
 * ago. */
static bool keeper_ends_too_often(const struct keeper *k)
{
	return k->n_starts >= STARTS_MAX &&
	       clock_now_ms() - k->starts_ms[k->n_starts % STARTS_MAX] < STARTS_MS;
}

static void keeper_print_end(const struct keeper *k, int code, const char *next)
{
	if (code > 128)
		output_print_message("'%s' was killed by signal %d (%s)%s", k->argv[0], code - 128,
			strsignal(code - 128), next);
	else
		output_print_message("'%s' exited with code %d%s", k->argv[0], code, next);
}

/* Start the agent again after a crash. Otherwise set the result. */
static void keeper_on_agent_end(struct keeper *k, int code)
{
	char next[160];

	k->result = code;
	if (k->is_stopping || code == 0)
		return;
	if (code == EX_USAGE || code == EX_CONFIG || code == 126 || code == 127) {
		keeper_print_end(
			k, code, ": it needs other options or settings; see the line above");
		return;
	}
	if (keeper_ends_too_often(k)) {
		snprintf(next, sizeof(next),
			", as before: %d starts in less than %d s are the limit; its messages "
			"above name the cause",
			STARTS_MAX, STARTS_MS / 1000);
		keeper_print_end(k, code, next);
		return;
	}
	fdstore_server_receive(k->agent.fdstore); /* messages that the ended process has sent */
	snprintf(next, sizeof(next), ": starting it again, with %u descriptors",
		fdstore_server_count(k->agent.fdstore));
	keeper_print_end(k, code, next);
	k->result = keeper_start_agent(k) < 0 ? EXIT_OWN : -1;
}

static void keeper_send_signal(const struct keeper *k, int sig)
{
	if (k->agent.pid)
		kill(k->agent.pid, sig);
}

/* Pass a signal on to the agent. TERM and INT also end bps-keep, and the second of them at once. */
static void keeper_pass_signal(struct keeper *k)
{
	struct signalfd_siginfo si;

	if (read(k->signal_fd, &si, sizeof(si)) != sizeof(si))
		return;
	if (si.ssi_signo != SIGTERM && si.ssi_signo != SIGINT) {
		keeper_send_signal(k, (int)si.ssi_signo);
		return;
	}
	keeper_send_signal(k, k->is_stopping ? SIGKILL : (int)si.ssi_signo);
	if (!k->is_stopping)
		k->kill_ms = clock_now_ms() + STOP_MS;
	k->is_stopping = true;
	k->watchdog_ms = 0;
}

static int keeper_is_own_child(const void *ctx, int pid)
{
	const struct keeper *k = ctx;

	return k->agent.pid == pid;
}

/* Reap the agent, if it has ended, and adopted processes. */
static void keeper_reap_children(struct keeper *k)
{
	struct signalfd_siginfo si;
	int code;

	while (read(k->child_fd, &si, sizeof(si)) == sizeof(si))
		;
	code = child_reap_alone_if_ended(&k->agent);
	if (code >= 0)
		keeper_on_agent_end(k, code);
	guard_reap_adopted(keeper_is_own_child, k);
}

static void keeper_receive(struct keeper *k)
{
	fdstore_server_receive(k->agent.fdstore);
	if (fdstore_server_take_watchdog(k->agent.fdstore) && !k->is_stopping)
		k->watchdog_ms = clock_now_ms() + WATCHDOG_MS;
}

static void keeper_check_deadlines(struct keeper *k)
{
	uint64_t now = clock_now_ms();

	if (k->kill_ms && now >= k->kill_ms) {
		output_print_message("'%s' has not ended %d s after the signal: killing it",
			k->argv[0], STOP_MS / 1000);
		keeper_send_signal(k, SIGKILL);
		k->kill_ms = 0;
	}
	if (k->watchdog_ms && now >= k->watchdog_ms + DELAYED_MS) {
		k->watchdog_ms = now + WATCHDOG_MS;
	} else if (k->watchdog_ms && now >= k->watchdog_ms) {
		output_print_message("'%s' hangs: it has sent no WATCHDOG=1 for %d s: killing it",
			k->argv[0], WATCHDOG_MS / 1000);
		keeper_send_signal(k, SIGKILL);
		k->watchdog_ms = 0;
	}
}

static void keeper_run(struct keeper *k)
{
	while (k->result < 0) {
		struct pollfd p[] = {{.fd = k->signal_fd, .events = POLLIN},
			{.fd = k->child_fd, .events = POLLIN},
			{.fd = k->agent.pidfd, .events = POLLIN},
			{.fd = fdstore_server_socket(k->agent.fdstore), .events = POLLIN}};

		poll(p, 4, poll_timeout_left_ms(k->kill_ms ? k->kill_ms : k->watchdog_ms));
		if (p[0].revents)
			keeper_pass_signal(k);
		if (p[3].revents)
			keeper_receive(k);
		if (p[1].revents || p[2].revents)
			keeper_reap_children(k);
		keeper_check_deadlines(k);
	}
}

/* Close the stored descriptors. Give the processes that are left time to end, and kill the rest. */
static void keeper_close(struct keeper *k)
{
	uint64_t deadline = clock_now_ms() + REST_MS;
	struct pollfd p = {.fd = k->child_fd, .events = POLLIN};
	struct signalfd_siginfo si;

	fdstore_server_close(k->agent.fdstore);
	/* waitpid fails when there is no child */
	while (waitpid(-1, NULL, WNOHANG) >= 0 && poll_timeout_left_ms(deadline) > 0)
		if (poll(&p, 1, poll_timeout_left_ms(deadline)) > 0 &&
			read(k->child_fd, &si, sizeof(si)) < 0)
			break;
	guard_kill_children();
	guard_remove_folder(k->dir);
}

/* Block the signals that bps-keep handles, and create their descriptors. Errors: -errno; the error
 * was printed. */
static int keeper_open_signals(struct keeper *k)
{
	static const int passed[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
	sigset_t signals, child, all;
	int rc;

	sigemptyset(&signals);
	for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
		sigaddset(&signals, passed[i]);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	all = signals;
	sigaddset(&all, SIGCHLD);
	sigprocmask(SIG_BLOCK, &all, NULL);
	signal(SIGCHLD, SIG_DFL); /* the parent may ignore it; then no child could be reaped */
	k->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	k->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	if (k->signal_fd >= 0 && k->child_fd >= 0)
		return 0;
	rc = -errno;
	output_print_message("cannot receive signals: %s", strerror(-rc));
	return rc;
}

static int keeper_open(struct keeper *k)
{
	char notify[PRIVATE_FOLDER_BYTES + 16];
	int rc = keeper_open_signals(k);

	unsetenv("WATCHDOG_PID"); /* of a manager of bps-keep; the agent would compare it */
	limits_raise();
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (!rc)
		rc = private_folder_create("bps-keep", k->dir);
	if (rc < 0)
		return rc;
	snprintf(notify, sizeof(notify), "%s/notify", k->dir);
	return fdstore_server_open(notify, &k->agent.fdstore);
}

/* Parse the command line. Returns 0, 1 if nothing is to be run, or -EINVAL. */
static int keeper_parse_options(int argc, char **argv)
{
	static const struct option options[] = {{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'}, {NULL, 0, NULL, 0}};
	int c = getopt_long(argc, argv, "+h", options, NULL);

	if (c == 'h')
		fputs(usage, stdout);
	else if (c == 'v')
		printf("bps-keep " BPS_VERSION "\n");
	if (c == 'h' || c == 'v')
		return 1;
	if (c == -1 && optind < argc)
		return 0;
	if (c == -1)
		output_print_message("no command is given");
	fputs(usage, stderr);
	return -EINVAL;
}

int main(int argc, char **argv)
{
	static struct keeper k = {
		.signal_fd = -1, .child_fd = -1, .agent.pidfd = -1, .agent.kind = CHILD_AGENT};
	int rc = keeper_parse_options(argc, argv);

	if (rc)
		return rc < 0 ? EX_USAGE : 0;
	k.argv = argv + optind;
	k.result = -1;
	rc = keeper_open(&k);
	if (!rc)
		rc = keeper_start_agent(&k);
	if (!rc)
		keeper_run(&k);
	keeper_close(&k);
	return rc < 0 ? EXIT_OWN : k.result;
}
