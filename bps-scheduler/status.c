#include "bps-scheduler/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/status_impl.h"
#include "common/metrics.h"

#define MISSING_MAX   8
#define AGENT_DOWN_NS (600 * NS_PER_S) /* machines that were taken away are no lasting problem */
#define SILENT_SHARE  2                /* of the time after which a silent member is dead */
#define STUCK_NS      (5 * NS_PER_S)
#define FORMING_NS    (60 * NS_PER_S)

double status_span_s(const struct status_info *info, uint64_t since_ns)
{
	return info->now_ns > since_ns ? (double)(info->now_ns - since_ns) / 1e9 : 0;
}

/* Names come from anywhere: what is not UTF-8 must not spoil the document. */
json_t *status_str(const char *s)
{
	json_t *j = json_string(s ? s : "");
	char *copy;

	if (j)
		return j;
	copy = strdup(s);
	for (char *p = copy; p && *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	j = copy ? json_string(copy) : NULL;
	free(copy);
	return j;
}

void status_put_str(json_t *o, const char *key, const char *s)
{
	json_object_set_new(o, key, status_str(s));
}

void status_put_num(json_t *o, const char *key, uint64_t v)
{
	json_object_set_new(o, key, json_integer((json_int_t)v));
}

void status_put_sec(json_t *o, const char *key, double v)
{
	json_object_set_new(o, key, json_real(v));
}

static void put_view(json_t *o, const struct sched_core *c)
{
	char text[32];

	snprintf(text, sizeof(text), "%u.%u", (unsigned)(c->view >> 32), (unsigned)c->view);
	status_put_num(o, "view", c->view);
	status_put_str(o, "view_text", text);
}

/* ---- problems ---- */

struct problems {
	json_t *list;
	bool is_error;
};

struct lines {
	char what[256], effect[256], action[256];
};

void status_problem(json_t *list, const char *code, bool is_error, const char *what,
	const char *effect, const char *action)
{
	json_t *o = json_object();

	status_put_str(o, "code", code);
	status_put_str(o, "severity", is_error ? "ERR" : "WARN");
	status_put_str(o, "what", what);
	status_put_str(o, "effect", effect);
	status_put_str(o, "action", action);
	json_array_append_new(list, o);
}

static void problem(struct problems *p, const char *code, bool is_error, const struct lines *l)
{
	status_problem(p->list, code, is_error, l->what, l->effect, l->action);
	p->is_error |= is_error;
}

static const char *role_word(const struct member *m)
{
	return m->role == ROLE_SERVER ? "server" : "agent";
}

static uint32_t count_members(const struct sched_core *c, enum role role, enum member_state s)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		n += c->members[i]->role == role && c->members[i]->state == s;
	return n;
}

static uint64_t orphans(const struct sched_core *c)
{
	uint64_t n = 0;

	for (const struct job *j = c->jobs; j; j = j->next)
		n += j->n_orphans;
	return n;
}

static void down_problem(const struct sched_core *c, const struct status_info *info,
	const struct member *m, struct problems *p)
{
	bool is_server = m->role == ROLE_SERVER;
	bool is_error = is_server && orphans(c);
	struct lines l;

	if (!is_server && info->now_ns - m->since_ns > AGENT_DOWN_NS)
		return;
	snprintf(l.what, sizeof(l.what), "%s on %s: down for %.0f s (%s)", m->name, m->host,
		status_span_s(info, m->since_ns),
		m->why_down[0] ? m->why_down : "since before the restart");
	if (is_error)
		snprintf(l.effect, sizeof(l.effect),
			"no server is left; %llu partitions wait for one",
			(unsigned long long)orphans(c));
	else if (is_server)
		snprintf(l.effect, sizeof(l.effect),
			"its partitions are with the other servers; no round was lost");
	else
		snprintf(l.effect, sizeof(l.effect), "its running jobs ended with AGENT_LOST");
	snprintf(l.action, sizeof(l.action), "`systemctl status bps-%s` on %s", role_word(m),
		m->host);
	problem(p, is_server ? "SERVER_DOWN" : "AGENT_DOWN", is_error, &l);
}

static uint64_t member_dead_ns(const struct sched_core *c, const struct member *m)
{
	return NS_PER_MS * (m->role == ROLE_SERVER ? c->cfg.server_dead_ms : c->cfg.agent_dead_ms);
}

