/* Jobs whose members change. In histories with fixed members, all partitions of a round are
 * compared with one sum. In the histories of this file, partitions of one round may have
 * different contributors. So each partition is compared with the sum over the contributors that its
 * result names. A machine that was removed may hold a result that no other machine has. So results
 * are only compared among the machines that were in the job at its end. */
#include "tests/sim/move.h"
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <string.h>

#include "common/data/crc32c.h"

bool elastic_is(const struct sim *s)
{
	return s->o.is_shrink || s->o.backup || s->o.is_elastic;
}

bool elastic_waits(const struct sim *s, uint64_t round)
{
	return s->o.barrier_every && round % s->o.barrier_every == 0 && round < s->o.rounds;
}

static void draw_shrink(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->is_shrink = true;
	o->may_fail = true;
	o->faults |= 1u << F_AGT_LOSS;
	if (s->seed / 10 % 2)
		o->faults |= 1u << F_AGT_LONG;
}

/* Draw the options of jobs with backup machines. Some of these jobs may also shrink. */
static void draw_backup(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->is_deterministic = false;
	o->backup = o->n_agents > 2 && s->seed / 10 % 3 == 0 ? 2 : 1;
	o->grace_ms = (uint32_t)rnd_below(s, 30);
	o->slow_permille = (uint32_t)rnd_between(s, 20, 300);
	if (s->seed / 10 % 2)
		draw_shrink(s);
}

static void draw_join(struct sim *s)
{
	struct sim_options *o = &s->o;

	draw_shrink(s);
	if (s->seed / 20 % 2)
		o->faults &= ~(1u << F_AGT_LOSS | 1u << F_AGT_LONG);
	if (s->seed / 40 % 4 == 0)
		draw_backup(s);
	o->is_elastic = true;
	o->has_unjoins = s->seed / 160 % 4 == 2;
	o->has_ranks = false;
	o->n_first = (unsigned)rnd_between(s, 1, o->n_agents);
	o->barrier_every = (unsigned)rnd_between(s, 1, 3);
	o->size = 0;
	for (unsigned i = 0; i < o->n_first; i++)
		o->size += o->n_workers[i];
}

void elastic_draw(struct sim *s)
{
	struct sim_options *o = &s->o;

	/* The last digit of the seed selects the kind of job. For digits other than 5, 8 and 9,
	 * draw nothing here, so that the histories of recorded seeds do not change. */
	if (o->n_agents < 2)
		return;
	if (s->seed % 10 == 5)
		draw_shrink(s);
	if (s->seed % 10 == 8)
		draw_backup(s);
	if (s->seed % 10 == 9)
		draw_join(s);
}

static unsigned agent_of(const struct sim *s, uint32_t member_id)
{
	unsigned i = 0;

	while (i < s->o.n_agents && s->agents[i].m.id != member_id)
		i++;
	return i;
}

/* Return true if the agent has not started the job, although the scheduler has admitted the agent.
 * This occurs in two cases:
 *   - The scheduler has removed the agent. The agent's trainers join again before JOB_END arrives.
 *   - The agent's trainers replace trainers that have stopped waiting.
 * When JOB_END arrives, the agent leaves the job. The agent has no sum of the job. */
static bool does_not_know(const struct sim *s, uint32_t agent)
{
	for (unsigned i = 0; i < s->o.n_agents; i++)
		if (s->agents[i].m.id == agent)
			return !s->agents[i].has_job_msg;
	return false;
}

void elastic_job(struct sim *s, const struct ctl_job *job)
{
	struct oracle *o = &s->oracle;
	uint32_t gone = 0;

	if (job->view < o->view || job->n_members > AGENTS_MAX)
		return;
	if (job->barrier < o->barrier)
		violation(s, "barrier %llu is passed after a later one",
			(unsigned long long)job->barrier);
	o->barrier = job->barrier;
	o->n_members = job->n_members;
	for (unsigned i = 0; i < job->n_members; i++) {
		o->agents[i] = job->members[i].agent;
		/* Record the ranks of each machine once, and never replace them. If a machine is
		 * removed, other machines may get its ranks. The removed machine uses the ranks
		 * until it is notified. */
		for (unsigned k = 0; !o->n_ranks[i] && k < job->members[i].n_ranks; k++)
			o->ranks[i][k] = job->members[i].ranks[k].rank;
		if (!o->n_ranks[i])
			o->n_ranks[i] = job->members[i].n_ranks;
		gone |= job->members[i].is_gone ? 1u << i : 0;
		if (o->gone & ~gone & 1u << i && !does_not_know(s, o->agents[i]))
			violation(s, "a removed machine is in the job again");
	}
	o->view = job->view;
	o->gone = gone;
}

