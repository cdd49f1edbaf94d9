/* Writes the JSON status of the cluster (status.h), which contains the members, jobs and tolerated
 * losses. Also writes a summary of the cluster in one line. job_status.c writes the status of one
 * job, gauges.c writes metrics. This file reads the core and changes nothing. All functions run on
 * the core's thread. */
#include "bps-scheduler/status/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bps-scheduler/placement/drain.h"
#include "bps-scheduler/placement/speed.h"
#include "bps-scheduler/status/status_impl.h"
#include "common/base/version.h"
#include "common/data/dtype.h"
#include "common/data/shape.h"

#define QUIET_BEATS 3

double status_seconds_since(const struct status_info *info, uint64_t since_ns)
{
	int64_t span_ns = (int64_t)(info->now_ns - since_ns);

	return span_ns > 0 ? (double)span_ns / 1e9 : 0;
}

void status_put_str(json_t *o, const char *key, const char *s)
{
	json_object_set_new(o, key, json_text_sanitized(s));
}

void status_put_num(json_t *o, const char *key, uint64_t v)
{
	json_object_set_new(o, key, json_integer(v < INT64_MAX ? (json_int_t)v : INT64_MAX));
}

void status_put_sec(json_t *o, const char *key, double v)
{
	json_object_set_new(o, key, json_real(v));
}

void status_put_view(json_t *o, const struct sched_core *c)
{
	char text[32];

	snprintf(text, sizeof(text), "%u.%u", (unsigned)(c->view >> 32), (unsigned)c->view);
	status_put_num(o, "view", c->view);
	status_put_str(o, "view_text", text);
}

uint32_t status_count_members(const struct sched_core *c, enum role role, enum member_state s)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		n += c->members[i]->role == role &&
		     (s == MEMBER_STATES || c->members[i]->state == s);
	return n;
}

void status_write_line(const struct sched_core *c, char *ret, size_t room)
{
	uint32_t running = 0;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		running += j->state == JOB_RUNNING;
	snprintf(ret, room,
		"servers %u of %u, agents %u of %u, jobs %u running and %u forming, view %u.%u%s",
		status_count_members(c, ROLE_SERVER, MEMBER_UP),
		status_count_members(c, ROLE_SERVER, MEMBER_STATES),
		status_count_members(c, ROLE_AGENT, MEMBER_UP),
		status_count_members(c, ROLE_AGENT, MEMBER_STATES), running, c->n_jobs - running,
		(unsigned)(c->view >> 32), (unsigned)c->view,
		c->is_undurable ? "; the state cannot be written" : "");
}

uint64_t status_orphans(const struct sched_core *c)
{
	uint64_t n = 0;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		n += j->n_orphans;
	return n;
}

uint32_t status_missing_ranks(const struct sched_job *j, uint32_t *ret, uint32_t max)
{
	uint32_t missing = sched_job_missing_count(j), n = 0;

	for (uint32_t r = 0; r < j->size && n < missing && n < max; r++)
		if (r >= j->n_room || j->workers[r].state == WORKER_ABSENT)
			ret[n++] = r;
	return n;
}

/* ---- cluster ---- */

static uint64_t member_placed_bytes(const struct sched_member *m)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < m->threads; i++)
		n += m->thread_bytes[i];
	return n;
}

/* Return whether the member has sent no message for QUIET_BEATS heartbeat intervals and for at
 * least 1 s. Such a member may be hanging. */
static bool is_member_quiet(
	const struct sched_core *c, const struct status_info *info, const struct sched_member *m)
{
	uint64_t limit_ns = QUIET_BEATS * c->cfg.beat_ms * NS_PER_MS;

	return info->now_ns > m->heard_ns + (limit_ns > NS_PER_S ? limit_ns : NS_PER_S);
}

