#ifndef BPS_SERVER_CORE_COMPLETION_H
#define BPS_SERVER_CORE_COMPLETION_H
/* When a round is complete, and what follows. */
#include "bps-server/core/core_impl.h"

/* Back to EMPTY (S6); a result that may still be read is retired. */
void slot_clear(struct srv_core *core, struct slot *slot);
/* The seat is as at the start of a pgen. It must not be STAGED: clear the slots first. */
void seat_clear(struct srv_core *core, struct seat *seat);
/* The seat's contribution lies in seat->buf or seat->loan and is right: it counts from now on. */
void seat_staged(struct srv_core *core, struct seat *seat);
/* Put the seat's member into the slot's H; may repeat. May complete the round. */
void slot_add_has(struct srv_core *core, struct slot *slot, struct seat *seat);
/* S4: has everybody spoken, and what follows? */
void slot_check_complete(struct srv_core *core, struct slot *slot);
/* The slot's result is there: tell those who wait for it. */
void slot_done(struct srv_core *core, struct slot *slot);
/* Ask the next member that has the result of a DONATING slot. */
void slot_ask_donor(struct srv_core *core, struct slot *slot);
/* Whatever the peer still owed or was owed is void; its seats forget it. */
void slots_peer_down(struct srv_core *core, struct srv_peer *peer);
#endif
