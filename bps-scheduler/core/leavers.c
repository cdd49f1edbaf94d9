/* Rule J15: a worker that has finished is lost if another worker waits for it. */
#include "bps-scheduler/core/leavers.h"

#include <stdio.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/core/job_end.h"
#include "common/wire/name_hash.h"

bool leavers_has_any(const struct sched_job *j)
{
	return j->state == JOB_RUNNING && j->n_done > 0 && j->n_done < j->n_joined && !j->backup;
}

/* Declare the worker lost. what: what another worker waits for. */
static void declare_worker_lost(
	struct sched_core *c, struct sched_job *j, uint32_t rank, const char *what)
{
	const struct sched_worker *w = &j->workers[rank];

	sched_machine_lost(c, j, sched_job_member(j, w->agent), rank, BPS_EWORKER_LOST,
		"rank %u (host %s, pid %u) has left job '%s' (it has closed the job or exited), "
		"but %s; let all workers make the same number of steps before they close the job",
		rank, sched_host_of_member(c, w->agent), w->pid, j->name, what);
}

/* ---- barriers ---- */

/* Return whether a worker that has not finished waits at the next barrier. */
static bool is_barrier_awaited(const struct sched_job *j)
{
	for (uint32_t r = 0; j->n_at_barrier && r < j->n_room; r++)
		if (j->workers[r].state == WORKER_ATTACHED &&
			j->workers[r].barrier == j->barrier + 1)
			return true;
	return false;
}

void leavers_tick(struct sched_core *c, struct sched_job *j)
{
	uint64_t next = j->barrier + 1;

	if (!leavers_has_any(j) || !is_barrier_awaited(j))
		return;
	for (uint32_t r = 0; j->state == JOB_RUNNING && r < j->n_room; r++)
		if (j->workers[r].state == WORKER_DONE && j->workers[r].barrier != next)
			declare_worker_lost(c, j, r, "other workers wait for it at a barrier");
}

/* ---- declarations ---- */

/* Return the member's first rank if all its workers had finished before the probe began and its
 * agent has answered. Otherwise, return CTL_NO_ID. */
static uint32_t finished_member_rank(
	const struct sched_job *j, uint32_t member, const struct sched_probe *p)
{
	uint32_t agent = j->members[member].agent, first = CTL_NO_ID;

	for (uint32_t r = 0; r < j->n_room; r++) {
		const struct sched_worker *w = &j->workers[r];

		if (w->agent != agent || w->state == WORKER_ABSENT || w->state == WORKER_GONE)
			continue;
		if (w->state != WORKER_DONE || w->done_seq >= p->seq || !p->has_answered[member])
			return CTL_NO_ID;
		if (first == CTL_NO_ID)
			first = r;
	}
	return first;
}

/* Declare lost all members that have not declared t, and whose workers have all finished. */
static bool lose_if_undeclared(struct sched_core *c, struct sched_job *j,
	const struct sched_probe *p, const struct sched_tensor *t)
{
	char what[CTL_TEXT_MAX + 1];
	bool found = false;

	for (uint32_t i = 0; j->state == JOB_RUNNING && i < j->n_members; i++) {
		uint32_t rank;

		if (j->members[i].is_gone || sched_tensor_has_declared(t, i))
			continue;
		rank = finished_member_rank(j, i, p);
		if (rank == CTL_NO_ID)
			continue;
		snprintf(what, sizeof(what), "other workers wait for it to declare tensor '%.200s'",
			t->name);
		declare_worker_lost(c, j, rank, what);
		found = true;
	}
	return found;
}

/* A worker that has not finished, and that waits for the tensor `oldest_tensor`. */
static bool is_waiting_worker(const struct sched_job *j, const struct ctl_report_worker *w)
{
	return w->is_waiting && w->oldest_round && j->workers[w->rank].state == WORKER_ATTACHED;
}

/* Return whether a worker waits for a tensor that has no plan. */
static bool is_tensor_awaited(
	const struct sched_job *j, const struct sched_probe *p, const struct sched_tensor *t)
{
	uint64_t name = name_hash(t->name);

	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct ctl_report_worker *w = &p->workers[i].w;

		if (w->oldest_tensor == CTL_NO_ID && w->oldest_name == name &&
			is_waiting_worker(j, w))
			return true;
	}
	return false;
}

/* A tensor has no plan before all members have declared it. Declare lost the finished members
 * that have not declared a tensor for which a worker waits. */
static void lose_undeclared_leavers(
	struct sched_core *c, struct sched_job *j, const struct sched_probe *p)
{
	for (uint32_t b = 0; b < j->n_buckets; b++)
		for (const struct sched_tensor *t = j->buckets[b]; t; t = t->next_hash)
			if (t->state == TENSOR_COLLECTING && is_tensor_awaited(j, p, t) &&
				lose_if_undeclared(c, j, p, t))
				return;
}

/* ---- rounds ---- */

/* Return the rank of a worker that waits for a round of the tensor, or CTL_NO_ID. */
static uint32_t waiting_rank_of_tensor(
	const struct sched_job *j, const struct sched_probe *p, uint32_t tensor)
{
	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct ctl_report_worker *w = &p->workers[i].w;

		if (w->oldest_tensor == tensor && is_waiting_worker(j, w))
			return w->rank;
	}
	return CTL_NO_ID;
}

/* Declare lost all workers that have finished and that a round waits for. detail: an answered
 * probe about one tensor. A worker's number of submitted rounds is its last one if the worker had
 * finished before the probe began. */
static bool probe_lose_missing_workers(struct sched_core *c, struct sched_job *j,
	const struct sched_probe *p, const struct sched_probe *detail)
{
	const struct sched_tensor *t =
		detail->tensor < j->n_placed ? j->placed[detail->tensor] : NULL;
	uint32_t waits = waiting_rank_of_tensor(j, p, detail->tensor);
	char what[CTL_TEXT_MAX + 1];
	bool found = false;

	if (!t || waits == CTL_NO_ID)
		return false;
	for (uint32_t i = 0; j->state == JOB_RUNNING && i < detail->n_workers; i++) {
		const struct ctl_report_worker *w = &detail->workers[i].w;
		const struct sched_worker *known = &j->workers[w->rank];

		if (known->state != WORKER_DONE || known->done_seq >= detail->seq ||
			w->submitted >= sched_needed_round(j, detail->tensor, detail->round))
			continue;
		snprintf(what, sizeof(what),
			"rank %u waits for tensor '%.200s', round %llu, and rank %u has submitted "
			"%llu",
			waits, t->name, (unsigned long long)detail->round, w->rank,
			(unsigned long long)w->submitted);
		declare_worker_lost(c, j, w->rank, what);
		found = true;
	}
	return found;
}

void leavers_probed(struct sched_core *c, struct sched_job *j, const struct sched_probe *p)
{
	for (const struct sched_probe *d = p->details; d && leavers_has_any(j); d = d->next)
		if (probe_lose_missing_workers(c, j, p, d))
			return;
	if (leavers_has_any(j))
		lose_undeclared_leavers(c, j, p);
}
