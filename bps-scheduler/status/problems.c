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

struct problem_list {
	json_t *list;
	bool is_error;
};

void status_problem(json_t *list, const char *code, bool is_error, const char *subject,
	const struct problem_lines *l)
{
	json_t *o = json_object();
	char see[64];

	status_put_str(o, "code", code);
	status_put_str(o, "severity", is_error ? "ERR" : "WARN");
	status_put_str(o, "subject", subject);
	status_put_str(o, "what", l->what);
	status_put_str(o, "effect", l->effect);
	status_put_str(o, "action", l->action);
	snprintf(see, sizeof(see), "bpsctl explain %s", code);
	status_put_str(o, "see", see);
	json_array_append_new(list, o);
}

static void add_cluster_problem(
	struct problem_list *p, const char *code, bool is_error, const struct problem_lines *l)
{
	status_problem(p->list, code, is_error, "", l);
	p->is_error |= is_error;
}

static void member_problem(struct problem_list *p, const struct sched_member *m, const char *code,
	bool is_error, const struct problem_lines *l)
{
	char subject[CTL_NAME_MAX + 16];

	snprintf(subject, sizeof(subject), "%s %s", sched_role_name(m->role), m->name);
	status_problem(p->list, code, is_error, subject, l);
	p->is_error |= is_error;
}

static void add_job_problem(struct problem_list *p, const struct sched_job *j, const char *code,
	const struct problem_lines *l)
{
	char subject[CTL_JOB_NAME_MAX + 16];

	snprintf(subject, sizeof(subject), "job %s", j->name);
	status_problem(p->list, code, false, subject, l);
}

static void add_down_member_problem(const struct sched_core *c, const struct status_info *info,
	const struct sched_member *m, struct problem_list *p)
{
	bool is_server = m->role == ROLE_SERVER;
	bool is_error = is_server && status_orphans(c);
	struct problem_lines l;

	if (!is_server && info->now_ns - m->since_ns > AGENT_DOWN_NS)
		return;
	/* an operator has drained the member on purpose, and no partition waits for a server */
	if (m->is_drained && !is_error)
		return;
	snprintf(l.what, sizeof(l.what), "%s on %s: down for %.0f s (%s)", m->name, m->host,
		status_seconds_since(info, m->since_ns),
		m->why_down[0] ? m->why_down : "declared dead before the scheduler's restart");
	if (is_error)
		snprintf(l.effect, sizeof(l.effect),
			"no server is alive; %llu partitions wait for a server",
			(unsigned long long)status_orphans(c));
	else if (is_server)
		snprintf(l.effect, sizeof(l.effect),
			"its partitions have moved to other servers, and no round was lost");
	else
		snprintf(l.effect, sizeof(l.effect),
			"jobs that ran there have ended with BPS_EAGENT_LOST; jobs that may shrink "
			"go on without the machine");
	snprintf(l.action, sizeof(l.action), "run `systemctl status bps-%s` on %s",
		sched_role_name(m->role), m->host);
	member_problem(p, m, is_server ? "SERVER_DOWN" : "AGENT_DOWN", is_error, &l);
}

/* Add a problem for an agent whose messages do not reach the scheduler, although servers still
 * receive data from the agent. */
static void add_control_silent_problem(
	const struct status_info *info, const struct sched_member *m, struct problem_list *p)
{
	struct problem_lines l;

	snprintf(l.what, sizeof(l.what),
		"agent %s on %s: the scheduler has received nothing for %.1f s, but servers "
		"received data from it %.1f s ago",
		m->name, m->host, status_seconds_since(info, m->heard_ns),
		status_seconds_since(info, m->seen_ns));
	snprintf(l.effect, sizeof(l.effect),
		"none while servers receive data from it; if partitions have to move, its jobs "
		"end");
	snprintf(l.action, sizeof(l.action), "check the network between %s and the scheduler",
		m->host);
	member_problem(p, m, "CONTROL_SILENT", false, &l);
}

static void silent_problem(const struct sched_core *c, const struct status_info *info,
	const struct sched_member *m, struct problem_list *p)
{
	uint64_t dead_ns = m->deadline_ns;
	struct problem_lines l;

	if (m->state == MEMBER_UP)
		dead_ns = m->heard_ns + sched_member_dead_ns(c, m);
	if (m->role == ROLE_AGENT && m->seen_ns && !m->is_behind &&
		m->seen_ns + sched_member_dead_ns(c, m) > dead_ns) {
		add_control_silent_problem(info, m, p);
		return;
	}
	snprintf(l.what, sizeof(l.what), "%s %s on %s: %s for %.1f s", sched_role_name(m->role),
		m->name, m->host,
		m->state == MEMBER_UP         ? "silent"
		: m->state == MEMBER_EXPECTED ? "has not returned since the scheduler's restart"
					      : "connection lost",
		status_seconds_since(info, m->state == MEMBER_UP ? m->heard_ns : m->since_ns));
	snprintf(l.effect, sizeof(l.effect), "declared dead in %.1f s",
		dead_ns > info->now_ns ? (double)(dead_ns - info->now_ns) / 1e9 : 0);
	snprintf(l.action, sizeof(l.action), "wait, then run `systemctl status bps-%s` on %s",
		sched_role_name(m->role), m->host);
	member_problem(p, m, "CONTROL_SILENT", false, &l);
}

