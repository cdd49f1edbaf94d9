#ifndef BPS_AGENT_EXECUTOR_ENGINE_STAGE_H
#define BPS_AGENT_EXECUTOR_ENGINE_STAGE_H
/* Chunks and partitions through their stages: see the drawing in engine.h. */
#include "bps-agent/executor/engine_impl.h"

/* All members are ready: its chunks set out. */
void engine_tensor_begin(struct engine_tensor *t);
/* Take it out of all heaps. What is queued on devices ends by itself. */
void engine_tensor_stop(struct engine_tensor *t);
/* Queue what may be queued. True when something was. */
bool engine_issue(struct engine *e);
void engine_part_ticket_done(struct engine_part *p);
void engine_chunk_ticket_done(struct engine_chunk *c);
void engine_part_landed(struct engine_part *p);
/* Of the tensor's round, which is under way: has engine_part_landed been called? */
bool engine_part_has_landed(const struct engine_part *p);
uint64_t engine_part_bytes(const struct engine_part *p);
#endif