static json_t *member_status_json(const struct sched_core *c, const struct status_info *info,
	const struct sched_member *m, uint64_t n_parts)
{
	json_t *o = json_object();
	char instance[20];

	snprintf(instance, sizeof(instance), "%016llx", (unsigned long long)m->instance);
	status_put_num(o, "id", m->id);
	status_put_str(o, "role", sched_role_name(m->role));
	status_put_str(o, "name", m->name);
	status_put_str(o, "host", m->host);
	status_put_str(o, "addr", m->addr);
	status_put_num(o, "port", m->port);
	status_put_str(o, "http", m->http);
	status_put_num(o, "pid", m->pid);
	status_put_str(o, "version", m->version);
	status_put_str(o, "provider", m->provider);
	status_put_str(o, "instance", instance);
	status_put_str(o, "state", sched_member_state_name(m->state));
	status_put_sec(o, "state_s", status_seconds_since(info, m->since_ns));
	status_put_sec(o, "quiet_s", status_seconds_since(info, m->heard_ns));
	json_object_set_new(o, "is_quiet", json_boolean(is_member_quiet(c, info, m)));
	status_put_str(o, "why", m->state == MEMBER_DOWN ? m->why_down : "");
	json_object_set_new(o, "is_drained", json_boolean(m->is_drained));
	json_object_set_new(o, "is_leaving", json_boolean(m->is_leaving));
	status_put_str(o, "drain_reason", m->is_drained ? m->drain_reason : "");
	status_put_str(o, "drain_who", m->is_drained ? m->drain_who : "");
	status_put_num(o, "threads", m->threads);
	status_put_num(o, "nic_mbps", speed_mbps(m));
	status_put_str(o, "nic_source", speed_source(m));
	status_put_num(o, "measured_mbps", m->beat.measured_mbps);
	status_put_num(o, "partitions_bytes", member_placed_bytes(m));
	status_put_num(o, "restarts", m->restart_count);
	status_put_num(o, "view", m->beat.view);
	status_put_num(o, "rounds", m->beat.rounds);
	status_put_num(o, "rx_bytes", m->beat.rx_bytes);
	status_put_num(o, "tx_bytes", m->beat.tx_bytes);
	status_put_num(o, "mem_bytes", m->beat.mem_bytes);
	status_put_num(o, "quota_bytes", m->quota_bytes);
	status_put_num(o, "connections", m->beat.connections);
	json_object_set_new(o, "same_host",
		json_pack("{s:s, s:I, s:I}", "state", ctl_same_host_name(m->beat.same_host),
			"connections", (json_int_t)m->beat.same_host_connections, "received_bytes",
			(json_int_t)m->beat.same_host_bytes));
	status_put_num(o, "trainers", m->beat.trainers);
	status_put_num(o, "busy_percent", m->beat.busy_percent);
	status_put_num(o, "partitions", n_parts);
	status_put_sec(o, "rx_bytes_s", m->rate.rx_bytes_s);
	status_put_sec(o, "tx_bytes_s", m->rate.tx_bytes_s);
	status_put_sec(o, "sum_s", m->beat.sum_us / 1e6);
	return o;
}

/* Return the progress of the job, as the servers report it. Returns JSON null before the first
 * report of a server. Servers do not report a job that runs on one machine. */
static json_t *job_progress_json(const struct sched_core *c, const struct sched_job *j)
{
	const struct sched_progress *p = &j->progress;
	const struct sched_member *m = sched_member_by_id(c, p->slowest);
	json_t *o, *slowest = json_null();

	if (!p->is_known)
		return json_null();
	o = json_object();
	status_put_num(o, "round", p->round);
	status_put_sec(o, "steps_s", p->steps_s);
	status_put_sec(o, "push_bytes_s", p->bytes_s);
	status_put_num(o, "rounds", p->rounds);
	status_put_sec(o, "wait_p50_s", p->wait_p50_us / 1e6);
	status_put_sec(o, "wait_p99_s", p->wait_p99_us / 1e6);
	if (m && p->rounds) {
		slowest = json_object();
		status_put_str(slowest, "agent", m->name);
		status_put_str(slowest, "host", m->host);
		status_put_sec(slowest, "share", (double)p->slowest_rounds / p->rounds);
		status_put_sec(slowest, "lag_s", p->slowest_lag_us / 1e6);
		json_object_set_new(slowest, "is_straggler", json_boolean(p->is_straggling));
	}
	json_object_set_new(o, "slowest", slowest);
	return o;
}

