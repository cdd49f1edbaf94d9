#ifndef BPS_AGENT_TRAINERS_BARRIER_H
#define BPS_AGENT_TRAINERS_BARRIER_H
/* Trainers that wait at a barrier of their job (bps_checkpoint_barrier). The data thread's. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's BARRIER. */
void barrier_ask(struct trainer *t, uint32_t seq, uint64_t number);
/* Return whether it waits at no barrier; called before a submission. */
bool barrier_is_over(struct trainer *t);
/* A JOB has come: answer those that wait, or report to the scheduler again that they do. */
void barrier_look(struct job *job);
/* Report it again to a scheduler that may have forgotten. */
void barrier_again(struct trainer *t);
/* The job is over: answer the trainer if it waits. */
void barrier_over(struct trainer *t, int code, const char *text);
#endif
