#ifndef BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
#define BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
/* Structures that all files of the engine share, and functions of engine.c for the other files:
 *   engine.c        start and end, tensors, the functions of engine.h, failure
 *   engine_stage.c  moves chunks and partitions through their stages
 *   engine_lane.c   work queues of GPUs (lanes), and the detection of the end of queued work
 * The invariants of the structures are in tests/invariants/engine_check.c. */
#include <sys/queue.h>

#include "bps-agent/executor/engine.h"
#include "bps-agent/executor/engine_lane.h"
#include "common/base/heap.h"
#include "common/data/shape.h"

enum engine_part_state {
	PART_IDLE,
	PART_UP_WAIT, /* the partition is in the heap e->up */
	PART_UP,
	PART_STAGED,
	PART_DOWN_WAIT, /* the partition is in the heap e->down */
	PART_DOWN,
	PART_LANDED,
	PART_STATES
};
enum engine_chunk_state {
	CHUNK_IDLE,
	CHUNK_REDUCE_WAIT, /* the chunk is in the heap e->reduce */
	CHUNK_REDUCING,
	CHUNK_OPEN,
	CHUNK_GATHER_WAIT, /* the chunk is in the heap e->gather */
	CHUNK_GATHERING,
	CHUNK_STATES
};

struct engine_tensor;
struct engine_chunk {
	struct heap_node node;
	struct engine_tensor *tensor;
	enum engine_chunk_state state;
	uint32_t first, n; /* index of the chunk's first partition, and number of its partitions */
	uint32_t n_left;   /* number of the chunk's partitions that have not reached LANDED */
	/* number of open tickets of the chunk's collective or of the chunk's copies between GPUs */
	uint32_t n_tickets;
	/* used in REDUCE_WAIT and GATHER_WAIT: index of the group, or of the pair of members, whose
	 * work is queued next */
	uint32_t next;
};

struct engine_part {
	struct heap_node node;
	struct engine_chunk *chunk;
	uint32_t index;
	enum engine_part_state state;
	uint32_t n_tickets;
	/* used in UP_WAIT and DOWN_WAIT: index of the member whose copy is queued next */
	uint8_t next;
	bool is_charged; /* e->up_bytes or e->down_bytes includes the partition's bytes */
};

enum engine_tensor_state { TENSOR_IDLE, TENSOR_WAITING, TENSOR_RUNNING, TENSOR_DEAD };

struct engine_tensor {
	/* link in the list e->waiting, used in the state WAITING */
	TAILQ_ENTRY(engine_tensor) link;
	struct engine *e;
	enum engine_tensor_state state;
	uint32_t id;
	struct tensor_shape shape;
	enum op op;
	uint16_t priority;
	/* The engine reports no events of the tensor. Set by engine_mute_reports after a restart of
	 * the agent, cleared when the agent starts the round again. */
	bool is_mute;
	bool is_done;    /* the round `round` is done */
	uint64_t round;  /* the round under way, or the last round that was done */
	uint64_t run_ns; /* time at which engine_poll first found the round WAITING; 0: not yet */
	/* position of the round in the order in which the rounds of all tensors started */
	uint64_t run_seq;
	/* index of the member that env->late reported most recently in this round; -1: none */
	int reported_late;
	uint64_t bytes, part_bytes;
	uint32_t n_parts, n_chunks, chunks_left;
	uint32_t n_tickets; /* number of open tickets of the tensor's chunks and partitions */
	struct engine_place *places;
	struct engine_range *in, out[2];
	struct engine_part *parts;
	struct engine_chunk *chunks;
};

struct engine_member {
	struct engine_member_desc m;
	bool is_gone;
	/* index of the member's group in the route, and position in that group */
	uint8_t group, place;
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
	/* one clique per group of the route; NULL if the group has one member or needs no clique */
	struct device_clique *cliques[DEVICE_GPUS_MAX];
	char *counter_page;
	uint64_t counter_bytes;
	struct device_mem *counters;
	struct engine_tensor **tensors; /* array of the tensors, indexed by id */
	uint32_t n_tensors;
	uint64_t n_runs; /* number of rounds that have started, counted over all tensors */
	TAILQ_HEAD(, engine_tensor) waiting;
	uint32_t n_running; /* number of tensors in the state RUNNING */
	struct heap reduce, gather, up, down;
	size_t n_parts, n_chunks;
	uint64_t up_bytes, down_bytes;
	uint32_t n_collectives; /* number of chunks in the state REDUCING or GATHERING */
	uint32_t n_tickets;
};

/* Stop the engine after a device function has returned an error. The device's error text states the
 * reason. */
void engine_device_error(struct engine *e, int rc, const char *what);
/* End the tensor's round. Called when all chunks of the tensor are done. */
void engine_tensor_done(struct engine_tensor *t);
#endif
