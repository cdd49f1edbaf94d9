#ifndef BPS_AGENT_TRAINERS_JOB_FAILURE_H
#define BPS_AGENT_TRAINERS_JOB_FAILURE_H
/* Reports a job's failure to the scheduler and to its trainers. The data thread's. */
#include "bps-agent/model/agent.h"

/* Find the job with that number that has not ended, or NULL. */
struct job *job_find(struct agent *a, uint32_t id);
/* Fail a job: the core's fail callback. */
void job_core_fail(void *ctx, uint32_t job, int code, const char *text);
/* Return the code and the text of the job's end for this trainer. If another worker left because of
 * a mismatch, the text names the mismatch too, and not only the loss. */
int job_why_over(const struct trainer *t, struct err_text *ret);
#endif
