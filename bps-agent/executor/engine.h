#ifndef BPS_AGENT_EXECUTOR_ENGINE_H
#define BPS_AGENT_EXECUTOR_ENGINE_H
/* The executor's engine: the way of every partition from the GPUs of a machine to host memory, and
 * of its sum back. A state machine without clock, threads or sockets: the agent's words and the
 * time go in, calls of a device (device.h) and of struct engine_env come out. What it does with the
 * network, and which strategy it follows (route.h), others decide.
 *
 * A tensor goes round by round. A round runs when the agent says so, and begins when the streams of
 * all members have reached it (counters, gpu_slot.h). Its partitions go through chunks: a chunk is
 * what is summed by one collective, and is one partition where there is none.
 *
 *   chunk:  IDLE -> REDUCING -> OPEN: its partitions are under way -> GATHERING -> IDLE
 *   part:   IDLE -> UP_WAIT -> UP -> STAGED -> DOWN_WAIT -> DOWN -> LANDED -> IDLE
 *                    copies to     the agent      copies from      with its chunk's
 *                    host memory   has it, until  host memory      gathering
 *                                  engine_landed
 *
 * Rules, and why:
 *   - Ready counters are polled here, never waited for in a queue: a collective that is queued
 *     early would spin on the GPUs until the slowest rank comes, and priority would mean nothing.
 *   - Every stage begins on an event that the host has seen. A copy from host memory is queued when
 *     its sum has arrived, never before: two machines with other orders would wait for each other.
 *   - Copies out and in have queues of their own, as much under way as keeps them busy
 *     (window_bytes), and what waits goes by priority.
 *   - A round is done when the host has seen the last stage end; then `done` of all members is
 *     stored. Who fails poisons them all: no trainer's stream is left waiting.
 *
 * After an error of the device, a member's death or engine_fail nothing more is queued, cliques are
 * aborted, and all rounds are over. Thread: the executor's one. */
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
	/* The sum of that round is in all members' tensors, and they know. */
	void (*done)(void *ctx, uint32_t tensor, uint64_t round);
	/* The round has waited long for that member's stream. Repeated for each other member. */
	void (*late)(void *ctx, uint32_t tensor, unsigned member);
	/* Nothing goes on. At most once. */
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
	uint64_t window_bytes; /* copies queued in each direction; 0: default. One always may */
	uint64_t stall_ns;     /* queued work of which nothing ends for so long is an error */
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
	uint32_t id; /* below ENGINE_TENSORS_MAX; small numbers, they index a table */
	enum dtype dtype;
	uint64_t n_elems;
	uint64_t part_bytes;               /* a multiple of the element's size */
	const struct engine_place *places; /* per member; copied, as in */
	const struct engine_range *in;     /* per group of the route, pinned */
	struct engine_range out[2];        /* round & 1, pinned */
};
#define ENGINE_TENSORS_MAX (1u << 24)

/* Open queues and cliques on the GPUs. Errors: of the device or -ENOMEM, with a sentence. */
int engine_new(struct device *dev, const struct engine_config *cfg, const struct engine_env *env,
	struct engine **ret, struct err_text *err);
/* Free when nothing is queued (engine_is_quiet), or at exit. NULL is allowed. */
void engine_free(struct engine *e);

/* Errors: -EINVAL it makes no sense or is there already, -ENOMEM; with a sentence. */
int engine_add(struct engine *e, const struct engine_tensor_desc *t, struct err_text *err);
/* Is the tensor there, and the same? Errors: -ENOENT it is not there, -EINVAL it is another one. */
int engine_find(const struct engine *e, const struct engine_tensor_desc *t);
/* Its next round may begin. One that has been run is told about again: what of it is staged, or
 * that it is done. Errors: -EINVAL no such tensor, or not its next round. */
int engine_run(struct engine *e, uint32_t tensor, uint64_t round, enum op op, uint16_t priority);
/* A staged partition's sum is in out[round & 1]; may repeat. Errors: -EINVAL it is not staged. */
int engine_landed(struct engine *e, uint32_t tensor, uint32_t part, uint64_t round);
/* The listener was replaced: report nothing of a tensor until its round is run again. */
void engine_mute(struct engine *e);
/* The tensor has failed: its round is over, and its waiters are let go. */
void engine_cancel(struct engine *e, uint32_t tensor);
/* The memory goes away, its tensors run no more. Errors: -EBUSY one runs, or has work queued. */
int engine_forget(struct engine *e, const struct device_mem *mem);
/* A member's process is gone: an error, unless nothing is under way. */
void engine_member_gone(struct engine *e, unsigned member);
/* Stop with that code and sentence. The second time it does nothing. */
void engine_fail(struct engine *e, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* See what has ended, begin what can begin. True when something has moved. */
bool engine_poll(struct engine *e, uint64_t now_ns);
/* Something is queued, or a member's counter is waited for: poll again soon. */
bool engine_is_busy(const struct engine *e);
/* Nothing is queued on any device. */
bool engine_is_quiet(const struct engine *e);
/* Inputs in host memory that a tensor needs. */
unsigned engine_inputs(const struct engine *e);
/* Which member's stream has not reached the tensor's round? -1: it is not that. */
int engine_missing(const struct engine *e, uint32_t tensor);
#endif
