#ifndef BPS_AGENT_TRAINERS_JOB_H
#define BPS_AGENT_TRAINERS_JOB_H
/* Jobs on this machine: trainers that join, finish or are lost. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Create a job in the state FORMING. NULL: out of memory. */
struct job *job_new(struct agent *a, struct quota_account *user, uid_t uid, const char *name,
	uint32_t size, uint32_t flags);
/* Attach the trainer to the job that its HELLO names. Creates the job if necessary. The caller must
 * call trainer_send_join next. Errors: a negative code, and err gets the text. */
int job_attach_trainer(struct trainer *t, const struct local_hello *h, struct err_text *err);
/* Send JOIN to the scheduler for an attached trainer. */
void trainer_send_join(struct trainer *t);
/* Resume a running job after a restart. job->by_worker must contain the job's trainers that are
 * still connected. Errors: -ENOMEM. */
int job_resume_after_restart(struct job *job, const struct ctl_job *m, uint16_t my_member);
/* Handle the trainer's FINISH. The trainer gets the answer when the job ends. */
void job_finish_worker(struct trainer *t, uint32_t seq);
/* Detach a trainer whose state is about to become GONE. If the trainer's job is not over, report
 * the loss to the scheduler. why: the reason for the loss; NULL: this process ends, and the next
 * process serves the trainer and the job. */
void job_detach_trainer(struct trainer *t, const char *why);
/* Free the job at the end of the process, but keep its records for the next process. */
void job_free_keep_records(struct job *job);
/* Free the job and its records, if it has no trainers, no core and no open memory requests. */
void job_free_if_unused(struct job *job);
/* Handle a message from the scheduler. m is valid only during the call. */
void job_on_joined_message(struct agent *a, const struct ctl_joined *m);
void job_on_job_message(struct agent *a, const struct ctl_job *m);
void job_on_end_message(struct agent *a, const struct ctl_job_end *m);
/* Send all unanswered requests again after a WELCOME, because the scheduler may have lost the
 * requests. */
void job_resync_begin(struct agent *a);
/* End the running jobs that the scheduler's complete state does not contain. Called when the
 * scheduler has sent that state. */
void job_resync_end(struct agent *a);
/* End all running jobs, because the scheduler does not know this agent any more. */
void job_forget_all(struct agent *a);
#endif
