/* The round rule of jobs with backup machines. Their rounds do not wait for all members
 * (docs/reference/faults.md, J6 to J10, J14). All functions run on the data thread that owns the
 * core.
 *
 *   slot OPEN --(n - backup) members contributed, all reported (*), none has the result--> CUTTING
 *        --grace over, no read runs--> SUMMING
 *
 * (*) Every member has sent CONTRIB or HAVE under this pgen.
 * CUTTING is OPEN with a deadline. A contribution that arrives before the deadline becomes part of
 * the sum. When all members have contributed, the round is complete at once. If a contribution is
 * too late for the sum, the server answers with the result.
 *
 * Rounds of tensors that the library uses for collectives always wait for all members. Most members
 * abstain from such a round, so its result would be lost without the member that has the bytes.
 *
 * A member may be more than one round behind another, unlike under rule_in_step.c. Therefore each
 * seat records, for the lifetime of the pgen, which results its member has. Round r begins only
 * when all members have the result of r - 2. So no member needs a result older than the two that
 * agents keep. */
#include "bps-server/core/completion.h"
#include "bps-server/core/round_rule.h"
#include "bps-server/core/slots.h"
#include "common/base/log.h"

/* If contributions are still being read at a round's deadline, the core checks the round again
 * after this time. */
#define LOOK_AGAIN_NS UINT64_C(10000000)

/* Record that the seat's member has the results of all rounds up to `round`. */
static void seat_record_results_up_to(struct srv_core *core, struct seat *seat, uint64_t round)
{
	struct srv_part *part = seat->part;

	seat->has_spoken = true;
	if (round > seat->has_round)
		seat->has_round = round;
	for (unsigned i = 0; i < 2; i++) {
		struct slot *slot = &part->slots[i];

		if (slot->state == SLOT_EMPTY)
			continue;
		if (slot->round <= seat->has_round)
			slot_add_result_holder(core, slot, seat);
		slot_check_complete(core, slot);
	}
}

/* Return whether the member may already have the result of round `round`. Return false while this
 * server is still summing round `round` or an earlier round. */
static bool backup_may_have_result(const struct seat *seat, uint64_t round)
{
	for (unsigned i = 0; i < 2; i++) {
		const struct slot *slot = &seat->part->slots[i];

		if (slot->state == SLOT_SUMMING && slot->round <= round)
			return false;
	}
	return true;
}

/* Return whether round `round` may begin: all members must have the result of `round` - 2. */
static bool backup_can_open_round(const struct srv_part *part, uint64_t round)
{
	for (unsigned i = 0; round > 2 && i < part->n_seats; i++)
		if (member_set_has(&part->live, i) &&
			(!part->seats[i].has_spoken || part->seats[i].has_round < round - 2))
			return false;
	return true;
}

/* Record which members already have the result of a slot that was just opened. */
static void slot_add_known_holders(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;

	for (unsigned i = 0; i < part->n_seats; i++)
		if (member_set_has(&part->live, i) && part->seats[i].has_round >= slot->round)
			slot_add_result_holder(core, slot, &part->seats[i]);
}

/* Return whether all members have sent HAVE or CONTRIB under this pgen. A member that has sent
 * neither may already have a result of this round. In this case the server must not compute a
 * different result. */
static bool slot_has_all_reports(const struct slot *slot)
{
	const struct srv_part *part = slot->part;

	for (unsigned i = 0; i < part->n_seats; i++)
		if (member_set_has(&part->live, i) && !part->seats[i].has_spoken)
			return false;
	return true;
}

static bool slot_has_pending_reads(const struct slot *slot)
{
	const struct srv_part *part = slot->part;

	for (unsigned i = 0; i < part->n_seats; i++) {
		const struct seat *seat = &part->seats[i];

		if ((seat->state == SEAT_WANT_READ || seat->state == SEAT_READING) &&
			seat->offer.round == slot->round)
			return true;
	}
	return false;
}

static void cut_schedule_check(struct srv_core *core, uint64_t at_ns)
{
	if (at_ns < core->cut_due_ns)
		core->cut_due_ns = at_ns;
}

static void slot_record_late_members(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;
	bool is_first = true;

	for (uint16_t i = 0; i < part->n_seats; i++) {
		if (!member_set_has(&part->live, i) || member_set_has(&slot->contributed, i))
			continue;
		core->stats.late++;
		arrivals_record_late_member(
			part->job->arrivals, &slot->arrivals, i, is_first, core->now_ns);
		is_first = false;
		log_debug("round %llu ends without agent %u (host %s): job=%u tensor=%u part=%u",
			(unsigned long long)slot->round, part->job->members[i].agent,
			part->job->members[i].host, part->job->id, part->tensor, part->index);
	}
}

/* Return whether the round must be summed now. No member has its result. If the round must wait for
 * its grace time, a later call of slots_check_due_cuts checks the round again. */
static bool slot_check_cut_deadline(struct srv_core *core, struct slot *slot)
{
	const struct srv_part *part = slot->part;
	unsigned spare = part->waits_for_all                ? 0
			 : part->job->backup < part->n_live ? part->job->backup
							    : part->n_live - 1u;

	if (slot->n_contributed == part->n_live)
		return true;
	if (slot->n_contributed < part->n_live - spare || !slot_has_all_reports(slot))
		return false;
	if (!slot->is_cutting) {
		slot->is_cutting = true;
		slot->cut_ns = core->now_ns + part->job->grace_ns;
		TAILQ_INSERT_TAIL(&core->cutting, slot, cutting);
	}
	if (core->now_ns < slot->cut_ns || slot_has_pending_reads(slot)) {
		cut_schedule_check(core,
			core->now_ns < slot->cut_ns ? slot->cut_ns : core->now_ns + LOOK_AGAIN_NS);
		return false;
	}
	slot_record_late_members(core, slot);
	return true;
}

/* If one member has the result, no other result is possible, and the round is not summed (J7). */
static bool backup_is_complete(struct srv_core *core, struct slot *slot)
{
	return slot->n_has || slot_check_cut_deadline(core, slot);
}

static enum round_verdict backup_accept_contribution(
	struct srv_core *core, struct seat *seat, uint64_t round, struct slot **ret_slot)
{
	struct srv_part *part = seat->part;
	struct slot *slot = part_slot_of_round(part, round);

	if (!backup_may_have_result(seat, round - 1))
		return ROUND_INVALID;
	seat_record_results_up_to(core, seat, round - 1);
	if (slot->state == SLOT_EMPTY || slot->round != round) {
		if (slot->state != SLOT_EMPTY && slot->round > round)
			return ROUND_OVER;
		if (!backup_can_open_round(part, round))
			return ROUND_EARLY;
		if (slot_relation_of(part, round) != SLOT_HERE)
			return ROUND_INVALID;
		slot = slot_open_for_round(core, part, round);
		slot_add_known_holders(core, slot);
	}
	*ret_slot = slot;
	return ROUND_ACCEPTED;
}

static bool backup_record_result(struct srv_core *core, struct seat *seat, uint64_t round)
{
	if (!backup_may_have_result(seat, round))
		return false;
	seat_record_results_up_to(core, seat, round);
	return true;
}

const struct round_rule rule_backup = {
	.accept = backup_accept_contribution,
	.record_result = backup_record_result,
	.is_complete = backup_is_complete,
};
