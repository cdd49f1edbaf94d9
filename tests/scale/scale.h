#ifndef BPS_TESTS_SCALE_H
#define BPS_TESTS_SCALE_H
/* The simulator of bandwidth: training steps of a model on up to hundreds of machines, in one
 * thread on virtual time. The daemons' own objects decide: agent core, server core, scheduler core
 * with its placement, read window. This folder has their shells, a network of network cards, and
 * trainers that follow a trace. Only CRC and sums are left out (stub.c), so no tensor needs memory.
 * There are no faults: tests/sim has them. docs/explanation/bandwidth-simulator.md describes the
 * model and its limits.
 *
 *   main.c     options and output
 *   check.c    the cases that `make test` runs
 *   world.c    events, virtual time, one run from set-up to its figures
 *   card.c     hosts and their network cards
 *   net.c      connections: struct xport_ops
 *   node.c     a data thread: one thing at a time, each at its cost
 *   cluster.c  scheduler, servers, agents
 *   train.c    trainers: forward, backward, reduction inside the machine
 *   trace.c    a model's tensors and layers
 *   bound.c    formulas: a bound for every schedule, and the time of a ring
 *   stub.c     empty CRC and sum */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "bps-scheduler/core/core.h"
#include "bps-server/core/core.h"
#include "common/transport/read_window.h"
#include "common/transport/sockets/eager_policy.h"
#include "common/transport/xport.h"

#define US          UINT64_C(1000)
#define MS          UINT64_C(1000000)
#define S           UINT64_C(1000000000)
#define STEP_MAX    64
#define STEP_WARMUP 2

/* ---- options ---- */

/* Rates are of payload in Gbit/s or GB/s (1e9 bytes); 0 stands for infinitely fast. */
struct scale_options {
	const char *trace;
	const char *label;                  /* first column of a row; NULL: the model */
	uint32_t agents, servers;           /* machines that train; machines with a server only */
	bool is_colocated;                  /* each agent's machine also runs a server */
	uint32_t threads;                   /* data threads of a server */
	uint32_t beside_threads;            /* of a server on an agent's machine; 0: the same */
	double rate_gbps;                   /* of a card, in each direction */
	uint32_t slow_agents, slow_servers; /* this number of them have slow_gbps instead */
	double slow_gbps;
	double local_gbps;            /* between processes of one host */
	double latency_us;            /* from card to card */
	uint32_t header_bytes;        /* on the wire for each message */
	uint32_t quantum;             /* bytes after which a card turns to its next connection */
	uint32_t part_bytes;          /* 0: the scheduler's choice */
	uint64_t window, peer_window; /* of agents (0: none), of servers */
	uint32_t read_window;         /* fixed; 0: as the transport chooses */
	bool is_asking;          /* no eager bytes, as with libfabric: all bytes are requested */
	uint32_t socket_window;  /* bytes on the way of a connection over TCP; 0: no bound */
	double sum_gbs, crc_gbs; /* of one thread: operands summed, bytes checked */
	double compute_ms;       /* forward and backward of a step on one accelerator */
	uint32_t gpus;           /* on each machine */
	/* at which an accelerator reduces, or copies to a neighbour */
	double gpu_gbs;
	uint32_t batch; /* samples of an accelerator, for samples/s */
	uint8_t dtype;
	bool is_fifo;          /* sends in the order of submission, without priorities */
	uint32_t steps;        /* measured, after STEP_WARMUP others */
	uint64_t bucket_bytes; /* of the all-reduce to compare with */
};
void scale_options_default(struct scale_options *o);

/* ---- traces ---- */

struct scale_tensor_def {
	char *name;
	uint64_t elems, bytes;
	uint64_t macs;
};
/* Tensors [first, first + n), computed together. */
struct scale_layer {
	uint32_t first, n;
	double share;      /* of the computing time */
	double forward_ns; /* backward takes twice this time */
	double bytes;
};
struct scale_trace {
	struct scale_tensor_def *tensors;
	struct scale_layer *layers;
	uint32_t n_tensors, n_layers;
	double bytes;
};
/* Read a trace and make its layers as bps-bench --replay does: a row with macs and the rows without
 * that follow it. Rows before the first such row are a layer without computing. Errors: -1, and a
 * line on stderr. */
int trace_read(struct scale_trace *t, const struct scale_options *o);
void trace_free(struct scale_trace *t);

/* ---- results ---- */

