#ifndef BPS_AGENT_TRAINERS_JOB_FAILURE_H
#define BPS_AGENT_TRAINERS_JOB_FAILURE_H
/* Reports a job's failure to the scheduler and to its trainers. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Find the job that has the scheduler's id and has not ended, or NULL. */
struct job *job_find(struct agent *a, uint32_t id);
/* Fail a job: record the reason, and report it to its trainers and the scheduler. cause: NULL if it
 * is not known. */
void job_fail(
	struct agent *a, uint32_t job, int code, const char *text, const struct ctl_cause *cause);
/* Fail a job whose cause is not known: the core's callback env->fail. ctx is the agent. */
void job_core_fail(void *ctx, uint32_t job, int code, const char *text);
/* Copy the cause of the job's failure to the job. NULL: the cause is not known. */
void job_set_cause(struct job *job, const struct ctl_cause *cause);
/* Return why the job of this trainer has ended: the code, the text in *ret, and *ret_cause, whose
 * host the job or its tensor owns. If another worker left because of a mismatch, the text names the
 * mismatch as well as the lost worker, and the cause is that of the mismatch. */
int job_why_over(const struct trainer *t, struct err_text *ret, struct ctl_cause *ret_cause);
#endif
