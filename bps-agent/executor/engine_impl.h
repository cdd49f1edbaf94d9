#ifndef BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
#define BPS_AGENT_EXECUTOR_ENGINE_IMPL_H
/* Objects of the engine, shared by its files:
 *   engine.c        life, tensors, what the agent says, failure
 *   engine_stage.c  chunks and partitions through their stages
 *   engine_lane.c   queues, and which of what they hold has ended
 *   engine_check.c  invariants */
#include <sys/queue.h>

#include "bps-agent/executor/engine.h"
#include "common/data/dtype.h"
#include "common/base/heap.h"

enum part_state {
	PART_IDLE,
	PART_UP_WAIT, /* in e->up */
	PART_UP,
	PART_STAGED,
	PART_DOWN_WAIT, /* in e->down */
	PART_DOWN,
	PART_LANDED,
	PART_STATES
};
enum chunk_state {
	CHUNK_IDLE,
	CHUNK_REDUCE_WAIT, /* in e->reduce */
	CHUNK_REDUCING,
	CHUNK_OPEN,
	CHUNK_GATHER_WAIT, /* in e->gather */
	CHUNK_GATHERING,
	CHUNK_STATES
};

struct tensor;
struct chunk {
	struct heap_node node;
	struct tensor *tensor;
	enum chunk_state state;
	uint32_t first, n;  /* partitions */
	uint32_t n_left;    /* partitions that have not LANDED */
	uint32_t n_tickets; /* of its collective or copies between GPUs */
	uint32_t next;      /* step to be queued, in REDUCE_WAIT and GATHER_WAIT */
};

struct part {
	struct heap_node node;
	struct chunk *chunk;
	uint32_t index;
	enum part_state state;
	uint32_t n_tickets;
	uint8_t next;    /* member whose copy is queued next, in UP_WAIT and DOWN_WAIT */
	bool is_charged; /* counts in e->up_bytes or e->down_bytes */
};

enum tensor_state { TENSOR_IDLE, TENSOR_WAITING, TENSOR_RUNNING, TENSOR_DEAD };

struct tensor {
	TAILQ_ENTRY(tensor) link; /* e->waiting in WAITING */
	struct engine *e;
	enum tensor_state state;
	uint32_t id;
	enum dtype dtype;
	enum op op;
	uint16_t priority;
	bool is_mute;     /* who listens has not run the round yet: see engine_mute */
	bool is_done;     /* its round */
	uint64_t round;   /* last done, or the one under way */
	uint64_t run_ns;  /* since when it is WAITING, 0: before the next poll */
	uint64_t run_seq; /* of that round, among those of all tensors */
	int told_late;    /* the member that env->late was about, -1: none */
	uint64_t bytes, part_bytes;
	uint32_t n_parts, n_chunks, chunks_left;
	uint32_t n_tickets; /* all of its chunks' and parts' */
	struct engine_place *places;
	struct engine_range *in, out[2];
	struct part *parts;
	struct chunk *chunks;
};

/* Of a queue's work: when the queue's counter has reached seq, it has ended. One of the two. */
struct ticket {
	uint64_t seq;
	struct part *part;
	struct chunk *chunk;
};
#define LANE_TICKETS 64

struct lane {
	struct engine *e;
	struct device_queue *q;
	uint64_t counter;     /* offset in e->counters */
	uint64_t seq, posted; /* last ticket's, and how far posts are queued */
	uint32_t head, tail;  /* of tickets, counting on */
	struct ticket tickets[LANE_TICKETS];
};
enum lane_kind { LANE_UP, LANE_DOWN, LANE_COLL, LANES };

struct member {
	struct engine_member m;
	bool is_gone;
	uint8_t group, place; /* in the route */
	struct lane lanes[LANES];
};

struct engine {
	struct device *dev;
	const struct device_ops *ops;
	struct route route;
	struct engine_env env;
	uint64_t window_bytes, stall_ns, now_ns, moved_ns;
	int failed;
	struct member *members;
	struct device_clique *cliques[DEVICE_GPUS_MAX]; /* per group; NULL: of one */
	char *counter_page;
	uint64_t counter_bytes;
	struct device_mem *counters;
	struct tensor **tensors; /* by id */
	uint32_t n_tensors;
	uint64_t n_runs; /* rounds of tensors so far */
	TAILQ_HEAD(, tensor) waiting;
	uint32_t n_running; /* tensors in RUNNING */
	struct heap reduce, gather, up, down;
	size_t n_parts, n_chunks;
	uint64_t up_bytes, down_bytes;
	uint32_t n_collectives; /* chunks in REDUCING or GATHERING */
	uint32_t n_tickets;
};

/* ---- engine.c ---- */
/* A call of the device has failed: that is the end, with its own sentence. */
void engine_device_error(struct engine *e, int rc, const char *what);
/* All chunks of its round are done. */
void tensor_done(struct tensor *t);

/* ---- engine_stage.c ---- */
/* All members are ready: its chunks set out. */
void tensor_begin(struct tensor *t);
/* Take it out of all heaps. What is queued on devices ends by itself. */
void tensor_stop(struct tensor *t);
/* Queue what may be queued. True when something was. */
bool engine_issue(struct engine *e);
void part_ticket_done(struct part *p);
void chunk_ticket_done(struct chunk *c);
void part_landed(struct part *p);
/* Of the tensor's round, which is under way: has part_landed been called? */
bool part_has_landed(const struct part *p);
uint64_t part_bytes(const struct part *p);
uint64_t chunk_bytes(const struct chunk *c);

/* ---- engine_lane.c ---- */
int lane_open(struct engine *e, unsigned member, enum lane_kind kind);
void lane_close(struct lane *l);
bool lane_has_room(const struct lane *l);
/* What was queued on it for part or chunk so far gets a ticket. */
void lane_ticket(struct lane *l, struct part *part, struct chunk *chunk);
/* Retire what has ended. True when something has. */
bool lane_poll(struct lane *l);
/* Nothing has moved for a while: is the queue in good health? */
void lane_look(struct lane *l);
#endif
