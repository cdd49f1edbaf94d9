/* Runs the loop over all children until the workers have ended. trainer_start.c starts the workers,
 * and process/child.c creates and reaps the processes. bpsrun has only one thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/local/cause_file.h"
#include "common/os/cgroup.h"
#include "libbpsclient/tools/process/fdstore_server.h"
#include "libbpsclient/tools/process/guard.h"

#define EXIT_TIMEOUT 124 /* exit code after --timeout, the same as that of timeout(1) */
/* A worker that made others fail still runs its exit handlers, and waits for the end of its job. */
#define CAUSE_WAIT_MS 3000

void trainers_stop(struct bpsrun *r, int sig)
{
	for (unsigned i = 0; i < r->o.n; i++)
		child_signal_group(&r->trainers[i], r->is_stopping ? SIGKILL : sig);
	if (!r->is_stopping)
		r->kill_ms = clock_now_ms() + r->o.grace_ms;
	r->is_stopping = true;
}

/* Return whether the kernel has killed a process of this control group for lack of memory since the
 * last call. */
static bool take_oom_kills(struct bpsrun *r)
{
	uint64_t before = r->oom_kills;

	r->oom_kills = cgroup_oom_kills();
	return r->oom_kills > before;
}

static void print_exit_reason(struct bpsrun *r, const char *who, int code)
{
	if (code == 128 + SIGKILL && take_oom_kills(r))
		output_print_message(
			"%s was killed for lack of memory: the control group may use %llu MiB; "
			"raise its limit, or start fewer workers",
			who, (unsigned long long)(cgroup_memory_bytes() >> 20));
	else if (code > 128)
		output_print_message(
			"%s was killed by signal %d (%s)", who, code - 128, strsignal(code - 128));
	else
		output_print_message("%s exited with code %d", who, code);
}

static void on_private_daemon_exit(struct bpsrun *r, struct bpsrun_child *c, int code)
{
	print_exit_reason(r, c->name, code);
	if (!r->is_stopping && daemons_revive(r, c, code)) {
		output_print_message("%s was restarted; the job goes on", c->name);
		return;
	}
	output_print_log_tail(c->name, c->log, LOG_TRACE);
	if (!r->is_stopping && daemon_is_needed(r, c)) {
		output_print_message("the job cannot go on without %s: stopping it", c->name);
		r->result = EXIT_OWN;
		trainers_stop(r, SIGTERM);
	}
}

static void reap_and_record_child_exit(struct bpsrun *r, struct bpsrun_child *c)
{
	int code = child_reap_if_ended(c);

	if (code < 0)
		return;
	if (c->kind != CHILD_WORKER) {
		on_private_daemon_exit(r, c, code);
		return;
	}
	c->code = code;
	if (!code) {
		r->n_well++;
	} else if (!r->is_stopping && trainers_may_restart(r, c)) {
		print_exit_reason(r, c->name, code);
		trainers_restart(r, c);
	} else if (r->may_shrink && !r->is_stopping) {
		print_exit_reason(r, c->name, code);
		r->failed = code;
	} else if (!r->may_shrink && !r->first_failed) {
		r->first_failed = c;
		r->cause_deadline_ms = clock_now_ms() + CAUSE_WAIT_MS;
	}
}

/* Return the worker of this node that the cause file names, or NULL. */
static const struct bpsrun_child *find_trainer_in_cause_file(const struct bpsrun *r)
{
	char text[16] = "", *end;
	unsigned long rank;

	if (r->cause_fd < 0 || pread(r->cause_fd, text, sizeof(text) - 1, 0) <= 0)
		return NULL;
	rank = strtoul(text, &end, 10);
	if (end == text || *end != ' ')
		return NULL;
	for (unsigned i = 0; i < r->o.n; i++)
		if (r->trainers[i].rank == rank)
			return &r->trainers[i];
	return NULL;
}

/* If a worker has failed, stop the others. If it failed because of another worker, wait for that
 * worker first, because its exit code is the job's. */
static void stop_after_failure(struct bpsrun *r)
{
	const struct bpsrun_child *first = r->first_failed, *cause;
	uint64_t now = clock_now_ms();

	if (!first || r->is_stopping)
		return;
	cause = find_trainer_in_cause_file(r);
	if (cause && cause->pid && now < r->cause_deadline_ms)
		return;
	if (!cause || cause->pid)
		cause = first;
	if (!cause->code) {
		output_print_message(
			"%s exited with code 0 before the other workers had finished", cause->name);
		cause = first;
	}
	print_exit_reason(r, cause->name, cause->code);
	r->result = cause->code;
	trainers_stop(r, SIGTERM);
}

static void read_and_forward_signal(struct bpsrun *r)
{
	struct signalfd_siginfo si;

	if (read(r->signal_fd, &si, sizeof(si)) != sizeof(si))
		return;
	if ((int)si.ssi_signo == GUARD_DIED) {
		r->is_lost = true;
		si.ssi_signo = SIGTERM;
	}
	if (si.ssi_signo == SIGUSR1 || si.ssi_signo == SIGUSR2) {
		for (unsigned i = 0; i < r->o.n; i++)
			child_signal_group(&r->trainers[i], (int)si.ssi_signo);
		return;
	}
	if (!r->result)
		r->result = 128 + (int)si.ssi_signo;
	trainers_stop(r, (int)si.ssi_signo);
	if (r->is_lost && r->kill_ms > clock_now_ms() + LOST_GRACE_MS)
		r->kill_ms = clock_now_ms() + LOST_GRACE_MS;
}

