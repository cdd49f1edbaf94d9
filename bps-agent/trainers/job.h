#ifndef BPS_AGENT_TRAINERS_JOB_H
#define BPS_AGENT_TRAINERS_JOB_H
/* The local part of jobs: how trainers join, finish and are lost. The data thread's. */
#include "bps-agent/model/agent.h"

/* A job that forms. NULL: out of memory. */
struct job *job_new(struct agent *a, struct quota_account *user, uid_t uid, const char *name,
	uint32_t size, uint32_t flags);
/* HELLO: find or make the job, ask the scheduler to let it join. Errors: with a sentence. */
int job_attach(struct trainer *t, const struct local_hello *h, struct err_text *err);
/* Have the trainer join, which has been attached. */
void job_join(struct trainer *t);
/* Resume a job after a restart, with the trainers in by_worker. Errors: -ENOMEM. */
int job_resume(struct job *job, const struct ctl_job *m, uint16_t my_member);
/* The trainer's FINISH: it is answered by the end of the job. */
void job_finish(struct trainer *t, uint32_t seq);
/* The trainer is going: if its job is not over, that ends it, with why as the reason. NULL: the
 * process ends, and a successor goes on with both. */
void job_detach(struct trainer *t, const char *why);
/* The process ends: free it. */
void job_leave(struct job *job);
/* Free it when nothing needs it any more. */
void job_free_if_unused(struct job *job);
/* What the scheduler says; m is lent. */
void job_on_joined(struct agent *a, const struct ctl_joined *m);
void job_on_job(struct agent *a, const struct ctl_job *m);
void job_on_end(struct agent *a, uint32_t id, int code, const char *text);
/* The scheduler knows us (again), and may have forgotten what was under way: say it again. */
void job_resync_begin(struct agent *a);
/* It has told everything: jobs that it did not name are over. */
void job_resync_end(struct agent *a);
/* The scheduler does not know this agent any more: none of its jobs goes on. */
void job_forget_all(struct agent *a);
#endif