struct scale_card_bytes {
	uint64_t tx, rx; /* of the busiest card, per step */
};
struct scale_result {
	double step_s, compute_s;
	double comm_s;      /* the same tensors without computing */
	double optimum_s;   /* lower bound of comm_s: the best division of the sums */
	double bound_s;     /* lower bound of step_s: see bound_step_s */
	double ring_s;      /* comm_s of a ring */
	double ring_step_s; /* step_s of a ring over buckets */
	double efficiency, overlap, ring_efficiency;
	/* machines that train; machines with a server only */
	struct scale_card_bytes agent, server;
	uint64_t unasked, thrown; /* eager bytes; those of them that were discarded */
	uint64_t n_parts, events;
	double wall_s;
};

/* Measure the communication alone (unless is_step_only), then whole steps. Errors: -1, and
 * a line on stderr. */
int scale_measure(const struct scale_options *o, bool is_step_only, struct scale_result *ret);

/* ---- bounds (bound.c) ---- */

/* Return the seconds to push_pull that many bytes with the best division of the sums: bisection
 * over the time, docs/explanation/design/placement.md. */
double bound_push_pull_s(const struct scale_options *o, double bytes);
/* Return the seconds of bound_push_pull_s by the formula 2n(n-1)M / ((n^2 + kn - 2k) B), for equal
 * cards, a server on each agent's machine, and 2 <= n, k <= n; 0 for others. Source: OSDI'20 "A
 * Unified Architecture for Accelerating Distributed DNN Training", equation 6. */
double bound_formula_s(const struct scale_options *o, double bytes);
/* Return the seconds of a ring over the slowest card, with its latencies. */
double bound_ring_s(const struct scale_options *o, double bytes);
/* Return the step time that no schedule can beat. For every layer: backward reaches its gradient,
 * then this gradient and all before it are moved, then forward runs the layers from this one on. */
double bound_step_s(const struct scale_options *o, const struct scale_trace *t);
/* Return the step time of an all-reduce of buckets. Buckets are reduced one after the other in the
 * order in which they fill, and forward waits for each layer's bucket alone. */
double bound_ring_step_s(const struct scale_options *o, const struct scale_trace *t);

/* ---- world ---- */

struct scale_world;
typedef void scale_event_fn(struct scale_world *w, void *p, uint64_t a);
struct scale_event {
	uint64_t at, seq;
	scale_event_fn *fn;
	void *p;
	uint64_t a;
};

struct scale_host {
	uint32_t idx;
	double tx_ns, rx_ns; /* per byte */
	bool is_sending;
	struct scale_lane *turn, **turn_tail; /* lanes with something to send */
	uint64_t rx_free, local_free;
	uint64_t tx_bytes, rx_bytes;
};

/* ---- nodes ---- */

struct scale_node;
struct scale_item;
typedef void scale_item_fn(struct scale_node *n, struct scale_item *it);

/* A message or a read on its way, or any other item that waits for its node. */
struct scale_item {
	struct scale_item *next;
	scale_item_fn *fn;
	struct scale_end *end; /* where it arrives */
	bool is_answer;
	uint32_t left; /* bytes that the card has not sent yet */
	uint32_t len;
	struct scale_pending_read *read;
	uint64_t asked_ns, a;
	struct scale_item *eager;  /* of an offer: its eager bytes */
	struct scale_eager *offer; /* of eager bytes: their offer */
	void *p;
	struct wire_msg m;
};

/* Return the time that the node needs for what it has just done. */
typedef double scale_node_cost_fn(struct scale_node *n);
struct scale_node {
	struct scale_world *w;
	struct scale_host *host;
	struct xport x;
	void *core;
	bool (*work)(void *core);
	uint64_t (*tick)(void *core, uint64_t now_ns);
	scale_node_cost_fn *cost;
	struct scale_item *inbox, **inbox_tail;
	struct scale_item *outbox, **outbox_tail;
	bool is_running, has_work;
	uint64_t busy_until, tick_at;
	uint64_t read_bytes, charged_a, charged_b;
	uint32_t n_segments;
};
void scale_node_init(struct scale_world *w, struct scale_node *n, struct scale_host *host);
/* Hand an item to the node, which processes it when it has time. */
void scale_node_post(struct scale_node *n, struct scale_item *it);
/* Let the node continue after a direct call of its core. */
void scale_node_kick(struct scale_node *n);
/* Send an item when the node has finished its current one. */
void scale_node_send(struct scale_node *n, struct scale_item *it);

/* ---- network ---- */

struct scale_pending_read {
	struct scale_pending_read *next; /* in end->queue, while pieces are to be asked for */
	struct scale_pending_read *next_read, **prev_read;
	struct xport_read *r;
	uint32_t issued, arrived;
};
/* An offer with eager bytes, at its receiver. */
struct scale_eager {
	struct scale_eager *next;
	struct scale_item *bytes;
	uint16_t segment;
	bool is_heard; /* the message with the offer */
	bool is_old;   /* the same memory was offered again */
	bool is_begun; /* its bytes are arriving */
	bool is_here;  /* all of them have arrived and wait for the offer */
	bool is_thrown;
	uint64_t offset;
	struct scale_pending_read *read; /* the read that takes them */
};
/* A lane is one direction of one channel. A connection has two channels: messages and
 * requests never wait behind answers. Bytes wait in the process until the kernel has room for all.
 * They wait in the kernel until the card and the receiver's window let them go. */
