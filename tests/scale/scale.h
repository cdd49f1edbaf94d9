#ifndef BPS_TESTS_SCALE_H
#define BPS_TESTS_SCALE_H
/* The simulator of bandwidth. It runs training steps of a model on up to hundreds of machines, in
 * one thread on virtual time. The daemons' own objects make the decisions: agent core, server core,
 * scheduler core with its placement, read window. This folder has the shells around them, a network
 * of network cards, and trainers that follow a trace. CRC and sums are not computed (stub.c), so
 * tensors need no memory. This simulator injects no faults, unlike the simulator in tests/sim.
 * docs/explanation/bandwidth-simulator.md describes the model and its limits.
 *
 *   main.c     options and output
 *   check.c    the cases that `make test` runs
 *   world.c    events, virtual time, one run from set-up to its figures
 *   card.c     hosts and their network cards
 *   net.c      connections: struct xport_ops
 *   node.c     a data thread: it processes one item at a time, each with its cost
 *   cluster.c  scheduler, servers, agents
 *   train.c    trainers: forward, backward, reduction inside the machine
 *   trace.c    a model's tensors and layers
 *   bound.c    formulas: a lower bound for every schedule, and the time of a ring
 *   stub.c     empty functions in place of CRC and sums */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "bps-scheduler/core/core.h"
#include "bps-server/core/core.h"
#include "common/transport/flow/eager_policy.h"
#include "common/transport/flow/read_window.h"
#include "common/transport/xport.h"

#define US          UINT64_C(1000)
#define MS          UINT64_C(1000000)
#define S           UINT64_C(1000000000)
#define STEP_MAX    64
#define STEP_WARMUP 2

/* ---- options ---- */

/* Each rate counts payload, in Gbit/s or GB/s (1e9 bytes). A rate of 0 stands for infinitely
 * fast. */
struct scale_options {
	const char *trace;
	const char *label;        /* first column of a row of output; NULL: the model's name */
	uint32_t agents, servers; /* machines that train, and machines that have only a server */
	bool is_colocated;        /* each agent's machine also runs a server */
	uint32_t threads;         /* data threads of a server */
	/* data threads of a server on an agent's machine; 0: the same number as `threads` */
	uint32_t beside_threads;
	double rate_gbps; /* rate of a card, in each direction */
	/* numbers of agents and of servers whose cards have the rate slow_gbps, not rate_gbps */
	uint32_t slow_agents, slow_servers;
	double slow_gbps;
	double local_gbps;     /* rate between processes of one host */
	double latency_us;     /* time from card to card */
	uint32_t header_bytes; /* bytes on the wire for the header of each message */
	/* bytes that a card sends before it turns to its next connection */
	uint32_t quantum;
	uint32_t part_bytes; /* 0: the scheduler chooses the size */
	/* window: limit of an agent's contributions in flight, in bytes; 0: no limit.
	 * peer_window: limit of a server's reads in flight from one agent, in bytes. */
	uint64_t window, peer_window;
	/* limit of a connection's bytes that are requested and not yet received; 0: adaptive */
	uint32_t read_window;
	bool is_asking;          /* request all bytes, send none eagerly (verbs) */
	uint32_t socket_window;  /* limit of a TCP connection's bytes in flight; 0: none */
	double sum_gbs, crc_gbs; /* rates of one thread that sums operands or checks CRCs */
	/* CPU seconds that the kernel takes in a data thread for each GB that the thread sends or
	 * receives over the network */
	double agent_cpu, server_cpu;
	/* data threads of an agent; N threads are modelled as one thread that is N times as fast */
	uint32_t agent_threads;
	double compute_ms; /* time of the forward and backward pass of a step */
	uint32_t gpus;     /* number of accelerators of each machine */
	/* rate at which an accelerator reduces data, or copies data to another accelerator */
	double gpu_gbs;
	uint32_t batch; /* samples per accelerator and step, to compute samples/s */
	uint8_t dtype;
	bool is_fifo;          /* send tensors in the order of submission, without priorities */
	uint32_t steps;        /* number of measured steps, after STEP_WARMUP unmeasured steps */
	uint64_t bucket_bytes; /* bucket size of the all-reduce with which the step is compared */
};
void scale_options_default(struct scale_options *o);

/* ---- traces ---- */

struct scale_tensor_def {
	char *name;
	uint64_t elems, bytes;
	uint64_t macs;
};
/* Consecutive tensors [first, first + n) that the model computes together, for example a weight and
 * its bias. */
struct scale_layer {
	uint32_t first, n;
	double share;      /* share of the step's computing time */
	double forward_ns; /* time of the forward pass; the backward pass takes twice as long */
	double bytes;
};
struct scale_trace {
	struct scale_tensor_def *tensors;
	struct scale_layer *layers;
	uint32_t n_tensors, n_layers;
	double bytes;
};
/* Read a trace and make its layers, as bps-bench --replay does. A row whose value of macs
 * (computing cost) is not 0 starts a layer. The following rows, in which macs is 0, belong to the
 * same layer. If macs is 0 in the first rows, these rows together are a layer without computing.
 * Errors: -1, and a line on stderr. */
