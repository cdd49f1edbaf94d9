#ifndef BPS_AGENT_GPU_DEVICE_TENSOR_H
#define BPS_AGENT_GPU_DEVICE_TENSOR_H
/* Tensors that lie on GPUs. For the core, such a tensor has its contribution in staging memory, and
 * its sum goes to staging memory. This file connects both with the executor. Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"
#include "common/local/ring_pair.h"

extern const struct tensor_kind device_tensor_kind;

/* Restore a tensor under the executor's number for it. Errors: -ENOMEM, BPS_EPROTO. */
int device_tensor_restore(struct executor_link *g, struct tensor *tensor, uint32_t id);
/* The core's callbacks. */
void device_tensor_stage(
	void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
void device_tensor_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
/* Handle one entry of the executor's ring, copied and not checked yet. */
void device_tensor_on_entry(struct executor_link *g, const struct ring_pair_entry *e);
#endif
