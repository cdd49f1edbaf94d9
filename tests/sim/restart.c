/* The process of an agent dies at any moment, and a new one starts. Trainers, their rings and all
 * shared memory remain, and the real core continues from them (bps-agent/core/core.h, K1-K6). The
 * shell works as in the daemon: it records each submission that it takes from a ring, and then
 * passes the submission to the core. When the surviving memory shows that a round is complete, the
 * shell reports the round again. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "common/data/dtype.h"

#define SPAN_MIN_NS (20 * MS)
#define SPAN_MAX_NS (600 * MS)

static struct agt_tensor *tensor_again(struct sim_agent *a, unsigned t)
{
	struct sim_tensor_state *ts = &a->tensors[t];
	struct ctl_tensor plan = {.tensor = ts->id,
		.name = "",
		.shape = values_shape(a->s, t),
		.part_elems = ts->part_elems};
	uint64_t round;

	agent_tensor_attach(a, t);
	if (ts->is_planned && agt_tensor_plan(ts->t, &plan) < 0)
		violation(a->s, "%s rejects the state of its previous process", a->node.name);
	round = agt_tensor_round(ts->t);
	if (round > ts->round)
		agent_done(a, ts, round, 0, agt_tensor_contributors(ts->t).least);
	return ts->t;
}

static void submit_again(struct sim_agent *a, unsigned t)
{
	struct sim_tensor_state *ts = &a->tensors[t];

	for (unsigned w = 0; w < a->n_workers; w++) {
		uint64_t taken = ts->taken[w];

		if (taken <= ts->round)
			continue;
		ts->taken[w] = taken - 1;
		ts->ring[w] = taken;
	}
	ts->again = device_restart(ts);
	for (unsigned w = 0; w < a->n_workers; w++)
		if (ts->again)
			agent_submit(a, ts, w, ts->again);
		else
			agent_take_ring(a, ts, w);
}

static void job_again(struct sim_agent *a)
{
	struct ctl_job_member members[AGENTS_MAX] = {{0}};
	struct ctl_job msg = {.job = a->job_id,
		.size = a->s->o.size,
		.flags = a->kept_job.flags,
		.members = members,
		.n_members = a->kept_job.n_members};

	members[a->kept_job.my_member] =
		(struct ctl_job_member){.n_ranks = a->n_workers, .ranks = a->kept_job.ranks};
	if (agt_job_new(a->core, &msg, a->kept_job.my_member, &a->job) < 0)
		abort();
	for (unsigned t = 0; t < a->s->o.n_tensors; t++)
		tensor_again(a, t);
	/* The executor has died, so the job fails, as in handover_check_executor of the daemon. */
	if (a->has_failed_gpus) {
		a->has_dropped_trainers = true;
		agt_job_fail(a->job, BPS_EDEVICE);
		return;
	}
	for (unsigned t = 0; t < a->s->o.n_tensors; t++)
		submit_again(a, t);
}

static void on_back(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = &s->agents[e->a];

	trace(s, "%s: its successor starts", a->node.name);
	a->is_restarting = false;
	agent_core_make(a);
	if (a->has_job_msg && !a->has_ended) {
		a->port.enter(a);
		job_again(a);
		a->port.leave(a);
	}
	member_start(&a->m);
	agent_join_timer(a);
}

static void on_kill(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = &s->agents[e->a];

	if (!a->node.is_up) { /* the machine of the agent was lost during the restart */
		a->is_restarting = false;
		return;
	}
	trace(s, "%s: killed", a->node.name);
	s->tot->restarts++;
	a->node.is_up = false;
	a->node.paused_until = 0;
	member_stop(&a->m);
	sim_net_kill(s, &a->port, false);
	agt_core_free(a->core);
	a->core = NULL;
	a->job = NULL;
	a->job_view = 0;
	a->tick_at = 0;
	a->is_work_posted = a->is_syncing = a->dies_at_done = false;
	memset(a->servers, 0, sizeof(a->servers));
	sim_post(s, NULL, e->b, on_back)->a = e->a;
}

void agent_restart(struct sim *s, unsigned idx, uint64_t span_ns)
{
	struct sim_agent *a = &s->agents[idx];
	struct sim_event *e;

	if (a->is_restarting || !a->node.is_up)
		return;
	a->is_restarting = true;
	/* Kill the process in a later event, since a function of its core may be on the stack
	 * now. */
	e = sim_post(s, NULL, 0, on_kill);
	e->a = idx;
	e->b = span_ns;
}

static void on_restart(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = &s->agents[rnd_below(s, s->o.n_agents)];
	uint64_t span = agent_span(s, SPAN_MAX_NS);

	(void)e;
	if (s->now > s->faults_end)
		return;
	sim_post(s, NULL, rnd_below(s, 2 * s->o.restart_gap_ns), on_restart);
	if (span < SPAN_MIN_NS)
		return;
	if (rnd_chance(s, 400))
		a->dies_at_done = a->node.is_up && !a->is_restarting;
	else
		agent_restart(s, a->idx, span);
}

void restarts_start(struct sim *s)
{
	sim_post(s, NULL, rnd_below(s, s->o.restart_gap_ns), on_restart);
}
