/* Tracks which members are alive: HELLO, returns, silence and death. model/member.c stores the data
 * of members. All functions run on the core's thread. */
#include "bps-scheduler/core/members.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/job_end.h"
#include "bps-scheduler/core/progress.h"
#include "bps-scheduler/core/workers.h"
#include "bps-scheduler/placement/balance.h"
#include "bps-scheduler/placement/drain.h"
#include "bps-scheduler/placement/place_apply.h"
#include "bps-scheduler/placement/speed.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

#define THREADS_MAX 1024
/* largest valid term; a view with a larger term can only be forged */
#define TERM_MAX (UINT32_MAX - 0xffff)

/* ---- sight ----
 *
 * Rule C4: an agent from which the scheduler receives nothing is alive if servers still receive
 * from it. The agent's jobs go on without the scheduler as long as these jobs do not change. So
 * before the agent's dead time is over, the scheduler asks the servers when they last received data
 * from this agent process (message SIGHT). The dead time then counts from the latest of the times
 * that the servers report. The question does not delay the death of an agent from which no server
 * receives. An agent that has not received a change of its jobs is declared dead in any case,
 * because it would delay these jobs. */

/* A span is 1/SIGHT_SHARE of a member's dead time. The scheduler sends its first question about a
 * silent member one span before the dead time is over. It sends each further question one span
 * after the previous question. */
#define SIGHT_SHARE 5

static uint64_t agent_sighting_end_ns(const struct sched_core *c, const struct sched_member *m)
{
	if (m->role != ROLE_AGENT || !m->seen_ns || m->is_behind)
		return 0;
	return m->seen_ns + sched_member_dead_ns(c, m);
}

/* Ask the connected members of the other role when they last received from m. If m is an agent,
 * these are the servers. If m is a server, these are the agents. */
static void send_sight_requests(struct sched_core *c, struct sched_member *m)
{
	struct ctl_msg msg = {
		.type = CTL_SIGHT, .sight = {.member = m->id, .instance = m->instance}};

	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role != m->role && c->members[i]->conn)
			sched_send_message(c, c->members[i], &msg);
	m->asked_ns = c->now_ns;
}

/* If m is an agent, ask the servers about m. If m is a server, ask the agents. If the question is
 * not due yet, schedule the question. silent_at_ns: the time at which m is declared dead unless a
 * message from m arrives earlier. A span is 1/SIGHT_SHARE of m's dead time (setting server-dead or
 * agent-dead). The first question is due one span before silent_at_ns. Each further question is due
 * one span after the previous question. */
static void schedule_sight_requests(
	struct sched_core *c, struct sched_member *m, uint64_t silent_at_ns)
{
	uint64_t span = sched_member_dead_ns(c, m) / SIGHT_SHARE, at = silent_at_ns - span;

	if (at < m->asked_ns + span)
		at = m->asked_ns + span;
	if (at > c->now_ns) {
		sched_arm_deadline(c, at);
		return;
	}
	send_sight_requests(c, m);
	sched_arm_deadline(c, c->now_ns + span);
}

/* Schedule the next check of m for dead_at_ns, the time at which m is declared dead. If m is an
 * agent, also ask the servers about m, or schedule this question if it is not due yet. */
static void schedule_member_check(struct sched_core *c, struct sched_member *m, uint64_t dead_at_ns)
{
	sched_arm_deadline(c, dead_at_ns);
	if (m->role == ROLE_AGENT && !m->is_behind)
		schedule_sight_requests(c, m, dead_at_ns);
}

/* Rule C2: a server that hangs while the scheduler starts is declared dead before the grace period
 * ends. Each agent that had a data connection to m's process reports how long ago the agent last
 * received from that process. Only recent reports count, because an agent may receive from the
 * server again at any time. at_ns: the time at which m is declared dead if there are no recent
 * reports. If recent reports lead to an earlier time, the function returns this earlier time.
 * Otherwise the function returns at_ns. */
