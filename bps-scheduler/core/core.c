/* Implements the entry points of the core (core.h): connections, messages, time, changes by
 * operators, start and end. Each entry point passes its event to the file that handles it, then
 * commits. The caller must always use the same thread. */
#include "bps-scheduler/core/core.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/commit.h"
#include "bps-scheduler/core/declare.h"
#include "bps-scheduler/core/elastic.h"
#include "bps-scheduler/core/job_end.h"
#include "bps-scheduler/core/members.h"
#include "bps-scheduler/core/progress.h"
#include "bps-scheduler/core/record.h"
#include "bps-scheduler/core/stalls.h"
#include "bps-scheduler/core/why_stuck.h"
#include "bps-scheduler/core/workers.h"
#include "bps-scheduler/placement/balance.h"
#include "bps-scheduler/placement/drain.h"
#include "bps-scheduler/placement/speed.h"
#include "common/base/log.h"
#include "common/base/nicspeed.h"

#define LATE_NS (100 * NS_PER_MS)

/* ---- events ---- */

static void member_receive_beat(
	struct sched_core *c, struct sched_member *m, const struct ctl_beat *b)
{
	if (b->progress != m->beat.progress)
		m->moved_ns = c->now_ns;
	m->beat = *b;
	/* the lists belong to the message, which the caller frees */
	m->beat.jobs = NULL;
	m->beat.links = NULL;
	m->beat.n_jobs = m->beat.n_links = 0;
	if (m->beat.measured_mbps > NIC_MAX_MBPS)
		m->beat.measured_mbps = NIC_MAX_MBPS;
	progress_receive_beat(c, m, b);
	speed_receive_beat(c, m, &m->beat);
}

static void dispatch_member_message(
	struct sched_core *c, struct sched_member *m, const struct ctl_msg *msg)
{
	if (msg->type == CTL_BEAT) {
		member_receive_beat(c, m, &msg->beat);
		return;
	}
	if (msg->type == CTL_FAIL) {
		sched_receive_fail(c, m, &msg->fail);
		return;
	}
	if (msg->type == CTL_SEEN) {
		sched_receive_sight(c, m, &msg->sight);
		return;
	}
	if (msg->type == CTL_LEAVE) {
		drain_receive_leave(c, m);
		return;
	}
	if (m->role != ROLE_AGENT) {
		sched_member_disconnect(c, m, "sent a message that only agents may send");
		return;
	}
	switch ((enum ctl_type)msg->type) {
	case CTL_JOIN:
		sched_receive_join(c, m, &msg->join);
		break;
	case CTL_UNJOIN:
		sched_receive_unjoin(c, m, msg->unjoin.seq);
		break;
	case CTL_DECLARE:
		sched_receive_declare(c, m, &msg->declare);
		break;
	case CTL_WORKER:
		sched_receive_worker_event(c, m, &msg->worker);
		break;
	case CTL_WHY:
		sched_receive_why(c, m, &msg->why);
		break;
	case CTL_REPORT:
		sched_receive_report(c, m, &msg->report);
		break;
	default:
		sched_member_disconnect(c, m, "sent a message that members must not send");
		break;
	}
}

static void receive_first_message(
	struct sched_core *c, struct sched_conn *conn, const struct ctl_msg *msg)
{
	if (msg->type != CTL_HELLO)
		sched_conn_drop(c, conn->id, "its first message is not HELLO");
	else if (!sched_receive_hello(c, conn, &msg->hello))
		return;
	else if (sched_commit(c, false) < 0)
		sched_hello_undo(c, conn);
	else
		sched_send_sync(c, conn->member);
}

void sched_receive_message(
	struct sched_core *c, uint32_t conn_id, const struct ctl_msg *msg, uint64_t now_ns)
{
	struct sched_conn *conn = *sched_conn_find_slot(c, conn_id);

	c->now_ns = now_ns;
	if (!conn)
		return;
	if (!conn->member) {
		receive_first_message(c, conn, msg);
		return;
	}
	conn->member->heard_ns = now_ns;
	dispatch_member_message(c, conn->member, msg);
	if (msg->type != CTL_BEAT)
		sched_commit(c, false);
}

int sched_job_kill(struct sched_core *c, uint32_t job, const char *text, uint64_t now_ns)
{
	struct sched_job *j = sched_job_by_id(c, job);

	c->now_ns = now_ns;
	if (!j)
		return BPS_ENOTFOUND;
	if (c->is_undurable)
		return BPS_ENOTDURABLE;
	sched_job_abort(c, j, text);
	return sched_commit(c, false);
}

int sched_mute(struct sched_core *c, const char *code, uint64_t span_ms, const char *reason,
	const char *who, uint64_t now_ns)
{
	int rc;

	c->now_ns = now_ns;
	rc = mute_set(c, code, span_ms, reason, who);
	return rc < 0 ? rc : sched_commit(c, false);
}

