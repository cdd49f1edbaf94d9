#ifndef BPS_SERVER_CORE_PLAN_H
#define BPS_SERVER_CORE_PLAN_H
/* Jobs and their partitions, as the scheduler announces them: srv_core_apply_job and related
 * calls. */
#include "bps-server/core/core_impl.h"

/* Free the job and all its partitions. */
void plan_free_job(struct srv_core *core, struct srv_job *job);
/* Allocate the memory of the peer's queues. Each queue gets room for all partitions of the core.
 * Errors: -ENOMEM. */
int plan_reserve_peer(const struct srv_core *core, struct srv_peer *peer);
#endif
