/* Ends an event: gives its changes a view, makes them durable, and then sends them to the members
 * that need them. All functions run on the core's thread. */
#include "bps-scheduler/core/commit.h"

#include <stdlib.h>

#include "bps-scheduler/core/admission.h"
#include "bps-scheduler/core/record.h"
#include "bps-scheduler/placement/place_apply.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

/* Send PEERS, a list of the members that this transaction has changed. List only members whose role
 * is equal to `changed`. If `changed` is ROLE_SERVER, send PEERS to the agents, otherwise to the
 * servers. */
static void send_changed_peers(struct sched_core *c, enum role changed)
{
	const struct sched_member **list = NULL;
	uint32_t n = 0, room = 0;

	for (const struct sched_member *m = c->dirty_members; m; m = m->next_dirty) {
		if (m->role != changed)
			continue;
		list = sched_grow_array(list, &room, n + 1, sizeof(*list));
		list[n++] = m;
	}
	for (uint32_t i = 1; n && i <= c->n_members; i++) {
		const struct sched_member *to = c->members[i];

		if (to->role != changed && to->conn && !to->needs_sync)
			sched_send_peers(c, to, list, n);
	}
	free(list);
}

/* Return whether to send the changes of the job to member `m`. role: the role of the members to
 * which the caller sends the changes now. Changes are sent to every server and to all agents of the
 * job, also to agents that have left the job. A member that is about to get the whole state
 * (needs_sync) does not get the changes. */
static bool is_job_change_receiver(
	const struct sched_job *j, const struct sched_member *m, enum role role)
{
	return m->role == role && m->conn && !m->needs_sync &&
	       (role == ROLE_SERVER || sched_job_member_ever(j, m->id) != CTL_NO_ID);
}

static void job_send_changes(struct sched_core *c, struct sched_job *j)
{
	/* Send the changes to the servers first. A server must receive the place of a partition
	 * before a contribution to the partition arrives. */
	static const enum role order[] = {ROLE_SERVER, ROLE_AGENT};

	for (size_t r = 0; r < sizeof(order) / sizeof(order[0]); r++) {
		for (uint32_t i = 1; i <= c->n_members; i++) {
			struct sched_member *m = c->members[i];

			if (!m->conn && m->role == ROLE_AGENT &&
				sched_job_member(j, m->id) != CTL_NO_ID)
				/* is_behind stays set until the agent connects again */
				m->is_behind = true;
			if (!is_job_change_receiver(j, m, order[r]))
				continue;
			if (j->state == JOB_ENDED) {
				sched_send_job_end(c, m, j);
				continue;
			}
			if (order[r] == ROLE_AGENT && sched_job_member(j, m->id) == CTL_NO_ID) {
				if (j->members[sched_job_member_ever(j, m->id)].is_untold)
					sched_send_job_end(c, m, j);
				continue;
			}
			if (j->is_changed && order[r] == ROLE_AGENT)
				sched_send_joined(c, m, j);
			if (j->is_changed)
				sched_send_job(c, m, j);
			if (j->fresh || j->has_moved)
				sched_send_plan(c, m, j, false);
		}
	}
}

/* Send the places of all partitions of the job to the members that requested them during the
 * transaction. */
static void job_send_owed_plans(struct sched_core *c, struct sched_job *j)
{
	for (uint32_t i = 0; j->owes_plans && i < j->n_members; i++) {
		struct sched_job_member *jm = &j->members[i];

		if (jm->is_owed_plan && !jm->is_gone)
			sched_send_plan(c, sched_member_by_id(c, jm->agent), j, true);
		jm->is_owed_plan = false;
	}
	j->owes_plans = false;
}

static void job_clear_changes(struct sched_job *j)
{
	while (j->fresh) {
		struct sched_tensor *t = j->fresh;

		j->fresh = t->next_fresh;
		t->next_fresh = NULL;
		free(t->declared);
		t->declared = NULL;
	}
	for (uint32_t i = 0; i < j->n_members; i++)
		j->members[i].is_untold = false;
	for (uint32_t i = 0; i < j->n_room; i++)
		j->workers[i].is_fresh = false;
	j->fresh_tail = &j->fresh;
	j->is_dirty = j->is_changed = j->has_moved = false;
	j->next_dirty = NULL;
}

static void commit_send_changes(struct sched_core *c)
{
	send_changed_peers(c, ROLE_SERVER);
	send_changed_peers(c, ROLE_AGENT);
	for (struct sched_job *j = c->dirty_jobs; j; j = j->next_dirty)
		job_send_changes(c, j);
	for (struct sched_job *j = c->jobs; j; j = j->next)
		job_send_owed_plans(c, j);
	while (c->dirty_jobs) {
		struct sched_job *j = c->dirty_jobs;

		c->dirty_jobs = j->next_dirty;
		job_clear_changes(j);
	}
	while (c->dirty_members) {
		struct sched_member *m = c->dirty_members;

		c->dirty_members = m->next_dirty;
		m->is_dirty = false;
		m->next_dirty = NULL;
	}
	sched_ended_trim(c);
}

