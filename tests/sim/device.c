/* Tensors on devices: trainers write elsewhere, and what an executor would do happens after a
 * while, a partition at a time and in any order: their bytes come to the inputs, the sums are taken
 * from the outputs. By the seed, and never where agents are restarted: such a job is not gone on
 * with. */
#include "tests/sim/sim.h"

#include <errno.h>
#include <string.h>

struct step { /* in an event's bytes */
	struct tensor_state *ts;
	uint32_t part;
};

bool device_is(const struct sim *s)
{
	return !s->o.has_restarts && (s->seed % 16 == 5 || s->seed % 16 == 14);
}

static uint32_t n_parts(const struct tensor_state *ts, uint32_t *ret_bytes)
{
	uint32_t bytes = tensor_bytes(ts->agent->s, ts->idx);
	uint64_t each = agt_tensor_part_bytes(ts->t);

	*ret_bytes = each < bytes ? (uint32_t)each : bytes;
	return (bytes - 1) / *ret_bytes + 1;
}

static void later(struct tensor_state *ts, uint32_t part, uint64_t round,
	void (*fn)(struct sim *, struct event *))
{
	struct sim *s = ts->agent->s;
	struct step step = {ts, part};
	struct event *e = post(s, &ts->agent->node, rnd_below(s, 2 * s->o.delay_ns), fn);

	e->p = ts->agent;
	e->a = round;
	memcpy(event_room(e, sizeof(step)), &step, sizeof(step));
}

static bool is_over(const struct tensor_state *ts)
{
	return ts->agent->has_ended || !ts->agent->job || ts->failed;
}

static void on_staged(struct sim *s, struct event *e)
{
	struct step step;
	struct tensor_state *ts;
	uint32_t each, n, first, bytes;

	memcpy(&step, e->bytes, sizeof(step));
	ts = step.ts;
	if (is_over(ts))
		return;
	n = n_parts(ts, &each);
	first = step.part * each;
	bytes = step.part + 1 == n ? tensor_bytes(s, ts->idx) - first : each;
	for (unsigned w = 0; w < ts->agent->n_workers; w++)
		memcpy(ts->in[w] + first, ts->dev[w] + first, bytes);
	agent_enter(ts->agent);
	if (agt_part_staged(ts->t, step.part, e->a) < 0)
		violation(s, "%s tensor %u: partition %u of round %llu is not waited for",
			ts->agent->node.name, ts->idx, step.part, (unsigned long long)e->a);
	agent_leave(ts->agent);
}

void device_stage(void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority)
{
	struct tensor_state *ts = tensor_user;
	uint32_t each, n = n_parts(ts, &each);

	(void)ctx;
	(void)op;
	(void)priority;
	ts->n_unstaged = 0;
	for (uint32_t i = 0; i < n; i++)
		later(ts, i, round, on_staged);
}

static void on_unstaged(struct sim *s, struct event *e)
{
	struct step step;
	struct tensor_state *ts;
	uint32_t each;

	memcpy(&step, e->bytes, sizeof(step));
	ts = step.ts;
	if (is_over(ts) || ++ts->n_unstaged < n_parts(ts, &each))
		return;
	agent_enter(ts->agent);
	if (agt_tensor_unstaged(ts->t, e->a) < 0)
		violation(s, "%s tensor %u: round %llu is not waited for", ts->agent->node.name,
			ts->idx, (unsigned long long)e->a);
	agent_leave(ts->agent);
}

void device_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round)
{
	(void)ctx;
	later(tensor_user, part, round, on_unstaged);
}

void device_done(struct tensor_state *ts, uint64_t round)
{
	uint32_t each;

	if (device_is(ts->agent->s) && ts->n_unstaged != n_parts(ts, &each))
		violation(ts->agent->s,
			"%s tensor %u: round %llu is done with %u partitions on devices",
			ts->agent->node.name, ts->idx, (unsigned long long)round, ts->n_unstaged);
}
