#ifndef BPS_SERVER_CORE_BACKUP_H
#define BPS_SERVER_CORE_BACKUP_H
/* Rounds of jobs with backup machines, which do not wait for all members (J6 to J10). */
#include "bps-server/core/core_impl.h"

/* Record that the seat's member reported results up to that round (0: none). */
void backup_note_has(struct srv_core *core, struct seat *seat, uint64_t round);
/* Return whether the member can have that result. False for a round that this server is still
 * summing. */
bool backup_may_have(const struct seat *seat, uint64_t round);
/* Return whether a slot can be taken for that round. */
bool backup_can_open(const struct srv_part *part, uint64_t round);
/* Record that the slot was opened. Some members may have its result. */
void backup_slot_opened(struct srv_core *core, struct slot *slot);
/* Return whether the round must be summed now. The slot is OPEN and no member has the result. */
bool backup_is_complete(struct srv_core *core, struct slot *slot);
/* Complete the rounds whose deadline has passed. Returns the next deadline. */
uint64_t backup_tick(struct srv_core *core);
#endif
