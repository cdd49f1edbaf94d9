#ifndef BPS_AGENT_TRAINERS_DECLARE_H
#define BPS_AGENT_TRAINERS_DECLARE_H
/* DECLARE: the tensors that trainers declare, and the memory for them. The data thread's. */
#include "bps-agent/model/agent.h"

/* Serve the trainer's DECLARE. The answer names where the tensors' slots lie, or why there are
 * none. It is sent at once, or when their memory was made; until then the trainer is held. Owns:
 * takes *mem, in which d's names lie. */
void declare_begin(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem);
/* Continue the DECLAREs that waited for memory: it was made, or failed. */
void declare_wake(struct job *job);
/* Cancel the DECLARE of a trainer that is going. Memory that is being made for it still arrives. */
void declare_cancel(struct trainer *t);
/* Free it with the trainer. */
void declare_free(struct trainer *t);
#endif
