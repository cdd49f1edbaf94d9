/* Ends a round that its rule calls complete (S4 to S6): its contributions are summed (sums.c),
 * or the result is requested from a member that has it (a donation). Finally the result is queued
 * for the members that wait for it. All functions run on the data thread that owns the core. */
#include "bps-server/core/completion.h"

#include <assert.h>
#include <string.h>

#include "bps-server/core/job.h"
#include "bps-server/core/owed.h"
#include "bps-server/core/reads.h"
#include "bps-server/core/retired.h"
#include "bps-server/core/round_rule.h"
#include "bps-server/core/slots.h"
#include "bps-server/core/sums.h"
#include "common/base/failpoint.h"

#define SUM_MEAN_OF 8 /* sum_ns is a moving mean over about this number of sums */

void slot_reset_to_empty(struct srv_core *core, struct slot *slot)
{
	sums_discard_slot_sum(core, slot);
	if (slot->fetch)
		fetch_detach_from_owner(slot->fetch);
	slot->fetch = NULL;
	slot->wants_fetch = false;
	if (slot->n_offered)
		retired_add_slot_result(core, slot);
	if (slot->state != SLOT_EMPTY)
		slot_set_state(core, slot, SLOT_EMPTY);
	memset(&slot->contributed, 0, sizeof(slot->contributed));
	memset(&slot->has, 0, sizeof(slot->has));
	memset(&slot->contributors, 0, sizeof(slot->contributors));
	slot->n_contributed = slot->n_has = slot->n_spoken = 0;
	slot->workers = 0;
	slot->op_known = slot->crc_prev_known = false;
	slot->arrivals = (struct arrivals_round){0};
	slot->is_timed = false;
	slot->round = 0;
}

void seat_reset_for_pgen(struct srv_core *core, struct seat *seat)
{
	seat_drop_owed(seat);
	reads_cancel_contribution(core, seat);
	assert(seat->state == SEAT_IDLE);
	/* an offer of the same round under the new pgen is not a repetition */
	seat->offer = (struct offer){0};
	seat->offered = 0;
	seat->peer = NULL;
	seat->has_spoken = false;
	seat->has_round = seat->late_round = 0;
}

enum slot_relation slot_relation_of(struct srv_part *part, uint64_t r)
{
	const struct slot *slot = part_slot_of_round(part, r);
	bool is_over = slot->state == SLOT_DONE || (slot->state == SLOT_OPEN && slot->n_has > 0 &&
							   slot->n_spoken == slot->n_has);

	if (slot->state == SLOT_EMPTY || slot->round == r)
		return SLOT_HERE;
	if (slot->round > r)
		return SLOT_OVER;
	return slot->round == r - 2 && is_over ? SLOT_HERE : SLOT_AHEAD;
}

struct slot *slot_open_for_round(struct srv_core *core, struct srv_part *part, uint64_t r)
{
	struct slot *slot = part_slot_of_round(part, r);

	if (slot->state != SLOT_EMPTY && slot->round == r)
		return slot;
	if (slot->state != SLOT_EMPTY)
		slot_reset_to_empty(core, slot);
	slot->round = r;
	slot_set_state(core, slot, SLOT_OPEN);
	return slot;
}

static bool peer_is_on_same_host(const struct srv_peer *peer)
{
	return peer && peer->conn->is_same_host;
}

/* Queue the result for the members that wait for it, and that may have it. */
static void slot_queue_results(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;

	for (unsigned i = 0; i < part->n_seats; i++) {
		struct seat *seat = &part->seats[i];

		if (!member_set_has(&slot->contributed, i) || member_set_has(&slot->has, i) ||
			!slot_may_send_result(slot, seat))
			continue;
		if (part->bytes > WIRE_INLINE_MAX && seat_gets_bytes(seat) &&
			!peer_is_on_same_host(seat->peer))
			core->stats.offered_bytes += part->bytes;
		seat_queue_message(seat, OWE_RESULT, slot->round);
	}
}

void slot_publish_result(struct srv_core *core, struct slot *slot)
{
	uint64_t sum_ns;

	if (slot->state == SLOT_SUMMING) {
		/* The time of this turn is from before the last slice of the sum. */
		sum_ns = (core->env.clock_ns ? core->env.clock_ns() : core->now_ns) -
			 slot->complete_ns;
		core->stats.sum_ns += sum_ns / SUM_MEAN_OF - core->stats.sum_ns / SUM_MEAN_OF;
		slot->sum_us = arrivals_known_us(sum_ns);
	}
	FAILPOINT(SERVER_RESULT_DONE);
	slot_set_state(core, slot, SLOT_DONE);
	core->stats.rounds++;
	slot_queue_results(core, slot);
}

static struct srv_peer *peer_find_by_agent(struct srv_core *core, uint32_t agent)
{
	struct srv_peer *peer;

