/* bpsrun: start the workers of a job on this node, and wait until they end. If no agent runs,
 * bpsrun starts daemons for the job. The guard is the process that the user starts. The runner is
 * its child, and does the work in one loop, which calls poll(2) to wait for signals, for the end of
 * children (pidfds), for their output, and for other nodes.
 *
 *   START ── READY (daemons are ready) ── RUN (trainers) ── STOP (TERM, later KILL) ── exit
 *
 * Each child has its own process group, so that a signal from the terminal reaches the child only
 * through bpsrun. The kernel kills the children when the runner dies for any reason, and the guard
 * kills the rest. See bpsrun(1). */
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
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/local/cause_file.h"
#include "common/os/cgroup.h"
#include "common/os/limits.h"
#include "libbpsclient/tools/process/guard.h"

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
 * environment has a token, use this token. Otherwise a job on one node gets a random token. A job
 * on several nodes gets a token that is derived from the cluster key, because bpsrun on the other
 * nodes must have it too, and without a key no token. Errors: -EINVAL, -EIO. */
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
	if (r->has_key)
		return cluster_key_derive_token(&r->key, r->job, r->token);
	if (r->place.nnodes > 1)
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

/* Set the variables of -x. Errors: -EINVAL. */
static int export_variables(const struct bpsrun_options *o)
{
	char name[256];

	for (unsigned i = 0; i < o->n_exports; i++) {
		const char *text = o->exports[i], *value = strchr(text, '=');

		if (value) {
			snprintf(name, sizeof(name), "%.*s", (int)(value - text), text);
			setenv(name, value + 1, 1);
		} else if (!getenv(text)) {
			output_print_message("-x %s: the environment has no such variable; -x "
					     "NAME=VALUE sets one",
				text);
			return -EINVAL;
		}
	}
	return 0;
}

/* Make the folder of --log-dir if it is not there. Errors: -errno. */
static int make_log_dir(const char *dir)
{
	struct stat st;
	int rc;

	if (!dir || (mkdir(dir, 0777) == 0 || (stat(dir, &st) == 0 && S_ISDIR(st.st_mode))))
		return 0;
	rc = errno ? -errno : -ENOTDIR;
	output_print_message("--log-dir '%s' cannot be made: %s", dir, strerror(-rc));
	return rc;
}

static void find_exe_dir(struct bpsrun *r)
{
	ssize_t n = readlink("/proc/self/exe", r->exe_dir, sizeof(r->exe_dir) - 1);

	r->exe_dir[n > 0 ? n : 0] = 0;
	if (strrchr(r->exe_dir, '/'))
		*strrchr(r->exe_dir, '/') = 0;
}

static void name_job(struct bpsrun *r)
{
	if (r->o.job)
		snprintf(r->job, sizeof(r->job), "%s", r->o.job);
	else if (r->place.nnodes > 1 && r->place.job[0])
		snprintf(r->job, sizeof(r->job), "%s", r->place.job);
	else if (r->place.nnodes > 1)
		snprintf(r->job, sizeof(r->job), "bpsrun"); /* the only job of its cluster */
	else
		snprintf(r->job, sizeof(r->job), "bpsrun-%d", (int)getpid());
}

/* Do what the guard and the runner have in common: decide which daemons the job uses, and make
 * their folder, which the guard removes. */
static int bpsrun_prepare(struct bpsrun *r)
{
	int rc = export_variables(&r->o);

	find_exe_dir(r);
	getrlimit(RLIMIT_NOFILE, &r->worker_fd_limit);
	limits_raise();
	signal(SIGPIPE, SIG_IGN);
	if (!rc && r->o.hosts) { /* the key goes to the hosts, and not to the children here */
		rc = cluster_key_load(r->o.key_file, &r->key);
		r->has_key = rc > 0;
		return rc < 0 ? rc : 0;
	}
	if (rc < 0)
		return rc;
	r->may_shrink = trainers_may_be_lost(&r->o);
	rc = job_nodes_plan(r);
	if (rc < 0)
		return rc;
	name_job(r);
	rc = choose_job_token(r);
	if (!rc)
		rc = make_log_dir(r->o.log_dir);
	return rc < 0 || r->o.agent ? rc : private_folder_create("bpsrun", r->dir);
}

/* Do what only the runner does. signals: the blocked signals that it handles. */
static int runner_initialize(struct bpsrun *r, const sigset_t *signals)
{
	sigset_t child;
	int rc;

	r->daemons = calloc(DAEMONS_MAX, sizeof(*r->daemons));
	r->trainers = calloc(r->o.n, sizeof(*r->trainers));
	if (!r->daemons || !r->trainers) {
		output_print_message("out of memory for %u workers", r->o.n);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < r->o.n; i++)
		r->trainers[i].pidfd = r->trainers[i].out.fd = r->trainers[i].err.fd = -1;
	make_cause_file(r);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	r->signal_fd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
	r->adopted_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	if (r->signal_fd >= 0 && r->adopted_fd >= 0)
		return 0;
	rc = -errno;
	output_print_message("cannot receive signals: %s", strerror(-rc));
	return rc;
}

static int run_job_until_end(struct bpsrun *r)
{
	int rc = r->dir[0] ? daemons_start(r) : 0;

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
	job_nodes_await_leave(r);
	return rc;
}

/* Run the job in the runner. Returns the exit code. */
static int runner_main(struct bpsrun *r, const sigset_t *signals)
{
	int rc = runner_initialize(r, signals);

	if (!rc && r->o.hosts)
		r->result = hosts_run(r);
	else if (!rc)
		rc = run_job_until_end(r);
	if (rc < 0 && !r->result)
		r->result = EXIT_OWN;
	if (r->daemons)
		daemons_stop(r);
	job_nodes_leave(r);
	guard_kill_children();
	guard_remove_folder(r->dir);
	key_wipe(&r->key);
	free(r->daemons);
	free(r->trainers);
	return r->result;
}

int main(int argc, char **argv)
{
	/* static: the environment and the options point into it until the process ends */
	static struct bpsrun r = {.signal_fd = -1, .cause_fd = -1, .member.lines.fd = -1};
	sigset_t passed, signals, blocked;
	int rc = bpsrun_options_parse(argc, argv, &r.o);

	r.oom_kills = cgroup_oom_kills();
	if (!rc && r.o.from_stdin)
		rc = remote_take_order(&r);
	if (rc)
		return rc < 0 ? EXIT_OWN : 0;
	if (r.o.wants_check_build) {
		find_exe_dir(&r);
		return check_build_print(&r);
	}
	rc = bpsrun_prepare(&r);
	if (rc < 0)
		return EXIT_OWN;
	handled_signals(&passed);
	signals = passed;
	sigaddset(&signals, GUARD_DIED);
	blocked = signals;
	sigaddset(&blocked, SIGCHLD);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	rc = guard_fork_runner(r.dir, &passed, r.o.from_stdin);
	if (rc == 0)
		return runner_main(&r, &signals);
	guard_remove_folder(r.dir);
	return EXIT_OWN;
}