static void state_set_undurable(struct sched_core *c, int r)
{
	if (!c->is_undurable) {
		log_write(LOG_AS(LOG_ERROR, STATE_LOST),
			"cannot write the state: %s; rejecting new jobs and members until a write "
			"succeeds: view=%llx",
			err_str(r), (unsigned long long)c->view);
		sched_report_event(
			c, EVENT_SCHEDULER, "the scheduler cannot write its state: %s", err_str(r));
	}
	c->is_undurable = true;
	c->retry_ns = c->now_ns + c->cfg.beat_ms * NS_PER_MS;
	sched_arm_deadline(c, c->retry_ns);
}

static void state_set_durable(struct sched_core *c)
{
	if (!c->is_undurable)
		return;
	log_write(LOG_AS(LOG_INFO, STATE_BACK), "the state is durable again: view=%llx",
		(unsigned long long)c->tx_view);
	sched_report_event(c, EVENT_SCHEDULER, "the state is durable again");
	c->is_undurable = false;
	/* Members were refused while the state could not be written. Give these members time to
	 * return. */
	c->grace_ns = sched_grace_end_ns(c);
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct sched_member *m = c->members[i];

		if (m->state == MEMBER_EXPECTED || m->state == MEMBER_SUSPECT)
			m->deadline_ns = c->grace_ns;
	}
}

static void note_member_view(struct sched_core *c)
{
	const struct sched_member *m = c->dirty_members;
	uint32_t more = 0;

	for (const struct sched_member *i = m->next_dirty; i; i = i->next_dirty)
		more++;
	sched_report_event(c, EVENT_VIEW, "%s %s %s%s", sched_role_name(m->role), m->name,
		m->state == MEMBER_DOWN ? "is down" : "has joined or changed",
		more ? ", and other members have changed" : "");
}

static void note_job_view_event(struct sched_core *c, const struct sched_job *j)
{
	uint32_t n_fresh = 0;

	for (const struct sched_tensor *t = j->fresh; t; t = t->next_fresh)
		n_fresh++;
	if (j->state == JOB_ENDED)
		sched_report_event(c, EVENT_VIEW, "job '%s' has ended", j->name);
	else if (j->is_changed && j->formed == c->view)
		sched_report_event(c, EVENT_VIEW, "job '%s' has formed", j->name);
	else if (j->is_changed && j->border == c->view)
		sched_report_event(c, EVENT_VIEW, "job '%s' has new workers", j->name);
	else if (j->is_changed && !j->has_moved)
		sched_report_event(c, EVENT_VIEW, "job '%s' has passed barrier %llu", j->name,
			(unsigned long long)j->barrier);
	else if (j->is_changed)
		sched_report_event(c, EVENT_VIEW, "job '%s' continues with %u of %u machines",
			j->name, j->n_members - j->n_left, j->n_members);
	else if (j->has_moved)
		sched_report_event(
			c, EVENT_VIEW, "partitions of job '%s' were placed again", j->name);
	else
		sched_report_event(c, EVENT_VIEW, "placed %u tensor%s of job '%s'", n_fresh,
			n_fresh == 1 ? "" : "s", j->name);
}

/* Report an event that names the change which has just become durable. */
static void note_commit_view_event(struct sched_core *c)
{
	if (!c->env.event)
		return;
	if (c->dirty_members)
		note_member_view(c);
	else if (c->dirty_jobs)
		note_job_view_event(c, c->dirty_jobs);
	else if (c->has_new_mutes)
		sched_report_event(c, EVENT_VIEW, "the muted problems have changed");
	else
		sched_report_event(c, EVENT_VIEW, "the scheduler has reserved ids for jobs");
}

int sched_commit(struct sched_core *c, bool is_retry)
{
	int r;

	if (c->is_undurable && !is_retry)
		return BPS_ENOTDURABLE;
	admission_check_waiting(c);
	place_waiting_parts(c);
	place_fresh_tensors(c);
	if (c->tx_view) {
		FAILPOINT(SCHED_COMMIT_BEFORE_PERSIST);
		r = sched_persist_changes(c);
		if (r < 0) {
			state_set_undurable(c, r);
			return r;
		}
		state_set_durable(c);
		c->view = c->tx_view;
		c->tx_view = 0;
		c->changes++;
		note_commit_view_event(c);
		c->has_new_mutes = false;
		FAILPOINT(SCHED_COMMIT_BEFORE_SEND);
		commit_send_changes(c);
		FAILPOINT(SCHED_COMMIT_SENT);
	}
	return 0;
}

uint32_t sched_job_id_take(struct sched_core *c)
{
	if (c->next_job == c->job_id_limit) {
		sched_open_transaction_view(c);
		c->job_id_limit += JOB_ID_BLOCK;
		if (sched_commit(c, false) < 0) {
			c->job_id_limit -= JOB_ID_BLOCK;
			return CTL_NO_ID;
		}
	}
	return c->next_job++;
}
