#ifndef BPS_SERVER_CORE_COMPLETION_H
#define BPS_SERVER_CORE_COMPLETION_H
/* Completion of rounds, and what follows it. */
#include "bps-server/core/core_impl.h"

/* Set the slot to EMPTY (S6). A result that may still be read is retired. */
void slot_clear(struct srv_core *core, struct slot *slot);
/* Reset the seat to its state at the start of a pgen. It must not be STAGED: clear the slots
 * first. */
void seat_clear(struct srv_core *core, struct seat *seat);
/* Count the seat's contribution, which lies in seat->buf or seat->loan and has been checked. */
void seat_staged(struct srv_core *core, struct seat *seat);
/* Add the seat's member to the slot's H; may be repeated. May complete the round. */
void slot_add_has(struct srv_core *core, struct slot *slot, struct seat *seat);
/* S4: complete the round if enough members have sent CONTRIB or HAVE. */
void slot_check_complete(struct srv_core *core, struct slot *slot);
/* The slot's result exists: queue it for the members that wait. */
void slot_done(struct srv_core *core, struct slot *slot);
/* Request the result of a DONATING slot from the next member that has it. */
void slot_ask_donor(struct srv_core *core, struct slot *slot);
/* Drop all that the peer owed or was owed, and detach its seats from it. */
void slots_peer_down(struct srv_core *core, struct srv_peer *peer);
#endif
