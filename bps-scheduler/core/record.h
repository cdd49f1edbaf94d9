#ifndef BPS_SCHEDULER_CORE_RECORD_H
#define BPS_SCHEDULER_CORE_RECORD_H
/* The core's objects as state records and back. */
#include "bps-scheduler/model/model.h"

/* Write what the open transaction changed, as one record, by env.persist. Errors: what that
 * answers. */
int sched_persist(struct sched_core *c);
#endif
