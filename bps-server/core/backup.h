#ifndef BPS_SERVER_CORE_BACKUP_H
#define BPS_SERVER_CORE_BACKUP_H
/* Rounds of jobs with backup workers, which do not wait for everybody (J6 to J10). */
#include "bps-server/core/core_impl.h"

/* The seat's member has said that it has the results up to that round (0: none). */
void backup_note_has(struct srv_core *core, struct seat *seat, uint64_t round);
/* May it say so? Not of a round that is being summed here. */
bool backup_may_have(const struct seat *seat, uint64_t round);
/* May a slot be taken for that round? */
bool backup_can_open(const struct srv_part *part, uint64_t round);
/* It has been: some may have its result. */
void backup_slot_opened(struct srv_core *core, struct slot *slot);
/* Is a round that is OPEN, and whose result nobody has, to be summed now? */
bool backup_is_complete(struct srv_core *core, struct slot *slot);
/* Complete the rounds whose time is over; the next deadline. */
uint64_t backup_tick(struct srv_core *core);
#endif
