#ifndef BPS_AGENT_TRAINERS_BARRIER_H
#define BPS_AGENT_TRAINERS_BARRIER_H
/* Serves trainers that wait at a barrier of their job (bps_checkpoint_barrier). Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's BARRIER message. */
void barrier_accept_request(struct trainer *t, uint32_t seq, uint64_t number);
/* Return whether the trainer may submit. A trainer that waits at a barrier may not. */
bool barrier_is_over(struct trainer *t);
/* Handle a JOB message that has changed the job. Answer the trainers whose barrier the message
 * reports as passed. Report the other waiting trainers to the scheduler again. */
void barrier_answer_or_report(struct job *job);
/* If the trainer waits at a barrier, report this to the scheduler again. Otherwise do nothing. The
 * report is necessary because a new scheduler process may not have the earlier report. */
void barrier_report_again(struct trainer *t);
/* Call this function when the trainer's job is over. If the trainer waits at a barrier, answer the
 * trainer with an error. Otherwise do nothing. */
void barrier_answer_job_end(
	struct trainer *t, int code, const char *text, const struct ctl_cause *cause);
#endif
