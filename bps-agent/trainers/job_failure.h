#ifndef BPS_AGENT_TRAINERS_JOB_FAILURE_H
#define BPS_AGENT_TRAINERS_JOB_FAILURE_H
/* Reports a job's failure to the scheduler and to the job's trainers. Finds jobs that a worker of
 * this machine has left too early. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Return the job to which the scheduler has assigned this id, if the job has not ended. NULL: there
 * is no such job. */
struct job *job_find(struct agent *a, uint32_t id);
/* Fail a job: record the reason, and report it to the job's trainers and to the scheduler. cause:
 * the worker and host that caused the failure; NULL: not known. */
void job_report_failure(
	struct agent *a, uint32_t job, int code, const char *text, const struct ctl_cause *cause);
/* The core's callback env->fail: call job_report_failure with NULL as the cause. ctx is the
 * agent. */
void on_core_job_failure(void *ctx, uint32_t job, int code, const char *text);
/* Store the cause of the job's failure in `job`. cause: NULL if the cause is not known. */
void job_set_cause(struct job *job, const struct ctl_cause *cause);
/* Return the code with which the trainer's job has ended. *ret: the text. *ret_cause: the cause.
 * The host pointer in *ret_cause points into the job or into one of the job's tensors. If the job
 * has lost a worker, and a tensor has failed because declarations do not match, the mismatch may be
 * why the worker left. In this case the function returns BPS_EMISMATCH. The text then names both
 * the mismatch and the lost worker, and *ret_cause is the cause of the mismatch. */
int job_reason_of_end(const struct trainer *t, struct err_text *ret, struct ctl_cause *ret_cause);
/* Find workers of this machine that have finished (bps_close) while another worker of this machine
 * waits for a round that they have not submitted (rule J15). Such a wait would never end, so the
 * worker counts as lost. The scheduler finds the waits between machines
 * (bps-scheduler/core/leavers.h). Call the function again at the returned time. UINT64_MAX: not
 * before another worker finishes. */
uint64_t leaver_check_jobs(struct agent *a, uint64_t now_ns);
#endif
