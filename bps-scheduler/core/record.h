#ifndef BPS_SCHEDULER_CORE_RECORD_H
#define BPS_SCHEDULER_CORE_RECORD_H
/* The core's objects as state records and back. Part of the core. */
#include "bps-scheduler/core/core_impl.h"

/* Hand fn one record with everything that the open transaction changed; returns what fn does. */
int sched_record_changes(
	struct sched_core *c, int (*fn)(void *ctx, const struct state_record *rec), void *ctx);

/* members.c, for restoring */
struct sched_member *sched_member_add(
	struct sched_core *c, uint32_t id, enum role role, const char *name);
void sched_member_describe(struct sched_core *c, struct sched_member *m, const struct ctl_hello *h);
#endif
