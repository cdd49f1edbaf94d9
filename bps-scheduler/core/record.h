#ifndef BPS_SCHEDULER_CORE_RECORD_H
#define BPS_SCHEDULER_CORE_RECORD_H
/* Converts between the core's objects and state records. */
#include "bps-scheduler/model/model.h"

/* Write the changes of the open transaction as one record, through env.persist. Errors: those of
 * env.persist. */
int sched_persist_changes(struct sched_core *c);
#endif