static void add_stuck_member_problem(
	const struct status_info *info, const struct sched_member *m, struct problem_list *p)
{
	struct problem_lines l;

	snprintf(l.what, sizeof(l.what),
		"%s %s on %s: alive, but a thread has made no progress for %.0f s",
		sched_role_name(m->role), m->name, m->host,
		status_seconds_since(info, m->moved_ns));
	snprintf(l.effect, sizeof(l.effect), "rounds may wait for this member");
	snprintf(l.action, sizeof(l.action),
		"wait until its watchdog restarts it, or restart bps-%s on %s",
		sched_role_name(m->role), m->host);
	member_problem(p, m, "MEMBER_STUCK", false, &l);
}

static void add_slow_server_problem(
	const struct sched_core *c, const struct sched_member *m, struct problem_list *p)
{
	struct problem_lines l;

	snprintf(l.what, sizeof(l.what),
		"server %s on %s: %.0f ms from the last contribution to the sum, more than %u ms",
		m->name, m->host, m->beat.sum_us / 1e3, c->cfg.server_slow_ms);
	snprintf(l.effect, sizeof(l.effect), "rounds of its partitions take longer by that time");
	snprintf(l.action, sizeof(l.action),
		"check the load of %s; `bpsctl drain %s` moves its partitions to others", m->host,
		m->name);
	member_problem(p, m, "SERVER_SLOW", false, &l);
}

/* Add a problem for an agent that loses its data connections to a server again and again, although
 * both are up. The usual cause is a path that drops large packets: heartbeats are small. */
static void unstable_problem(
	const struct sched_core *c, const struct sched_member *m, struct problem_list *p)
{
	const struct sched_member *worst = NULL;
	uint32_t most = 0, n = 0;
	struct problem_lines l;
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
		snprintf(more, sizeof(more), " (and to %u more servers)", n - 1);
	snprintf(l.what, sizeof(l.what),
		"agent %s on %s: a data connection to server %s on %s%s was lost at least %u times "
		"in the last five minutes",
		m->name, m->host, worst->name, worst->host, more, most);
	snprintf(l.effect, sizeof(l.effect), "rounds wait while the agent connects again");
	snprintf(l.action, sizeof(l.action),
		"run `bpsctl check` on %.100s: it reports a path that drops large packets (MTU)",
		m->host);
	member_problem(p, m, "CONNECTION_UNSTABLE", false, &l);
}

static void behind_problem(
	const struct sched_core *c, const struct status_info *info, struct problem_list *p)
{
	struct problem_lines l;

	snprintf(l.what, sizeof(l.what),
		"the state log was older than the state of a member; detected %.0f s ago",
		status_seconds_since(info, c->behind_ns));
	snprintf(l.effect, sizeof(l.effect), "earlier jobs have ended with BPS_EJOB_FAILED");
	snprintf(l.action, sizeof(l.action),
		"start the jobs again; check whether the disk of --state-dir loses synced data");
	add_cluster_problem(p, "STATE_BEHIND", false, &l);
}

static void memory_problems(const struct sched_core *c, struct problem_list *p)
{
	struct host_memory *hosts = host_memory_new(c);

	for (uint32_t i = 0; i < c->n_hosts; i++) {
		char subject[CTL_NAME_MAX + 16];
		struct problem_lines l;

		if (!hosts[i].bytes || hosts[i].promised_bytes <= hosts[i].bytes)
			continue;
		snprintf(subject, sizeof(subject), "host %s", c->hosts[i]);
		snprintf(l.what, sizeof(l.what),
			"host %s: its daemons may take %.1f GiB of memory, but it has only %.1f "
			"GiB",
			c->hosts[i], (double)hosts[i].promised_bytes / 0x1p30,
			(double)hosts[i].bytes / 0x1p30);
		snprintf(l.effect, sizeof(l.effect),
			"the kernel may kill one of these daemons; only %.0f %% of the sums-memory "
			"of each server on that host counts",
			100.0 * (double)hosts[i].bytes / (double)hosts[i].promised_bytes);
		snprintf(l.action, sizeof(l.action),
			"lower sums-memory of the servers or memory of the agents on %s",
			c->hosts[i]);
		status_problem(p->list, "HOST_MEMORY", false, subject, &l);
	}
	free(hosts);
}

