#ifndef BPS_AGENT_GPU_DEVICE_TENSOR_H
#define BPS_AGENT_GPU_DEVICE_TENSOR_H
/* Tensors that lie on GPUs. Towards the core such a tensor is one whose contribution comes ready in
 * staging memory and whose sum is delivered to staging memory; this brings both about. The data
 * thread's. */
#include "bps-agent/model/agent.h"
#include "common/local/ring_pair.h"

/* A worker declares the tensor in device memory: staging memory for it, as far as it is missing.
 * Errors: with a sentence; -EINPROGRESS it is being made, declare_wake follows. */
int device_tensor_declare(struct trainer *t, struct tensor *tensor, const struct local_decl *d,
	size_t bytes, struct err_text *err);
/* All workers have: give it to the core. Errors: -ENOMEM. */
int device_tensor_to_core(struct tensor *tensor);
/* A tensor of a former life, with the executor's number of it. Errors: -ENOMEM, BPS_EPROTO. */
int device_tensor_restore(struct executor_link *g, struct tensor *tensor, uint32_t id);
/* What that worker has submitted since round complete. */
void device_tensor_resubmit(struct tensor *tensor, uint32_t worker, uint64_t complete);
/* Submit: now, or when its turn has come. Errors: BPS_EBUSY too far ahead. */
int device_tensor_submit(
	struct tensor *tensor, uint32_t worker, const struct pending_submission *p);
/* What waits may go to the core. */
void device_tensor_pump(struct tensor *tensor);
/* A round is over: see about the next. */
void device_tensor_round_over(struct tensor *tensor, int status);
/* The rounds that wait here are over with code. */
void device_tensor_fail_pending(struct tensor *tensor, int code);
/* It has failed: the executor gives it up, if it knows it. */
void device_tensor_cancel(struct tensor *tensor);
/* Nothing will come for that worker: let its stream go. */
void device_tensor_poison(struct tensor *tensor, uint32_t worker);
void device_tensor_free(struct tensor *tensor);
/* Which worker's stream does the round under way wait for? False: it is not that. */
bool device_tensor_late(const struct tensor *tensor, uint32_t *ret_worker);
/* The core's callbacks. */
void device_tensor_stage(
	void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
void device_tensor_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
/* One entry of the executor's, copied and not checked yet. */
void device_tensor_on_entry(struct executor_link *g, const struct pipe_entry *e);
/* A staging arena is there: the executor maps it, too. */
int executor_arena_adopted(void *ctx, struct arena *a);
/* One of a former life: it may not have heard of it. Errors: of local_send. */
int executor_tell_arena(struct executor_link *g, uint32_t id, uint64_t bytes, int fd);
#endif
