/* Finds the problems of the cluster in the core's state, and derives the health from them. This
 * file changes nothing; findings.c adds the problems found by probes. All functions run on the
 * core's thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/host_memory.h"
#include "bps-scheduler/status/status_impl.h"

/* time after which an agent that is down is not reported any more, because its machine was probably
 * removed */
#define AGENT_DOWN_NS (600 * NS_PER_S)
#define BEHIND_NS     (3600 * NS_PER_S)
/* The scheduler declares a member dead when the scheduler has received nothing from the member for
 * a configured time (settings server-dead and agent-dead). The status reports the member as silent
 * after 1/SILENT_SHARE of the configured time. */
#define SILENT_SHARE 2
#define STUCK_NS     (5 * NS_PER_S)
/* An agent's connection to a server is reported if it was lost this number of times within five
 * minutes. A short fault of the network ends a connection once or twice. */
#define LOSSES_MIN 3

bool status_has_problem(json_t *list, const char *code, const char *subject)
{
	json_t *p;
	size_t i;

	json_array_foreach (list, i, p)
		if (strcmp(json_string_value(json_object_get(p, "code")), code) == 0 &&
			(!subject || strcmp(json_string_value(json_object_get(p, "subject")),
					     subject) == 0))
			return true;
	return false;
}

void status_add_problem(json_t *list, const char *code, bool is_error, const char *kind,
	const char *name, const char *effect, const char *fmt, ...)
{
	const struct explanation *e = explanation_find(code);
	char subject[CTL_JOB_NAME_MAX + 32], what[1024], see[64];
	json_t *o = json_object();

	format_arguments(what, fmt);
	snprintf(subject, sizeof(subject), "%s%s%s", kind, *name ? " " : "", name);
	snprintf(see, sizeof(see), "bpsctl explain %s", code);
	status_put_str(o, "code", code);
	status_put_str(o, "severity", is_error ? "ERR" : "WARN");
	status_put_str(o, "subject", subject);
	status_put_str(o, "what", what);
	status_put_str(o, "effect", effect ? effect : e->effect);
	status_put_str(o, "action", e->action);
	status_put_str(o, "see", see);
	json_array_append_new(list, o);
}

/* Like status_add_problem, for a problem of a member that is a warning. */
#define ADD_MEMBER_PROBLEM(list, m, code, effect, ...)                                             \
	status_add_problem(                                                                        \
		list, code, false, sched_role_name((m)->role), (m)->name, effect, __VA_ARGS__)

static void add_down_member_problem(const struct sched_core *c, const struct status_info *info,
	const struct sched_member *m, json_t *list)
{
	bool is_server = m->role == ROLE_SERVER;
	bool is_error = is_server && status_orphans(c);
	char waits[80];

	if (!is_server && info->now_ns - m->since_ns > AGENT_DOWN_NS)
		return;
	/* an operator has drained the member on purpose, and no partition waits for a server */
	if (m->is_drained && !is_error)
		return;
	snprintf(waits, sizeof(waits), "no server is alive; %llu partition%s wait%s for a server",
		(unsigned long long)status_orphans(c), plural_suffix_of(status_orphans(c)),
		verb_suffix_of(status_orphans(c)));
	status_add_problem(list, is_server ? "SERVER_DOWN" : "AGENT_DOWN", is_error,
		sched_role_name(m->role), m->name, is_error ? waits : NULL,
		"%s on %s: down for %.0f s (%s)", m->name, m->host,
		status_seconds_since(info, m->since_ns),
		m->why_down[0] ? m->why_down : "declared dead before the scheduler's restart");
}