/* Add a problem for a member whose name a process on another machine claims. */
static void refused_machine_problem(
	const struct status_info *info, const struct sched_member *m, struct problem_list *p)
{
	const struct machine_rival *rival = machine_recent_rival(m, info->now_ns);
	struct machine machine = machine_of_member(m);
	char place[MACHINE_PLACE_BYTES];
	struct problem_lines l;

	if (!rival)
		return;
	machine_format_place(&machine, m->addr, m->port, place);
	snprintf(l.what, sizeof(l.what),
		"two machines have the host name %s: %s %s is pid %u on %s, and pid %u on %s is "
		"refused",
		m->host, sched_role_name(m->role), m->name, m->pid, place, rival->pid,
		rival->place);
	snprintf(l.effect, sizeof(l.effect),
		"the refused machine cannot join; if it is one machine that was booted again, it "
		"joins when its former %s is declared dead",
		sched_role_name(m->role));
	snprintf(l.action, sizeof(l.action),
		"give one of the machines another host name, or set `name` and `host` of its "
		"daemons");
	member_problem(p, m, "HOST_DUPLICATE", false, &l);
}

static void duplicate_host_problem(
	const struct sched_member *a, const struct sched_member *b, struct problem_list *p)
{
	struct machine of_a = machine_of_member(a), of_b = machine_of_member(b);
	char place_a[MACHINE_PLACE_BYTES], place_b[MACHINE_PLACE_BYTES], subject[CTL_NAME_MAX + 16];
	struct problem_lines l;

	machine_format_place(&of_a, a->addr, a->port, place_a);
	machine_format_place(&of_b, b->addr, b->port, place_b);
	snprintf(subject, sizeof(subject), "host %s", a->host);
	snprintf(l.what, sizeof(l.what),
		"two machines have the host name %s: %s %s is on %s, and %s %s is on %s", a->host,
		sched_role_name(a->role), a->name, place_a, sched_role_name(b->role), b->name,
		place_b);
	snprintf(l.effect, sizeof(l.effect),
		"the scheduler counts them as one machine when it shares out bytes and memory");
	snprintf(l.action, sizeof(l.action),
		"give one of the machines another host name, or set `host` of its daemons");
	status_problem(p->list, "HOST_DUPLICATE", false, subject, &l);
}

/* Add a problem for each host name that connected members on two machines report. */
static void duplicate_host_problems(const struct sched_core *c, struct problem_list *p)
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
		duplicate_host_problem(first, m, p);
		hosts[m->host_idx].is_reported = true;
	}
	free(hosts);
}

static void master_problem(const struct sched_core *c, struct problem_list *p)
{
	const struct sched_member *first = NULL;
	struct problem_lines l;
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
	snprintf(l.what, sizeof(l.what), "%s %s on %s%s: using the cluster's master key",
		sched_role_name(first->role), first->name, first->host, more);
	snprintf(l.effect, sizeof(l.effect),
		"a user who reads that key can pose as any member and operate the cluster");
	snprintf(l.action, sizeof(l.action),
		"run `bpsctl key status`; give each member the key of its name (bpsctl key derive "
		"%s:%s)",
		sched_role_name(first->role), first->name);
	add_cluster_problem(p, "MASTER_KEY", false, &l);
}

static void member_problems(
	const struct sched_core *c, const struct status_info *info, struct problem_list *p)
{
	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		if (m->state == MEMBER_DOWN)
			add_down_member_problem(c, info, m, p);
		else if (m->state != MEMBER_UP ||
			 info->now_ns > m->heard_ns + sched_member_dead_ns(c, m) / SILENT_SHARE)
			silent_problem(c, info, m, p);
		else if (m->beat.progress && info->now_ns > m->moved_ns + STUCK_NS)
			add_stuck_member_problem(info, m, p);
		if (m->state == MEMBER_UP && m->sums.is_slow)
			add_slow_server_problem(c, m, p);
		if (m->state == MEMBER_UP)
			unstable_problem(c, m, p);
		if (sched_is_usable(m))
			refused_machine_problem(info, m, p);
	}
}

