#ifndef BPS_AGENT_TRAINERS_BARRIER_H
#define BPS_AGENT_TRAINERS_BARRIER_H
/* Serves trainers that wait at a barrier of their job (bps_checkpoint_barrier). Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's BARRIER message. */
void barrier_ask(struct trainer *t, uint32_t seq, uint64_t number);
/* Return whether the trainer may submit. A trainer that waits at a barrier may not. */
bool barrier_is_over(struct trainer *t);
/* Handle a JOB message that has changed the job. Answer the trainers whose barrier the message
 * reports as passed. Report the other waiting trainers to the scheduler again. */
void barrier_look(struct job *job);
/* Report again to the scheduler that a trainer waits at a barrier, because a new scheduler process
 * may not have this report. Does nothing if the trainer waits at no barrier. */
void barrier_again(struct trainer *t);
/* Answer a trainer that waits at a barrier, because the trainer's job is over. Does nothing if the
 * trainer waits at no barrier. */
void barrier_over(struct trainer *t, int code, const char *text, const struct ctl_cause *cause);
#endif
