/* Starts one worker: its environment, its output, and its next process when it has failed in a job
 * whose workers may be started again. bpsrun has only one thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/local/cause_file.h"

/* A trainer's own code may also let the job continue, but bpsrun does not see this. So if only the
 * code makes this choice, the first failure stops all trainers of this node. */
bool trainers_may_be_lost(const struct bpsrun_options *o)
{
	const char *env = getenv("BPS_ON_AGENT_LOSS"), *elastic = getenv("BPS_ELASTIC");

	if (o->on_agent_loss)
		return strcmp(o->on_agent_loss, "shrink") == 0;
	return (env && strcasecmp(env, "shrink") == 0) || (elastic && strcmp(elastic, "1") == 0);
}

int trainers_choose_port(struct bpsrun *r)
{
	struct addr own = {.port = 0};
	struct sockaddr_storage at;
	socklen_t len;
	int fd = -1, rc;

	if (r->meeting_port[0] || (r->place.nnodes > 1 && !r->meeting) || getenv("MASTER_ADDR") ||
		getenv("MASTER_PORT"))
		return 0;
	snprintf(own.host, sizeof(own.host), "%s", r->own_host);
	rc = addr_resolve_numeric(&own, &at, &len);
	if (!rc)
		fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (!rc && (fd < 0 || bind(fd, (struct sockaddr *)&at, len) < 0 ||
			   getsockname(fd, (struct sockaddr *)&at, &len) < 0))
		rc = -errno;
	if (fd >= 0)
		close(fd);
	if (rc < 0) {
		output_print_message("cannot choose a port on %s: %s", r->own_host, err_str(rc));
		return rc;
	}
	snprintf(r->meeting_host, sizeof(r->meeting_host), "%s", r->own_host);
	snprintf(r->meeting_port, sizeof(r->meeting_port), "%u",
		sockaddr_port((struct sockaddr *)&at));
	return 0;
}

/* The texts of a worker's environment. */
struct worker_place {
	char rank[16], size[16], local_rank[16], local_size[16], node[16], socket[128];
};

/* Fill in the place of the i-th worker of this node. */
static void find_worker_place(struct bpsrun *r, unsigned i, struct worker_place *ret)
{
	unsigned agents = r->dir[0] ? r->o.agents : 1, n = r->o.n, agent = i * agents / n;
	unsigned first = (agent * n + agents - 1) / agents,
		 next = ((agent + 1) * n + agents - 1) / agents;
	struct bpsrun_child *c = &r->trainers[i];
	bool has_ranks = r->o.size > 0;

	c->rank = (has_ranks ? r->o.first_rank : r->place.node_rank * n) + i;
	snprintf(c->name, sizeof(c->name), r->o.daemons_only ? "node %u" : "rank %u", c->rank);
	snprintf(ret->rank, sizeof(ret->rank), "%u", c->rank);
	snprintf(ret->size, sizeof(ret->size), "%u", has_ranks ? r->o.size : r->place.nnodes * n);
	snprintf(ret->local_rank, sizeof(ret->local_rank), "%u", i - first);
	snprintf(ret->local_size, sizeof(ret->local_size), "%u", next - first);
	snprintf(ret->node, sizeof(ret->node), "%u", r->place.node_rank * agents + agent);
	daemons_socket(r, agent, ret->socket, sizeof(ret->socket));
}

/* Make the pipes of a worker's output. */
static int open_worker_output(struct bpsrun *r, struct bpsrun_child *c, struct spawn_plan *sp)
{
	char prefix[16], path[PATH_MAX];
	int rc;

	if (r->o.has_no_prefix)
		return 0;
	snprintf(prefix, sizeof(prefix), "[%u] ", c->rank);
	rc = output_open(&c->out, STDOUT_FILENO, prefix, &sp->out);
	if (!rc)
		rc = output_open(&c->err, STDERR_FILENO, prefix, &sp->err);
	if (rc < 0 || !r->o.log_dir)
		return rc;
	snprintf(path, sizeof(path), "%s/rank-%u.out", r->o.log_dir, c->rank);
	rc = output_copy_to(&c->out, path);
	snprintf(path, sizeof(path), "%s/rank-%u.err", r->o.log_dir, c->rank);
	return rc < 0 ? rc : output_copy_to(&c->err, path);
}