int trace_read(struct scale_trace *t, const struct scale_options *o);
void trace_free(struct scale_trace *t);

/* ---- results ---- */

struct scale_card_bytes {
	uint64_t tx, rx; /* bytes that the busiest card sends and receives per step */
};
struct scale_result {
	double step_s, compute_s;
	double comm_s;      /* duration of a step's communication when nothing is computed */
	double optimum_s;   /* lower bound of comm_s, with the best placement of the sums */
	double bound_s;     /* lower bound of step_s: see bound_step_s */
	double ring_s;      /* comm_s of a ring all-reduce */
	double ring_step_s; /* step_s of a ring all-reduce over buckets */
	double efficiency, overlap, ring_efficiency;
	/* agent: cards of machines that train. server: cards of machines with only a server. */
	struct scale_card_bytes agent, server;
	/* unasked: bytes that were sent eagerly. thrown: the part of them that was discarded. */
	uint64_t unasked, thrown;
	uint64_t n_parts, events;
	double wall_s;
};

/* If is_step_only is false, first measure the communication without computing. Then, in
 * both cases, measure whole steps. Errors: -1, and a line on stderr. */
int scale_measure(const struct scale_options *o, bool is_step_only, struct scale_result *ret);

/* ---- bounds (bound.c) ---- */

/* Return the seconds of a push_pull of the given bytes, with the best division of the sums among
 * the servers. The function finds the time by bisection, see
 * docs/explanation/design/placement.md. */
double bound_push_pull_s(const struct scale_options *o, double bytes);
/* Compute bound_push_pull_s by the formula 2n(n-1)M / ((n^2 + kn - 2k) B). n: number of agents. k:
 * number of machines that have only a server. M: bytes of the model. B: bytes per second of a card.
 * The formula holds for equal cards, a server on each agent's machine, n >= 2 and k <= n. Otherwise
 * return 0. Source: OSDI'20 "A Unified Architecture for Accelerating Distributed DNN Training",
 * equation 6. */
double bound_formula_s(const struct scale_options *o, double bytes);
/* Return the seconds of a ring all-reduce. The slowest card limits the rate of the ring, and each
 * step of the ring adds a latency. */
double bound_ring_s(const struct scale_options *o, double bytes);
/* Return a step time that no schedule can beat: the maximum, over all layers i, of the sum of
 *   - the duration of the backward pass down to layer i,
 *   - the duration of the transfer of the gradients of layers 0 to i, and
 *   - the duration of the forward pass from layer i on. */
double bound_step_s(const struct scale_options *o, const struct scale_trace *t);
/* Return the step time of an all-reduce of buckets. Buckets are reduced one after the other, in the
 * order in which they fill. The forward pass of a layer waits only for that layer's bucket. */
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
	double tx_ns, rx_ns; /* nanoseconds per byte */
	bool is_sending;
	/* queue of the lanes whose next bytes the card may send */
	struct scale_lane *turn, **turn_tail;
	uint64_t rx_free, local_free;
	uint64_t tx_bytes, rx_bytes;
};

/* ---- nodes ---- */

struct scale_node;
struct scale_item;
typedef void scale_item_fn(struct scale_node *n, struct scale_item *it);

/* A message in flight, a read in flight, or an item that waits until its node processes it. */
struct scale_item {
	struct scale_item *next;
	scale_item_fn *fn;
	struct scale_end *end; /* end of the connection at which the item arrives */
	bool is_answer;
	uint32_t left;       /* bytes that the card has not sent yet */
	uint32_t wire_bytes; /* bytes on the wire; 0 if both processes are on one host */
	uint32_t len;
	struct scale_pending_read *read;
	uint64_t asked_ns, a;
	struct scale_item *eager;  /* if the item is an offer: the offer's eager bytes */
	struct scale_eager *offer; /* if the item is eager bytes: the offer of these bytes */
	void *p;
	struct wire_msg m;
};

/* Return the nanoseconds that the node needs for the item that it has just processed, without the
 * time that the kernel needs for the item's bytes on the wire. */
typedef double scale_node_cost_fn(struct scale_node *n);
struct scale_node {
	struct scale_world *w;
	struct scale_host *host;
	struct xport x;
	void *core;
	bool (*work)(void *core);
	uint64_t (*tick)(void *core, uint64_t now_ns);
	scale_node_cost_fn *cost;
	double cpu_ns; /* time of the kernel for each byte on the wire */
	double speed;  /* divides all costs */
	struct scale_item *inbox, **inbox_tail;
	struct scale_item *outbox, **outbox_tail;
	bool is_running, has_work;
	uint64_t busy_until, tick_at;
	uint64_t read_bytes, charged_a, charged_b;
	uint64_t wire_bytes; /* bytes sent and received whose cost is not charged yet */
	uint32_t n_segments;
};
void scale_node_init(struct scale_world *w, struct scale_node *n, struct scale_host *host);
/* Give an item to the node. When the node is free, the node processes the item. */
void scale_node_post(struct scale_node *n, struct scale_item *it);
/* Let the node do the work of its core. The node also does this work by itself after each item.
 * Code that calls the core outside of an item's callback must call this function afterwards. */
