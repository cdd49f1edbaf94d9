#ifndef BPS_AGENT_TRAINERS_DECLARE_H
#define BPS_AGENT_TRAINERS_DECLARE_H
/* Serves DECLARE, with which trainers declare tensors and get memory for them. Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's DECLARE. The answer states where each tensor's slots are in shared memory, or
 * why the tensor was refused. If memory must be made first, the answer is sent later. Before the
 * answer, no other message of the trainer is read. Owns: takes *mem, which holds the names in d. */
void declare_begin(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem);
/* Continue the job's DECLAREs that wait for output memory, because the memory has been made or
 * could not be made. */
void declare_wake(struct job *job);
/* Cancel the waiting DECLARE of a trainer that is about to be GONE. Memory that is already being
 * made for that trainer still arrives later. */
void declare_cancel(struct trainer *t);
/* Free the trainer's DECLARE under way, when the trainer itself is freed. */
void declare_free(struct trainer *t);
#endif
