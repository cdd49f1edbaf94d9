#ifndef BPS_AGENT_TRAINERS_DECLARE_H
#define BPS_AGENT_TRAINERS_DECLARE_H
/* DECLARE: what trainers want their tensors to be, and the memory for them. The data thread's. */
#include "bps-agent/model/agent.h"

/* The trainer's DECLARE, answered with where the tensors' slots lie, or why there are none: at
 * once, or when memory for them was made, until when the trainer is held. Owns: takes *mem,
 * in which d's names lie. */
void declare_begin(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem);
/* Memory was made, or not: go on with the DECLAREs that waited for it. */
void declare_wake(struct job *job);
/* The trainer is going: its DECLARE waits no more. What is being made for it comes all the same. */
void declare_cancel(struct trainer *t);
/* Free it with the trainer. */
void declare_free(struct trainer *t);
#endif
