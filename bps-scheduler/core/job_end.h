#ifndef BPS_SCHEDULER_CORE_JOB_END_H
#define BPS_SCHEDULER_CORE_JOB_END_H
#include "bps-scheduler/model/model.h"

/* End a running job; every member is told when that is durable. fmt: why, "" when all have
 * finished. A failed job's first failed tensor is added to the text. */
void sched_job_end(struct sched_core *c, struct sched_job *j, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* End j when all its workers that are left have finished. */
void sched_job_check_done(struct sched_core *c, struct sched_job *j);
/* End a job that runs or forms. */
void sched_job_abort(struct sched_core *c, struct sched_job *j, const char *text);
/* Member i of a running job is lost, and cannot come back to it. The job ends with code, or goes on
 * without it when it may shrink. fmt: why. */
void sched_machine_lost(struct sched_core *c, struct sched_job *j, uint32_t i, int code,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#endif