struct scale_lane {
	struct scale_host *host;
	struct scale_item *out, **out_tail;
	struct scale_item *outside; /* the first item that is not yet completely in the kernel */
	uint32_t inside_bytes;      /* of items before it, not sent yet */
	uint32_t window, on_way;    /* bytes; window 0: no bound */
	/* eager offers and bytes that are not yet completely in the kernel */
	uint32_t n_eager, eager_bytes;
	struct scale_lane *next_turn;
	bool has_turn;
};
struct scale_end {
	struct xconn c; /* first */
	struct scale_node *node;
	struct scale_end *peer, *next_all;
	struct scale_lane say, answer;
	bool is_open, is_refused;
	bool wants_eager; /* writable follows when few bytes wait */
	struct eager_policy unasked;
	uint32_t in_flight; /* messages */
	struct scale_eager *eager, **eager_tail;
	struct read_window window;
	uint32_t n_reads, n_pieces, n_queued;
	struct scale_pending_read *queue, **queue_tail, *reads;
};
extern const struct xport_ops scale_eager_ops, scale_asking_ops;
struct scale_item *item_new(struct scale_world *w, scale_item_fn *fn, struct scale_end *end);
void item_free(struct scale_world *w, struct scale_item *it);
/* Connect an agent's node to a server's thread; both are notified. */
struct xconn *scale_net_connect(struct scale_node *agent, struct scale_node *server,
	uint32_t agent_id, uint32_t server_id, void *user);
/* Close all connections: their reads end, and their nodes are notified. */
void scale_net_end(struct scale_world *w);
/* Call when the kernel may have taken bytes of this side: checks for more room. */
void scale_net_room(struct scale_world *w, struct scale_end *from);
/* Eager bytes begin to arrive. If their offer was processed and has no read, they are discarded. */
void scale_net_begun(struct scale_eager *e);
/* Send an item from its node to it->end (card.c). */
void card_transmit(struct scale_node *from, struct scale_item *it);

/* ---- cluster and trainers ---- */

struct scale_server {
	struct scale_world *w;
	struct scale_host *host;
	uint32_t id, n_threads;
	struct scale_node *threads;
};

struct scale_agent;
struct scale_tensor {
	struct scale_agent *agent;
	uint32_t idx;
	struct agt_tensor *t;
	uint64_t here; /* the last round whose sum is on the accelerators */
};
struct scale_agent {
	struct scale_world *w;
	struct scale_host *host;
	struct scale_node node;
	uint32_t id, idx, plan_at;
	struct agt_job *job;
	struct scale_tensor *tensors;
	/* the trainer */
	uint64_t step;
	uint32_t layer;
	bool is_backward, is_waiting;
	uint64_t reduce_free, copy_free;
	uint64_t starts[STEP_MAX]; /* of backward passes */
};

struct scale_mark {
	uint64_t tx, rx;
};
struct scale_world {
	struct scale_options o;
	const struct scale_trace *trace;
	uint64_t now, seq, n_events;
	struct scale_event *heap;
	size_t n_heap, heap_room;
	struct scale_item *free_items;
	struct scale_pending_read *free_reads;
	struct scale_eager *free_eager;
	struct scale_slab *slabs;
	struct scale_end *ends;
	struct scale_host *hosts;
	uint32_t n_hosts, n_servers, n_done;
	uint64_t n_parts, unasked, thrown;
	struct scale_agent *agents;
	struct scale_server *servers;
	struct sched_core *sched;
	uint8_t *memory; /* shared by all tensors and sums: its content is never used */
	size_t memory_bytes;
	struct scale_mark *marks; /* by host, at the start of the measured steps */
};

void scale_post(struct scale_world *w, uint64_t at_ns, scale_event_fn *fn, void *p, uint64_t a);
/* Allocate zeroed memory until the end of the run; ends the program when there is none. */
void *scale_alloc(struct scale_world *w, size_t n_bytes);
/* Report a broken assumption and end the program. */
void fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Set up members, job, tensors, placement and connections, before virtual time starts. */
void cluster_start(struct scale_world *w);
void cluster_stop(struct scale_world *w);

void scale_trainer_start(struct scale_agent *a);
/* The sum of that round has arrived at the agent. */
void scale_trainer_sum(struct scale_tensor *t, uint64_t round);

int check_all(void);
#endif
