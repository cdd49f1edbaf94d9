#ifndef BPS_SCHEDULER_CORE_COMMIT_H
#define BPS_SCHEDULER_CORE_COMMIT_H
#include "bps-scheduler/model/model.h"

#define JOB_ID_BLOCK 1024 /* ids that one transaction reserves */

/* End of an event: give the changes a view, make them durable, tell. Only entry points call it, and
 * sched_job_id_take. is_retry: the last write failed, try again.
 * Errors: BPS_ENOTDURABLE or what the disk said: the changes stay, and nothing is told. */
int sched_commit(struct sched_core *c, bool is_retry);
/* A number that no job has had. CTL_NO_ID: the disk does not take the next block of them. */
uint32_t sched_job_id_take(struct sched_core *c);
#endif