	TAILQ_FOREACH (peer, &core->peers, link)
		if (peer->conn->peer_id == agent)
			return peer;
	return NULL;
}

void slot_request_donation(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;

	slot->donor_deadline_ns = core->now_ns + core->cfg.retry_ns;
	TAILQ_REMOVE(&core->donating, slot, waiting);
	TAILQ_INSERT_TAIL(&core->donating, slot, waiting);
	if (slot->fetch)
		/* the donation is being read; if the read fails, donation_read_done calls this
		 * function again */
		return;
	slot->wants_fetch = false;
	for (unsigned k = 1; k <= part->n_seats; k++) {
		uint16_t i = (uint16_t)((slot->donor + k) % part->n_seats);
		struct seat *seat = &part->seats[i];

		if (!member_set_has(&slot->has, i))
			continue;
		if (!seat->peer) /* the member has sent nothing since it reconnected */
			seat->peer = peer_find_by_agent(core, part->job->members[i].agent);
		if (!seat->peer)
			continue;
		slot->donor = i;
		seat_queue_message(seat, OWE_DONATE_REQ, slot->round);
		return;
	}
}

/* Record for which member the others have waited, and until when (T3). A round with backup machines
 * may end without some members. Then the others have waited for these members, until now. */
static void slot_record_wait_end(struct srv_core *core, struct slot *slot)
{
	const struct srv_part *part = slot->part;

	slot->is_timed = true;
	if (slot->n_contributed == part->n_live) {
		slot->last = (uint16_t)(slot->arrivals.last_member + 1);
		slot->waited_until_ns = slot->arrivals.last_ns;
		return;
	}
	slot->last = 0;
	slot->waited_until_ns = core->now_ns;
	for (uint16_t i = 0; slot->n_contributed + 1 == part->n_live && i < part->n_seats; i++)
		if (member_set_has(&part->live, i) && !member_set_has(&slot->contributed, i))
			slot->last = (uint16_t)(i + 1);
}

/* A member states that a round is complete, but the owner of the result does not have it. No
 * correct agent states that (O1). */
static void slot_fail_without_owner(struct srv_core *core, struct slot *slot)
{
	const struct srv_part *part = slot->part;
	const struct srv_job_member *owner = &part->job->members[part->owner];

	srv_job_fail(core, part->job, BPS_EDIVERGED,
		"tensor %u partition %u round %llu: the owner of the result (agent %u, host %s) "
		"has lost it, but another machine has gone on: the memory of an agent is corrupt "
		"or bps has a bug, so restart the job from a checkpoint",
		part->tensor, part->index, (unsigned long long)slot->round, owner->agent,
		owner->host);
}

void slot_check_complete(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;

	if (slot->state != SLOT_OPEN || !part->job->rule->is_complete(core, slot))
		return;
	if (slot->n_has == 0) {
		FAILPOINT(SERVER_SUM_START);
		slot_set_state(core, slot, SLOT_SUMMING);
		slot->complete_ns = core->now_ns;
		slot_record_wait_end(core, slot);
		if (slot->arrivals.n == part->n_live)
			histogram_add(&core->stats.wait,
				slot->arrivals.last_ns - slot->arrivals.first_ns);
		arrivals_complete(part->job->arrivals, &slot->arrivals, slot->round,
			(uint64_t)part->n_live * part->bytes);
		sums_queue_slot(core, slot);
	} else if (slot->n_has < slot->n_spoken && part->owner != NO_OWNER &&
		   !member_set_has(&slot->has, part->owner)) {
		slot_fail_without_owner(core, slot);
	} else if (slot->n_has < slot->n_spoken) {
		core->stats.donations++;
		slot_set_state(core, slot, SLOT_DONATING);
		slot_request_donation(core, slot);
	}
}

uint64_t slots_check_due_cuts(struct srv_core *core)
{
	struct slot *slot, *next;

	if (core->now_ns < core->cut_due_ns)
		return core->cut_due_ns;
	core->cut_due_ns = UINT64_MAX;
	for (slot = TAILQ_FIRST(&core->cutting); slot; slot = next) {
		next = TAILQ_NEXT(slot, cutting);
		slot_check_complete(core, slot);
	}
	return core->cut_due_ns;
}

