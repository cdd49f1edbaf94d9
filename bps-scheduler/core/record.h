#ifndef BPS_SCHEDULER_CORE_RECORD_H
#define BPS_SCHEDULER_CORE_RECORD_H
/* The core's objects as state records and back. */
#include "bps-scheduler/model/model.h"

/* Hand fn one record with everything that the open transaction changed; returns what fn does. */
int sched_record_changes(
	struct sched_core *c, int (*fn)(void *ctx, const struct state_record *rec), void *ctx);
#endif
