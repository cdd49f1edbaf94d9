#ifndef BPS_SCHEDULER_CORE_COMMIT_H
#define BPS_SCHEDULER_CORE_COMMIT_H
#include "bps-scheduler/model/model.h"

#define JOB_ID_BLOCK 1024 /* number of job ids that one transaction reserves */

/* End an event: give its changes a view, make them durable, then send them to the members. Only
 * sched_job_id_take and the functions of core.h may call sched_commit. is_retry: the last write
 * failed, and this call repeats the write. Errors: BPS_ENOTDURABLE, or the error of the disk. After
 * an error the changes stay in memory, and nothing is sent. */
int sched_commit(struct sched_core *c, bool is_retry);
/* Return an id that no job has had. Returns CTL_NO_ID if the next block of ids cannot be written to
 * the disk. */
uint32_t sched_job_id_take(struct sched_core *c);
#endif