static void forming_problem(
	const struct status_info *info, const struct sched_job *j, struct problem_list *p)
{
	uint32_t ranks[STATUS_MISSING_MAX];
	uint32_t n = status_missing_ranks(j, ranks, STATUS_MISSING_MAX),
		 more = sched_job_missing_count(j) - n;
	struct problem_lines l;
	int at;

	at = snprintf(l.what, sizeof(l.what),
		"job %.80s: %u of %u workers have joined in %.0f s; missing %s", j->name,
		j->n_joined, j->size, status_seconds_since(info, j->since_ns),
		n ? "rank" : "other workers of a machine");
	for (uint32_t i = 0; i < n && at > 0 && at < (int)sizeof(l.what); i++)
		at += snprintf(
			l.what + at, sizeof(l.what) - (size_t)at, "%s %u", i ? "," : "", ranks[i]);
	if (more && at > 0 && at < (int)sizeof(l.what))
		snprintf(l.what + at, sizeof(l.what) - (size_t)at, " and %u more", more);
	snprintf(l.effect, sizeof(l.effect),
		"workers that have joined wait in bps_open until their time-out");
	snprintf(l.action, sizeof(l.action), "start the missing ranks, or see their own output");
	add_job_problem(p, j, "JOB_FORMING_LONG", &l);
}

static void straggler_problem(
	const struct sched_core *c, const struct sched_job *j, struct problem_list *p)
{
	const struct sched_progress *pace = &j->progress;
	const struct sched_member *m = sched_member_by_id(c, pace->slowest);
	double share = pace->steps_s * pace->slowest_lag_us / 1e6;
	struct problem_lines l;

	if (!m || !pace->rounds)
		return;
	snprintf(l.what, sizeof(l.what),
		"agent %.63s (host %.63s) is last in %.0f %% of the rounds of job %.80s, by %.1f "
		"ms (median)",
		m->name, m->host, 100.0 * pace->slowest_rounds / pace->rounds, j->name,
		pace->slowest_lag_us / 1e3);
	snprintf(l.effect, sizeof(l.effect), "about %.0f %% of each step is spent waiting for it",
		100 * (share < 1 ? share : 1));
	snprintf(l.action, sizeof(l.action),
		"check load, clock and input of that machine; see `bpsctl job %.80s`", j->name);
	add_job_problem(p, j, "STRAGGLER", &l);
}

static void add_all_job_problems(
	const struct sched_core *c, const struct status_info *info, struct problem_list *p)
{
	struct problem_lines l;
	bool has_server = false, is_usable = false;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_RUNNING)
			status_findings(
				c, info, j, j->stall.findings, j->stall.n_findings, p->list);
	for (const struct sched_job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_FORMING &&
			info->now_ns > j->since_ns + c->cfg.forming_ms * NS_PER_MS)
			forming_problem(info, j, p);
		else if (j->state == JOB_RUNNING && j->progress.is_straggling)
			straggler_problem(c, j, p);
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role == ROLE_SERVER) {
			has_server = true;
			is_usable |= sched_is_usable(c->members[i]);
		}
	if (is_usable || !status_orphans(c))
		return;
	snprintf(l.what, sizeof(l.what),
		has_server ? "no server is left" : "no server has ever joined");
	snprintf(l.effect, sizeof(l.effect), "%llu partitions wait for a server",
		(unsigned long long)status_orphans(c));
	snprintf(l.action, sizeof(l.action), "start bps-server on some machine");
	add_cluster_problem(p, "NO_SERVER", true, &l);
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
#define NAME(code) #code,
	static const char *const codes[] = {STATUS_CODES(NAME)};
#undef NAME
	bool is_error, is_any;
	json_t *list = status_problems(c, info, &is_error);
	size_t n = 0;

	status_mark_muted(c, info, list, &is_error, &is_any);
	ret_text->s[0] = '\0';
	if (is_any)
		n = (size_t)snprintf(ret_text->s, sizeof(ret_text->s), is_error ? "ERR" : "WARN");
	for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]) && n < sizeof(ret_text->s); k++)
		if (has_unmuted_code(list, codes[k]))
			n += (size_t)snprintf(
				ret_text->s + n, sizeof(ret_text->s) - n, " %s", codes[k]);
	json_decref(list);
	return !is_error;
}

json_t *status_problems(
	const struct sched_core *c, const struct status_info *info, bool *ret_is_error)
{
	struct problem_list p = {json_array(), false};
	struct problem_lines l = {"the scheduler cannot write its state",
		"running jobs go on; the scheduler accepts no new jobs or members, and does not "
		"move the partitions of a lost server",
		"see the scheduler's log; free or repair the disk of --state-dir"};

	if (c->is_undurable)
		add_cluster_problem(&p, "STATE_NOT_DURABLE", true, &l);
	if (c->behind_ns && info->now_ns - c->behind_ns < BEHIND_NS)
		behind_problem(c, info, &p);
	member_problems(c, info, &p);
	master_problem(c, &p);
	memory_problems(c, &p);
	duplicate_host_problems(c, &p);
	add_all_job_problems(c, info, &p);
	*ret_is_error = p.is_error;
	return p.list;
}