bool elastic_may_end(const struct sim *s, uint32_t code)
{
	if (!s->o.is_shrink)
		return true; /* without JOB_SHRINK, a job may end with any code */
	return code == 0 ||
	       ((code == (uint32_t)-BPS_EAGENT_LOST || code == (uint32_t)-BPS_EDEVICE) &&
		       move_machines_left(s->sched.core, s->oracle.job) <= 1);
}

void elastic_result(
	struct sim *s, struct sim_agent *a, unsigned t, uint64_t round, const void *bytes)
{
	uint32_t first, n, members, elem = (uint32_t)dtype_bytes(s->o.tensors[t].dtype);

	for (unsigned p = 0; peek_contributors(a->tensors[t].t, p, &first, &n, &members); p++) {
		struct taken *k;

		if (p >= PARTS_MAX)
			return;
		k = &s->oracle.taken[a->idx][t][p][round];
		if (!oracle_is_sum(s, t, round, first, n, members, bytes))
			violation(s, "I3: %s tensor %u part %u round %llu is not the sum of %x",
				a->node.name, t, p, (unsigned long long)round, members);
		*k = (struct taken){true,
			crc32c(0, (const uint8_t *)bytes + (size_t)first * elem, (size_t)n * elem),
			members};
	}
}

/* Return the members in the mask `all` that had joined the job before the round. */
static uint32_t members_then(const struct sim *s, unsigned round, uint32_t all)
{
	for (unsigned i = 0; i < s->oracle.n_members; i++) {
		unsigned a = agent_of(s, s->oracle.agents[i]);

		if (a < s->o.n_agents &&
			(!s->agents[a].has_job_msg || round <= s->agents[a].skipped))
			all &= ~(1u << i);
	}
	return all;
}

static void compare(struct sim *s, unsigned a, unsigned b, uint32_t all)
{
	for (unsigned t = 0; t < s->o.n_tensors; t++) {
		for (unsigned p = 0; p < PARTS_MAX; p++) {
			for (unsigned r = 1; r <= s->o.rounds; r++) {
				const struct taken *x = &s->oracle.taken[a][t][p][r];
				const struct taken *y = &s->oracle.taken[b][t][p][r];

				if (!x->is_known || !y->is_known)
					continue;
				if (x->crc != y->crc || x->members != y->members)
					violation(s,
						"I2: agent%u and agent%u were given different "
						"results: tensor %u part %u round %u",
						a, b, t, p, r);
				if ((unsigned)__builtin_popcount(
					    members_then(s, r, all) & ~x->members &
					    ~oracle_abstained_members(s, t, r)) > s->o.backup)
					violation(s,
						"I4: tensor %u part %u round %u is the sum of %x, "
						"not of all members that stayed (%x)",
						t, p, r, x->members, all);
			}
		}
	}
}

/* Return a bit mask of the members that are still in the job at its end. *ret_agents: a bit mask of
 * the agents of these members. */
static uint32_t survivors(const struct sim *s, uint32_t *ret_agents)
{
	uint32_t all = 0;

	*ret_agents = 0;
	for (unsigned i = 0; i < s->oracle.n_members; i++) {
		unsigned a = agent_of(s, s->oracle.agents[i]);

		if (s->oracle.gone >> i & 1 || a == s->o.n_agents)
			continue;
		all |= 1u << i;
		*ret_agents |= 1u << a;
	}
	return all;
}

void elastic_end(struct sim *s)
{
	uint32_t agents, all = survivors(s, &agents);

	for (unsigned a = 0; a < s->o.n_agents; a++)
		for (unsigned b = a; b < s->o.n_agents; b++)
			if (agents >> a & 1 && agents >> b & 1)
				compare(s, a, b, all);
}
