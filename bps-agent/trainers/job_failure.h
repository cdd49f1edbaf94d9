#ifndef BPS_AGENT_TRAINERS_JOB_FAILURE_H
#define BPS_AGENT_TRAINERS_JOB_FAILURE_H
/* How a job's failure is reported to the scheduler and to its trainers. The data thread's. */
#include "bps-agent/model/agent.h"

/* The job with that number that has not ended, or NULL. */
struct job *job_find(struct agent *a, uint32_t id);
/* The core's fail callback. */
void job_core_fail(void *ctx, uint32_t job, int code, const char *text);
/* The code of the job's end, and the sentence, as this trainer is told. When another left who was
 * told of a mismatch this one hears of the mismatch too, and not only of the loss. */
int job_why_over(const struct trainer *t, struct err_text *ret);
#endif