int sched_unmute(struct sched_core *c, const char *code, uint64_t now_ns)
{
	int rc;

	c->now_ns = now_ns;
	rc = mute_clear(c, code);
	if (rc == BPS_ENOTFOUND && c->has_new_mutes)
		return BPS_ENOTDURABLE; /* this order may repeat one that was not written */
	return rc < 0 ? rc : sched_commit(c, false);
}

static int commit_drain_change(
	struct sched_core *c, const struct sched_member *m, struct err_text *ret_text)
{
	int rc = sched_commit(c, false);

	if (rc == 0)
		return drain_describe(c, m, ret_text);
	return err_set(ret_text, rc,
		"%s %s is %s, but the scheduler cannot store this change; see its log",
		sched_role_name(m->role), m->name, m->is_drained ? "drained" : "no longer drained");
}

int sched_drain(struct sched_core *c, const char *target, const char *reason, const char *who,
	uint64_t now_ns, struct err_text *ret_text)
{
	struct sched_member *m = NULL;
	int rc;

	c->now_ns = now_ns;
	rc = drain_set_member(c, target, reason, who, &m, ret_text);
	return rc < 0 ? rc : commit_drain_change(c, m, ret_text);
}

int sched_undrain(
	struct sched_core *c, const char *target, uint64_t now_ns, struct err_text *ret_text)
{
	struct sched_member *m = NULL;
	int rc;

	c->now_ns = now_ns;
	rc = drain_clear_member(c, target, &m, ret_text);
	if (rc == -EALREADY && !m->is_dirty)
		return 0; /* ret_text has this answer */
	/* is_dirty: this order may repeat one that was not written */
	return rc < 0 && rc != -EALREADY ? rc : commit_drain_change(c, m, ret_text);
}

void sched_conn_open(struct sched_core *c, uint32_t id, uint64_t now_ns)
{
	struct sched_conn *conn = sched_alloc(1, sizeof(*conn));

	c->now_ns = now_ns;
	conn->id = id;
	conn->deadline_ns = now_ns + c->cfg.hello_ms * NS_PER_MS;
	conn->next = c->conns[id % CONN_BUCKETS];
	c->conns[id % CONN_BUCKETS] = conn;
	c->n_silent++;
	sched_arm_deadline(c, conn->deadline_ns);
}

void sched_conn_note_master(struct sched_core *c, uint32_t id)
{
	struct sched_conn *conn = *sched_conn_find_slot(c, id);

	if (conn)
		conn->has_master = true;
}

void sched_conn_closed(struct sched_core *c, uint32_t id, uint64_t now_ns)
{
	struct sched_conn *conn = *sched_conn_find_slot(c, id);
	struct sched_member *m = conn ? conn->member : NULL;

	c->now_ns = now_ns;
	sched_conn_forget(c, id);
	if (!m || m->state != MEMBER_UP)
		return;
	sched_member_set_suspect(c, m, "its connection closed");
	if (drain_has_stopped(m))
		sched_arm_deadline(c, m->deadline_ns = now_ns);
}

void sched_expel(struct sched_core *c, enum role role, const char *name, uint64_t now_ns)
{
	c->now_ns = now_ns;
	sched_member_expel(c, role, name);
	sched_commit(c, false);
}

/* ---- time ---- */

/* Move the deadlines of all members by span_ns. The scheduler itself was delayed by span_ns, and
 * this delay must not count as silence of the members. */
static void extend_member_deadlines(struct sched_core *c, uint64_t span_ns)
{
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct sched_member *m = c->members[i];

		m->deadline_ns += span_ns;
		m->heard_ns += span_ns;
		if (m->heard_ns > c->now_ns)
			m->heard_ns = c->now_ns;
		if (m->seen_ns)
			m->seen_ns += span_ns;
		if (m->seen_ns > c->now_ns)
			m->seen_ns = c->now_ns;
	}
}

uint64_t sched_next_deadline(const struct sched_core *c)
{
	return c->due_ns;
}

static void drop_silent_conns(struct sched_core *c)
{
	for (size_t b = 0; c->n_silent && b < CONN_BUCKETS; b++) {
		for (struct sched_conn *conn = c->conns[b], *next; conn; conn = next) {
			next = conn->next;
			if (conn->member)
				continue;
			if (conn->deadline_ns <= c->now_ns)
				sched_conn_drop(c, conn->id, "no HELLO in time");
			else
				sched_arm_deadline(c, conn->deadline_ns);
		}
	}
}

static void send_member_beats(struct sched_core *c)
{
	struct ctl_msg msg = {.type = CTL_BEAT};

	if (c->now_ns < c->beat_ns) {
		sched_arm_deadline(c, c->beat_ns);
		return;
	}
	c->beat_ns = 0;
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct sched_member *m = c->members[i];

		if (!m->conn)
			continue;
		msg.beat = (struct ctl_beat){++m->tx_seq, m->beat.seq, .view = c->view};
		sched_send_message(c, m, &msg);
		c->beat_ns = c->now_ns + c->cfg.beat_ms * NS_PER_MS;
	}
	if (c->beat_ns)
		sched_arm_deadline(c, c->beat_ns);
}