static uint64_t hung_server_dead_at_ns(struct sched_core *c, struct sched_member *m, uint64_t at_ns)
{
	uint64_t dead_ns = sched_member_dead_ns(c, m), span = dead_ns / SIGHT_SHARE;
	uint64_t heard_ns = m->heard_ns > c->isolated_ns ? m->heard_ns : c->isolated_ns;
	uint64_t own_ns = heard_ns + dead_ns, window_ns = sched_member_window_ns(c, m);

	if (m->role != ROLE_SERVER || c->now_ns >= c->grace_ns)
		return at_ns;
	if (m->state == MEMBER_SUSPECT && own_ns < m->since_ns + window_ns)
		own_ns = m->since_ns + window_ns;
	if (own_ns >= at_ns)
		return at_ns;
	schedule_sight_requests(c, m, own_ns);
	if (!m->seen_ns || m->answered_ns + 2 * span < c->now_ns)
		return at_ns;
	if (own_ns < m->seen_ns + dead_ns)
		own_ns = m->seen_ns + dead_ns;
	return own_ns < at_ns ? own_ns : at_ns;
}

void sched_receive_sight(
	struct sched_core *c, const struct sched_member *by, const struct ctl_sight *s)
{
	struct sched_member *m = sched_member_by_id(c, s->member);
	uint64_t quiet_ns = s->quiet_ms * NS_PER_MS;

	if (!m || m->role == by->role || m->instance != s->instance || m->state == MEMBER_DOWN ||
		!m->asked_ns || quiet_ns >= c->now_ns)
		return;
	m->answered_ns = c->now_ns;
	if (m->seen_ns < c->now_ns - quiet_ns)
		m->seen_ns = c->now_ns - quiet_ns;
}

/* ---- deaths and returns ---- */

static void member_declare_down(struct sched_core *c, struct sched_member *m, const char *why)
{
	FAILPOINT(SCHED_MEMBER_DOWN);
	snprintf(m->why_down, sizeof(m->why_down), "%s", why);
	sched_member_set_state(c, m, MEMBER_DOWN, why);
	sched_member_dirty(c, m);
	if (m->conn)
		sched_conn_drop(c, m->conn->id, why);
	if (m->role == ROLE_SERVER)
		place_server_gone(c, m);
	else
		sched_agent_gone(c, m, true);
}

void sched_member_expel(struct sched_core *c, enum role role, const char *name)
{
	struct sched_member *m = sched_member_find(c, role, name);

	if (!m || m->conn || m->state == MEMBER_DOWN)
		return;
	/* While the scheduler cannot write its state, it declares no member dead. Instead it sets
	 * m->is_behind, so that it declares m dead later, even if servers still receive from m. */
	if (c->is_undurable)
		m->is_behind = true;
	else
		member_declare_down(c, m, "its key is no longer accepted");
}