static void silent_problem(const struct sched_core *c, const struct status_info *info,
	const struct member *m, struct problems *p)
{
	uint64_t dead_ns = m->deadline_ns;
	struct lines l;

	if (m->state == MEMBER_UP)
		dead_ns = m->heard_ns + member_dead_ns(c, m);
	snprintf(l.what, sizeof(l.what), "%s %s on %s: %s for %.1f s", role_word(m), m->name,
		m->host,
		m->state == MEMBER_UP         ? "silent"
		: m->state == MEMBER_EXPECTED ? "not back since the scheduler's restart"
					      : "connection lost",
		status_span_s(info, m->state == MEMBER_UP ? m->heard_ns : m->since_ns));
	snprintf(l.effect, sizeof(l.effect), "taken for dead in %.1f s",
		dead_ns > info->now_ns ? (double)(dead_ns - info->now_ns) / 1e9 : 0);
	snprintf(l.action, sizeof(l.action), "wait; then `systemctl status bps-%s` on %s",
		role_word(m), m->host);
	problem(p, "CONTROL_SILENT", false, &l);
}

static void stuck_problem(
	const struct status_info *info, const struct member *m, struct problems *p)
{
	struct lines l;

	snprintf(l.what, sizeof(l.what),
		"%s %s on %s: alive, but a thread has not moved for %.0f s", role_word(m), m->name,
		m->host, status_span_s(info, m->moved_ns));
	snprintf(l.effect, sizeof(l.effect), "rounds may wait for it");
	snprintf(l.action, sizeof(l.action), "its watchdog restarts it; else restart bps-%s on %s",
		role_word(m), m->host);
	problem(p, "MEMBER_STUCK", false, &l);
}

static void member_problems(
	const struct sched_core *c, const struct status_info *info, struct problems *p)
{
	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct member *m = c->members[i];

		if (m->state == MEMBER_DOWN)
			down_problem(c, info, m, p);
		else if (m->state != MEMBER_UP ||
			 info->now_ns > m->heard_ns + member_dead_ns(c, m) / SILENT_SHARE)
			silent_problem(c, info, m, p);
		else if (m->beat.progress && info->now_ns > m->moved_ns + STUCK_NS)
			stuck_problem(info, m, p);
	}
}

static uint32_t missing_ranks(const struct job *j, uint32_t *ret, uint32_t max)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < j->size && n < max; r++)
		if (r >= j->n_room || j->workers[r].state == WORKER_ABSENT)
			ret[n++] = r;
	return n;
}

static void forming_problem(const struct status_info *info, const struct job *j, struct problems *p)
{
	uint32_t ranks[MISSING_MAX];
	uint32_t n = missing_ranks(j, ranks, MISSING_MAX), more = j->size - j->n_joined - n;
	struct lines l;
	int at;

	at = snprintf(l.what, sizeof(l.what),
		"job %.80s: %u of %u workers have joined in %.0f s; missing rank", j->name,
		j->n_joined, j->size, status_span_s(info, j->since_ns));
	for (uint32_t i = 0; i < n && at > 0 && at < (int)sizeof(l.what); i++)
		at += snprintf(
			l.what + at, sizeof(l.what) - (size_t)at, "%s %u", i ? "," : "", ranks[i]);
	if (more && at > 0 && at < (int)sizeof(l.what))
		snprintf(l.what + at, sizeof(l.what) - (size_t)at, " and %u more", more);
	snprintf(l.effect, sizeof(l.effect), "its workers wait in bps_open, until their time-out");
	snprintf(l.action, sizeof(l.action), "start the missing workers, or look into their logs");
	problem(p, "JOB_FORMING_LONG", false, &l);
}

static void job_problems(
	const struct sched_core *c, const struct status_info *info, struct problems *p)
{
	struct lines l;
	bool has_server = false;

	for (const struct job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_FORMING && info->now_ns > j->since_ns + FORMING_NS)
			forming_problem(info, j, p);
	for (uint32_t i = 1; i <= c->n_members; i++)
		has_server |= c->members[i]->role == ROLE_SERVER;
	if (has_server || !orphans(c)) /* else SERVER_DOWN tells it */
		return;
	snprintf(l.what, sizeof(l.what), "no server has ever joined");
	snprintf(l.effect, sizeof(l.effect), "%llu partitions wait for one",
		(unsigned long long)orphans(c));
	snprintf(l.action, sizeof(l.action), "start bps-server on some machine");
	problem(p, "NO_SERVER", true, &l);
}

