#ifndef BPS_SERVER_CORE_PLAN_H
#define BPS_SERVER_CORE_PLAN_H
/* Jobs and their partitions, as the scheduler announces them: srv_core_job and the like. */
#include "bps-server/core/core_impl.h"

/* Forget the job, and all partitions of it. */
void plan_free_job(struct srv_core *core, struct srv_job *job);
/* Make room in the peer's queues for all partitions that are here. */
int plan_reserve_peer(const struct srv_core *core, struct srv_peer *peer);
#endif
