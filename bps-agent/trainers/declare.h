#ifndef BPS_AGENT_TRAINERS_DECLARE_H
#define BPS_AGENT_TRAINERS_DECLARE_H
/* Serves DECLARE, with which trainers declare tensors and get memory for them. Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's DECLARE. The answer states where each tensor's slots are in shared memory, or
 * why the tensor was refused. If memory must be made first, the answer follows later, and until
 * then no message of the trainer is read. Owns: takes *mem, which holds the names in d. */
void declare_begin(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem);
/* Continue the DECLAREs of the job that wait for output memory, which has been made or has
 * failed. */
void declare_wake(struct job *job);
/* Stop the DECLARE of a trainer that is about to be GONE from waiting. Memory that is being made
 * for that trainer still arrives later. */
void declare_cancel(struct trainer *t);
/* Free the trainer's DECLARE under way, together with the trainer. */
void declare_free(struct trainer *t);
#endif
