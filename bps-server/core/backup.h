#ifndef BPS_SERVER_CORE_BACKUP_H
#define BPS_SERVER_CORE_BACKUP_H
/* Rounds of jobs with backup machines. These rounds do not wait for all members (rules J6 to J10
 * of docs/reference/faults.md). */
#include "bps-server/core/core_impl.h"

/* Record that the seat's member has reported that it has the results of all rounds up to `round`.
 * `round` is 0 if the member has no result. This call may complete rounds. */
void backup_note_has(struct srv_core *core, struct seat *seat, uint64_t round);
/* Return whether the member may already have the result of round `round`. Return false while this
 * server is still summing round `round` or an earlier round. */
bool backup_may_have(const struct seat *seat, uint64_t round);
/* Return whether round `round` may begin: all members must have the result of `round` - 2. */
bool backup_can_open(const struct srv_part *part, uint64_t round);
/* Record which members already have the result of the slot's round. The caller must call this
 * function after it opened a slot. */
void backup_slot_opened(struct srv_core *core, struct slot *slot);
/* Return whether the round is complete and must be summed now. Call this only if the slot is OPEN
 * and no member has the result. If the round must wait for its grace time, a later call of
 * backup_tick checks the round again. */
bool backup_is_complete(struct srv_core *core, struct slot *slot);
/* Complete the rounds whose deadline has passed. Returns the next deadline. */
uint64_t backup_tick(struct srv_core *core);
#endif
