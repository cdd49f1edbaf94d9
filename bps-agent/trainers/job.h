#ifndef BPS_AGENT_TRAINERS_JOB_H
#define BPS_AGENT_TRAINERS_JOB_H
/* The local part of jobs: how trainers join, finish and are lost. The data thread's. */
#include "bps-agent/model/agent.h"

/* Create a job that forms. NULL: out of memory. */
struct job *job_new(struct agent *a, struct quota_account *user, uid_t uid, const char *name,
	uint32_t size, uint32_t flags);
/* Handle HELLO: find or make the job, and send JOIN to the scheduler. Errors: with a text. */
int job_attach(struct trainer *t, const struct local_hello *h, struct err_text *err);
/* Send JOIN for a trainer that has been attached. */
void job_join(struct trainer *t);
/* Resume a job after a restart, with the trainers in by_worker. Errors: -ENOMEM. */
int job_resume(struct job *job, const struct ctl_job *m, uint16_t my_member);
/* Handle the trainer's FINISH; the end of the job answers it. */
void job_finish(struct trainer *t, uint32_t seq);
/* Detach a trainer that is going. If its job is not over, that ends it, with why as the reason.
 * NULL: the process ends, and the next one continues both. */
void job_detach(struct trainer *t, const char *why);
/* Free the job at the end of the process. */
void job_leave(struct job *job);
/* Free the job when nothing needs it any more. */
void job_free_if_unused(struct job *job);
/* Handle a message of the scheduler; m is lent. */
void job_on_joined(struct agent *a, const struct ctl_joined *m);
void job_on_job(struct agent *a, const struct ctl_job *m);
void job_on_end(struct agent *a, uint32_t id, int code, const char *text);
/* Send again, after a WELCOME, all requests under way: the scheduler may have lost them. */
void job_resync_begin(struct agent *a);
/* End the jobs that the scheduler did not name in its complete state. */
void job_resync_end(struct agent *a);
/* End all jobs: the scheduler does not know this agent any more. */
void job_forget_all(struct agent *a);
#endif
