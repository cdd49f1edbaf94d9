#ifndef BPS_AGENT_TRAINERS_BARRIER_H
#define BPS_AGENT_TRAINERS_BARRIER_H
/* Trainers that wait at a barrier of their job (bps_checkpoint_barrier). The data thread's. */
#include "bps-agent/model/agent.h"

/* The trainer's BARRIER. */
void barrier_ask(struct trainer *t, uint32_t seq, uint64_t number);
/* Before a submission: does it wait at none? */
bool barrier_is_over(struct trainer *t);
/* A JOB has come: whoever waits is told, or says again that it does. */
void barrier_look(struct job *job);
/* Say it again to a scheduler that may have forgotten. */
void barrier_again(struct trainer *t);
/* The job is over: if it waits, it waits no more. */
void barrier_over(struct trainer *t, int code, const char *text);
#endif