static struct problems problems_of(const struct sched_core *c, const struct status_info *info)
{
	struct problems p = {json_array(), false};
	struct lines l = {"the scheduler cannot write its state",
		"running jobs go on; no new jobs or members, no fail-over",
		"see the scheduler's log; free or repair the disk of --state-dir"};

	if (c->is_undurable)
		problem(&p, "STATE_NOT_DURABLE", true, &l);
	member_problems(c, info, &p);
	job_problems(c, info, &p);
	return p;
}

/* ---- cluster ---- */

static uint64_t placed_bytes(const struct member *m)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < m->threads; i++)
		n += m->thread_bytes[i];
	return n;
}

static json_t *member_json(const struct status_info *info, const struct member *m)
{
	json_t *o = json_object();
	char instance[20];

	snprintf(instance, sizeof(instance), "%016llx", (unsigned long long)m->instance);
	status_put_num(o, "id", m->id);
	status_put_str(o, "role", role_word(m));
	status_put_str(o, "name", m->name);
	status_put_str(o, "host", m->host);
	status_put_str(o, "addr", m->addr);
	status_put_num(o, "port", m->port);
	status_put_num(o, "pid", m->pid);
	status_put_str(o, "version", m->version);
	status_put_str(o, "instance", instance);
	status_put_str(o, "state", sched_member_state_name(m->state));
	status_put_sec(o, "state_s", status_span_s(info, m->since_ns));
	status_put_sec(o, "quiet_s", status_span_s(info, m->heard_ns));
	status_put_str(o, "why", m->state == MEMBER_DOWN ? m->why_down : "");
	status_put_num(o, "threads", m->threads);
	status_put_num(o, "nic_mbps", m->nic_mbps);
	status_put_num(o, "partitions_bytes", placed_bytes(m));
	status_put_num(o, "restarts", m->restart_count);
	status_put_num(o, "view", m->beat.view);
	status_put_num(o, "rounds", m->beat.rounds);
	status_put_num(o, "rx_bytes", m->beat.rx_bytes);
	status_put_num(o, "tx_bytes", m->beat.tx_bytes);
	status_put_num(o, "mem_bytes", m->beat.mem_bytes);
	status_put_num(o, "quota_bytes", m->quota_bytes);
	status_put_num(o, "connections", m->beat.connections);
	status_put_num(o, "trainers", m->beat.trainers);
	return o;
}

static json_t *job_json(
	const struct sched_core *c, const struct status_info *info, const struct job *j)
{
	json_t *o = json_object(), *agents = json_array(), *missing = json_array();
	uint32_t ranks[MISSING_MAX], n = missing_ranks(j, ranks, MISSING_MAX);
	uint64_t parts = 0;

	for (uint32_t i = 0; i < j->n_members; i++)
		json_array_append_new(
			agents, status_str(sched_member(c, j->members[i].agent)->name));
	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(missing, json_integer(ranks[i]));
	for (uint32_t i = 0; i < j->n_placed; i++)
		parts += j->placed[i]->n_parts;
	status_put_num(o, "id", j->id);
	status_put_str(o, "name", j->name);
	status_put_num(o, "uid", j->uid);
	status_put_str(o, "state", sched_job_state_name(j->state));
	status_put_sec(o, "state_s", status_span_s(info, j->since_ns));
	status_put_num(o, "size", j->size);
	status_put_num(o, "joined", j->n_joined);
	status_put_num(o, "done", j->n_done);
	json_object_set_new(o, "agents", agents);
	json_object_set_new(o, "missing_ranks", missing);
	status_put_num(o, "tensors", j->n_placed);
	status_put_num(o, "undeclared", j->n_tensors - j->n_placed);
	status_put_num(o, "bytes", j->bytes);
	status_put_num(o, "partitions", parts);
	status_put_num(o, "waiting_partitions", j->n_orphans);
	if (j->state == JOB_ENDED) {
		status_put_num(o, "code", j->code);
		status_put_str(o, "text", j->end_text);
	}
	return o;
}

static json_t *state_json(const struct status_info *info)
{
	json_t *o = json_object();

	status_put_str(o, "kind", info->has_log ? "file" : "memory");
	status_put_num(o, "bytes", info->log_bytes);
	status_put_sec(o, "sync_s", (double)info->log_sync_ns / 1e9);
	return o;
}

