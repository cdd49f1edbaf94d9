#ifndef BPS_AGENT_GPU_DEVICE_TENSOR_H
#define BPS_AGENT_GPU_DEVICE_TENSOR_H
/* Tensors in the memory of GPUs. The core uses only the tensor's staging memory in the host: the
 * contribution is read from there, and the sum is written there. This file exchanges messages with
 * the executor, which copies between staging memory and the GPUs. Thread: the data thread. */
#include "bps-agent/model/agent.h"
#include "common/local/ring_pair.h"

extern const struct tensor_kind device_tensor_kind;

/* Create the struct device_tensor of a tensor after a restart. id: the executor's id of the tensor.
 * Errors: -ENOMEM; BPS_EPROTO if `id` is not greater than the earlier ids, or is too large. */
int device_tensor_restore(struct executor_link *g, struct tensor *tensor, uint32_t id);
/* Callbacks of the core: env->stage and env->unstage. */
void device_tensor_stage(
	void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
void device_tensor_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
/* Handle one entry of the executor's ring. e: a copy of the entry, not checked yet. */
void device_tensor_on_entry(struct executor_link *g, const struct ring_pair_entry *e);
#endif
