/* bpsrun: start the workers of a job on this machine, and wait until they end. If no agent runs,
 * bpsrun starts private daemons for the job. bpsrun is one process with one loop, which calls
 * poll(2) to wait for signals, for the end of children (pidfds), and for their output.
 *
 *   START ── READY (daemons are ready) ── RUN (trainers) ── STOP (TERM, later KILL) ── exit
 *
 * Each child has its own process group, so that a signal from the terminal reaches the child only
 * through bpsrun. The kernel kills the children when bpsrun dies for any reason. See bpsrun(1). */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/local/cause_file.h"
#include "common/os/cgroup.h"
#include "common/os/limits.h"

#define STATUS_MS 10000 /* time limit for bpsctl, which prints the final state */

static void run_bpsctl_status(struct bpsrun *r)
{
	char path[PATH_MAX + 64];
	char *argv[] = {path, ARG("status"), NULL};
	const char *env[] = {"BPS_SCHEDULER_HTTP", r->scheduler_http, NULL};
	struct spawn_plan sp = {
		.argv = argv, .env = r->dir[0] ? env : NULL, .out = -1, .err = -1, .keep = -1};
	struct bpsrun_child c = {.pidfd = -1};
	struct pollfd p;

	daemons_program(r, "bpsctl", path, sizeof(path));
	if (child_spawn(&c, &sp) < 0)
		return;
	p = (struct pollfd){.fd = c.pidfd, .events = POLLIN};
	if (poll(&p, 1, STATUS_MS) == 0)
		output_print_message(
			"`bpsctl status` has not ended after %d s: stopping it", STATUS_MS / 1000);
	child_stop_all(&c, 1, 0);
}

/* Set the job's token. If a job has a token, no process can join the job without this token. If the
 * environment has a token, use this token. Otherwise a job on one node gets a random token, and a
 * job on several nodes gets no token, because bpsrun on the other nodes would not have the random
 * token. Errors: -EINVAL, -EIO. */
static int choose_job_token(struct bpsrun *r)
{
	const char *given = getenv("BPS_JOB_TOKEN");
	unsigned char bytes[CTL_TOKEN_BYTES];

	if (given && *given) {
		if (strlen(given) != 2 * CTL_TOKEN_BYTES) {
			output_print_message("BPS_JOB_TOKEN has %zu characters, not %d hex digits",
				strlen(given), 2 * CTL_TOKEN_BYTES);
			return -EINVAL;
		}
		snprintf(r->token, sizeof(r->token), "%s", given);
		return 0;
	}
	if (r->o.nnodes > 1)
		return 0;
	if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
		output_print_message(
			"cannot get random bytes for the job's token: %s", strerror(errno));
		return -EIO;
	}
	for (unsigned i = 0; i < CTL_TOKEN_BYTES; i++)
		snprintf(r->token + (size_t)2 * i, 3, "%02x", bytes[i]);
	return 0;
}

/* Return the signals that bpsrun handles. A signal that is ignored stays ignored, for example
 * SIGHUP under nohup(1), or SIGINT in a shell's background. */
static void handled_signals(sigset_t *ret)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

	sigemptyset(ret);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		struct sigaction now;

		if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
			sigaddset(ret, signals[i]);
	}
}

/* Create the file in which workers name the worker that made the job fail. Without the file, bpsrun
 * names the worker that exited first. */
static void make_cause_file(struct bpsrun *r)
{
	r->cause_fd = memfd_create(CAUSE_FILE_NAME, MFD_CLOEXEC);
	if (r->cause_fd >= 0)
		snprintf(r->cause_path, sizeof(r->cause_path), "/proc/%d/fd/%d", (int)getpid(),
			r->cause_fd);
}

static int bpsrun_initialize(struct bpsrun *r)
{
	ssize_t n = readlink("/proc/self/exe", r->exe_dir, sizeof(r->exe_dir) - 1);
	sigset_t set;

	r->exe_dir[n > 0 ? n : 0] = 0;
	if (strrchr(r->exe_dir, '/'))
		*strrchr(r->exe_dir, '/') = 0;
	if (r->o.job)
		snprintf(r->job, sizeof(r->job), "%s", r->o.job);
	else
		snprintf(r->job, sizeof(r->job), "bpsrun-%d", (int)getpid());
	if (choose_job_token(r) < 0)
		return -EINVAL;
	r->daemons = calloc(DAEMONS_MAX, sizeof(*r->daemons));
	r->trainers = calloc(r->o.n, sizeof(*r->trainers));
	if (!r->daemons || !r->trainers) {
		output_print_message("out of memory for %u workers", r->o.n);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < r->o.n; i++)
		r->trainers[i].pidfd = r->trainers[i].out.fd = r->trainers[i].err.fd = -1;
	make_cause_file(r);
	getrlimit(RLIMIT_NOFILE, &r->worker_fd_limit);
	limits_raise();
	signal(SIGPIPE, SIG_IGN);
	handled_signals(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	r->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (r->signal_fd < 0) {
		int rc = -errno;

		output_print_message("cannot receive signals: %s", strerror(-rc));
		return rc;
	}
	return 0;
}

static int run_job_until_end(struct bpsrun *r)
{
	int rc = 0;

	r->o.agent = daemons_choose(&r->o);
	if (!r->o.agent && r->o.nnodes > 1) {
		output_print_message(
			"a job on several nodes needs a running agent on each node: set --agent "
			"or BPS_AGENT_SOCKET");
		return -EINVAL;
	}
	if (!r->o.agent)
		rc = daemons_start(r);
	if (!rc)
		rc = trainers_choose_port(r);
	if (r->o.timeout_ms)
		r->timeout_at = clock_now_ms() + r->o.timeout_ms;
	for (unsigned i = 0; !rc && i < r->o.n; i++)
		rc = trainers_start(r, i);
	if (rc < 0) {
		r->result = EXIT_OWN;
		trainers_stop(r, SIGTERM);
	}
	trainers_run_until_end(r);
	daemons_let_go(r);
	if (r->o.wants_status && !rc)
		run_bpsctl_status(r);
	return rc;
}

int main(int argc, char **argv)
{
	struct bpsrun r = {.signal_fd = -1, .cause_fd = -1, .oom_kills = cgroup_oom_kills()};
	int rc = bpsrun_options_parse(argc, argv, &r.o);

	if (rc)
		return rc < 0 ? EXIT_OWN : 0;
	rc = bpsrun_initialize(&r);
	if (!rc)
		rc = run_job_until_end(&r);
	if (rc < 0 && !r.result)
		r.result = EXIT_OWN;
	if (r.daemons)
		daemons_stop(&r);
	free(r.daemons);
	free(r.trainers);
	return r.result;
}
