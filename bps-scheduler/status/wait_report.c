/* Writes the wait report of a job as JSON: the tensor and the round for which calls wait, and the
 * workers or servers that are missing. For a running job, a status probe collects the waiting
 * calls. The status probe then starts further probes, each for one tensor (why_stuck.c). The core's
 * own state shows which workers have not joined and which tensors are not declared. All functions
 * run on the core's thread. */
#include <stdlib.h>

#include "bps-scheduler/status/status_impl.h"

/* largest number of entries in a list of workers or servers; further entries are only counted */
#define NAMED_MAX      16
#define UNDECLARED_MAX 8

struct wait_list {
	json_t *list;
	uint32_t n;
};

static struct wait_list wait_list_create(void)
{
	return (struct wait_list){json_array(), 0};
}

/* Add o to the list, or only count o if the list is full. Takes ownership of o. */
static void wait_list_append(struct wait_list *p, json_t *o)
{
	if (p->n++ < NAMED_MAX)
		json_array_append_new(p->list, o);
	else
		json_decref(o);
}

static void wait_list_put_json(
	json_t *o, const char *list, const char *count, const struct wait_list *p)
{
	json_object_set_new(o, list, p->list);
	status_put_num(o, count, p->n);
}

static json_t *wait_entry_json(
	const char *why, const char *tensor, uint64_t round, double s, struct wait_list *waiting)
{
	json_t *o = json_object();

	status_put_str(o, "why", why);
	json_object_set_new(o, "tensor", tensor ? json_text_sanitized(tensor) : json_null());
	status_put_num(o, "round", round);
	status_put_sec(o, "s", s);
	wait_list_put_json(o, "waiting", "n_waiting", waiting);
	return o;
}

static json_t *wait_worker_json(
	const struct sched_core *c, uint32_t rank, uint32_t agent, uint32_t pid)
{
	const struct sched_member *m = sched_member_by_id(c, agent);
	json_t *o = json_object();

	status_put_num(o, "rank", rank);
	status_put_str(o, "host", m ? m->host : "");
	status_put_str(o, "agent", m ? m->name : "");
	status_put_num(o, "pid", pid);
	return o;
}

/* ---- forming ---- */

static json_t *join_wait_json(
	const struct status_info *info, const struct sched_core *c, const struct sched_job *j)
{
	struct wait_list waiting = wait_list_create(), missing = wait_list_create();
	uint32_t n = sched_job_missing_count(j);
	json_t *o;

	for (uint32_t r = 0; r < j->n_room || missing.n < n; r++) {
		if (r < j->n_room && j->workers[r].state != WORKER_ABSENT) {
			wait_list_append(&waiting,
				wait_worker_json(c, r, j->workers[r].agent, j->workers[r].pid));
		} else if (missing.n < n) {
			json_t *w = json_object();

			status_put_num(w, "rank", r);
			wait_list_append(&missing, w);
		}
	}
	o = wait_entry_json("join", NULL, 0, status_seconds_since(info, j->since_ns), &waiting);
	wait_list_put_json(o, "missing", "n_missing", &missing);
	return o;
}

/* ---- tensors that not all members of the job have declared ---- */

static json_t *declare_wait_json(const struct status_info *info, const struct sched_core *c,
	const struct sched_job *j, const struct sched_tensor *t)
{
	struct wait_list waiting = wait_list_create(), missing = wait_list_create();
	json_t *o;

	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_job_member *jm = &j->members[i];
		uint32_t pid = jm->low_rank < j->n_room ? j->workers[jm->low_rank].pid : 0;

		if (jm->is_gone)
			continue;
		wait_list_append(sched_tensor_has_declared(t, i) ? &waiting : &missing,
			wait_worker_json(c, jm->low_rank, jm->agent, pid));
	}
	o = wait_entry_json("declare", t->name, 0,
		t->since_ns ? status_seconds_since(info, t->since_ns) : 0, &waiting);
	wait_list_put_json(o, "missing", "n_missing", &missing);
	return o;
}

static void append_declare_waits(const struct status_info *info, const struct sched_core *c,
	const struct sched_job *j, json_t *list)
{
	uint32_t n = 0;

	for (uint32_t b = 0; b < j->n_buckets && n < UNDECLARED_MAX; b++)
		for (const struct sched_tensor *t = j->buckets[b]; t && n < UNDECLARED_MAX;
			t = t->next_hash)
			if (t->state == TENSOR_COLLECTING) {
				json_array_append_new(list, declare_wait_json(info, c, j, t));
				n++;
			}
}

/* ---- bps_gpu_open ---- */

/* Describe the wait in bps_gpu_open on one machine. `first`: p->workers[first] is the machine's
 * first worker that waits in bps_gpu_open or is missing. */
static json_t *gpu_open_wait_json(
	const struct sched_core *c, const struct sched_probe *p, uint32_t first)
{
	struct wait_list waiting = wait_list_create(), missing = wait_list_create();
	uint32_t agent = p->workers[first].agent, ms = 0;
	json_t *o;

	for (uint32_t i = first; i < p->n_workers; i++) {
		const struct sched_probe_worker *w = &p->workers[i];

		if (w->agent != agent || w->w.gpu_open == GPU_OPEN_NONE)
			continue;
		ms = w->w.gpu_open_ms;
		wait_list_append(w->w.gpu_open == GPU_OPEN_WAITS ? &waiting : &missing,
			wait_worker_json(c, w->w.rank, w->agent, w->w.pid));
	}
	o = wait_entry_json("gpu_open", NULL, 0, ms / 1e3, &waiting);
	wait_list_put_json(o, "missing", "n_missing", &missing);
	return o;
}

