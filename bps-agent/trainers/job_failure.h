#ifndef BPS_AGENT_TRAINERS_JOB_FAILURE_H
#define BPS_AGENT_TRAINERS_JOB_FAILURE_H
/* Reports a job's failure to the scheduler and to its trainers. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Find the job that has the scheduler's id and has not ended, or NULL. */
struct job *job_find(struct agent *a, uint32_t id);
/* Fail a job: record the reason, and report it to its trainers and the scheduler. Also the core's
 * callback env->fail; ctx is the agent. */
void job_core_fail(void *ctx, uint32_t job, int code, const char *text);
/* Return why the job of this trainer has ended: the code, and the text in *ret. If another worker
 * left because of a mismatch, the text names the mismatch as well as the lost worker. */
int job_why_over(const struct trainer *t, struct err_text *ret);
#endif
