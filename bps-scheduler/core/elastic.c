/* Lets machines join a running job, and handles barriers (docs/reference/faults.md, jobs that
 * change).
 *
 * newcomer: JOIN --> waits --all workers of its machine wait, the job passes a barrier--> LIVE
 *                     `--UNJOIN--> left
 *
 * The workers of a machine that has left a job join again in the same way. All functions run on the
 * core's thread. */
#include "bps-scheduler/core/elastic.h"

#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/placement/place_apply.h"
#include "common/base/log.h"

/* ---- machines that join ---- */

/* Return whether a worker that is not gone has the rank. False for CTL_NO_ID. */
static bool is_live_worker_rank(const struct sched_job *j, uint32_t rank)
{
	return rank < j->n_room &&
	       (j->workers[rank].state == WORKER_ATTACHED || j->workers[rank].state == WORKER_DONE);
}

int sched_newcomer(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const struct ctl_join *q, struct err_text *err)
{
	for (uint32_t i = 0; i < j->n_newcomers; i++) {
		const struct sched_newcomer *n = &j->newcomers[i];

		if (n->agent == m->id && n->pid == q->pid && n->seq == q->seq)
			return 0;
	}
	if (sched_job_member(j, m->id) != CTL_NO_ID)
		return err_set(err, BPS_EDUP,
			"host %s is already in job '%s': all workers of a machine must join "
			"together",
			m->host, j->name);
	if (j->n_joined + j->n_newcomers >= j->max_size)
		return err_set(err, BPS_EDUP, "job '%s' already has all its %u workers", j->name,
			j->max_size);
	if (is_live_worker_rank(j, q->rank))
		return err_set(err, BPS_EDUP,
			"rank %u of job '%s' is already taken by pid %u on host %s", q->rank,
			j->name, j->workers[q->rank].pid,
			sched_host_of_member(c, j->workers[q->rank].agent));
	if (j->n_members >= WIRE_MEMBERS_MAX && sched_job_member_ever(j, m->id) == CTL_NO_ID)
		return err_set(err, BPS_EQUOTA, "job '%s' has had %u machines, which is the limit",
			j->name, WIRE_MEMBERS_MAX);
	j->newcomers = sched_grow_array(
		j->newcomers, &j->newcomers_room, j->n_newcomers + 1, sizeof(*j->newcomers));
	j->newcomers[j->n_newcomers++] =
		(struct sched_newcomer){m->id, q->pid, q->seq, q->rank, q->local_size};
	sched_report_event(c, EVENT_JOB, "job '%s': a worker on host %s waits for admission",
		j->name, m->host);
	return 0;
}

void sched_receive_unjoin(struct sched_core *c, const struct sched_member *m, uint32_t seq)
{
	for (struct sched_job *j = c->jobs; j; j = j->next) {
		for (uint32_t i = 0; i < j->n_newcomers; i++) {
			struct sched_newcomer *n = &j->newcomers[i];

			if (n->agent != m->id || n->seq != seq)
				continue;
			memmove(n, n + 1, (--j->n_newcomers - i) * sizeof(*n));
			sched_report_event(c, EVENT_JOB,
				"job '%s': a worker on host %s has left before its admission",
				j->name, m->host);
			return;
		}
	}
}

/* Free a rank if its worker is gone. */
static void free_gone_worker_rank(struct sched_job *j, uint32_t rank)
{
	struct sched_worker *w = &j->workers[rank];

	if (w->state != WORKER_GONE)
		return;
	j->members[sched_job_member_ever(j, w->agent)].n_ranks--;
	j->n_gone--;
	*w = (struct sched_worker){.state = WORKER_ABSENT};
}

/* Make an agent a member of the job again. The agent had left the job. Remove the agent's previous
 * workers. */
static void job_member_revive(struct sched_job *j, struct sched_job_member *jm)
{
	for (uint32_t r = 0; r < j->n_room; r++)
		if (j->workers[r].agent == jm->agent)
			free_gone_worker_rank(j, r);
	free(jm->why);
	*jm = (struct sched_job_member){.agent = jm->agent, .low_rank = CTL_NO_ID};
	j->n_left--;
}

static void admit_one_newcomer(
	struct sched_core *c, struct sched_job *j, const struct sched_newcomer *n)
{
	uint32_t i = sched_job_member_ever(j, n->agent), rank = n->asked_rank;

	if (rank == CTL_NO_ID || is_live_worker_rank(j, rank))
		for (rank = 0; is_live_worker_rank(j, rank);)
			rank++;
	if (i != CTL_NO_ID && j->members[i].is_gone)
		job_member_revive(j, &j->members[i]);
	sched_worker_at(j, rank);
	free_gone_worker_rank(j, rank);
	sched_job_attach(j, rank, n->agent, n->pid, n->seq);
	j->workers[rank].is_fresh = true;
	j->members[sched_job_member(j, n->agent)].since = sched_open_transaction_view(c);
	log_limited(LOG_AS(LOG_INFO, JOB), "job admits rank %u: job='%s' id=%u host=%s pid=%u",
		rank, j->name, j->id, sched_host_of_member(c, n->agent), n->pid);
}