/* Describe a machine that has left a running job. */
static json_t *lost_machine_json(const struct sched_member *m, const struct sched_job_member *jm)
{
	json_t *o = json_object();

	status_put_str(o, "agent", m->name);
	status_put_str(o, "host", m->host);
	status_put_num(o, "workers", jm->n_ranks);
	status_put_str(o, "why", jm->why);
	return o;
}

/* Return the bytes of the job's tensors by element type, such as {"f32": 4096, "q8": 520}. */
static json_t *bytes_by_type_json(const struct sched_job *j)
{
	json_t *o = json_object();

	for (uint32_t i = 0; i < j->n_placed; i++) {
		const struct tensor_shape *shape = &j->placed[i]->shape;
		const char *type = dtype_name(shape->dtype);
		json_int_t known = json_integer_value(json_object_get(o, type));

		json_object_set_new(o, type, json_integer(known + (json_int_t)shape_bytes(shape)));
	}
	return o;
}

/* Describe the job's values, whose bound lets workers be ahead of others; null: there are none. */
static json_t *job_values_json(const struct sched_job *j)
{
	uint32_t n = 0, stale = 0;
	json_t *o;

	for (uint32_t i = 0; i < j->n_placed; i++) {
		const struct tensor_shape *shape = &j->placed[i]->shape;

		if (shape->mode != MODE_VALUE)
			continue;
		n++;
		stale = shape->stale > stale ? shape->stale : stale;
	}
	if (!n)
		return json_null();
	o = json_object();
	status_put_num(o, "tensors", n);
	json_object_set_new(
		o, "stale", stale == STALE_UNBOUNDED ? json_null() : json_integer(stale));
	return o;
}

json_t *status_job_brief(
	const struct sched_core *c, const struct status_info *info, const struct sched_job *j)
{
	json_t *o = json_object(), *agents = json_array(), *missing = json_array();
	json_t *lost = json_array();
	uint32_t ranks[STATUS_MISSING_MAX], n = status_missing_ranks(j, ranks, STATUS_MISSING_MAX);
	uint64_t parts = 0, agents_up = 0;

	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		if (j->members[i].is_gone) {
			json_array_append_new(lost, lost_machine_json(m, &j->members[i]));
			continue;
		}
		json_array_append_new(agents, json_text_sanitized(m->name));
		agents_up += m->state == MEMBER_UP;
	}
	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(missing, json_integer(ranks[i]));
	for (uint32_t i = 0; i < j->n_placed; i++)
		parts += j->placed[i]->n_parts;
	status_put_num(o, "id", j->id);
	status_put_str(o, "name", j->name);
	status_put_num(o, "uid", j->uid);
	status_put_str(o, "state", sched_job_state_name(j->state));
	status_put_sec(o, "state_s", status_seconds_since(info, j->since_ns));
	status_put_num(o, "size", j->size);
	status_put_num(o, "joined", j->n_joined);
	status_put_num(o, "done", j->n_done);
	json_object_set_new(o, "agents", agents);
	json_object_set_new(o, "missing_ranks", missing);
	json_object_set_new(o, "lost", lost);
	status_put_num(o, "max_size", sched_rank_bound(j));
	status_put_num(o, "newcomers", j->n_newcomers);
	status_put_num(o, "at_barrier", j->n_at_barrier);
	status_put_num(o, "barrier", j->barrier);
	status_put_num(o, "backup", j->backup);
	status_put_num(o, "tensors", j->n_placed);
	status_put_num(o, "undeclared", j->n_tensors - j->n_placed);
	status_put_num(o, "bytes", j->bytes);
	json_object_set_new(o, "bytes_by_type", bytes_by_type_json(j));
	json_object_set_new(o, "values", job_values_json(j));
	status_put_num(o, "partitions", parts);
	status_put_num(o, "waiting_partitions", j->n_orphans);
	json_object_set_new(o, "has_token", json_boolean(j->has_token));
	json_object_set_new(o, "quota", status_job_quota(c, j));
	status_put_num(o, "agents_up", agents_up);
	if (j->state == JOB_RUNNING)
		json_object_set_new(o, "pace", job_progress_json(c, j));
	if (j->state == JOB_ENDED) {
		status_put_num(o, "code", j->code);
		status_put_str(o, "text", j->end_text);
	}
	return o;
}

