#ifndef BPS_SERVER_CORE_SLOTS_H
#define BPS_SERVER_CORE_SLOTS_H
/* Slots and seats: see the diagrams in core.h. The tables of states are in slots.c. */
#include "bps-server/core/core_impl.h"

/* Return the slot that a round uses (S3). The slot may still hold a different round. */
struct slot *part_slot_of_round(struct srv_part *part, uint64_t round);
/* Set the state of a slot or a seat. No other function writes the state. The tables of allowed
 * changes are in slots.c. */
void slot_set_state(struct srv_core *core, struct slot *slot, enum slot_state state);
void seat_set_state(struct seat *seat, enum seat_state state);
/* Record that the member has contributed to the slot's round: add the member to
 * slot->contributed (set C). A repeated call has no effect. */
void slot_add_contributed(struct slot *slot, unsigned member);
/* Record that the member will not read the slot's result any more. */
void slot_clear_seat_offer(struct slot *slot, struct seat *seat);
/* Return the memory of the slot's result. Returns NULL if no memory is left. In that case the job
 * has failed. */
void *slot_get_result_memory(struct srv_core *core, struct slot *slot);
/* Count the staged contributions that a sum with a fixed order can add next (n_in_order), after a
 * member has contributed or abstained. */
void slot_count_in_order(struct slot *slot);

/* Return whether the member gets the bytes of the partition's results. */
bool seat_gets_bytes(const struct seat *seat);
/* Return whether RESULT of the slot's round may be sent to the seat's member, which then overwrites
 * its input. So if the result has an owner, the owner must have the result (O1). */
bool slot_may_send_result(const struct slot *slot, const struct seat *seat);

static inline bool part_is_ordered(const struct srv_part *part)
{
	return part->job->flags & JOB_DETERMINISTIC;
}
#endif
