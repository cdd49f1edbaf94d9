#ifndef BPS_SCHEDULER_MODEL_CHANGE_H
#define BPS_SCHEDULER_MODEL_CHANGE_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

/* Something durable changes. Returns the view of the open transaction, which is opened if there is
 * none. */
uint64_t sched_change(struct sched_core *c);
/* Persist the object with the open transaction, and tell those that it concerns. */
void sched_member_dirty(struct sched_core *c, struct sched_member *m);
void sched_job_dirty(struct sched_core *c, struct sched_job *j);
#endif
