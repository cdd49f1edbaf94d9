#ifndef BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
#define BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
/* Objects of the engine that its files share, and what engine.c offers them:
 *   engine.c        start and end, tensors, calls of the agent, failure
 *   engine_stage.c  chunks and partitions through their stages
 *   engine_lane.c   queues, and which of their work has ended
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
	uint32_t first, n;  /* partitions */
	uint32_t n_left;    /* partitions that have not LANDED */
	uint32_t n_tickets; /* tickets of its collective or copies between GPUs */
	uint32_t next;      /* step to be queued next, in REDUCE_WAIT and GATHER_WAIT */
};

struct engine_part {
	struct heap_node node;
	struct engine_chunk *chunk;
	uint32_t index;
	enum engine_part_state state;
	uint32_t n_tickets;
	uint8_t next;    /* member whose copy is queued next, in UP_WAIT and DOWN_WAIT */
	bool is_charged; /* counts in e->up_bytes or e->down_bytes */
};

enum engine_tensor_state { TENSOR_IDLE, TENSOR_WAITING, TENSOR_RUNNING, TENSOR_DEAD };

struct engine_tensor {
	TAILQ_ENTRY(engine_tensor) link; /* e->waiting in WAITING */
	struct engine *e;
	enum engine_tensor_state state;
	uint32_t id;
	enum dtype dtype;
	enum op op;
	uint16_t priority;
	bool is_mute;      /* the listener has not run the round yet: see engine_mute */
	bool is_done;      /* its round is done */
	uint64_t round;    /* the last done round, or the one under way */
	uint64_t run_ns;   /* since when it is WAITING, 0: before the next poll */
	uint64_t run_seq;  /* position of that round among those of all tensors */
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
	uint8_t group, place; /* in the route */
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
	struct device_clique *cliques[DEVICE_GPUS_MAX]; /* per group; NULL: a group of one */
	char *counter_page;
	uint64_t counter_bytes;
	struct device_mem *counters;
	struct engine_tensor **tensors; /* by id */
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

/* Stop after a failed call of the device, with the device's text. */
void engine_device_error(struct engine *e, int rc, const char *what);
/* Finish the tensor's round: all its chunks are done. */
void engine_tensor_done(struct engine_tensor *t);
#endif
