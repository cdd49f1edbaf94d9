#ifndef BPS_AGENT_TRAINERS_DECLARE_H
#define BPS_AGENT_TRAINERS_DECLARE_H
/* Serves DECLARE, the message by which a trainer declares tensors and gets memory for them. Thread:
 * the data thread. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's DECLARE. The answer states for each tensor where its slots are in shared
 * memory, or why the tensor was refused. If memory must be made first, the answer is sent later.
 * Until then, no other message of the trainer is read. Owns: takes *mem, which holds the names
 * in the message `d`. */
void declare_begin(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem);
/* Continue the job's DECLAREs that wait for memory. The caller calls declare_resume_waiting when
 * the memory has been made, or when making it has failed. */
void declare_resume_waiting(struct job *job);
/* Cancel the waiting DECLARE of a trainer whose state is about to become GONE. Memory that is being
 * made for that trainer still arrives later. */
void declare_cancel(struct trainer *t);
/* Free the trainer's DECLARE that is in progress. Called when the trainer is freed. */
void declare_free(struct trainer *t);
#endif
