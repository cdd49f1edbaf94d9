#ifndef BPS_SCHEDULER_MODEL_CHANGE_H
#define BPS_SCHEDULER_MODEL_CHANGE_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

/* Mark that durable state changes. Return the view of the open transaction; open one if there is
 * none. */
uint64_t sched_change(struct sched_core *c);
/* Add the object to the open transaction: it is persisted, then sent to the members that it
 * concerns. */
void sched_member_dirty(struct sched_core *c, struct sched_member *m);
void sched_job_dirty(struct sched_core *c, struct sched_job *j);
#endif