static void append_gpu_open_waits(
	const struct sched_core *c, const struct sched_probe *p, json_t *list)
{
	/* is_seen[id]: the agent with this id has an entry in `list` already */
	bool *is_seen = sched_alloc(c->n_members + 1, sizeof(*is_seen));

	for (uint32_t i = 0; i < p->n_workers; i++) {
		uint32_t agent = p->workers[i].agent;

		if (p->workers[i].w.gpu_open == GPU_OPEN_NONE || agent > c->n_members ||
			is_seen[agent])
			continue;
		is_seen[agent] = true;
		json_array_append_new(list, gpu_open_wait_json(c, p, i));
	}
	free(is_seen);
}

/* ---- rounds ---- */

static struct wait_list list_waiting_callers(
	const struct sched_core *c, const struct sched_probe *p, uint32_t tensor, double *ret_s)
{
	struct wait_list waiting = wait_list_create();

	*ret_s = 0;
	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct sched_probe_worker *w = &p->workers[i];

		if (w->w.oldest_tensor != tensor)
			continue;
		if (w->w.oldest_ms / 1e3 > *ret_s)
			*ret_s = w->w.oldest_ms / 1e3;
		wait_list_append(&waiting, wait_worker_json(c, w->w.rank, w->agent, w->w.pid));
	}
	return waiting;
}

static struct wait_list list_late_workers(
	const struct sched_core *c, const struct sched_probe *detail)
{
	struct wait_list late = wait_list_create();

	for (uint32_t i = 0; i < detail->n_workers; i++) {
		const struct sched_probe_worker *w = &detail->workers[i];
		json_t *o;

		if (w->w.submitted >= detail->round && w->w.is_attached)
			continue;
		o = wait_worker_json(c, w->w.rank, w->agent, w->w.pid);
		json_object_set_new(o, "attached", json_boolean(w->w.is_attached));
		status_put_num(o, "submitted", w->w.submitted);
		status_put_sec(o, "quiet_s", w->w.quiet_ms / 1e3);
		wait_list_append(&late, o);
	}
	return late;
}

/* List the servers that sum partitions of t. */
static struct wait_list list_tensor_servers(
	const struct status_info *info, const struct sched_core *c, const struct sched_tensor *t)
{
	bool *is_named = sched_alloc(c->n_members + 1, sizeof(*is_named));
	struct wait_list servers = wait_list_create();

	for (uint32_t k = 0; t->parts && k < t->n_parts; k++) {
		const struct sched_member *m = sched_member_by_id(c, t->parts[k].server);
		json_t *o;

		if (!m || is_named[m->id])
			continue;
		is_named[m->id] = true;
		o = json_object();
		status_put_str(o, "name", m->name);
		status_put_str(o, "host", m->host);
		status_put_str(o, "state", sched_member_state_name(m->state));
		status_put_sec(o, "quiet_s", status_seconds_since(info, m->heard_ns));
		wait_list_append(&servers, o);
	}
	free(is_named);
	return servers;
}

static bool has_each_agent_answered(const struct sched_probe *p)
{
	for (uint32_t i = 0; i < p->n_members; i++)
		if (!p->has_answered[i])
			return false;
	return true;
}

static json_t *round_wait_json(const struct status_info *info, const struct sched_core *c,
	const struct sched_job *j, const struct sched_probe *p, const struct sched_probe *detail)
{
	const struct sched_tensor *t =
		detail->tensor < j->n_placed ? j->placed[detail->tensor] : NULL;
	struct wait_list late = list_late_workers(c, detail), servers = wait_list_create(), waiting;
	double s;
	json_t *o;

	waiting = list_waiting_callers(c, p, detail->tensor, &s);
	if (t && !late.n && has_each_agent_answered(detail)) {
		json_decref(servers.list);
		servers = list_tensor_servers(info, c, t);
	}
	o = wait_entry_json(late.n                            ? "submit"
			    : has_each_agent_answered(detail) ? "sum"
							      : "unknown",
		t ? t->name : "?", detail->round, s, &waiting);
	wait_list_put_json(o, "missing", "n_missing", &late);
	wait_list_put_json(o, "servers", "n_servers", &servers);
	return o;
}

json_t *wait_report_json(const struct status_info *info, const struct sched_core *c,
	const struct sched_job *j, const struct sched_probe *p)
{
	json_t *list = json_array();

	if (j->state == JOB_FORMING)
		json_array_append_new(list, join_wait_json(info, c, j));
	if (j->state != JOB_RUNNING)
		return list;
	append_declare_waits(info, c, j, list);
	if (p)
		append_gpu_open_waits(c, p, list);
	for (const struct sched_probe *d = p ? p->details : NULL; d; d = d->next)
		json_array_append_new(list, round_wait_json(info, c, j, p, d));
	return list;
}
