#ifndef BPS_AGENT_EXECUTOR_ENGINE_STAGE_H
#define BPS_AGENT_EXECUTOR_ENGINE_STAGE_H
/* Moves chunks and partitions through their stages: see the diagram in engine.h. */
#include "bps-agent/executor/engine_impl.h"

/* Start the chunks of a tensor whose members are all ready. */
void engine_tensor_begin(struct engine_tensor *t);
/* Remove the tensor from all heaps. Work queued on devices ends by itself. */
void engine_tensor_stop(struct engine_tensor *t);
/* Queue all work that can be queued. True when some was. */
bool engine_issue(struct engine *e);
void engine_part_ticket_done(struct engine_part *p);
void engine_chunk_ticket_done(struct engine_chunk *c);
void engine_part_landed(struct engine_part *p);
/* Return whether engine_part_landed was called in the tensor's current round. */
bool engine_part_has_landed(const struct engine_part *p);
uint64_t engine_part_bytes(const struct engine_part *p);
#endif