static void silent_problem(const struct sched_core *c, const struct status_info *info,
	const struct sched_member *m, json_t *list)
{
	uint64_t dead_ns = m->deadline_ns;
	char effect[64];

	if (m->state == MEMBER_UP)
		dead_ns = m->heard_ns + sched_member_dead_ns(c, m);
	if (m->role == ROLE_AGENT && m->seen_ns && !m->is_behind &&
		m->seen_ns + sched_member_dead_ns(c, m) > dead_ns) {
		/* the agent's messages do not reach the scheduler, but servers receive its data */
		ADD_MEMBER_PROBLEM(list, m, "CONTROL_SILENT",
			"none while servers receive data from it; if partitions have to move, its "
			"jobs end",
			"agent %s on %s: the scheduler has received nothing for %.1f s, but "
			"servers received data from it %.1f s ago",
			m->name, m->host, status_seconds_since(info, m->heard_ns),
			status_seconds_since(info, m->seen_ns));
		return;
	}
	snprintf(effect, sizeof(effect), "declared dead in %.1f s",
		dead_ns > info->now_ns ? (double)(dead_ns - info->now_ns) / 1e9 : 0);
	ADD_MEMBER_PROBLEM(list, m, "CONTROL_SILENT", effect, "%s %s on %s: %s for %.1f s",
		sched_role_name(m->role), m->name, m->host,
		m->state == MEMBER_UP         ? "silent"
		: m->state == MEMBER_EXPECTED ? "has not returned since the scheduler's restart"
					      : "connection lost",
		status_seconds_since(info, m->state == MEMBER_UP ? m->heard_ns : m->since_ns));
}

/* Add a problem for an agent that loses its data connections to a server again and again, although
 * both are up. The usual cause is a path that drops large packets: heartbeats are small. */
static void unstable_problem(const struct sched_core *c, const struct sched_member *m, json_t *list)
{
	const struct sched_member *worst = NULL;
	uint32_t most = 0, n = 0;
	char more[40] = "";

	for (uint32_t i = 0; i < m->n_losses; i++) {
		const struct sched_member *s = sched_member_by_id(c, m->losses[i].server);

		if (!s || s->role != ROLE_SERVER || s->state != MEMBER_UP ||
			m->losses[i].losses < LOSSES_MIN)
			continue;
		n++;
		if (m->losses[i].losses > most) {
			most = m->losses[i].losses;
			worst = s;
		}
	}
	if (!worst)
		return;
	if (n > 1)
		snprintf(more, sizeof(more), " (and to %u more server%s)", n - 1,
			plural_suffix_of(n - 1));
	ADD_MEMBER_PROBLEM(list, m, "CONNECTION_UNSTABLE", NULL,
		"agent %s on %s: a data connection to server %s on %s%s was lost at least %u times "
		"in the last five minutes",
		m->name, m->host, worst->name, worst->host, more, most);
}

static void memory_problems(const struct sched_core *c, json_t *list)
{
	struct host_memory *hosts = host_memory_new(c);

	for (uint32_t i = 0; i < c->n_hosts; i++) {
		char effect[160];

		if (!hosts[i].bytes || hosts[i].promised_bytes <= hosts[i].bytes)
			continue;
		snprintf(effect, sizeof(effect),
			"the kernel may kill one of these daemons; only %.0f %% of the sums-memory "
			"of each server on that host counts",
			100.0 * (double)hosts[i].bytes / (double)hosts[i].promised_bytes);
		status_add_problem(list, "HOST_MEMORY", false, "host", c->hosts[i], effect,
			"host %s: its daemons may take %.1f GiB of memory, but it has only %.1f "
			"GiB",
			c->hosts[i], (double)hosts[i].promised_bytes / 0x1p30,
			(double)hosts[i].bytes / 0x1p30);
	}
	free(hosts);
}

/* Add a problem for a member whose name a process on another machine claims. */
static void refused_machine_problem(
	const struct status_info *info, const struct sched_member *m, json_t *list)
{
	const struct machine_rival *rival = machine_recent_rival(m, info->now_ns);
	struct machine machine = machine_of_member(m);
	char place[MACHINE_PLACE_BYTES];

	if (!rival)
		return;
	machine_format_place(&machine, m->addr, m->port, place);
	ADD_MEMBER_PROBLEM(list, m, "HOST_DUPLICATE", NULL,
		"two machines have the host name %s: %s %s is pid %u on %s, and pid %u on %s is "
		"refused",
		m->host, sched_role_name(m->role), m->name, m->pid, place, rival->pid,
		rival->place);
}

static void duplicate_host_problem(
	const struct sched_member *a, const struct sched_member *b, json_t *list)
{
	struct machine of_a = machine_of_member(a), of_b = machine_of_member(b);
	char place_a[MACHINE_PLACE_BYTES], place_b[MACHINE_PLACE_BYTES];

	machine_format_place(&of_a, a->addr, a->port, place_a);
	machine_format_place(&of_b, b->addr, b->port, place_b);
	status_add_problem(list, "HOST_DUPLICATE", false, "host", a->host, NULL,
		"two machines have the host name %s: %s %s is on %s, and %s %s is on %s", a->host,
		sched_role_name(a->role), a->name, place_a, sched_role_name(b->role), b->name,
		place_b);
}

