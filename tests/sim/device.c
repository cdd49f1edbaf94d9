/* Tensors on devices. Trainers write to device memory. The executor (bps-agent/executor/engine.h)
 * copies partitions from device memory to the agent's input memory. It copies sums from the agent's
 * output memory back to the devices. Each copy takes a random time, so copies end in any order. The
 * executor survives a restart of its agent. Messages between executor and agent may be lost during
 * the restart. The agent's next process repeats rounds that had begun, and the executor repeats the
 * lost reports. The seed determines every delay and fault. */
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <string.h>

enum { AWAY, STAGED, LANDING, LANDED };

struct sim_step { /* stored in the bytes of an event */
	struct sim_tensor_state *ts;
	uint32_t part;
};

bool device_is(const struct sim *s)
{
	return s->o.has_restarts ? s->seed / 16 % 2 : s->seed % 16 == 5 || s->seed % 16 == 14;
}

static uint32_t part_bytes(const struct sim_tensor_state *ts, uint32_t part, uint32_t *ret_first)
{
	uint32_t bytes = tensor_bytes(ts->agent->s, ts->idx);
	uint32_t each = ts->exec.part_bytes;

	*ret_first = part * each;
	return part + 1 == ts->exec.n_parts ? bytes - *ret_first : each;
}

static void post_step(struct sim_tensor_state *ts, struct sim_node *node, uint64_t delay_ns,
	uint32_t part, uint64_t round, sim_event_fn *fn)
{
	struct sim_step step = {ts, part};
	struct sim_event *e = sim_post(ts->agent->s, node, delay_ns, fn);

	e->a = round;
	memcpy(event_room(e, sizeof(step)), &step, sizeof(step));
}

/* Schedule a step of the executor. */
static void later(struct sim_tensor_state *ts, uint32_t part, uint64_t round, sim_event_fn *fn)
{
	struct sim *s = ts->agent->s;

	post_step(ts, trainers_of(ts->agent), rnd_below(s, 2 * s->o.delay_ns), part, round, fn);
}

/* Schedule a report to the agent. The report is lost when the agent's process dies before the
 * report arrives. Reports stay in order, since the delay is constant. */
static void say(struct sim_tensor_state *ts, uint32_t part, uint64_t round, sim_event_fn *fn)
{
	post_step(ts, &ts->agent->node, ts->agent->s->o.delay_ns / 4, part, round, fn);
}

static struct sim_step step_of(const struct sim_event *e)
{
	struct sim_step step;

	memcpy(&step, e->bytes, sizeof(step));
	return step;
}

static bool is_over(const struct sim_tensor_state *ts)
{
	return ts->agent->has_ended || !ts->agent->job || ts->failed;
}

/* ---- to the agent ---- */

static void on_say_staged(struct sim *s, struct sim_event *e)
{
	struct sim_step step = step_of(e);
	struct sim_agent *a = step.ts->agent;

	if (is_over(step.ts))
		return;
	agent_enter(a);
	/* After a restart of the agent, the executor repeats its reports. The agent may refuse a
	 * repeated report, because the agent may already have found the sum in the memory that
	 * survived the restart. */
	if (agt_part_staged(step.ts->t, step.part, e->a) < 0 &&
		atomic_load(&step.ts->kept[step.part].landed) < e->a &&
		!peek_has_task(step.ts->t)) /* the tensor has failed, and waits for its tasks */
		violation(s, "%s tensor %u: partition %u of round %llu has no waiting trainer",
			a->node.name, step.ts->idx, step.part, (unsigned long long)e->a);
	agent_leave(a);
}

static void on_say_done(struct sim *s, struct sim_event *e)
{
	struct sim_step step = step_of(e);
	struct sim_agent *a = step.ts->agent;

	if (is_over(step.ts))
		return;
	agent_enter(a);
	if (agt_tensor_unstaged(step.ts->t, e->a) < 0)
		violation(s, "%s tensor %u: round %llu has no waiting trainer", a->node.name,
			step.ts->idx, (unsigned long long)e->a);
	agent_leave(a);
}

/* ---- the executor ---- */

static void on_staged(struct sim *s, struct sim_event *e)
{
	struct sim_step step = step_of(e);
	struct sim_tensor_state *ts = step.ts;
	uint32_t first, bytes = part_bytes(ts, step.part, &first);

	if (ts->agent->has_ended || ts->failed)
		return;
	for (unsigned w = 0; w < ts->agent->n_workers; w++)
		memcpy(ts->in[w] + first, ts->dev[w] + first, bytes);
	ts->exec.part[step.part] = STAGED;
	trace(s, "%s: tensor %u partition %u of round %llu is staged", ts->agent->node.name,
		ts->idx, step.part, (unsigned long long)e->a);
	if (!ts->exec.is_mute)
		say(ts, step.part, e->a, on_say_staged);
}

