#ifndef BPS_AGENT_TRAINERS_BARRIER_H
#define BPS_AGENT_TRAINERS_BARRIER_H
/* Serves trainers that wait at a barrier of their job (bps_checkpoint_barrier). Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's BARRIER request. */
void barrier_ask(struct trainer *t, uint32_t seq, uint64_t number);
/* Return whether the trainer may submit, because it waits at no barrier. */
bool barrier_is_over(struct trainer *t);
/* Handle a changed JOB: answer the trainers whose barrier it reports as passed, and report the
 * others to the scheduler again. */
void barrier_look(struct job *job);
/* Report the trainer to the scheduler again if it waits at a barrier: a new scheduler process may
 * not know that. */
void barrier_again(struct trainer *t);
/* Answer the trainer if it waits at a barrier, because its job is over. */
void barrier_over(struct trainer *t, int code, const char *text, const struct ctl_cause *cause);
#endif