/* Add a problem for each host name that connected members on two machines report. */
static void duplicate_host_problems(const struct sched_core *c, json_t *list)
{
	struct {
		const struct sched_member *first;
		bool is_reported;
	} *hosts = sched_alloc(c->n_hosts + 1, sizeof(*hosts));

	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i], *first;
		struct machine of_m, of_first;

		if (m->state != MEMBER_UP || hosts[m->host_idx].is_reported)
			continue;
		first = hosts[m->host_idx].first;
		if (!first) {
			hosts[m->host_idx].first = m;
			continue;
		}
		of_m = machine_of_member(m);
		of_first = machine_of_member(first);
		if (machine_is_same(&of_m, &of_first))
			continue;
		duplicate_host_problem(first, m, list);
		hosts[m->host_idx].is_reported = true;
	}
	free(hosts);
}

static void master_problem(const struct sched_core *c, json_t *list)
{
	const struct sched_member *first = NULL;
	char more[32] = "";
	unsigned n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		if (!m->conn || !m->conn->has_master)
			continue;
		if (!n++)
			first = m;
	}
	if (!n)
		return;
	if (n > 1)
		snprintf(more, sizeof(more), " and %u more", n - 1);
	status_add_problem(list, "MASTER_KEY", false, "", "", NULL,
		"%s %s on %s%s: using the cluster's master key", sched_role_name(first->role),
		first->name, first->host, more);
}

static void member_problems(
	const struct sched_core *c, const struct status_info *info, json_t *list)
{
	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		if (m->state == MEMBER_DOWN)
			add_down_member_problem(c, info, m, list);
		else if (m->state != MEMBER_UP ||
			 info->now_ns > m->heard_ns + sched_member_dead_ns(c, m) / SILENT_SHARE)
			silent_problem(c, info, m, list);
		else if (m->beat.progress && info->now_ns > m->moved_ns + STUCK_NS)
			ADD_MEMBER_PROBLEM(list, m, "MEMBER_STUCK", NULL,
				"%s %s on %s: alive, but a thread has made no progress for %.0f s",
				sched_role_name(m->role), m->name, m->host,
				status_seconds_since(info, m->moved_ns));
		if (m->state == MEMBER_UP && m->sums.is_slow)
			ADD_MEMBER_PROBLEM(list, m, "SERVER_SLOW", NULL,
				"server %s on %s: %.0f ms from the last contribution to the sum, "
				"more than %u ms",
				m->name, m->host, m->beat.sum_us / 1e3, c->cfg.server_slow_ms);
		if (m->state == MEMBER_UP && m->beat.more_threads)
			ADD_MEMBER_PROBLEM(list, m, "THREADS_FEW", NULL,
				"agent %s on %s: its %u thread%s that move%s bytes had work for "
				"%u %% of 10 s, while processors were idle; %u would carry more",
				m->name, m->host, m->beat.threads, m->beat.threads == 1 ? "" : "s",
				m->beat.threads == 1 ? "s" : "", m->beat.busy_percent,
				m->beat.more_threads);
		if (m->state == MEMBER_UP)
			unstable_problem(c, m, list);
		if (sched_is_usable(m))
			refused_machine_problem(info, m, list);
	}
}

static void forming_problem(const struct status_info *info, const struct sched_job *j, json_t *list)
{
	uint32_t ranks[STATUS_MISSING_MAX];
	uint32_t n = status_missing_ranks(j, ranks, STATUS_MISSING_MAX),
		 more = sched_job_missing_count(j) - n;
	char missing[160] = "other workers of a machine";
	size_t at = 0;

	for (uint32_t i = 0; i < n; i++)
		at += (size_t)snprintf(
			missing + at, sizeof(missing) - at, "%s %u", i ? "," : "rank", ranks[i]);
	if (more)
		snprintf(missing + at, sizeof(missing) - at, " and %u more", more);
	status_add_problem(list, "JOB_FORMING_LONG", false, "job", j->name, NULL,
		"job %.80s: %u of %u workers have joined in %.0f s; missing %s", j->name,
		j->n_joined, j->size, status_seconds_since(info, j->since_ns), missing);
}

