#ifndef BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
#define BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
/* Structures that all files of the engine share, and functions of engine.c for the other files:
 *   engine.c        start and end, tensors, calls of the agent, failure
 *   engine_stage.c  chunks and partitions through their stages
 *   engine_lane.c   work queues of GPUs, and detecting that work has ended
 * Their invariants are in tests/invariants/engine_check.c. */
#include <sys/queue.h>

#include "bps-agent/executor/engine.h"
#include "bps-agent/executor/engine_lane.h"
#include "common/base/heap.h"
#include "common/data/dtype.h"

enum engine_part_state {
	PART_IDLE,
	PART_UP_WAIT, /* in e->up */
	PART_UP,
	PART_STAGED,
	PART_DOWN_WAIT, /* in e->down */
	PART_DOWN,
	PART_LANDED,
	PART_STATES
};
enum engine_chunk_state {
	CHUNK_IDLE,
	CHUNK_REDUCE_WAIT, /* in e->reduce */
	CHUNK_REDUCING,
	CHUNK_OPEN,
	CHUNK_GATHER_WAIT, /* in e->gather */
	CHUNK_GATHERING,
	CHUNK_STATES
};

struct engine_tensor;
struct engine_chunk {
	struct heap_node node;
	struct engine_tensor *tensor;
	enum engine_chunk_state state;
	uint32_t first, n;  /* index of its first partition, and number of partitions */
	uint32_t n_left;    /* partitions that have not LANDED */
	uint32_t n_tickets; /* tickets of its collective, or of its copies between GPUs */
	/* used in REDUCE_WAIT and GATHER_WAIT: group, or pair of members, whose work is queued
	 * next */
	uint32_t next;
};

struct engine_part {
	struct heap_node node;
	struct engine_chunk *chunk;
	uint32_t index;
	enum engine_part_state state;
	uint32_t n_tickets;
	uint8_t next;    /* used in UP_WAIT and DOWN_WAIT: member whose copy is queued next */
	bool is_charged; /* counts in e->up_bytes or e->down_bytes */
};

enum engine_tensor_state { TENSOR_IDLE, TENSOR_WAITING, TENSOR_RUNNING, TENSOR_DEAD };

struct engine_tensor {
	TAILQ_ENTRY(engine_tensor) link; /* in e->waiting when WAITING */
	struct engine *e;
	enum engine_tensor_state state;
	uint32_t id;
	enum dtype dtype;
	enum op op;
	uint16_t priority;
	/* the agent was restarted and has not started the round again, see engine_mute */
	bool is_mute;
	bool is_done;    /* the round `round` is done */
	uint64_t round;  /* the last done round, or the one under way */
	uint64_t run_ns; /* when a poll first found the round WAITING, 0: not polled yet */
	/* position of the round in the order in which the rounds of all tensors started */
	uint64_t run_seq;
	int reported_late; /* the last member that env->late reported, -1: none */
	uint64_t bytes, part_bytes;
	uint32_t n_parts, n_chunks, chunks_left;
	uint32_t n_tickets; /* tickets of all its chunks and partitions */
	struct engine_place *places;
	struct engine_range *in, out[2];
	struct engine_part *parts;
	struct engine_chunk *chunks;
};

struct engine_member {
	struct engine_member_desc m;
	bool is_gone;
	uint8_t group, place; /* group in the route, and position in that group */
	struct engine_lane lanes[LANES];
};

struct engine {
	struct device *dev;
	const struct device_ops *ops;
	struct route route;
	struct engine_env env;
	uint64_t window_bytes, stall_ns, now_ns, moved_ns;
	int failed;
	struct engine_member *members;
	/* one per group; NULL: the group has one member, or needs no clique */
	struct device_clique *cliques[DEVICE_GPUS_MAX];
	char *counter_page;
	uint64_t counter_bytes;
	struct device_mem *counters;
	struct engine_tensor **tensors; /* indexed by id */
	uint32_t n_tensors;
	uint64_t n_runs; /* rounds started so far, of all tensors */
	TAILQ_HEAD(, engine_tensor) waiting;
	uint32_t n_running; /* tensors in RUNNING */
	struct heap reduce, gather, up, down;
	size_t n_parts, n_chunks;
	uint64_t up_bytes, down_bytes;
	uint32_t n_collectives; /* chunks in REDUCING or GATHERING */
	uint32_t n_tickets;
};

/* Stop the engine after a failed call of the device, with the device's text. */
void engine_device_error(struct engine *e, int rc, const char *what);
/* Finish the tensor's round: all its chunks are done. */
void engine_tensor_done(struct engine_tensor *t);
#endif