/* Return an array, indexed by member id, with the number of partitions on each server. The caller
 * frees it. */
static uint64_t *parts_by_server(const struct sched_core *c)
{
	uint64_t *n = sched_alloc(c->n_members + 1, sizeof(*n));

	for (const struct sched_job *j = c->jobs; j; j = j->next) {
		struct sched_part_ref p = {NULL, 0};

		while (sched_part_next(j, SERVER_ANY, &p))
			if (p.t->parts[p.i].server <= c->n_members)
				n[p.t->parts[p.i].server]++;
	}
	return n;
}

static json_t *tolerates_json(const struct sched_core *c, const struct status_info *info)
{
	json_t *o = json_object();
	bool lacks_memory;

	status_put_num(o, "server_losses", drain_tolerated_losses(c, &lacks_memory));
	status_put_str(o, "limit", lacks_memory ? "memory" : "servers");
	json_object_set_new(o, "scheduler_loss", json_boolean(info->has_log && !c->is_undurable));
	return o;
}

static json_t *muted_codes_json(const struct sched_core *c, const struct status_info *info)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < c->n_mutes; i++) {
		const struct sched_mute *m = &c->mutes[i];
		json_t *o;

		if (m->end_ns <= info->now_ns)
			continue;
		o = json_object();
		status_put_str(o, "code", m->code);
		status_put_sec(o, "left_s", (double)(m->end_ns - info->now_ns) / 1e9);
		status_put_str(o, "reason", m->reason);
		status_put_str(o, "who", m->who);
		json_array_append_new(list, o);
	}
	return list;
}

static json_t *state_log_json(const struct status_info *info)
{
	json_t *o = json_object();

	status_put_str(o, "kind", info->has_log ? "file" : "memory");
	status_put_num(o, "bytes", info->log_bytes);
	status_put_sec(o, "sync_s", (double)info->log_sync_ns / 1e9);
	return o;
}

json_t *status_cluster(const struct sched_core *c, const struct status_info *info)
{
	bool is_error, is_any;
	json_t *problems = status_problems(c, info);
	json_t *o = json_object(), *members = json_array(), *jobs = json_array();
	json_t *ended = json_array();
	uint64_t *n_parts = parts_by_server(c);

	for (uint32_t i = 1; i <= c->n_members; i++)
		json_array_append_new(
			members, member_status_json(c, info, c->members[i], n_parts[i]));
	free(n_parts);
	for (const struct sched_job *j = c->jobs; j; j = j->next)
		json_array_append_new(jobs, status_job_brief(c, info, j));
	for (const struct sched_job *j = c->ended; j; j = j->next)
		json_array_append_new(ended, status_job_brief(c, info, j));
	status_put_num(o, "schema", STATUS_SCHEMA);
	status_put_str(o, "role", "scheduler");
	status_put_str(o, "cluster", c->cfg.cluster);
	status_put_str(o, "version", BPS_VERSION);
	status_put_str(o, "commit", bps_commit());
	status_put_num(o, "pid", (uint64_t)getpid());
	status_mark_muted(c, info, problems, &is_error, &is_any);
	status_put_str(o, "health", is_error ? "ERR" : is_any ? "WARN" : "OK");
	status_put_view(o, c);
	status_put_num(o, "term", c->term);
	status_put_sec(o, "up_s", status_seconds_since(info, c->started_ns));
	json_object_set_new(o, "is_durable", json_boolean(!c->is_undurable));
	json_object_set_new(o, "state", state_log_json(info));
	json_object_set_new(o, "tolerates", tolerates_json(c, info));
	json_object_set_new(o, "problems", problems);
	json_object_set_new(o, "muted", muted_codes_json(c, info));
	json_object_set_new(o, "members", members);
	json_object_set_new(o, "jobs", jobs);
	json_object_set_new(o, "users", status_users_json(c));
	json_object_set_new(o, "ended", ended);
	return o;
}