int trainers_start(struct bpsrun *r, unsigned i)
{
	struct bpsrun_child *c = &r->trainers[i];
	struct spawn_plan sp = {.argv = r->o.command,
		.out = -1,
		.err = -1,
		.keep = -1,
		.fd_limit = &r->worker_fd_limit};
	const char *port = r->meeting_port[0] ? r->meeting_port : NULL;
	struct worker_place w;
	const char *env[] = {"BPS_AGENT_SOCKET", w.socket, "BPS_JOB_TOKEN",
		r->token[0] ? r->token : NULL, NULL, w.rank, "BPS_SIZE", w.size, "BPS_LOCAL_RANK",
		w.local_rank, "BPS_LOCAL_SIZE", w.local_size, "BPS_JOB", r->job, "RANK", w.rank,
		"WORLD_SIZE", w.size, "LOCAL_RANK", w.local_rank, "LOCAL_WORLD_SIZE", w.local_size,
		"GROUP_RANK", w.node, "BPS_ON_AGENT_LOSS", r->o.on_agent_loss, "MASTER_ADDR",
		port ? r->meeting_host : NULL, "MASTER_PORT", port, CAUSE_FILE_ENV,
		r->cause_fd >= 0 ? r->cause_path : NULL, "BPS_SCHEDULER_HTTP",
		r->dir[0] ? r->scheduler_http : NULL, NULL};
	int rc;

	find_worker_place(r, i, &w);
	if (!r->o.daemons_only) /* else the list ends here */
		env[4] = "BPS_RANK";
	rc = open_worker_output(r, c, &sp);
	sp.env = env;
	if (!rc)
		rc = child_spawn(c, &sp);
	if (sp.out >= 0)
		close(sp.out);
	if (sp.err >= 0)
		close(sp.err);
	return rc;
}

void trainer_close_output(struct bpsrun_child *c)
{
	while (output_read_and_print(&c->out))
		;
	while (output_read_and_print(&c->err))
		;
	output_close(&c->out);
	output_close(&c->err);
}

/* ---- restarts ---- */

bool trainers_may_restart(const struct bpsrun *r, const struct bpsrun_child *c)
{
	return c->n_lives < r->o.restarts;
}

/* Return whether all workers of this machine start again together. In a job that may shrink, the
 * workers of a machine leave and join together. Otherwise only the lost worker starts again, and
 * the others open the job again (bps.elastic.run). */
static bool starts_together(const struct bpsrun *r, unsigned i, unsigned j)
{
	unsigned agents = r->dir[0] ? r->o.agents : 1;

	return i == j || (r->may_shrink && i * agents / r->o.n == j * agents / r->o.n);
}

void trainers_restart(struct bpsrun *r, struct bpsrun_child *c)
{
	unsigned i = (unsigned)(c - r->trainers);

	c->is_due = true;
	trainer_close_output(c);
	if (r->cause_fd >= 0 && ftruncate(r->cause_fd, 0) < 0)
		output_print_message("cannot empty the file of causes: %s", strerror(errno));
	for (unsigned j = 0; j < r->o.n; j++)
		if (starts_together(r, i, j))
			child_signal_group(&r->trainers[j], SIGTERM);
	if (!r->restart_kill_ms)
		r->restart_kill_ms = clock_now_ms() + r->o.grace_ms;
}

/* Start the workers that start together with the i-th one, if all of them have ended. Returns
 * whether they have. */
static bool start_group_if_ended(struct bpsrun *r, unsigned i, int *ret_rc)
{
	bool is_late = clock_now_ms() >= r->restart_kill_ms, has_running = false;

	for (unsigned j = 0; j < r->o.n; j++) {
		if (!starts_together(r, i, j) || !r->trainers[j].pid)
			continue;
		has_running = true;
		if (is_late)
			child_signal_group(&r->trainers[j], SIGKILL);
	}
	for (unsigned j = 0; !has_running && !*ret_rc && j < r->o.n; j++) {
		struct bpsrun_child *c = &r->trainers[j];

		if (!starts_together(r, i, j) || !c->is_due)
			continue;
		c->is_due = false;
		output_print_message(
			"starting %s again (%u of %u)", c->name, ++c->n_lives, r->o.restarts);
		*ret_rc = trainers_start(r, j);
	}
	return !has_running;
}

int trainers_start_due(struct bpsrun *r)
{
	bool has_due = false;
	int rc = 0;

	for (unsigned i = 0; !rc && r->restart_kill_ms && i < r->o.n; i++)
		if (r->trainers[i].is_due)
			has_due |= !start_group_if_ended(r, i, &rc);
	if (!has_due)
		r->restart_kill_ms = 0;
	return rc;
}
