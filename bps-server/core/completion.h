#ifndef BPS_SERVER_CORE_COMPLETION_H
#define BPS_SERVER_CORE_COMPLETION_H
/* Completes rounds. The result of a round is the sum of the contributions, or is read from a member
 * that has it (a donation). The result is then queued for the members that wait for it. */
#include "bps-server/core/core_impl.h"

/* Relation of a round to its slot (S3):
 *   HERE   the slot holds this round, or can be used for this round now
 *   OVER   the slot holds a later round
 *   AHEAD  the round is further ahead than a correct peer can be */
enum slot_relation { SLOT_HERE, SLOT_OVER, SLOT_AHEAD };
enum slot_relation slot_relation_of(struct srv_part *part, uint64_t round);
/* Return the slot of a round, whose relation must be SLOT_HERE. If the slot does not hold this
 * round yet, open the slot for it. */
struct slot *slot_open_for_round(struct srv_core *core, struct srv_part *part, uint64_t round);
/* Set the slot to EMPTY (S6). A result that may still be read becomes a retired result
 * (retired.h). */
void slot_reset_to_empty(struct srv_core *core, struct slot *slot);
/* Reset the seat to its state at the start of a pgen. The seat must not be STAGED, so clear the
 * partition's slots first. */
void seat_reset_for_pgen(struct srv_core *core, struct seat *seat);
/* Count the contribution of the seat's member. The contribution must be valid, and seat->buf or
 * seat->loan must refer to it. The call may complete the round. */
void seat_stage_contribution(struct srv_core *core, struct seat *seat);
/* Record that the seat's member takes part in the slot's round and adds nothing (W1). The slot must
 * be OPEN, and no member has the result. The call may complete the round. */
void slot_record_abstention(struct srv_core *core, struct slot *slot, struct seat *seat);
/* Record that the seat's member has the result of the slot's round: add the member to the set H of
 * docs/reference/faults.md. A repeated call has no effect. The call may complete the round. */
void slot_add_result_holder(struct srv_core *core, struct slot *slot, struct seat *seat);
/* Complete the round if enough members have sent CONTRIB or HAVE (S4). If no member has the result,
 * the contributions are summed. Otherwise the result is requested from a member that has it. */
void slot_check_complete(struct srv_core *core, struct slot *slot);
/* Check the slots of core->cutting again if one of them is due. Return when the next one is due. */
uint64_t slots_check_due_cuts(struct srv_core *core);
/* Handle the completion of the slot's result: queue the result for the members that wait for it. */
void slot_publish_result(struct srv_core *core, struct slot *slot);
/* Request the result of a DONATING slot from the next member that has it. */
void slot_request_donation(struct srv_core *core, struct slot *slot);
/* Handle the loss of the peer's connection: drop the peer's queued reads and messages, and detach
 * the seats from the peer. */
void slots_peer_down(struct srv_core *core, struct srv_peer *peer);
#endif
