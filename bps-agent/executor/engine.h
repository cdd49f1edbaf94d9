#ifndef BPS_AGENT_EXECUTOR_ENGINE_H
#define BPS_AGENT_EXECUTOR_ENGINE_H
/* The executor's engine: moves every partition from the GPUs of a machine to host memory, and its
 * sum back. A state machine without clock, threads or sockets: messages of the agent and the time
 * are its input, calls of a device (device.h) and of struct engine_env its output. It does not
 * handle the network, and does not choose its strategy (route.h).
 *
 * A tensor goes round by round. The agent starts a round, and the round begins when the streams of
 * all members have reached it (counters, gpu_slot.h). Its partitions go through chunks: a chunk is
 * summed by one collective; without collectives it is one partition.
 *
 *   chunk:  IDLE -> REDUCING -> OPEN: partitions under way -> GATHERING -> IDLE
 *   part:   IDLE -> UP_WAIT -> UP -> STAGED -> DOWN_WAIT -> DOWN -> LANDED -> IDLE
 *                    copies to     the agent      copies from      with its chunk's
 *                    host memory   has it, until  host memory      gathering
 *                                  engine_landed
 *
 * Rules, and why:
 *   - Ready counters are polled here, never waited for in a queue: a collective that is queued
 *     early would spin on the GPUs until the slowest rank arrives, and priorities would have no
 *     effect.
 *   - Every stage begins on an event that the host has seen. A copy from host memory is queued only
 *     after its sum has arrived: otherwise machines with different orders would deadlock.
 *   - Copies out and in have queues of their own, with enough under way to keep them busy
 *     (window_bytes). Waiting copies start by priority.
 *   - A round is done when the host has seen the last stage end; then `done` of all members is
 *     stored. A failure poisons the counters of all members: no trainer's stream is left waiting.
 *
 * After an error of the device, the end of a member's process or engine_fail, nothing more is
 * queued, cliques are aborted, and all rounds are over. Thread: the executor's one. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/device/device.h"
#include "bps-agent/executor/plan/route.h"
#include "common/local/gpu_slot.h"

struct engine;

struct engine_env {
	void *ctx;
	/* The contribution of that partition lies in host memory. */
	void (*staged)(void *ctx, uint32_t tensor, uint32_t part, uint64_t round);
	/* The sum of that round is in all members' tensors, and their counters show it. */
	void (*done)(void *ctx, uint32_t tensor, uint64_t round);
	/* The round has waited long for that member's stream. Repeated for each further member. */
	void (*late)(void *ctx, uint32_t tensor, unsigned member);
	/* The engine has stopped. Called at most once. */
	void (*failed)(void *ctx, int code, const char *text);
};

struct engine_member_desc {
	int gpu;
	struct gpu_slot *slots; /* n_slots; mapped until engine_free */
	uint32_t n_slots;
};

struct engine_config {
	struct route route;
	const struct engine_member_desc *members; /* route.n_members; copied */
	/* limit of copies queued in each direction; 0: default. A single copy may exceed it */
	uint64_t window_bytes;
	uint64_t stall_ns; /* queued work of which nothing ends for this time is an error */
};

/* A range of device memory that outlives the engine, or until engine_forget. */
struct engine_range {
	struct device_mem *mem;
	uint64_t offset;
};

struct engine_place {
	struct engine_range at; /* the tensor, on the member's GPU */
	uint32_t slot;
};

struct engine_tensor_desc {
	uint32_t id; /* below ENGINE_TENSORS_MAX; choose small numbers, they index a table */
	enum dtype dtype;
	uint64_t n_elems;
	uint64_t part_bytes;               /* a multiple of the element's size */
	const struct engine_place *places; /* per member; copied, as is `in` */
	const struct engine_range *in;     /* per group of the route, pinned */
	struct engine_range out[2];        /* round & 1, pinned */
};
#define ENGINE_TENSORS_MAX (1u << 24)

/* Open queues and cliques on the GPUs. Errors: of the device or -ENOMEM, with a text. */
int engine_new(struct device *dev, const struct engine_config *cfg, const struct engine_env *env,
	struct engine **ret, struct err_text *err);
/* Free the engine when nothing is queued (engine_is_quiet), or at exit. NULL is allowed. */
void engine_free(struct engine *e);

/* Add a tensor. Errors: -EINVAL invalid or already there, -ENOMEM; with a text. */
int engine_add(struct engine *e, const struct engine_tensor_desc *t, struct err_text *err);
/* Check whether the tensor is there and equal. Errors: -ENOENT not there, -EINVAL different. */
int engine_find(const struct engine *e, const struct engine_tensor_desc *t);
/* Allow the tensor's next round to begin. A round that has been run is reported again: its staged
 * partitions, or its end. Errors: -EINVAL no such tensor, or not its next round. */
int engine_run(struct engine *e, uint32_t tensor, uint64_t round, enum op op, uint16_t priority);
/* Record that a staged partition's sum is in out[round & 1]; may repeat. Errors: -EINVAL not
 * staged. */
int engine_landed(struct engine *e, uint32_t tensor, uint32_t part, uint64_t round);
/* Mute the tensors because the listener was replaced: report nothing of a tensor until its round is
 * run again. */
void engine_mute(struct engine *e);
/* Cancel a tensor that has failed: its round is over, and its waiters are released. */
void engine_cancel(struct engine *e, uint32_t tensor);
/* Forget memory that is about to be unmapped; its tensors run no more. Errors: -EBUSY a tensor
 * runs, or has work queued. */
int engine_forget(struct engine *e, const struct device_mem *mem);
/* Report the end of a member's process: an error, unless nothing is under way. */
void engine_member_gone(struct engine *e, unsigned member);
/* Stop with that code and text. Only the first call has an effect. */
void engine_fail(struct engine *e, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Retire work that has ended and start work that can start. True when something has moved. */
bool engine_poll(struct engine *e, uint64_t now_ns);
/* Return whether work is queued, or a member's counter awaited. Then poll again soon. */
bool engine_is_busy(const struct engine *e);
/* Return whether nothing is queued on any device. */
bool engine_is_quiet(const struct engine *e);
/* Return the number of inputs in host memory that a tensor needs. */
unsigned engine_inputs(const struct engine *e);
/* Return the member whose stream has not reached the tensor's round; -1: the round waits for no
 * stream. */
int engine_missing(const struct engine *e, uint32_t tensor);
#endif
