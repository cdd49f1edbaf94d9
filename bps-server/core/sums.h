#ifndef BPS_SERVER_CORE_SUMS_H
#define BPS_SERVER_CORE_SUMS_H
/* The summing of contributions, which srv_core_work performs in slices. */
#include "bps-server/core/core_impl.h"

/* Queue the slot, so that srv_core_work adds the slot's staged contributions to the slot's sum. */
void sums_queue(struct srv_core *core, struct slot *slot);
/* Discard the slot's staged contributions and the sum so far. */
void sums_discard(struct srv_core *core, struct slot *slot);
/* Return whether the slot has staged contributions that can be added to its sum now. */
bool sums_can_fold(const struct slot *slot);
/* Free staging memory: queue every slot for which sums_can_fold returns true, so that the slot's
 * staged contributions are added. */
void sums_relieve(struct srv_core *core);
#endif