void slot_add_result_holder(struct srv_core *core, struct slot *slot, struct seat *seat)
{
	struct srv_part *part = slot->part;

	slot_clear_seat_offer(slot, seat);
	if (member_set_has(&slot->has, seat->member))
		return;
	member_set_add(&slot->has, seat->member);
	slot->n_has++;
	if (!member_set_has(&slot->contributed, seat->member))
		slot->n_spoken++;
	if (slot->state == SLOT_DONE && part->owner == seat->member)
		slot_queue_results(core, slot);
	if (slot->state != SLOT_OPEN)
		return;
	if (slot->n_has == 1) {
		/* A member has the result, so the round must not be summed again. Discard the bytes
		 * of the contributions, but keep the set of members that sent them. */
		sums_discard_slot_sum(core, slot);
		for (unsigned i = 0; i < part->n_seats; i++) {
			struct seat *s = &part->seats[i];

			if (s->state != SEAT_IDLE && s->offer.round == slot->round) {
				reads_cancel_contribution(core, s);
				slot_add_contributed(slot, i);
			}
		}
	}
	slot_check_complete(core, slot);
}

/* Continue a sum with a fixed order after a member has contributed or abstained. Queue the read of
 * the contribution that must be added next, if this read was postponed (is_parked). */
static void slot_advance_in_order(struct srv_core *core, struct slot *slot)
{
	struct seat *seat;

	if (!part_is_ordered(slot->part))
		return;
	slot_count_in_order(slot);
	if (slot->next_in_order == slot->part->n_seats)
		return;
	seat = &slot->part->seats[slot->next_in_order];
	if (seat->is_parked && seat->offer.round == slot->round)
		reads_unpark_seat(core, seat);
}

/* If many contributions are staged, or if a read waits for staging memory (is_starved), queue a
 * summing pass (sums.c) without waiting for the end of the round. The pass frees staging memory. */
static void slot_queue_early_pass(struct srv_core *core, struct slot *slot)
{
	if ((slot->n_staged > 2 * REDUCE_MAX_SRC || core->is_starved) && sums_can_fold_slot(slot))
		sums_queue_slot(core, slot);
}

void seat_stage_contribution(struct srv_core *core, struct seat *seat)
{
	struct slot *slot = part_slot_of_round(seat->part, seat->offer.round);
	struct seat *after = NULL;

	assert(slot->round == seat->offer.round && slot->state == SLOT_OPEN && slot->n_has == 0);
	seat_set_state(seat, SEAT_STAGED);
	if (part_is_ordered(seat->part)) {
		TAILQ_FOREACH_REVERSE (after, &slot->staged, seat_list, staged)
			if (after->member < seat->member)
				break;
	}
	if (after)
		TAILQ_INSERT_AFTER(&slot->staged, after, seat, staged);
	else if (part_is_ordered(seat->part))
		TAILQ_INSERT_HEAD(&slot->staged, seat, staged);
	else
		TAILQ_INSERT_TAIL(&slot->staged, seat, staged);
	slot->n_staged++;
	slot->workers += seat->offer.workers;
	member_set_add(&slot->contributors, seat->member);
	slot_add_contributed(slot, seat->member);
	slot_advance_in_order(core, slot);
	core->stats.contributions++;
	if (!slot->is_holding) {
		slot->is_holding = true;
		TAILQ_INSERT_TAIL(&core->holding, slot, holding);
	}
	slot_queue_early_pass(core, slot);
	slot_check_complete(core, slot);
}

void slot_record_abstention(struct srv_core *core, struct slot *slot, struct seat *seat)
{
	assert(slot->state == SLOT_OPEN && slot->n_has == 0 && seat->state == SEAT_IDLE);
	slot_add_contributed(slot, seat->member);
	core->stats.abstentions++;
	slot_advance_in_order(core, slot);
	slot_queue_early_pass(core, slot);
	slot_check_complete(core, slot);
}

static void part_peer_down(struct srv_core *core, struct srv_part *part, struct srv_peer *peer)
{
	for (unsigned i = 0; i < part->n_seats; i++) {
		struct seat *seat = &part->seats[i];

		if (seat->peer != peer)
			continue;
		seat_drop_owed(seat);
		if (seat->state == SEAT_WANT_READ)
			reads_cancel_contribution(core, seat);
		for (unsigned k = 0; k < 2; k++)
			slot_clear_seat_offer(
				/* the agent's reads ended when the connection closed */
				&part->slots[k], seat);
		seat->peer = NULL;
	}
	for (unsigned k = 0; k < 2; k++) {
		struct slot *slot = &part->slots[k];

		if (slot->state == SLOT_DONATING && !slot->fetch && !part->seats[slot->donor].peer)
			slot_request_donation(core, slot);
	}
}

void slots_peer_down(struct srv_core *core, struct srv_peer *peer)
{
	struct srv_job *job;

	TAILQ_FOREACH (job, &core->jobs, link)
		for (uint32_t t = 0; t < job->n_tensors; t++)
			for (uint32_t i = 0; i < job->tensors[t].n_parts; i++)
				if (job->tensors[t].parts && job->tensors[t].parts[i])
					part_peer_down(core, job->tensors[t].parts[i], peer);
	retired_peer_down(core, peer);
}