json_t *status_cluster(const struct sched_core *c, const struct status_info *info)
{
	struct problems p = problems_of(c, info);
	json_t *o = json_object(), *members = json_array(), *jobs = json_array();
	json_t *ended = json_array();

	for (uint32_t i = 1; i <= c->n_members; i++)
		json_array_append_new(members, member_json(info, c->members[i]));
	for (const struct job *j = c->jobs; j; j = j->next)
		json_array_append_new(jobs, job_json(c, info, j));
	for (const struct job *j = c->ended; j; j = j->next)
		json_array_append_new(ended, job_json(c, info, j));
	status_put_num(o, "schema", STATUS_SCHEMA);
	status_put_str(o, "role", "scheduler");
	status_put_str(o, "cluster", c->cfg.cluster);
	status_put_str(o, "version", BPS_VERSION);
	status_put_str(o, "health", p.is_error ? "ERR" : json_array_size(p.list) ? "WARN" : "OK");
	put_view(o, c);
	status_put_num(o, "term", c->term);
	status_put_sec(o, "up_s", status_span_s(info, c->started_ns));
	json_object_set_new(o, "is_durable", json_boolean(!c->is_undurable));
	json_object_set_new(o, "state", state_json(info));
	json_object_set_new(o, "problems", p.list);
	json_object_set_new(o, "members", members);
	json_object_set_new(o, "jobs", jobs);
	json_object_set_new(o, "ended", ended);
	return o;
}

/* ---- one job ---- */

uint32_t status_find_job(const struct sched_core *c, const char *name)
{
	const struct job *found = NULL;
	unsigned long number = strtoul(name, NULL, 10);

	if (*name == '#') { /* names may be numbers */
		found = sched_job_any(c, (uint32_t)strtoul(name + 1, NULL, 10));
		return found ? found->id : 0;
	}

	for (const struct job *j = c->jobs; j; j = j->next)
		if (strcmp(j->name, name) == 0 && (!found || j->state > found->state))
			found = j;
	for (const struct job *j = c->ended; j && !found; j = j->next)
		if (strcmp(j->name, name) == 0)
			found = j;
	if (!found && number && number < CTL_NO_ID)
		found = sched_job_any(c, (uint32_t)number);
	return found ? found->id : 0;
}

static int fewest_calls_first(const void *a, const void *b)
{
	const struct ctl_report_worker *x = &(*(const struct sched_probe_worker *const *)a)->w;
	const struct ctl_report_worker *y = &(*(const struct sched_probe_worker *const *)b)->w;

	if (x->calls != y->calls)
		return x->calls < y->calls ? -1 : 1;
	if (x->quiet_ms != y->quiet_ms)
		return x->quiet_ms > y->quiet_ms ? -1 : 1;
	return (x->rank > y->rank) - (x->rank < y->rank);
}

static json_t *oldest_json(const struct job *j, const struct ctl_report_worker *w)
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

static json_t *worker_json(const struct sched_core *c, const struct job *j,
	const struct sched_probe_worker *w, uint64_t most_calls)
{
	const struct member *m = sched_member(c, w->agent);
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
	json_object_set_new(o, "oldest", oldest_json(j, &w->w));
	return o;
}

static json_t *workers_json(
	const struct sched_core *c, const struct job *j, const struct sched_probe *p)
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
		json_array_append_new(list, worker_json(c, j, order[i], most));
	free(order);
	return list;
}

static json_t *agents_json(const struct sched_core *c, const struct job *j,
	const struct sched_probe *p, json_t *missing)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct member *m = sched_member(c, j->members[i].agent);
		bool has_answered = p && i < p->n_members && p->has_answered[i];
		json_t *o = json_object();

		status_put_str(o, "name", m->name);
		status_put_str(o, "host", m->host);
		json_object_set_new(o, "has_answered", json_boolean(has_answered));
		status_put_str(o, "text", p && has_answered && p->texts[i] ? p->texts[i] : "");
		json_array_append_new(list, o);
		if (p && !has_answered)
			json_array_append_new(missing, status_str(m->name));
	}
	return list;
}

