/* Implements slots and seats: their states, the sets of members that have contributed or have the
 * result, and the memory of results. No function sends, reads or sums. */
#include "bps-server/core/slots.h"

#include <assert.h>

#include "bps-server/core/job.h"
#include "common/base/log.h"
#include "common/base/state.h"

struct slot *part_slot_of_round(struct srv_part *part, uint64_t round)
{
	return &part->slots[round & 1];
}

static const struct state_row slot_states[] = {
	[SLOT_EMPTY] = {"empty", 1u << SLOT_OPEN},
	[SLOT_OPEN] = {"open",
		1u << SLOT_SUMMING | 1u << SLOT_DONATING | 1u << SLOT_OPEN | 1u << SLOT_EMPTY},
	[SLOT_SUMMING] = {"summing", 1u << SLOT_DONE | 1u << SLOT_EMPTY},
	[SLOT_DONATING] = {"donating", 1u << SLOT_DONE | 1u << SLOT_EMPTY},
	[SLOT_DONE] = {"done", 1u << SLOT_OPEN | 1u << SLOT_EMPTY},
};

void slot_set_state(struct srv_core *core, struct slot *slot, enum slot_state state)
{
	assert(slot_states[slot->state].next >> state & 1);
	log_trace("slot changes from %s to %s: job=%u tensor=%u part=%u round=%llu",
		slot_states[slot->state].name, slot_states[state].name, slot->part->job->id,
		slot->part->tensor, slot->part->index, (unsigned long long)slot->round);
	if (slot->state == SLOT_DONATING)
		TAILQ_REMOVE(&core->donating, slot, waiting);
	if (state == SLOT_DONATING)
		TAILQ_INSERT_TAIL(&core->donating, slot, waiting);
	if (slot->is_cutting)
		TAILQ_REMOVE(&core->cutting, slot, cutting);
	slot->is_cutting = false;
	slot->state = state;
}

void seat_set_state(struct seat *seat, enum seat_state state)
{
	static const unsigned next[] = {
		[SEAT_IDLE] = 1u << SEAT_WANT_READ | 1u << SEAT_STAGED,
		[SEAT_WANT_READ] = 1u << SEAT_READING | 1u << SEAT_IDLE,
		[SEAT_READING] = 1u << SEAT_STAGED | 1u << SEAT_IDLE,
		[SEAT_STAGED] = 1u << SEAT_IDLE,
	};

	assert(next[seat->state] >> state & 1);
	seat->state = state;
}

void slot_clear_seat_offer(struct slot *slot, struct seat *seat)
{
	uint8_t bit = (uint8_t)(1u << (slot - slot->part->slots));

	if (seat->offered & bit) {
		seat->offered &= (uint8_t)~bit;
		slot->n_offered--;
	}
}

void slot_add_contributed(struct slot *slot, unsigned member)
{
	if (member_set_has(&slot->contributed, member))
		return;
	member_set_add(&slot->contributed, member);
	slot->n_contributed++;
	if (!member_set_has(&slot->has, member))
		slot->n_spoken++;
}

/* Return whether the sum need not wait for the member: the member is gone, or it abstains. */
static bool slot_passes_over_member(const struct slot *slot, unsigned member)
{
	return !member_set_has(&slot->part->live, member) ||
	       (member_set_has(&slot->contributed, member) &&
		       !member_set_has(&slot->contributors, member));
}

void slot_count_in_order(struct slot *slot)
{
	struct seat *s = TAILQ_FIRST(&slot->staged);

	for (unsigned i = 0; s && i < slot->n_in_order; i++)
		s = TAILQ_NEXT(s, staged);
	for (; slot->next_in_order < slot->part->n_seats; slot->next_in_order++) {
		if (slot_passes_over_member(slot, slot->next_in_order))
			continue;
		if (!s || s->member != slot->next_in_order)
			return;
		slot->n_in_order++;
		s = TAILQ_NEXT(s, staged);
	}
}

void *slot_get_result_memory(struct srv_core *core, struct slot *slot)
{
	/* A slot without memory has given its memory to a retired result. Members may still read
	 * the retired result. */
	if (!slot->result)
		slot->result = pool_get(core->sums, slot->part->bytes);
	if (!slot->result)
		srv_job_fail(core, slot->part->job, BPS_EQUOTA,
			"server %u: memory for sums is exhausted by results that are still being "
			"read; raise the server's sums-memory",
			core->cfg.server_id);
	return slot->result ? slot->result->mem : NULL;
}

bool seat_gets_bytes(const struct seat *seat)
{
	return seat->part->owner == NO_OWNER || seat->part->owner == seat->member;
}

bool slot_may_send_result(const struct slot *slot, const struct seat *seat)
{
	return seat_gets_bytes(seat) || member_set_has(&slot->has, slot->part->owner);
}
