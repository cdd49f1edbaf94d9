#ifndef BPS_SERVER_CORE_SUMS_H
#define BPS_SERVER_CORE_SUMS_H
/* The summing of contributions, in slices. */
#include "bps-server/core/core_impl.h"

/* Add about SRV_SLICE_BYTES of staged contributions. Returns the number of bytes touched. */
size_t sums_work(struct srv_core *core);
/* Queue the slot, so that srv_core_sum_slice adds the slot's staged contributions to the slot's
 * sum. */
void sums_queue_slot(struct srv_core *core, struct slot *slot);
/* Discard the slot's staged contributions and the sum so far. */
void sums_discard_slot_sum(struct srv_core *core, struct slot *slot);
/* Return whether the slot has staged contributions that can be added to its sum now. */
bool sums_can_fold_slot(const struct slot *slot);
/* Free staging memory: queue every slot for which sums_can_fold_slot returns true, so that the
 * slot's staged contributions are added. */
void sums_queue_foldable_slots(struct srv_core *core);
#endif
