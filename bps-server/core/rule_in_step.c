/* The round rule of jobs without backup machines: a round waits for all members (S4). No member can
 * be more than one round behind another: CONTRIB(r) of one member implies that all members have the
 * result of r - 2. All functions run on the data thread that owns the core. */
#include "bps-server/core/completion.h"
#include "bps-server/core/round_rule.h"
#include "bps-server/core/slots.h"

/* Return whether it is possible that the member already has the result of round r or, if the result
 * has another owner, a RESULT without bytes. If the member has reported that, return true.
 * Otherwise return false while the server is still computing the result or requesting it from
 * another member, and while the owner of the result does not have it. */
static bool in_step_may_have_result(struct srv_part *part, const struct seat *seat, uint64_t r)
{
	const struct slot *slot = part_slot_of_round(part, r);

	if (slot->round != r || member_set_has(&slot->has, seat->member))
		return true;
	if (slot->state == SLOT_SUMMING || slot->state == SLOT_DONATING)
		return false;
	return slot->state != SLOT_DONE || slot_may_send_result(slot, seat);
}

static enum round_verdict in_step_accept(
	struct srv_core *core, struct seat *seat, uint64_t round, struct slot **ret_slot)
{
	struct srv_part *part = seat->part;
	enum slot_relation here = slot_relation_of(part, round);
	enum slot_relation before = round > 1 ? slot_relation_of(part, round - 1) : SLOT_OVER;

	if (here == SLOT_OVER)
		return ROUND_OVER;
	if (here == SLOT_AHEAD || before == SLOT_AHEAD ||
		!in_step_may_have_result(part, seat, round - 1))
		return ROUND_INVALID;
	*ret_slot = slot_open_for_round(core, part, round);
	if (before == SLOT_HERE)
		slot_add_result_holder(core, slot_open_for_round(core, part, round - 1), seat);
	return ROUND_ACCEPTED;
}

static bool in_step_record_result(struct srv_core *core, struct seat *seat, uint64_t round)
{
	enum slot_relation here = slot_relation_of(seat->part, round);

	if (!round || here == SLOT_AHEAD || !in_step_may_have_result(seat->part, seat, round))
		return false;
	if (here == SLOT_HERE)
		slot_add_result_holder(core, slot_open_for_round(core, seat->part, round), seat);
	return true;
}

static bool in_step_is_complete(struct srv_core *core, struct slot *slot)
{
	(void)core;
	return slot->n_spoken == slot->part->n_live;
}

const struct round_rule rule_in_step = {
	.accept = in_step_accept,
	.record_result = in_step_record_result,
	.is_complete = in_step_is_complete,
};
