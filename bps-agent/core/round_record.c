/* Fills in the record of each round (round_record.h) while the round runs: a few stores per
 * partition, and no clock is read. Thread: the core's thread. */
#include "bps-agent/core/round_record.h"

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/link.h"
#include "bps-agent/core/part.h"

/* Return the time since the first submission of the round in progress, in microseconds. */
static uint32_t tensor_round_age_us(const struct agt_tensor *t, uint64_t now_ns)
{
	uint64_t us = now_ns > t->record.began_ns ? (now_ns - t->record.began_ns) / 1000 : 0;

	return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

void agt_tensor_record_submission(struct agt_tensor *t, uint32_t worker)
{
	struct agt_core *core = t->job->core;

	if (t->n_submitted == 0) {
		t->record = (struct round_record){
			.began_ns = core->now_ns, .round = t->round + 1, .server = CTL_NO_ID};
		t->is_pushed = t->has_landing = false;
		if (core->env.begun)
			t->record.is_first_of_step =
				core->env.begun(core->env.ctx, t->user, t->round + 1, core->now_ns);
	}
	t->record.submitted_us = tensor_round_age_us(t, core->now_ns);
	t->record.last_worker = (uint16_t)worker;
}

void agt_tensor_record_push(struct agt_tensor *t)
{
	if (!t->is_pushed)
		t->record.pushed_us = tensor_round_age_us(t, t->job->core->now_ns);
	t->is_pushed = true;
}

void agt_tensor_record_landing(
	const struct agt_part *part, uint64_t offered_ns, const struct wire_msg *m)
{
	struct round_record *r = &part->tensor->record;

	part->tensor->has_landing = true;
	r->offered_us = tensor_round_age_us(part->tensor, offered_ns);
	r->part = part->index;
	r->server = part->link->server;
	r->last_member = m->result.last;
	r->wait_us = m->result.wait_us;
	r->sum_us = m->result.sum_us;
}

void agt_tensor_round_complete(struct agt_tensor *t)
{
	struct agt_core *core = t->job->core;
	struct round_record *r = &t->record;

	core->stats.rounds++;
	if (!core->env.record)
		return;
	r->done_us = tensor_round_age_us(t, core->now_ns);
	/* A sum that landed before a restart of the agent has no times: its phases are empty. */
	if (!t->is_pushed || r->pushed_us < r->submitted_us)
		r->pushed_us = r->submitted_us;
	if (t->job->is_local && t->is_pushed) {
		/* the agent itself computes the sum */
		r->offered_us = r->done_us;
		r->sum_us = r->done_us - r->pushed_us;
	} else if (!t->has_landing || r->offered_us < r->pushed_us) {
		r->offered_us = r->pushed_us;
	}
	if (r->done_us < r->offered_us)
		r->done_us = r->offered_us;
	r->tensor = t->id;
	core->env.record(core->env.ctx, t->user, r);
}