void scale_node_kick(struct scale_node *n);
/* Send an item as soon as the node has finished the item that it is processing. */
void scale_node_send(struct scale_node *n, struct scale_item *it);

/* ---- network ---- */

struct scale_pending_read {
	/* `next`: link in end->queue, the list of reads that have pieces not yet requested */
	struct scale_pending_read *next;
	struct scale_pending_read *next_read, **prev_read;
	struct xport_read *r;
	uint32_t issued, arrived;
};
/* An offer with eager bytes, as seen by its receiver. */
struct scale_eager {
	struct scale_eager *next;
	struct scale_item *bytes;
	uint16_t segment;
	bool is_heard; /* the message with the offer has arrived */
	bool is_old;   /* a later offer of the same memory has arrived */
	bool is_begun; /* the first eager bytes have arrived */
	bool is_here;  /* all eager bytes have arrived before the message with the offer */
	bool is_thrown;
	uint64_t offset;
	struct scale_pending_read *read; /* the read that takes the bytes; NULL: none */
};
/* A lane is one direction of one channel. A connection has two channels, so that messages and
 * requests never wait behind requested bytes. Items wait in the process until the kernel has room
 * for them. In the kernel they wait for the card and for room in the receiver's window. */
struct scale_lane {
	struct scale_host *host;
	struct scale_item *out, **out_tail;
	struct scale_item *outside; /* the first item that is not yet completely in the kernel */
	/* number of bytes that are in the kernel and that the card has not sent yet. In the list
	 * `out`, the items of these bytes precede the item `outside`. */
	uint32_t inside_bytes;
	/* on_way: bytes in flight. window: limit of on_way; 0: no limit. */
	uint32_t window, on_way;
	/* number and bytes of eager offers that are not yet completely in the kernel */
	uint32_t n_eager, eager_bytes;
	struct scale_lane *next_turn;
	bool has_turn;
};
struct scale_end {
	struct xconn c; /* must be the first field */
	struct scale_node *node;
	struct scale_end *peer, *next_all;
	struct scale_lane say, answer;
	bool is_open, is_refused;
	/* set while the node waits to send eager bytes, because too many eager offers or bytes are
	 * queued */
	bool wants_eager;
	struct eager_policy unasked;
	uint32_t in_flight; /* messages that the peer has not received yet */
	struct scale_eager *eager, **eager_tail;
	struct read_window window;
	uint32_t n_reads, n_pieces, n_queued;
	struct scale_pending_read *queue, **queue_tail, *reads;
};
extern const struct xport_ops scale_eager_ops, scale_asking_ops;
struct scale_item *item_new(struct scale_world *w, scale_item_fn *fn, struct scale_end *end);
void item_free(struct scale_world *w, struct scale_item *it);
/* Connect an agent's node to a server's thread, and notify the nodes at both ends. */
struct xconn *scale_net_connect(struct scale_node *agent, struct scale_node *server,
	uint32_t agent_id, uint32_t server_id, void *user);
/* Close all connections, end their reads, and notify their nodes. */
void scale_net_end(struct scale_world *w);
/* If the node of `from` waits to send eager bytes and may now send them, notify this node. `from`
 * is the sender's end of a connection. Call this function when the kernel may have room again. */
void scale_net_room(struct scale_world *w, struct scale_end *from);
/* Record that eager bytes of an offer have begun to arrive. If the node has already processed the
 * offer and has started no read that takes these bytes, discard the bytes. */
void scale_net_begun(struct scale_eager *e);
/* Send the item `it` from the node `from` to `it->end`, the receiver's end of a connection. The
 * function is in card.c. */
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
	uint64_t here; /* last round whose sum has arrived on the accelerators */
};
struct scale_agent {
	struct scale_world *w;
	struct scale_host *host;
	struct scale_node node;
	uint32_t id, idx, plan_at;
	struct agt_job *job;
	struct scale_tensor *tensors;
	/* state of the machine's trainer */
	uint64_t step;
	uint32_t layer;
	bool is_backward, is_waiting;
	uint64_t reduce_free, copy_free;
	uint64_t starts[STEP_MAX]; /* start times of the backward passes */
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
	/* one buffer that all tensors and sums share, since their content is never used */
	uint8_t *memory;
	size_t memory_bytes;
	/* for each host: its counters at the start of the measured steps */
	struct scale_mark *marks;
};

void scale_post(struct scale_world *w, uint64_t at_ns, scale_event_fn *fn, void *p, uint64_t a);
/* Allocate zeroed memory that is freed at the end of the run. End the program when there is no
 * memory. */
void *scale_alloc(struct scale_world *w, size_t n_bytes);
/* Report an assumption that is not true, and end the program. */
void fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Set up members, job, tensors, placement and connections, before virtual time starts. */
void cluster_start(struct scale_world *w);
void cluster_stop(struct scale_world *w);

void scale_trainer_start(struct scale_agent *a);
/* Record that the sum of a round has arrived at the agent. */
void scale_trainer_sum(struct scale_tensor *t, uint64_t round);

int check_all(void);
#endif
