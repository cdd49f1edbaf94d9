/* Starts the workers, and runs the loop over all children until the workers have ended. child.c
 * creates and reaps the processes. bpsrun has only one thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/local/cause_file.h"
#include "common/os/cgroup.h"

#define EXIT_TIMEOUT 124 /* exit code after --timeout, the same as that of timeout(1) */
/* A worker that made others fail still runs its exit handlers, and waits for the end of its job. */
#define CAUSE_WAIT_MS 3000

int trainers_choose_port(struct bpsrun *r)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int fd, rc = 0;

	if (r->o.nnodes > 1 || getenv("MASTER_ADDR") || getenv("MASTER_PORT"))
		return 0;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 ||
		getsockname(fd, (struct sockaddr *)&at, &len) < 0) {
		rc = -errno;
		output_print_message("cannot choose a port on the loopback: %s", strerror(-rc));
	}
	if (fd >= 0)
		close(fd);
	if (!rc)
		snprintf(r->meeting_port, sizeof(r->meeting_port), "%u", ntohs(at.sin_port));
	return rc;
}

int trainers_start(struct bpsrun *r, unsigned i)
{
	unsigned agents = r->dir[0] ? r->o.agents : 1, n = r->o.n, agent = i * agents / n;
	unsigned first = (agent * n + agents - 1) / agents,
		 next = ((agent + 1) * n + agents - 1) / agents;
	struct bpsrun_child *c = &r->trainers[i];
	struct spawn_plan sp = {.argv = r->o.command,
		.out = -1,
		.err = -1,
		.keep = -1,
		.fd_limit = &r->worker_fd_limit};
	char rank[16], size[16], local_rank[16], local_size[16], node[16], path[128];
	const char *port = r->meeting_port[0] ? r->meeting_port : NULL;
	const char *env[] = {"BPS_RANK", rank, "BPS_SIZE", size, "BPS_LOCAL_RANK", local_rank,
		"BPS_LOCAL_SIZE", local_size, "BPS_JOB", r->job, "BPS_AGENT_SOCKET", path, "RANK",
		rank, "WORLD_SIZE", size, "LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size,
		"GROUP_RANK", node, "BPS_ON_AGENT_LOSS", r->o.on_agent_loss, "MASTER_ADDR",
		port ? "127.0.0.1" : NULL, "MASTER_PORT", port, "BPS_JOB_TOKEN",
		r->token[0] ? r->token : NULL, CAUSE_FILE_ENV,
		r->cause_fd >= 0 ? r->cause_path : NULL, "BPS_SCHEDULER_HTTP",
		r->dir[0] ? r->scheduler_http : NULL, NULL};
	int rc = 0;

	c->rank = r->o.node_rank * n + i;
	snprintf(c->name, sizeof(c->name), "rank %u", c->rank);
	snprintf(rank, sizeof(rank), "%u", c->rank);
	snprintf(size, sizeof(size), "%u", r->o.nnodes * n);
	snprintf(local_rank, sizeof(local_rank), "%u", i - first);
	snprintf(local_size, sizeof(local_size), "%u", next - first);
	snprintf(node, sizeof(node), "%u", r->o.node_rank * agents + agent);
	daemons_socket(r, agent, path, sizeof(path));
	if (!r->o.has_no_prefix)
		rc = output_open(&c->out, STDOUT_FILENO, &sp.out);
	if (!rc && !r->o.has_no_prefix)
		rc = output_open(&c->err, STDERR_FILENO, &sp.err);
	sp.env = env;
	if (!rc)
		rc = child_spawn(c, &sp);
	if (sp.out >= 0)
		close(sp.out);
	if (sp.err >= 0)
		close(sp.err);
	return rc;
}

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
	output_print_log_tail(c, LOG_TRACE);
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
	if (c->is_daemon) {
		on_private_daemon_exit(r, c, code);
		return;
	}
	c->code = code;
	if (!code) {
		r->n_well++;
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
	if (si.ssi_signo == SIGUSR1 || si.ssi_signo == SIGUSR2) {
		for (unsigned i = 0; i < r->o.n; i++)
			child_signal_group(&r->trainers[i], (int)si.ssi_signo);
		return;
	}
	if (!r->result)
		r->result = 128 + (int)si.ssi_signo;
	trainers_stop(r, (int)si.ssi_signo);
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

/* Return the time at which the loop must run again, or 0. */
static uint64_t compute_next_deadline_ms(const struct bpsrun *r)
{
	if (r->kill_ms)
		return r->kill_ms;
	if (r->is_stopping)
		return clock_now_ms() + 1000;
	if (r->first_failed && (!r->timeout_at || r->cause_deadline_ms < r->timeout_at))
		return r->cause_deadline_ms;
	return r->timeout_at;
}

static unsigned fill_poll_descriptors(const struct bpsrun *r, struct pollfd *p)
{
	unsigned n = 0;

	p[n++] = (struct pollfd){.fd = r->signal_fd, .events = POLLIN};
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
		if (r->trainers[i].pid)
			return true;
	return false;
}

/* Return whether an option or the environment lets the job continue when a machine is lost.
 * A trainer's own code may also let the job continue, but bpsrun does not see this. So if only the
 * code makes this choice, the first failure stops all trainers of this node. */
static bool job_may_lose_machines(const struct bpsrun *r)
{
	const char *env = getenv("BPS_ON_AGENT_LOSS"), *elastic = getenv("BPS_ELASTIC");

	if (r->o.on_agent_loss)
		return strcmp(r->o.on_agent_loss, "shrink") == 0;
	return (env && strcasecmp(env, "shrink") == 0) || (elastic && strcmp(elastic, "1") == 0);
}

int trainers_run_until_end(struct bpsrun *r)
{
	struct pollfd *p = calloc(1 + 2 * DAEMONS_MAX + 3 * r->o.n, sizeof(*p));

	if (!p)
		return -ENOMEM;
	r->may_shrink = job_may_lose_machines(r);
	while (has_running_trainers(r)) {
		poll(p, fill_poll_descriptors(r, p),
			poll_timeout_left_ms(compute_next_deadline_ms(r)));
		if (p[0].revents)
			read_and_forward_signal(r);
		for (unsigned i = 0; i < r->o.n; i++) {
			output_read_and_print(&r->trainers[i], &r->trainers[i].out);
			output_read_and_print(&r->trainers[i], &r->trainers[i].err);
			reap_and_record_child_exit(r, &r->trainers[i]);
		}
		stop_after_failure(r);
		for (unsigned i = 0; i < r->n_daemons; i++) {
			if (r->daemons[i].fdstore)
				fdstore_server_receive(r->daemons[i].fdstore);
			reap_and_record_child_exit(r, &r->daemons[i]);
		}
		check_deadlines(r);
	}
	if (!r->result && !r->n_well)
		r->result = r->failed;
	for (unsigned i = 0; i < r->o.n; i++) {
		while (output_read_and_print(&r->trainers[i], &r->trainers[i].out))
			;
		while (output_read_and_print(&r->trainers[i], &r->trainers[i].err))
			;
		output_close(&r->trainers[i], &r->trainers[i].out);
		output_close(&r->trainers[i], &r->trainers[i].err);
	}
	free(p);
	return 0;
}
