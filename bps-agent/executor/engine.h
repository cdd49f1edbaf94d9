#ifndef BPS_AGENT_EXECUTOR_ENGINE_H
#define BPS_AGENT_EXECUTOR_ENGINE_H
/* The executor's engine: copies every partition from the GPUs of a machine to host memory, and the
 * partition's sum back to the GPUs. The engine is a state machine without clock, threads or
 * sockets. The input is the agent's messages and the time. The output is calls to the functions of
 * struct device_ops (device.h) and struct engine_env. The engine does not use the network. The
 * route, which is chosen elsewhere (route.h), defines how the GPUs sum.
 *
 * A member is a local worker with its GPU. A tensor is summed in rounds, which the agent starts.
 * The work of a round begins when the GPU streams of all members have reached the round. The
 * streams show their progress in counters (gpu_slot.h). A tensor is cut into chunks, and a chunk
 * into partitions. The GPUs sum a chunk with one collective. Without collectives, a chunk is one
 * partition.
 *
 *   chunk:  IDLE -> REDUCING -> OPEN: partitions under way -> GATHERING -> IDLE
 *   part:   IDLE -> UP_WAIT -> UP -> STAGED -> DOWN_WAIT -> DOWN -> LANDED -> IDLE
 *                    copies to     the agent      copies from      waits for
 *                    host memory   has it, until  host memory      its chunk
 *                                  engine_accept_landed_sum
 *
 * Rules and their reasons:
 *   - The engine polls the counters `ready`, and does not let a GPU queue wait for these counters.
 *     A collective that is queued early would spin on the GPUs until the slowest rank arrives, and
 *     priorities would have no effect.
 *   - A stage begins only after the host has detected the end of the previous stage. So a copy from
 *     host memory is queued only after the sum to be copied has arrived. Otherwise two machines
 *     that queue copies in different orders could deadlock.
 *   - Copies to the host and from the host have separate queues. Enough copies are queued to keep
 *     both queues busy (window_bytes). Waiting copies start in the order of priority.
 *   - A round is done when the host has detected the end of the last stage. Then the counter `done`
 *     of each member is stored. A failure poisons the counters of all members: the engine makes the
 *     counters so large that no wait blocks. So no trainer's stream waits forever.
 *
 * The engine fails after a device error, if a member's process ends during a round, or when
 * engine_fail is called. Then the engine queues no more work, aborts all cliques and ends all
 * rounds. Thread: the executor's. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/device/device.h"
#include "bps-agent/executor/plan/route.h"
#include "common/data/shape.h"
#include "common/local/gpu_slot.h"

struct engine;

struct engine_env {
	void *ctx;
	/* Called when the machine's contribution to partition `part` is in host memory. */
	void (*staged)(void *ctx, uint32_t tensor, uint32_t part, uint64_t round);
	/* Called when the sum of `round` is in the tensor of each member, and the `done`
	 * counters of all members are stored. */
	void (*done)(void *ctx, uint32_t tensor, uint64_t round);
	/* Called when the tensor's round has waited for 1 s because the stream of `member` has not
	 * reached the round. Called again when the round waits for another member. */
	void (*late)(void *ctx, uint32_t tensor, unsigned member);
	/* Called at most once, when the engine has stopped after a failure. */
	void (*failed)(void *ctx, int code, const char *text);
};

struct engine_member_desc {
	int gpu;
	/* array of n_slots slots with counters (gpu_slot.h); stays mapped until engine_free */
	struct gpu_slot *slots;
	uint32_t n_slots;
};

struct engine_config {
	struct route route;
	/* array of route.n_members elements, which engine_new copies */
	const struct engine_member_desc *members;
	/* Limit of the bytes in queued copies, for each direction. 0 selects the default. A single
	 * partition may exceed the limit. */
	uint64_t window_bytes;
	/* If work is queued and no work ends for this time, the engine fails. 0 selects the
	 * default. */
	uint64_t stall_ns;
};

