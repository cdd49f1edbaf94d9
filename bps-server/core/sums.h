#ifndef BPS_SERVER_CORE_SUMS_H
#define BPS_SERVER_CORE_SUMS_H
/* The arithmetic, which srv_core_work performs in slices. */
#include "bps-server/core/core_impl.h"

/* Queue the slot: srv_core_work folds its staged contributions. */
void sums_queue(struct srv_core *core, struct slot *slot);
/* Discard the staged contributions and the accumulator. */
void sums_discard(struct srv_core *core, struct slot *slot);
/* Would a pass free staging? */
bool sums_can_fold(const struct slot *slot);
/* Queue all slots that can be folded, to free staging. */
void sums_relieve(struct srv_core *core);
#endif