/* Return whether all workers of the newcomer's machine wait to be let in, and the machine's agent
 * is connected. */
static bool is_newcomer_ready(
	const struct sched_core *c, const struct sched_job *j, const struct sched_newcomer *n)
{
	uint32_t beside = 0;

	for (uint32_t i = 0; i < j->n_newcomers; i++)
		beside += j->newcomers[i].agent == n->agent;
	return beside >= n->local_size && sched_member_by_id(c, n->agent)->conn;
}

/* Return whether the newcomer's machine has a member number or can get one. If neither is the case,
 * refuse the newcomer. Machines that were let in just before may have taken the last free member
 * number. */
static bool can_get_member_number(
	struct sched_core *c, const struct sched_job *j, const struct sched_newcomer *n)
{
	struct ctl_msg msg = {.type = CTL_JOINED,
		.joined = {n->seq, (uint32_t)-BPS_EQUOTA,
			"the job has reached its limit of machines", CTL_NO_ID, CTL_NO_ID}};

	if (j->n_members < WIRE_MEMBERS_MAX || sched_job_member_ever(j, n->agent) != CTL_NO_ID)
		return true;
	sched_send_message(c, sched_member_by_id(c, n->agent), &msg);
	return false;
}

/* Enlarge the bitmaps that record which members have declared a tensor. The job's new members get
 * bits in these bitmaps. `was`: previous number of members. */
static void widen_declared(struct sched_job *j, uint32_t was)
{
	uint32_t n = (j->n_members + 63) / 64, n_was = (was + 63) / 64;

	for (uint32_t b = 0; n > n_was && b < j->n_buckets; b++) {
		for (struct sched_tensor *t = j->buckets[b]; t; t = t->next_hash) {
			uint64_t *to = t->declared ? sched_alloc(n, sizeof(*to)) : NULL;

			for (uint32_t i = 0; to && i < n_was; i++)
				to[i] = t->declared[i];
			free(t->declared);
			t->declared = to;
		}
	}
}

/* If all workers of a newcomer's machine wait to be let in (is_newcomer_ready), let in the
 * newcomers of that machine. At a barrier, no worker of the job has a round in flight, so no worker
 * needs the result of an earlier round. Therefore all members, old and new, count the rounds from 1
 * again. */
static void admit_ready_newcomers(struct sched_core *c, struct sched_job *j)
{
	uint32_t was = j->n_members, kept = 0, n = j->n_newcomers, let = 0;
	struct sched_newcomer *all = sched_alloc(n, sizeof(*all));
	bool *ready = sched_alloc(n, sizeof(*ready));

	for (uint32_t i = 0; i < n; i++) {
		all[i] = j->newcomers[i];
		ready[i] = is_newcomer_ready(c, j, &all[i]);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (ready[i] && !can_get_member_number(c, j, &all[i]))
			continue;
		if (ready[i]) {
			admit_one_newcomer(c, j, &all[i]);
			let++;
		} else {
			j->newcomers[kept++] = all[i];
		}
	}
	j->n_newcomers = kept;
	free(all);
	free(ready);
	if (!let)
		return;
	widen_declared(j, was);
	sched_job_rescale(c, j, was);
	j->border = sched_open_transaction_view(c);
	j->border_barrier = j->barrier;
	place_renew_part_pgens(c, j);
	sched_report_event(c, EVENT_JOB, "job '%s' continues with %u more worker%s, %u in all",
		j->name, let, plural_suffix_of(let), j->n_joined);
}

/* ---- barriers ---- */

static void job_pass_barrier(struct sched_core *c, struct sched_job *j)
{
	j->barrier++;
	j->n_at_barrier = 0;
	j->view = sched_open_transaction_view(c);
	j->is_changed = true;
	sched_job_dirty(c, j);
	log_debug("all workers have reached barrier %llu: job='%s' id=%u",
		(unsigned long long)j->barrier, j->name, j->id);
	admit_ready_newcomers(c, j);
}

void sched_at_barrier(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	uint32_t rank, uint64_t n)
{
	struct sched_worker *w = &j->workers[rank];

	if (n <= j->barrier) {
		if (!j->is_dirty) /* otherwise JOB is sent when the change is durable */
			sched_send_job(c, m, j);
		return;
	}
	if (n != j->barrier + 1) {
		log_rated(LOG_WARN,
			"agent %s reports barrier %llu of job '%s', but the next barrier is %llu: "
			"ignoring the report",
			m->name, (unsigned long long)n, j->name,
			(unsigned long long)j->barrier + 1);
		return;
	}
	if (w->barrier == n)
		return;
	w->barrier = n;
	if (++j->n_at_barrier == j->n_joined)
		job_pass_barrier(c, j);
}