void sched_tick(struct sched_core *c, uint64_t now_ns)
{
	uint64_t late_ns = now_ns > c->due_ns ? now_ns - c->due_ns : 0;

	c->now_ns = now_ns;
	if (late_ns > LATE_NS) {
		log_rated(LOG_WARN, "this process was delayed by %.3f s: extending all deadlines",
			(double)late_ns / 1e9);
		extend_member_deadlines(c, late_ns);
	}
	c->due_ns = UINT64_MAX;
	drop_silent_conns(c);
	send_member_beats(c);
	stalls_tick(c);
	sched_probe_tick(c);
	if (c->is_undurable) {
		if (now_ns >= c->retry_ns)
			sched_commit(c, true);
		else
			sched_arm_deadline(c, c->retry_ns);
	}
	if (c->is_undurable)
		return;
	isolation_tick(c);
	for (uint32_t i = 1; i <= c->n_members; i++)
		sched_member_check(c, c->members[i]);
	if (speed_tick(c))
		balance_request_all_jobs(c);
	balance_tick(c);
	if (sched_commit(c, false) == 0)
		drain_answer_leavers(c);
}

/* ---- start and end ---- */

void sched_config_default(struct sched_config *cfg)
{
	*cfg = (struct sched_config){.cluster = "bps",
		.beat_ms = 500,
		.server_dead_ms = 3000,
		.agent_dead_ms = 5000,
		.server_window_ms = 1000,
		.server_slow_ms = 500,
		.agent_window_ms = 5000,
		.probe_ms = 1000,
		.hello_ms = 5000,
		.stall_ms = 10000,
		.forming_ms = 60000};
}

struct sched_core *sched_new(const struct sched_config *cfg, const struct sched_env *env)
{
	struct sched_core *c = sched_alloc(1, sizeof(*c));

	c->cfg = *cfg;
	c->env = *env;
	c->due_ns = UINT64_MAX;
	c->next_job = c->job_id_limit = 1;
	env->random(env->ctx, c->cluster_id, sizeof(c->cluster_id));
	env->random(env->ctx, c->secret, sizeof(c->secret));
	return c;
}

int sched_start(struct sched_core *c, uint64_t now_ns)
{
	int r;

	assert(!c->is_started);
	c->now_ns = c->started_ns = now_ns;
	c->grace_ns = c->is_restored ? sched_grace_end_ns(c) : now_ns;
	c->term++;
	c->tx_view = (uint64_t)c->term << 32 | 1;
	c->kept_view = c->view;
	/* skip the ids that the previous process may have assigned to jobs that were still
	 * forming */
	c->next_job = c->job_id_limit;
	c->job_id_limit += JOB_ID_BLOCK;
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct sched_member *m = c->members[i];

		m->since_ns = m->heard_ns = now_ns;
		m->deadline_ns = c->grace_ns;
		if (m->state == MEMBER_EXPECTED)
			sched_arm_deadline(c, m->deadline_ns);
	}
	for (struct sched_job *j = c->jobs; j; j = j->next)
		j->since_ns = now_ns;
	balance_gathered(c); /* continue the planned moves that the previous process began */
	r = sched_persist_changes(c);
	if (r < 0)
		return r;
	c->view = c->tx_view;
	c->tx_view = 0;
	c->is_started = true;
	sched_report_event(c, EVENT_SCHEDULER, "the scheduler has started, term %u", c->term);
	return 0;
}

void sched_reconfigure(struct sched_core *c, const struct sched_config *cfg, uint64_t now_ns)
{
	const struct sched_config was = c->cfg;

	c->cfg = *cfg;
	c->cfg.cluster = was.cluster;
	c->cfg.beat_ms = was.beat_ms;
	memcpy(c->cfg.boot_id, was.boot_id, sizeof(was.boot_id));
	c->cfg.unix_offset_s = was.unix_offset_s;
	sched_arm_deadline(c, now_ns); /* run a tick now, which computes all deadlines again */
}

static void sched_free_job_list(struct sched_core *c, struct sched_job *j)
{
	while (j) {
		struct sched_job *next = j->next;

		sched_job_free(c, j);
		j = next;
	}
}

void sched_free(struct sched_core *c)
{
	if (!c)
		return;
	sched_probe_free_all(c);
	sched_free_job_list(c, c->jobs);
	sched_free_job_list(c, c->ended);
	for (uint32_t i = 1; i <= c->n_members; i++)
		sched_member_free(c->members[i]);
	free(c->members);
	for (uint32_t i = 0; i < c->n_hosts; i++)
		free(c->hosts[i]);
	free(c->hosts);
	for (size_t b = 0; b < CONN_BUCKETS; b++) {
		while (c->conns[b]) {
			struct sched_conn *conn = c->conns[b];

			c->conns[b] = conn->next;
			free(conn);
		}
	}
	free(c);
}

uint32_t sched_current_term(const struct sched_core *c)
{
	return c->term;
}

uint64_t sched_current_view(const struct sched_core *c)
{
	return c->view;
}

bool sched_is_durable(const struct sched_core *c)
{
	return !c->is_undurable;
}
