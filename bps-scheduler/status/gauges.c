/* Writes the scheduler's metrics as Prometheus text. All functions run on the core's thread. */
#include <string.h>

#include "bps-scheduler/status/status_impl.h"
#include "common/daemon/metrics.h"

static uint32_t count_drained_members(const struct sched_core *c, enum role role)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		n += c->members[i]->role == role && c->members[i]->is_drained;
	return n;
}

static void members_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
	static const enum role roles[] = {ROLE_SERVER, ROLE_AGENT};

	metric_append_header(out, "bps_members", "members by role and state");
	for (size_t r = 0; r < 2; r++)
		for (int s = 0; s < MEMBER_STATES; s++)
			metric_append_value(out, "bps_members",
				status_count_members(c, roles[r], (enum member_state)s), "role",
				r ? "agent" : "server", "state",
				sched_member_state_name((enum member_state)s), NULL);
	metric_append_header(out, "bps_drained_members", "members that get no new work, by role");
	for (size_t r = 0; r < 2; r++)
		metric_append_value(out, "bps_drained_members", count_drained_members(c, roles[r]),
			"role", r ? "agent" : "server", NULL);
	metric_append_single(out, "bps_planned_moves_total",
		"partitions moved by plan, for example off drained servers or to new servers",
		(double)c->n_planned);
	metric_append_header(out, "bps_heartbeat_age_seconds",
		"seconds since the last message of a live member");
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->state == MEMBER_UP)
			metric_append_value(out, "bps_heartbeat_age_seconds",
				status_seconds_since(info, c->members[i]->heard_ns), "role",
				sched_role_name(c->members[i]->role), "peer", c->members[i]->name,
				NULL);
}

static void write_jobs_metrics(const struct sched_core *c, struct evbuffer *out)
{
	uint32_t n[JOB_STATES] = {0};

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		n[j->state]++;
	metric_append_header(out, "bps_jobs", "jobs by state");
	metric_append_value(out, "bps_jobs", n[JOB_FORMING], "state", "forming", NULL);
	metric_append_value(out, "bps_jobs", n[JOB_RUNNING], "state", "running", NULL);
	metric_append_single(out, "bps_waiting_partitions", "partitions without a server",
		(double)status_orphans(c));
}

static void health_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
	json_t *list = status_problems(c, info);

	metric_append_header(out, "bps_health", "1: this problem is present");
	for (const struct explanation *e = explanations; e->code; e++)
		if (e->reporter & BY_SCHEDULER)
			metric_append_value(out, "bps_health",
				status_has_problem(list, e->code, NULL), "code", e->code, NULL);
	json_decref(list);
}

void status_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
	metrics_append_process(out, info->started_unix);
	metric_append_single(out, "bps_view", "number of the current view (members and placement)",
		(double)c->view);
	metric_append_single(out, "bps_term", "starts of this cluster's schedulers", c->term);
	members_metrics(c, info, out);
	write_jobs_metrics(c, out);
	status_job_metrics(c, info, out);
	status_quota_metrics(c, out);
	health_metrics(c, info, out);
	metric_append_single(
		out, "bps_view_changes_total", "views made durable", (double)c->changes);
	metric_append_single(out, "bps_state_fsync_seconds",
		"duration of the last sync of the state", (double)info->log_sync_ns / 1e9);
	metric_append_single(
		out, "bps_state_bytes", "size of the state log", (double)info->log_bytes);
	metric_append_header(out, "bps_auth_failures_total", "control connections refused");
	metric_append_value(out, "bps_auth_failures_total", (double)info->auth_failures, "reason",
		"handshake", NULL);
	metric_append_value(out, "bps_auth_failures_total", (double)info->protocol_errors, "reason",
		"protocol", NULL);
	metric_append_value(out, "bps_auth_failures_total", (double)info->trust_timeouts, "reason",
		"timeout", NULL);
}
