#ifndef BPS_AGENT_EXECUTOR_ENGINE_STAGE_H
#define BPS_AGENT_EXECUTOR_ENGINE_STAGE_H
/* Moves chunks and partitions of a tensor through their stages: see the diagram in engine.h.
 * Thread: the executor's. */
#include "bps-agent/executor/engine_impl.h"

/* Start the chunks of a tensor. Called when the streams of all members have reached the round. */
void engine_tensor_begin(struct engine_tensor *t);
/* Remove the tensor from all heaps. Work that is queued on GPUs continues until it ends. */
void engine_tensor_stop(struct engine_tensor *t);
/* Queue all work that can be queued now. Returns whether any work was queued. */
bool engine_issue_work(struct engine *e);
void engine_part_ticket_done(struct engine_part *p);
void engine_chunk_ticket_done(struct engine_chunk *c);
void engine_part_landed(struct engine_part *p);
/* Return whether engine_part_landed was called in the tensor's current round. */
bool engine_part_has_landed(const struct engine_part *p);
uint64_t engine_part_bytes(const struct engine_part *p);
#endif
