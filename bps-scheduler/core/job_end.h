#ifndef BPS_SCHEDULER_CORE_JOB_END_H
#define BPS_SCHEDULER_CORE_JOB_END_H
#include "bps-scheduler/model/model.h"

/* End a running job. The members are notified when the end is durable. cause: NULL if the cause is
 * not known. fmt: the reason; "" when all workers have finished. The text of a failed job also
 * names its first failed tensor. */
void sched_job_end(struct sched_core *c, struct sched_job *j, int code,
	const struct ctl_cause *cause, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* End j if all its remaining workers have finished. */
void sched_job_check_done(struct sched_core *c, struct sched_job *j);
/* End a running or forming job. Its workers receive BPS_EJOB_FAILED and `text`. */
void sched_job_abort(struct sched_core *c, struct sched_job *j, const char *text);
/* Handle the final loss of member i of a running job. If the job may shrink, the job continues
 * without the member. Otherwise the job ends with the code `code`. rank: the lost worker;
 * CTL_NO_ID: the whole machine is lost. fmt: the direct reason. The text of the loss, or of the end
 * of the job, begins with this reason. If a tensor of the job has failed, the text also names the
 * first such tensor. If no tensor has failed and the job ends, the text also names the first
 * machine that the job has lost. */
void sched_machine_lost(struct sched_core *c, struct sched_job *j, uint32_t i, uint32_t rank,
	int code, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
#endif
