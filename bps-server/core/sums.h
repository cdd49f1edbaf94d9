#ifndef BPS_SERVER_CORE_SUMS_H
#define BPS_SERVER_CORE_SUMS_H
/* The arithmetic, in slices: srv_core_work does it. */
#include "bps-server/core/core_impl.h"

/* srv_core_work folds what the slot has staged. */
void sums_queue(struct srv_core *core, struct slot *slot);
/* Forget staged contributions and the accumulator. */
void sums_discard(struct srv_core *core, struct slot *slot);
/* Would a pass set staging free? */
bool sums_can_fold(const struct slot *slot);
/* Queue all that can be folded, to free staging. */
void sums_relieve(struct srv_core *core);
#endif