static void check_deadlines(struct bpsrun *r)
{
	uint64_t now = clock_now_ms();

	if (r->timeout_at && now >= r->timeout_at && !r->is_stopping) {
		output_print_message("the job has not ended after %u ms (--timeout): stopping it",
			r->o.timeout_ms);
		r->result = EXIT_TIMEOUT;
		trainers_stop(r, SIGTERM);
	}
	if (r->kill_ms && now >= r->kill_ms) {
		trainers_stop(r, SIGKILL);
		r->kill_ms = 0;
	}
}

/* Return the earlier one of two deadlines; 0: never. */
static uint64_t earlier_deadline(uint64_t a, uint64_t b)
{
	return !a || (b && b < a) ? b : a;
}

/* Return the time at which the loop must run again, or 0. */
static uint64_t compute_next_deadline_ms(const struct bpsrun *r)
{
	if (r->kill_ms)
		return r->kill_ms;
	if (r->is_stopping)
		return clock_now_ms() + 1000;
	return earlier_deadline(r->first_failed ? r->cause_deadline_ms : 0,
		earlier_deadline(earlier_deadline(r->timeout_at, r->restart_kill_ms),
			job_nodes_deadline_ms(r)));
}

static unsigned fill_poll_descriptors(const struct bpsrun *r, struct pollfd *p)
{
	unsigned n = 0;

	p[n++] = (struct pollfd){.fd = r->signal_fd, .events = POLLIN};
	p[n++] = (struct pollfd){.fd = r->adopted_fd, .events = POLLIN};
	p[n++] = (struct pollfd){.fd = job_nodes_descriptor(r), .events = POLLIN};
	for (unsigned i = 0; i < r->n_daemons; i++)
		p[n++] = (struct pollfd){.fd = r->daemons[i].pidfd, .events = POLLIN};
	for (unsigned i = 0; i < r->n_daemons; i++)
		p[n++] = (struct pollfd){
			.fd = fdstore_server_socket(r->daemons[i].fdstore), .events = POLLIN};
	for (unsigned i = 0; i < r->o.n; i++) {
		p[n++] = (struct pollfd){.fd = r->trainers[i].pidfd, .events = POLLIN};
		p[n++] = (struct pollfd){.fd = r->trainers[i].out.fd, .events = POLLIN};
		p[n++] = (struct pollfd){.fd = r->trainers[i].err.fd, .events = POLLIN};
	}
	return n;
}

static bool has_running_trainers(const struct bpsrun *r)
{
	for (unsigned i = 0; i < r->o.n; i++)
		if (r->trainers[i].pid || (r->trainers[i].is_due && !r->is_stopping))
			return true;
	return false;
}

/* Return whether the process is one that bpsrun has started itself, which the loop reaps. */
static int is_known_child(const void *ctx, int pid)
{
	const struct bpsrun *r = ctx;

	for (unsigned i = 0; i < r->n_daemons; i++)
		if (r->daemons[i].pid == pid)
			return true;
	for (unsigned i = 0; i < r->o.n; i++)
		if (r->trainers[i].pid == pid)
			return true;
	return false;
}

int trainers_run_until_end(struct bpsrun *r)
{
	struct signalfd_siginfo si;
	struct pollfd *p = calloc(3 + 2 * DAEMONS_MAX + 3 * r->o.n, sizeof(*p));

	if (!p)
		return -ENOMEM;
	while (has_running_trainers(r)) {
		poll(p, fill_poll_descriptors(r, p),
			poll_timeout_left_ms(compute_next_deadline_ms(r)));
		if (p[0].revents)
			read_and_forward_signal(r);
		for (unsigned i = 0; i < r->o.n; i++) {
			output_read_and_print(&r->trainers[i].out);
			output_read_and_print(&r->trainers[i].err);
			reap_and_record_child_exit(r, &r->trainers[i]);
		}
		stop_after_failure(r);
		if (!r->is_stopping && trainers_start_due(r) < 0) {
			r->result = EXIT_OWN;
			trainers_stop(r, SIGTERM);
		}
		for (unsigned i = 0; i < r->n_daemons; i++) {
			if (r->daemons[i].fdstore)
				fdstore_server_receive(r->daemons[i].fdstore);
			reap_and_record_child_exit(r, &r->daemons[i]);
		}
		while (read(r->adopted_fd, &si, sizeof(si)) == sizeof(si))
			;
		guard_reap_adopted(is_known_child, r);
		job_nodes_serve(r);
		check_deadlines(r);
	}
	if (!r->result && !r->n_well)
		r->result = r->failed;
	for (unsigned i = 0; i < r->o.n; i++)
		trainer_close_output(&r->trainers[i]);
	free(p);
	return 0;
}