static void refuse_member_hello(struct sched_core *c, uint32_t conn, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void refuse_member_hello(struct sched_core *c, uint32_t conn, int code, const char *fmt, ...)
{
	struct err_text text;
	struct ctl_msg msg = {.type = CTL_REFUSE, .refuse = {(uint32_t)-code, text.s}};

	format_arguments(text.s, fmt);
	log_rated(LOG_AS(LOG_WARN, REFUSED), "refused a member: %s", text.s);
	c->env.send(c->env.ctx, conn, &msg);
	sched_conn_drop(c, conn, "refused");
}

static bool is_hello_sound(const struct ctl_hello *h)
{
	if ((h->role != ROLE_SERVER && h->role != ROLE_AGENT) || !h->instance || !h->name[0] ||
		!h->host[0] || (h->cluster_id.bytes && h->cluster_id.bytes != STATE_ID_BYTES) ||
		(h->boot_id.bytes && h->boot_id.bytes != CTL_BOOT_ID_BYTES) ||
		h->view >> 32 >= TERM_MAX)
		return false;
	return h->role == ROLE_AGENT ||
	       (h->addr[0] && h->port && h->threads && h->threads <= THREADS_MAX);
}

/* Adopt the cluster id that a member reports, if this scheduler has no state. Returns false if the
 * member belongs to another cluster. */
static bool adopt_cluster_id(struct sched_core *c, const struct ctl_hello *h)
{
	if (!h->cluster_id.bytes || memcmp(h->cluster_id.data, c->cluster_id, STATE_ID_BYTES) == 0)
		return true;
	if (c->is_restored || c->n_members)
		return false;
	memcpy(c->cluster_id, h->cluster_id.data, STATE_ID_BYTES);
	log_rated(LOG_WARN,
		"this scheduler has no state: adopting the cluster id that %s '%s' on %s reports",
		sched_role_name(h->role), h->name, h->host);
	sched_open_transaction_view(c);
	return true;
}

static void raise_view_above_member(struct sched_core *c, uint64_t view)
{
	uint32_t term = (uint32_t)(view >> 32);

	if (view <= c->view)
		return;
	if (term < c->term)
		term = c->term;
	log_rated(LOG_WARN,
		"a member has view %llx, but this scheduler's state ends at view %llx: numbering "
		"the next views from the member's view",
		(unsigned long long)view, (unsigned long long)c->view);
	c->term = term + 1;
	c->tx_view = (uint64_t)c->term << 32 | 1;
}

/* Return whether the member has received views that this scheduler has lost. If h->view belongs to
 * the present term and is at most c->view, the scheduler may have issued h->view since its start.
 * In this case, h->view proves a loss only under two conditions. First, the restored state contains
 * the process that sent `h`. Second, the member has not connected since the scheduler started. */
static bool is_member_view_ahead(
	const struct sched_core *c, const struct sched_member *m, const struct ctl_hello *h)
{
	if (!c->is_restored || h->view <= c->kept_view)
		return false;
	return h->view > c->view || h->view >> 32 < c->term ||
	       (m && !m->has_come && m->instance == h->instance);
}

/* End the restored jobs, because the lost views may have changed the members of these jobs, or
 * moved partitions of these jobs. A round of such a job could wait without end (rule C2). */
static void end_stale_jobs(struct sched_core *c, const struct ctl_hello *h)
{
	struct sched_job *next;

	if (c->behind_ns)
		return;
	c->behind_ns = c->now_ns;
	log_write(LOG_AS(LOG_ERROR, STATE_CUT),
		"this scheduler's state ends at view %llx, but %s '%s' on %s has view %llx: the "
		"state log "
		"was cut, or replaced by an older copy; the scheduler now ends the jobs in its "
		"state log: start them again",
		(unsigned long long)c->kept_view, sched_role_name(h->role), h->name, h->host,
		(unsigned long long)h->view);
	sched_report_event(c, EVENT_SCHEDULER,
		"the scheduler's state is older than the state of %s '%s'",
		sched_role_name(h->role), h->name);
	for (struct sched_job *j = c->jobs; j; j = next) {
		next = j->next;
		if (j->state == JOB_RUNNING && j->formed <= c->kept_view)
			sched_job_end(c, j, BPS_EJOB_FAILED, NULL,
				"the scheduler's state is older than that of %s '%s': its state "
				"log was cut, or replaced by an older copy; start the job again",
				sched_role_name(h->role), h->name);
	}
}

static bool member_is_on_hello_machine(const struct sched_member *m, const struct ctl_hello *h)
{
	struct machine of_member = machine_of_member(m), of_hello = machine_of_hello(h);

	return machine_is_same(&of_member, &of_hello);
}

/* Return whether the process that sent `h` may have the name that m holds (rule C6). While m is
 * alive, it keeps the name, unless a new process on the same machine replaces m. The process that m
 * has replaced does not count as new, because otherwise two processes of one name would replace
 * each other without end. Exception: if m has no connection, the replaced process may take the name
 * back. In this case m may be a dead process whose HELLO arrived late, and the replaced process may
 * still be alive. */
static bool is_member_name_free(const struct sched_member *m, const struct ctl_hello *h)
{
	return !m || m->state == MEMBER_DOWN || m->instance == h->instance ||
	       (member_is_on_hello_machine(m, h) &&
		       (!m->conn || m->former_instance != h->instance));
}

/* Refuse a process because another machine has the same host name. The refused process may also run
 * on a machine that was booted again. The scheduler accepts this process when m is down. */
static void refuse_machine(
	struct sched_core *c, uint32_t conn, const struct ctl_hello *h, struct sched_member *m)
{
	struct machine machine = machine_of_member(m);
	const char *role = sched_role_name(h->role);
	char place[MACHINE_PLACE_BYTES];

	if (machine_rival_note(m, h, c->now_ns))
		sched_report_event(c, EVENT_MEMBER, "refused %s %s (pid %u on %s): host name taken",
			role, m->name, h->pid, m->rival->place);
	machine_format_place(&machine, m->addr, m->port, place);
	/* The advice comes first, because long domains make the text longer than CTL_TEXT_MAX. */
	refuse_member_hello(c, conn, BPS_EDUP,
		"two machines have the host name '%s': give one of the machines another host "
		"name, or set `name` and `host` of its daemons; %s '%s' is pid %u on %s, and the "
		"refused process is pid %u on %s; a machine that was booted again is accepted "
		"when the scheduler has declared its former %s dead",
		h->host, role, h->name, m->pid, place, h->pid, m->rival->place, role);
}

static void refuse_used_name(
	struct sched_core *c, uint32_t conn, const struct ctl_hello *h, struct sched_member *m)
{
	struct machine machine = machine_of_member(m);
	char place[MACHINE_PLACE_BYTES];

	if (strcmp(m->host, h->host) == 0 && !member_is_on_hello_machine(m, h)) {
		refuse_machine(c, conn, h, m);
		return;
	}
	machine_format_place(&machine, m->addr, m->port, place);
	refuse_member_hello(c, conn, BPS_EDUP,
		"the name '%s' is already used by a live %s on %s (pid %u), and the refused "
		"process is pid %u on %s: stop one of the two, or choose another --name",
		h->name, sched_role_name(h->role), place, m->pid, h->pid, h->host);
}

/* Reject a HELLO because the state cannot be written. A refused process ends. A known member must
 * not end for this reason, so only its connection is closed, and it tries again. */
static void reject_undurable_hello(struct sched_core *c, uint32_t conn, bool is_known)
{
	if (is_known)
		sched_conn_drop(c, conn, "the state cannot be written, retry later");
	else
		refuse_member_hello(c, conn, BPS_ENOTDURABLE,
			"the scheduler cannot write its state and accepts no new members; see its "
			"log");
}

/* Return a member that cannot exchange data with the sender of HELLO, because the member and the
 * sender use different providers (transports). NULL: there is no such member. Members that are down
 * do not count, because their data connections are no longer used. */
static const struct sched_member *other_provider(
	const struct sched_core *c, const struct ctl_hello *h, const struct sched_member *self)
{
	for (uint32_t i = 1; h->provider[0] && i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		if (m != self && sched_is_usable(m) && m->provider[0] &&
			strcmp(m->provider, h->provider) != 0)
			return m;
	}
	return NULL;
}

static void refuse_provider(struct sched_core *c, uint32_t conn, const struct ctl_hello *h,
	const struct sched_member *other)
{
	refuse_member_hello(c, conn, -EINVAL,
		"%s '%s' on %s uses provider '%s', but %s '%s' on %s uses '%s': set `provider` to "
		"the same value on all servers and agents, and restart those that you change",
		sched_role_name(h->role), h->name, h->host, h->provider,
		sched_role_name(other->role), other->name, other->host, other->provider);
}

static bool hello_is_refused(
	struct sched_core *c, uint32_t conn, const struct ctl_hello *h, struct sched_member *m)
{
	const struct sched_member *other;

	if (h->proto != CTL_PROTO) {
		refuse_member_hello(c, conn, BPS_EVERSION,
			"'%s' on %s (release %s) uses control protocol %u, but the scheduler "
			"(release %s) uses %u: install the same release",
			h->name, h->host, h->version, h->proto, BPS_VERSION, CTL_PROTO);
	} else if (!is_hello_sound(h)) {
		refuse_member_hello(c, conn, BPS_EPROTO, "HELLO from '%s' on '%s' is invalid",
			h->name, h->host);
	} else if (c->is_undurable) {
		reject_undurable_hello(c, conn, m != NULL);
	} else if (!is_member_name_free(m, h)) {
		refuse_used_name(c, conn, h, m);
	} else if (!m && c->n_members >= SCHED_MEMBERS_MAX) {
		refuse_member_hello(c, conn, BPS_EQUOTA,
			"the scheduler has %u members, which is its limit", SCHED_MEMBERS_MAX);
	} else if (!adopt_cluster_id(c, h)) {
		refuse_member_hello(c, conn, BPS_EMISMATCH,
			"%s '%s' on %s belongs to another cluster: point it to its own scheduler, "
			"or restart it to join this cluster",
			sched_role_name(h->role), h->name, h->host);
	} else if ((other = other_provider(c, h, m))) {
		refuse_provider(c, conn, h, other);
	} else {
		return false;
	}
	return true;
}

static void member_reconnect(
	struct sched_core *c, struct sched_member *m, const struct ctl_hello *h)
{
	bool is_new = m->instance != h->instance, was_usable = sched_is_usable(m);

	/* Log this case, because it is unusual. Normally the connection of the dead process closes
	 * first, and the new process connects later. */
	if (m->conn && is_new)
		log_limited(LOG_AS(LOG_WARN, MEMBER),
			"a new process of %s %s replaces a process that is still connected: "
			"host=%s pid=%u old_pid=%u",
			sched_role_name(m->role), m->name, h->host, h->pid, m->pid);
	/* Remove the agent's workers that wait to be let into a job. After WELCOME, the agent sends
	 * JOIN again for each worker that still waits. If an UNJOIN was lost, its worker is still
	 * registered as waiting, although the worker has left. */
	for (struct sched_job *j = c->jobs; j; j = j->next)
		sched_newcomers_drop(c, j, m->id);
	if (m->conn)
		sched_conn_drop(
			c, m->conn->id, is_new ? "replaced by a new instance" : "reconnected");
	if (m->state != MEMBER_UP) {
		sched_member_set_state(c, m, MEMBER_UP, is_new ? "restarted" : "reconnected");
	} else {
		const char *how = is_new ? "restarted" : "reconnected";

		log_limited(LOG_AS(LOG_INFO, MEMBER), "%s %s: %s host=%s", sched_role_name(m->role),
			m->name, how, h->host);
		sched_report_event(c, EVENT_MEMBER, "%s %s (host %s) has %s",
			sched_role_name(m->role), m->name, h->host, how);
	}
	if (!is_new && was_usable)
		return;
	sched_member_dirty(c, m);
	if (is_new) {
		free(m->rival);
		m->rival = NULL;
		m->restart_count++;
		m->is_leaving = m->has_left = false;
		m->former_instance = was_usable ? m->instance : 0;
		m->instance = h->instance;
		m->beat = (struct ctl_beat){0};
		progress_reset(m);
		speed_reset(m, strcmp(m->host, h->host) != 0);
		m->moved_ns = c->now_ns;
	}
	if (m->role == ROLE_AGENT && is_new)
		sched_agent_gone(c, m, false);
	if (m->role == ROLE_SERVER && is_new && was_usable)
		place_server_restarted(c, m, h->threads);
	sched_member_describe(c, m, h);
}

bool sched_receive_hello(struct sched_core *c, struct sched_conn *conn, const struct ctl_hello *h)
{
	struct sched_member *m = sched_member_find(c, h->role, h->name);
	bool was_there = m && sched_is_usable(m) && m->instance == h->instance;
	bool has_more;

	conn->is_known = m != NULL;
	if (hello_is_refused(c, conn->id, h, m))
		return false;
	has_more = is_member_view_ahead(c, m, h);
	raise_view_above_member(c, h->view);
	if (has_more)
		end_stale_jobs(c, h);
	if (m) {
		member_reconnect(c, m, h);
	} else {
		m = sched_member_add(c, c->n_members + 1, h->role, h->name);
		m->instance = h->instance;
		sched_member_describe(c, m, h);
		sched_member_dirty(c, m);
		m->moved_ns = c->now_ns;
		sched_member_set_state(c, m, MEMBER_UP, "new member");
	}
	if (m->role == ROLE_SERVER && !was_there && sched_member_is_open(m))
		balance_gathered(c);
	c->n_silent--;
	conn->member = m;
	m->conn = conn;
	m->seen_ns = m->asked_ns = m->answered_ns = 0;
	m->heard_ns = c->now_ns;
	m->needs_sync = m->has_come = true;
	/* While the grace period lasts, check all members without delay. When the last missing
	 * member has returned, the grace period ends for all members; see is_grace_period. */
	sched_arm_deadline(c, c->beat_ns && c->now_ns >= c->grace_ns ? c->beat_ns : c->now_ns);
	return true;
}

void sched_hello_undo(struct sched_core *c, struct sched_conn *conn)
{
	struct sched_member *m = conn->member;

	conn->member = NULL;
	m->conn = NULL;
	m->needs_sync = false;
	c->n_silent++;
	sched_member_set_suspect(c, m, "the state cannot be written");
	reject_undurable_hello(c, conn->id, conn->is_known);
}

/* Return whether the grace period after the scheduler's start still lasts (rule C2). The grace
 * period is meant for members that have not connected yet. Once all members are connected, a silent
 * member is declared dead after its usual dead time. */
static bool is_grace_period(const struct sched_core *c)
{
	if (c->now_ns >= c->grace_ns)
		return false;
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->state == MEMBER_EXPECTED ||
			c->members[i]->state == MEMBER_SUSPECT)
			return true;
	return false;
}

