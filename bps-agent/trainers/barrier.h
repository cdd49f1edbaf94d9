#ifndef BPS_AGENT_TRAINERS_BARRIER_H
#define BPS_AGENT_TRAINERS_BARRIER_H
/* Trainers that wait at a barrier of their job (bps_checkpoint_barrier). The data thread's. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's BARRIER. */
void barrier_ask(struct trainer *t, uint32_t seq, uint64_t number);
/* Return whether the trainer waits at no barrier; called before a submission. */
bool barrier_is_over(struct trainer *t);
/* Handle a JOB: answer the trainers that wait, or report them to the scheduler again. */
void barrier_look(struct job *job);
/* Report the waiting trainer again to a scheduler that may have lost it. */
void barrier_again(struct trainer *t);
/* The job is over: answer the trainer if it waits. */
void barrier_over(struct trainer *t, int code, const char *text);
#endif