json_t *status_job(const struct sched_core *c, const struct status_info *info, uint32_t job,
	const struct sched_probe *p)
{
	const struct job *j = sched_job_any(c, job);
	char condition[CTL_TEXT_MAX + 1];
	json_t *o, *missing, *waits;

	if (!j)
		return NULL;
	waits = status_waits(info, c, j, p);
	sched_conditions(c, j, p, condition);
	o = json_object();
	missing = json_array();
	status_put_num(o, "schema", STATUS_SCHEMA);
	status_put_str(o, "role", "scheduler");
	put_view(o, c);
	json_object_set_new(o, "job", job_json(c, info, j));
	json_object_set_new(o, "agents", agents_json(c, j, p, missing));
	json_object_set_new(
		o, "workers", p && j->state == JOB_RUNNING ? workers_json(c, j, p) : json_array());
	json_object_set_new(o, "missing", missing);
	json_object_set_new(o, "problems", status_job_problems(c, j, p, waits));
	json_object_set_new(o, "waits", waits);
	status_put_str(o, "condition", condition);
	return o;
}

/* ---- metrics ---- */

static void gauge(struct evbuffer *out, const char *name, const char *help, double v)
{
	metric_begin(out, name, "gauge", help);
	metric_value(out, name, v, NULL);
}

static void members_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
	static const enum role roles[] = {ROLE_SERVER, ROLE_AGENT};

	metric_begin(out, "bps_members", "gauge", "members by role and state");
	for (size_t r = 0; r < 2; r++)
		for (int s = 0; s < MEMBER_STATES; s++)
			metric_value(out, "bps_members",
				count_members(c, roles[r], (enum member_state)s), "role",
				r ? "agent" : "server", "state",
				sched_member_state_name((enum member_state)s), NULL);
	metric_begin(out, "bps_heartbeat_age_seconds", "gauge", "since a live member was heard");
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->state == MEMBER_UP)
			metric_value(out, "bps_heartbeat_age_seconds",
				status_span_s(info, c->members[i]->heard_ns), "role",
				role_word(c->members[i]), "peer", c->members[i]->name, NULL);
}

static void jobs_metrics(const struct sched_core *c, struct evbuffer *out)
{
	uint32_t n[JOB_STATES] = {0};

	for (const struct job *j = c->jobs; j; j = j->next)
		n[j->state]++;
	metric_begin(out, "bps_jobs", "gauge", "jobs by state");
	metric_value(out, "bps_jobs", n[JOB_FORMING], "state", "forming", NULL);
	metric_value(out, "bps_jobs", n[JOB_RUNNING], "state", "running", NULL);
	gauge(out, "bps_waiting_partitions", "partitions without a server", (double)orphans(c));
}

static void health_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
#define NAME(code) #code,
	static const char *const codes[] = {STATUS_CLUSTER_CODES(NAME)};
#undef NAME
	struct problems p = problems_of(c, info);

	metric_begin(out, "bps_health", "gauge", "1: this problem is present");
	for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]); k++) {
		bool is_there = false;

		for (size_t i = 0; i < json_array_size(p.list); i++)
			is_there |= strcmp(json_string_value(json_object_get(
						   json_array_get(p.list, i), "code")),
					    codes[k]) == 0;
		metric_value(out, "bps_health", is_there, "code", codes[k], NULL);
	}
	json_decref(p.list);
}

void status_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
	metric_begin(out, "bps_build_info", "gauge", "version of this program");
	metric_value(out, "bps_build_info", 1, "version", BPS_VERSION, NULL);
	gauge(out, "bps_view", "number of the membership and placement", (double)c->view);
	gauge(out, "bps_term", "starts of this cluster's schedulers", c->term);
	gauge(out, "bps_up_since_seconds", "start of this process, unix time", info->started_unix);
	members_metrics(c, info, out);
	jobs_metrics(c, out);
	health_metrics(c, info, out);
	metric_begin(out, "bps_view_changes_total", "counter", "views made durable");
	metric_value(out, "bps_view_changes_total", (double)c->changes, NULL);
	gauge(out, "bps_state_fsync_seconds", "duration of the last sync of the state",
		(double)info->log_sync_ns / 1e9);
	gauge(out, "bps_state_bytes", "size of the state log", (double)info->log_bytes);
	metric_begin(out, "bps_auth_failures_total", "counter", "control connections refused");
	metric_value(out, "bps_auth_failures_total", (double)info->auth_failures, "reason",
		"handshake", NULL);
	metric_value(out, "bps_auth_failures_total", (double)info->protocol_errors, "reason",
		"protocol", NULL);
	metric_value(out, "bps_auth_failures_total", (double)info->trust_timeouts, "reason",
		"timeout", NULL);
}