static void straggler_problem(const struct sched_core *c, const struct sched_job *j, json_t *list)
{
	const struct sched_progress *pace = &j->progress;
	const struct sched_member *m = sched_member_by_id(c, pace->slowest);
	double share = pace->steps_s * pace->slowest_lag_us / 1e6;
	char effect[80];

	if (!m || !pace->rounds)
		return;
	snprintf(effect, sizeof(effect), "about %.0f %% of each step is spent waiting for it",
		100 * (share < 1 ? share : 1));
	status_add_problem(list, "STRAGGLER", false, "job", j->name, effect,
		"agent %.63s (host %.63s) is last in %.0f %% of the rounds of job %.80s, by %.1f "
		"ms (median)",
		m->name, m->host, 100.0 * pace->slowest_rounds / pace->rounds, j->name,
		pace->slowest_lag_us / 1e3);
}

static void add_all_job_problems(
	const struct sched_core *c, const struct status_info *info, json_t *list)
{
	bool has_server = false, is_usable = false;
	char effect[64];

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_RUNNING)
			status_findings(c, info, j, j->stall.findings, j->stall.n_findings, list);
	for (const struct sched_job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_FORMING &&
			info->now_ns > j->since_ns + c->cfg.forming_ms * NS_PER_MS)
			forming_problem(info, j, list);
		else if (j->state == JOB_RUNNING && j->progress.is_straggling)
			straggler_problem(c, j, list);
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role == ROLE_SERVER) {
			has_server = true;
			is_usable |= sched_is_usable(c->members[i]);
		}
	if (is_usable || !status_orphans(c))
		return;
	snprintf(effect, sizeof(effect), "%llu partition%s wait%s for a server",
		(unsigned long long)status_orphans(c), plural_suffix_of(status_orphans(c)),
		verb_suffix_of(status_orphans(c)));
	status_add_problem(list, "NO_SERVER", true, "", "", effect, "%s",
		has_server ? "no server is left" : "no server has ever joined");
}

void status_mark_muted(const struct sched_core *c, const struct status_info *info, json_t *list,
	bool *ret_is_error, bool *ret_is_any)
{
	json_t *p;
	size_t i;

	*ret_is_error = *ret_is_any = false;
	json_array_foreach (list, i, p) {
		const char *code = json_string_value(json_object_get(p, "code"));
		const char *severity = json_string_value(json_object_get(p, "severity"));
		bool is_muted = mute_find_active(c, code, info->now_ns) != NULL;

		json_object_set_new(p, "muted", json_boolean(is_muted));
		*ret_is_any |= !is_muted;
		*ret_is_error |= !is_muted && strcmp(severity, "ERR") == 0;
	}
}

static bool has_unmuted_code(json_t *list, const char *code)
{
	json_t *p;
	size_t i;

	json_array_foreach (list, i, p)
		if (strcmp(json_string_value(json_object_get(p, "code")), code) == 0 &&
			json_is_false(json_object_get(p, "muted")))
			return true;
	return false;
}

bool status_health(
	const struct sched_core *c, const struct status_info *info, struct err_text *ret_text)
{
	bool is_error, is_any;
	json_t *list = status_problems(c, info);
	size_t n = 0;

	status_mark_muted(c, info, list, &is_error, &is_any);
	ret_text->s[0] = '\0';
	if (is_any)
		n = (size_t)snprintf(ret_text->s, sizeof(ret_text->s), is_error ? "ERR" : "WARN");
	for (const struct explanation *e = explanations; e->code && n < sizeof(ret_text->s); e++)
		if (has_unmuted_code(list, e->code))
			n += (size_t)snprintf(
				ret_text->s + n, sizeof(ret_text->s) - n, " %s", e->code);
	json_decref(list);
	return !is_error;
}

json_t *status_problems(const struct sched_core *c, const struct status_info *info)
{
	json_t *list = json_array();

	if (c->is_undurable)
		status_add_problem(list, "STATE_NOT_DURABLE", true, "", "", NULL,
			"the scheduler cannot write its state");
	if (c->behind_ns && info->now_ns - c->behind_ns < BEHIND_NS)
		status_add_problem(list, "STATE_BEHIND", false, "", "", NULL,
			"the state log was older than the state of a member; detected %.0f s ago",
			status_seconds_since(info, c->behind_ns));
	member_problems(c, info, list);
	master_problem(c, list);
	memory_problems(c, list);
	duplicate_host_problems(c, list);
	add_all_job_problems(c, info, list);
	return list;
}