void sched_member_check(struct sched_core *c, struct sched_member *m)
{
	uint64_t at = m->deadline_ns, seen_to = agent_sighting_end_ns(c, m);
	char why[64];

	if (m->state == MEMBER_DOWN)
		return;
	if (m->state == MEMBER_UP) {
		at = (m->heard_ns > c->isolated_ns ? m->heard_ns : c->isolated_ns) +
		     sched_member_dead_ns(c, m);
		if (at < c->grace_ns && is_grace_period(c))
			at = c->grace_ns;
	} else if (c->isolated_ns && at < c->isolated_ns + sched_member_window_ns(c, m)) {
		at = c->isolated_ns + sched_member_window_ns(c, m);
	}
	at = hung_server_dead_at_ns(c, m, at);
	if (at <= c->now_ns && seen_to > c->now_ns && m->state == MEMBER_UP) {
		sched_conn_drop(c, m->conn->id, "silent, but servers receive from it");
		sched_member_set_state(c, m, MEMBER_SUSPECT,
			"the scheduler receives nothing from it, but servers do");
		m->deadline_ns = c->now_ns;
	}
	if (at < seen_to)
		at = seen_to;
	if (at > c->now_ns) {
		schedule_member_check(c, m, at);
		return;
	}
	if (m->state == MEMBER_UP)
		snprintf(why, sizeof(why), "silent for %.1f s",
			(double)(c->now_ns - m->heard_ns) / 1e9);
	else if (m->state == MEMBER_SUSPECT && drain_has_stopped(m))
		snprintf(why, sizeof(why), "drained, and stopped");
	else if (m->state != MEMBER_UP && m->seen_ns)
		snprintf(why, sizeof(why), "silent for %.1f s, and the %s receive nothing from it",
			(double)(c->now_ns - m->seen_ns) / 1e9,
			m->role == ROLE_AGENT ? "servers" : "agents");
	else if (m->state == MEMBER_SUSPECT)
		snprintf(why, sizeof(why), "gone for %.1f s",
			(double)(c->now_ns - m->since_ns) / 1e9);
	else
		snprintf(why, sizeof(why), "did not return after the scheduler's restart");
	member_declare_down(c, m, why);
}