/* A range of device memory. The memory must stay valid until engine_free or
 * engine_cancel_tensors_of_memory. */
struct engine_range {
	struct device_mem *mem;
	uint64_t offset;
};

struct engine_place {
	struct engine_range at; /* place of the tensor on the member's GPU */
	uint32_t slot;
};

struct engine_tensor_desc {
	/* id of the tensor, below ENGINE_TENSORS_MAX; use small numbers, because ids index an
	 * array */
	uint32_t id;
	struct tensor_shape shape;
	uint64_t part_bytes; /* size of a partition, a multiple of the element's size */
	/* array with one place per member; engine_add_tensor copies `places` and `in` */
	const struct engine_place *places;
	/* array with one input per group of the route; the inputs are in pinned host memory */
	const struct engine_range *in;
	struct engine_range out[2]; /* outputs in pinned host memory, index round & 1 */
};
#define ENGINE_TENSORS_MAX (1u << 24)

/* Create the engine, and open queues and cliques on the GPUs. Errors: -ENOMEM, or an error of the
 * device; err gets the text. */
int engine_new(struct device *dev, const struct engine_config *cfg, const struct engine_env *env,
	struct engine **ret, struct err_text *err);
/* Free the engine. Before this call, all queued work must have ended (engine_is_quiet), unless the
 * process is about to exit. NULL is allowed. */
void engine_free(struct engine *e);

/* Add a tensor. Errors: -EINVAL: the description is invalid or the id is in use; -ENOMEM. err gets
 * the text. */
int engine_add_tensor(struct engine *e, const struct engine_tensor_desc *t, struct err_text *err);
/* Check whether the tensor with the description's id exists and equals the description. Errors:
 * -ENOENT: there is no tensor with this id; -EINVAL: the tensor differs. */
int engine_match_tensor(const struct engine *e, const struct engine_tensor_desc *t);
/* Start the tensor's next round. After engine_mute_reports, the round may already be running or
 * done. Then the engine only repeats its reports: the round's staged partitions, or the end of the
 * round. Errors: -EINVAL: the tensor does not exist, or `round` is not the tensor's next round. */
int engine_submit_round(
	struct engine *e, uint32_t tensor, uint64_t round, enum op op, uint16_t priority);
/* Record that the sum of a staged partition is in out[round & 1]. A repeated call has no effect.
 * Errors: -EINVAL: the partition is not staged. */
int engine_accept_landed_sum(struct engine *e, uint32_t tensor, uint32_t part, uint64_t round);
/* Mute all tensors, because the agent was restarted. The engine reports no event of a tensor until
 * engine_submit_round is called again for that tensor. */
void engine_mute_reports(struct engine *e);
/* Cancel a tensor that has failed: end its round, and release the streams that wait for it. */
void engine_cancel_tensor(struct engine *e, uint32_t tensor);
/* Cancel all tensors in memory that is about to be unmapped. Errors: -EBUSY: one of these tensors
 * has a round under way or queued work. After this error, no tensor has been cancelled. */
int engine_cancel_tensors_of_memory(struct engine *e, const struct device_mem *mem);
/* Record the end of a member's process. If a round is under way, the engine fails. */
void engine_member_gone(struct engine *e, unsigned member);
/* Stop the engine, and record the error `code` and the text. Only the first call has an effect. */
void engine_fail(struct engine *e, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Handle work that has ended, and queue work that can start. Returns whether any work has ended or
 * was started. */
bool engine_poll(struct engine *e, uint64_t now_ns);
/* Return whether work is queued or a round waits for a counter. While this is true, the caller must
 * call engine_poll again soon. */
bool engine_is_busy(const struct engine *e);
/* Return whether no work is queued on any GPU. */
bool engine_is_quiet(const struct engine *e);
/* Return how many inputs in host memory each tensor needs. */
unsigned engine_count_inputs(const struct engine *e);
/* Return the first member whose stream has not reached the tensor's round. Returns -1 if the round
 * waits for no stream. */
int engine_missing(const struct engine *e, uint32_t tensor);
#endif
