/* Telling members of a job: JOB, JOB_END, PLAN. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/core_impl.h"

#define PLAN_NAME_BYTES (256u << 10) /* of the tensors in one PLAN */

/* Does it concern that server? Under the pgen of this transaction also the one that lost it, which
 * keeps the memory of the sums else. */
static bool concerns(const struct sched_part *p, uint64_t pgen, uint32_t server)
{
	return (!pgen || p->pgen == pgen) &&
	       (server == SERVER_ANY || p->server == server || (pgen && p->former == server));
}

bool sched_run_next(const struct sched_tensor *t, uint32_t *at, uint64_t pgen, uint32_t server,
	struct ctl_run *ret)
{
	const struct sched_part *p = t->parts, *first;
	uint32_t i = *at;

	while (p && i < t->n_parts && !concerns(&p[i], pgen, server))
		i++;
	if (!p || i >= t->n_parts)
		return false;
	first = &p[i];
	*ret = (struct ctl_run){
		t->id, i, 1, first->server, first->instance, first->thread, first->pgen};
	for (i++; i < t->n_parts && p[i].server == first->server && p[i].pgen == first->pgen &&
		  p[i].instance == first->instance && p[i].thread == first->thread &&
		  concerns(&p[i], pgen, server);
		i++)
		ret->n++;
	*at = i;
	return true;
}

void sched_send_job(struct sched_core *c, const struct sched_member *m, const struct sched_job *j)
{
	struct ctl_job_member *members = sched_alloc(j->n_members, sizeof(*members));
	struct ctl_rank *ranks = sched_alloc(j->n_room, sizeof(*ranks)), *next = ranks;
	uint32_t *number = sched_alloc(c->n_members + 1, sizeof(*number)); /* by agent id */
	struct ctl_msg msg = {.type = CTL_JOB,
		.job = {.view = j->view,
			.job = j->id,
			.uid = j->uid,
			.name = j->name,
			.size = sched_rank_bound(j),
			.flags = j->flags,
			.members = members,
			.n_members = j->n_members,
			.formed = j->formed,
			.backup = j->backup,
			.grace_ms = j->grace_ms,
			.barrier = j->barrier,
			.border = j->border,
			.border_barrier = j->border_barrier}};

	for (uint32_t i = 0; i < j->n_members; i++) {
		members[i] = (struct ctl_job_member){j->members[i].agent,
			sched_host_of(c, j->members[i].agent), next, 0, j->members[i].is_gone,
			j->members[i].why ? j->members[i].why : "", j->members[i].since};
		next += j->members[i].n_ranks;
		number[j->members[i].agent] = i;
	}
	for (uint32_t r = 0; r < j->n_room; r++) {
		struct ctl_job_member *to = &members[number[j->workers[r].agent]];

		if (j->workers[r].state == WORKER_ABSENT)
			continue;
		to->ranks[to->n_ranks++].rank = r;
	}
	sched_send(c, m, &msg);
	free(members);
	free(ranks);
	free(number);
}

void sched_send_job_end(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j)
{
	struct ctl_msg msg = {.type = CTL_JOB_END, .job_end = {j->id, j->code, j->end_text}};
	uint32_t i = m->role == ROLE_AGENT ? sched_job_member_ever(j, m->id) : CTL_NO_ID;
	char text[CTL_TEXT_MAX + 1];

	if (i != CTL_NO_ID && j->members[i].is_gone) {
		snprintf(text, sizeof(text),
			"agent '%s' (host %s) is no longer part of job '%s', which went on "
			"without it: %s",
			m->name, m->host, j->name, j->members[i].why);
		msg.job_end.code = (uint32_t)-BPS_EEVICTED;
		msg.job_end.text = text;
	}
	sched_send(c, m, &msg);
}

struct plan_message {
	struct sched_core *c;
	const struct sched_member *m;
	struct ctl_msg msg;
	uint32_t tensors_room, runs_room;
	size_t name_bytes;
};

static void plan_flush(struct plan_message *p)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_tensors || plan->n_runs)
		sched_send(p->c, p->m, &p->msg);
	plan->n_tensors = plan->n_runs = 0;
	p->name_bytes = 0;
}

static void plan_add_tensor(struct plan_message *p, const struct sched_tensor *t)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_tensors == CTL_LIST_MAX || p->name_bytes > PLAN_NAME_BYTES)
		plan_flush(p);
	plan->tensors = sched_grow(
		plan->tensors, &p->tensors_room, plan->n_tensors + 1, sizeof(*plan->tensors));
	plan->tensors[plan->n_tensors++] =
		(struct ctl_tensor){t->id, t->name, t->dtype, t->n_elems, t->part_elems};
	p->name_bytes += strlen(t->name);
}

static void plan_add_run(struct plan_message *p, const struct ctl_run *run)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_runs == CTL_LIST_MAX)
		plan_flush(p);
	plan->runs = sched_grow(plan->runs, &p->runs_room, plan->n_runs + 1, sizeof(*plan->runs));
	plan->runs[plan->n_runs++] = *run;
}

/* A server hears of a tensor with its first run there, an agent always. */
static void plan_add(struct plan_message *p, const struct sched_tensor *t, uint64_t pgen)
{
	uint32_t server = p->m->role == ROLE_SERVER ? p->m->id : SERVER_ANY, at = 0;
	struct ctl_run run;
	bool has_run = sched_run_next(t, &at, pgen, server, &run);

	if (has_run || (p->m->role == ROLE_AGENT && !pgen))
		plan_add_tensor(p, t);
	for (; has_run; has_run = sched_run_next(t, &at, pgen, server, &run))
		plan_add_run(p, &run);
}

void sched_send_plan(
	struct sched_core *c, const struct sched_member *m, struct sched_job *j, bool everything)
{
	struct plan_message p = {.c = c, .m = m};

	p.msg = (struct ctl_msg){.type = CTL_PLAN, .plan = {.view = c->view, .job = j->id}};
	for (uint32_t i = 0; (everything || j->has_moved) && i < j->n_placed; i++)
		if (everything || j->placed[i]->parts)
			plan_add(&p, j->placed[i], everything ? 0 : c->view);
	for (struct sched_tensor *t = everything ? NULL : j->fresh; t; t = t->next_fresh)
		if (!j->has_moved || !t->parts)
			plan_add(&p, t, 0);
	plan_flush(&p);
	free(p.msg.plan.tensors);
	free(p.msg.plan.runs);
}