static void on_landed(struct sim *s, struct sim_event *e)
{
	struct sim_step step = step_of(e);
	struct sim_tensor_state *ts = step.ts;
	uint32_t first, bytes = part_bytes(ts, step.part, &first);

	if (ts->agent->has_ended || ts->failed)
		return;
	for (unsigned w = 0; w < ts->agent->n_workers; w++)
		memcpy(ts->dev[w] + first, ts->out[e->a & 1] + first, bytes);
	ts->exec.part[step.part] = LANDED;
	if (++ts->exec.n_landed < ts->exec.n_parts)
		return;
	ts->exec.is_done = true;
	trace(s, "%s: tensor %u round %llu is on the devices", ts->agent->node.name, ts->idx,
		(unsigned long long)e->a);
	if (!ts->exec.is_mute)
		say(ts, 0, e->a, on_say_done);
}

static void tell_again(struct sim_tensor_state *ts, uint64_t round)
{
	struct sim_executor *x = &ts->exec;

	if (round < x->round || x->is_done) {
		x->is_mute = round < x->round;
		say(ts, 0, round, on_say_done);
		return;
	}
	x->is_mute = false;
	for (uint32_t i = 0; i < x->n_parts; i++)
		if (x->part[i] == STAGED)
			say(ts, i, round, on_say_staged);
}

static void on_run(struct sim *s, struct sim_event *e)
{
	struct sim_tensor_state *ts = step_of(e).ts;
	struct sim_executor *x = &ts->exec;

	if (x->is_mute && e->a <= x->round) {
		tell_again(ts, e->a);
		return;
	}
	if (e->a != x->round + 1 || (x->round && !x->is_done))
		violation(s, "%s tensor %u: round %llu runs on devices after round %llu",
			ts->agent->node.name, ts->idx, (unsigned long long)e->a,
			(unsigned long long)x->round);
	x->round = e->a;
	x->is_done = x->is_mute = false;
	x->n_landed = 0;
	memset(x->part, AWAY, sizeof(x->part));
	for (uint32_t i = 0; i < x->n_parts; i++)
		later(ts, i, e->a, on_staged);
}

static void on_land(struct sim *s, struct sim_event *e)
{
	struct sim_step step = step_of(e);
	struct sim_executor *x = &step.ts->exec;

	if (e->a < x->round || x->is_done || x->part[step.part] > STAGED)
		return; /* ignore a repeated report */
	if (e->a != x->round || x->part[step.part] != STAGED)
		violation(s, "%s tensor %u: partition %u of round %llu lands, but was not staged",
			step.ts->agent->node.name, step.ts->idx, step.part,
			(unsigned long long)e->a);
	x->part[step.part] = LANDING;
	later(step.ts, step.part, e->a, on_landed);
}

/* ---- callbacks of the agent's core ---- */

void device_stage(void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority)
{
	struct sim_tensor_state *ts = tensor_user;
	uint32_t bytes = tensor_bytes(ts->agent->s, ts->idx);
	uint64_t each = agt_tensor_part_bytes(ts->t);

	(void)ctx;
	(void)op;
	(void)priority;
	ts->exec.part_bytes = each < bytes ? (uint32_t)each : bytes;
	ts->exec.n_parts = (bytes - 1) / ts->exec.part_bytes + 1;
	say(ts, 0, round, on_run);
}

void device_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round)
{
	(void)ctx;
	say(tensor_user, part, round, on_land);
}

void device_done(struct sim_tensor_state *ts, uint64_t round)
{
	uint32_t bytes = tensor_bytes(ts->agent->s, ts->idx);

	if (!device_is(ts->agent->s))
		return;
	for (unsigned w = 0; w < ts->agent->n_workers; w++)
		if (memcmp(ts->dev[w], ts->out[round & 1], bytes) != 0)
			violation(ts->agent->s,
				"%s tensor %u: round %llu is done, but its sum is not on device %u",
				ts->agent->node.name, ts->idx, (unsigned long long)round, w);
}

uint64_t device_restart(struct sim_tensor_state *ts)
{
	uint64_t complete = agt_tensor_round(ts->t);

	ts->exec.is_mute = true;
	if (!device_is(ts->agent->s) || complete >= ts->round)
		return 0;
	if (complete + 1 < ts->round)
		violation(ts->agent->s,
			"K6: %s tensor %u: trainers have round %llu, the agent has only round %llu",
			ts->agent->node.name, ts->idx, (unsigned long long)ts->round,
			(unsigned long long)complete);
	return ts->round;
}

void device_tell_lost(struct sim_agent *a)
{
	const struct ctl_msg msg = {.type = CTL_FAIL,
		.fail = {a->job_id, (uint32_t)-BPS_EDEVICE, .text = "its GPUs are lost"}};

	sim_member_send(&a->m, &msg);
}

void device_lose(struct sim_agent *a)
{
	if (!a->job || a->has_ended || a->has_failed_gpus)
		return;
	trace(a->s, "%s has lost its GPUs", a->node.name);
	a->has_failed_gpus = true;
	agent_enter(a);
	device_tell_lost(a);
	agt_job_fail(a->job, BPS_EDEVICE);
	agent_leave(a);
}
