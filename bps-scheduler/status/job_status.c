/* Writes the status of a single job for /status: its agents, its workers, and what the workers'
 * calls wait for. bps-scheduler/core/why_stuck.c sends the probes that find out what the calls wait
 * for. All functions run on the core's thread. */
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/stalls.h"
#include "bps-scheduler/core/why_stuck.h"
#include "bps-scheduler/model/compare.h"
#include "bps-scheduler/status/status_impl.h"

uint32_t status_find_job(const struct sched_core *c, const char *name)
{
	const struct sched_job *found = NULL;
	unsigned long number = strtoul(name, NULL, 10);

	/* a # before a number selects the job with that number, because a job's name may consist of
	 * digits */
	if (*name == '#') {
		found = sched_job_any_by_id(c, (uint32_t)strtoul(name + 1, NULL, 10));
		return found ? found->id : 0;
	}

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		if (strcmp(j->name, name) == 0 && (!found || j->state > found->state))
			found = j;
	for (const struct sched_job *j = c->ended; j && !found; j = j->next)
		if (strcmp(j->name, name) == 0)
			found = j;
	if (!found && number && number < CTL_NO_ID)
		found = sched_job_any_by_id(c, (uint32_t)number);
	return found ? found->id : 0;
}

static int fewest_calls_first(const void *a, const void *b)
{
	const struct ctl_report_worker *x = &(*(const struct sched_probe_worker *const *)a)->w;
	const struct ctl_report_worker *y = &(*(const struct sched_probe_worker *const *)b)->w;

	int rc = compare_u64(x->calls, y->calls);

	if (!rc)
		rc = compare_u64(y->quiet_ms, x->quiet_ms);
	return rc ? rc : compare_u64(x->rank, y->rank);
}

static json_t *oldest_wait_json(const struct sched_job *j, const struct ctl_report_worker *w)
{
	json_t *o;

	if (w->oldest_tensor == CTL_NO_ID)
		return json_null();
	o = json_object();
	status_put_str(o, "tensor",
		w->oldest_tensor < j->n_placed ? j->placed[w->oldest_tensor]->name : "?");
	status_put_num(o, "round", w->oldest_round);
	status_put_sec(o, "s", w->oldest_ms / 1e3);
	return o;
}

static json_t *job_worker_json(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe_worker *w, uint64_t most_calls)
{
	const struct sched_member *m = sched_member_by_id(c, w->agent);
	json_t *o = json_object();

	status_put_num(o, "rank", w->w.rank);
	status_put_str(o, "host", m->host);
	status_put_str(o, "agent", m->name);
	status_put_num(o, "pid", w->w.pid);
	json_object_set_new(o, "attached", json_boolean(w->w.is_attached));
	status_put_num(o, "submitted", w->w.calls);
	status_put_num(o, "completed", w->w.completed);
	status_put_sec(o, "quiet_s", w->w.quiet_ms / 1e3);
	status_put_num(o, "behind", most_calls - w->w.calls);
	json_object_set_new(o, "oldest", oldest_wait_json(j, &w->w));
	return o;
}

static json_t *job_workers_json(
	const struct sched_core *c, const struct sched_job *j, const struct sched_probe *p)
{
	const struct sched_probe_worker **order = sched_alloc(p->n_workers, sizeof(*order));
	json_t *list = json_array();
	uint64_t most = 0;

	for (uint32_t i = 0; i < p->n_workers; i++) {
		order[i] = &p->workers[i];
		if (order[i]->w.calls > most)
			most = order[i]->w.calls;
	}
	qsort(order, p->n_workers, sizeof(*order), fewest_calls_first);
	for (uint32_t i = 0; i < p->n_workers; i++)
		json_array_append_new(list, job_worker_json(c, j, order[i], most));
	free(order);
	return list;
}

static json_t *job_agents_json(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, json_t *missing)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);
		bool has_answered = p && i < p->n_members && p->has_answered[i];
		json_t *o;

		if (j->members[i].is_gone)
			continue;
		o = json_object();
		status_put_str(o, "name", m->name);
		status_put_str(o, "host", m->host);
		json_object_set_new(o, "has_answered", json_boolean(has_answered));
		status_put_str(o, "text", p && has_answered && p->texts[i] ? p->texts[i] : "");
		json_object_set_new(o, "steps", step_report_of_agent(c, j, p, i));
		json_array_append_new(list, o);
		if (p && !has_answered)
			json_array_append_new(missing, json_text_sanitized(m->name));
	}
	return list;
}

json_t *status_job_json(const struct sched_core *c, const struct status_info *info, uint32_t job,
	const struct sched_probe *p)
{
	const struct sched_job *j = sched_job_any_by_id(c, job);
	struct sched_finding found[SCHED_FINDINGS_MAX];
	char condition[CTL_TEXT_MAX + 1];
	json_t *o, *missing, *waits, *problems;
	bool is_error, is_any;

	if (!j)
		return NULL;
	waits = wait_report_json(info, c, j, p);
	why_stuck_conditions(c, j, p, condition);
	o = json_object();
	missing = json_array();
	status_put_num(o, "schema", STATUS_SCHEMA);
	status_put_str(o, "role", "scheduler");
	status_put_view(o, c);
	json_object_set_new(o, "job", status_job_brief(c, info, j));
	json_object_set_new(o, "agents", job_agents_json(c, j, p, missing));
	json_object_set_new(o, "workers",
		p && j->state == JOB_RUNNING ? job_workers_json(c, j, p) : json_array());
	json_object_set_new(o, "missing", missing);
	json_object_set_new(o, "steps", step_report_of_job(c, j, p));
	problems = json_array();
	if (p)
		status_findings(c, info, j, found, stalls_list_findings(c, j, p, found), problems);
	status_mark_muted(c, info, problems, &is_error, &is_any);
	json_object_set_new(o, "problems", problems);
	json_object_set_new(o, "waits", waits);
	status_put_str(o, "condition", condition);
	return o;
}
