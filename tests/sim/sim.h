#ifndef BPS_TESTS_SIM_H
#define BPS_TESTS_SIM_H
/* The simulator: scheduler, servers, agents and trainers of a job, or of several, in one thread on
 * virtual time, joined by a network that delays, loses, duplicates, cuts and breaks. One seed is
 * one history, every run of it is the same. What decides are the shipped cores; here are only their
 * shells, the network, the faults and the oracle. docs/explanation/simulator.md.
 *
 *   world.c   events, virtual time, the life of one history, what must hold at its end
 *   faults.c  what is drawn from the seed, and the faults while it runs
 *   move.c    one of them, inside the scheduler's core
 *   peek.c    a look into the agent's core
 *   net.c     the data plane: struct xport_ops over a network of connections
 *   eager.c   what comes over it unasked
 *   ctl.c     the control plane's connections, and the scheduler's shell
 *   member.c  what server and agent have in common: HELLO, beats, reconnecting
 *   server.c  the server's shell
 *   agent.c   the agent's shell and its trainers
 *   jobs.c    more jobs, of simpler agents
 *   byzantine.c  one of these that lies
 *   drain.c   servers that are drained, end in order, or come late
 *   restart.c an agent's process that dies, and its successor
 *   device.c  tensors on devices
 *   fleet.c   many seeds in several processes
 *   oracle.c  values of contributions, expected sums, homes of partitions
 *   elastic.c the same for jobs whose members change, with the draws that make them so */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "bps-scheduler/core/core.h"
#include "bps-server/core/core.h"
#include "common/base/error.h"
#include "common/data/dtype.h"
#include "common/transport/xport.h"
#include "common/wire/ctlmsg.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S  UINT64_C(1000000000)

#define SERVERS_MAX     3
#define THREADS_MAX     2
#define AGENTS_MAX      4
#define WORKERS_MAX     2 /* of one agent */
#define TENSORS_MAX     3
#define PARTS_MAX       4
#define ROUNDS_MAX      12
#define ELEMS_MAX       512 /* of one tensor */
#define GUEST_JOBS      2
#define GUESTS_OF_JOB   2
#define GUESTS_MAX      (GUEST_JOBS * GUESTS_OF_JOB)
#define LIAR_UID        2000 /* of jobs that it opens in addition */
#define GUEST_TENSORS   2
#define GUEST_ELEMS_MAX 400
#define SUMS_BYTES      (256u << 10) /* of a thread of a server */
#define CONNS_MAX       4096         /* control connections of a history */
#define SEGS_MAX        256
#define HOMES_MAX       512
#define DONATIONS_MAX   512
#define EVENT_BYTES     544

struct sim;
struct sim_event;
typedef void sim_event_fn(struct sim *s, struct sim_event *e);

/* ---- nodes and events ---- */

/* A process. Events for it wait while it is paused, and are void after the end of this run of
 * it. */
struct sim_node {
	char name[24];
	bool is_up;
	uint32_t life;
	uint64_t paused_until;
};

struct sim_event {
	uint64_t at, seq;
	struct sim_node *node; /* NULL: an event of the world */
	uint32_t life, n;
	sim_event_fn *fn;
	void *p;
	uint64_t a, b;
	uint8_t *big; /* n bytes that do not fit below; malloc'd */
	union {
		struct sim_event *next; /* free list */
		_Alignas(8) uint8_t bytes[EVENT_BYTES];
	};
};

/* Post an event in `delay` from now, for the caller to fill. */
struct sim_event *sim_post(
	struct sim *s, struct sim_node *node, uint64_t delay_ns, sim_event_fn *fn);
/* Make room for n bytes in the event. */
uint8_t *event_room(struct sim_event *e, uint32_t n);
static inline uint8_t *event_bytes(struct sim_event *e)
{
	return e->big ? e->big : e->bytes;
}

/* Allocate zeroed memory until the end of the history. */
void *sim_alloc(struct sim *s, size_t n_bytes);

/* Report a violation. The first one ends the history. */
void violation(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void trace_write(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define trace(s, ...)                                                                              \
	do {                                                                                       \
		if ((s)->is_traced)                                                                \
			trace_write(s, __VA_ARGS__);                                               \
	} while (0)

uint64_t rnd(struct sim *s);
uint64_t rnd_below(struct sim *s, uint64_t n); /* 0 .. n - 1 */
uint64_t rnd_between(struct sim *s, uint64_t lo, uint64_t hi);
bool rnd_chance(struct sim *s, uint32_t permille);
uint64_t mix(uint64_t x); /* hash */

/* ---- options: drawn from the seed ---- */

enum fault {
	F_CONN_LOSS, /* a data connection breaks */
	F_SRV_KILL,  /* a server dies and returns empty */
	F_SRV_GONE,  /* a server dies without return, except the last one */
	F_SRV_PAUSE, /* SIGSTOP */
	F_AGT_PAUSE,
	F_AGT_LOSS, /* an agent's machine is lost: the job may fail */
	/* an agent is stopped or cut off for longer than the scheduler waits: the job may fail */
	F_AGT_LONG,
	F_SCHED_KILL,
	F_SCHED_PAUSE,
	F_SCHED_AT_SEND, /* killed between making a record durable and sending */
	F_PERSIST,       /* writes fail with EIO for a while */
	F_CTL_LOSS,      /* a control connection breaks */
	F_CTL_CUT,       /* one direction of it is cut for a while */
	F_MOVE,          /* partitions get another server, or only another pgen */
	F_DATA_CUT,      /* one direction of a data connection */
	F_COUNT
};
extern const char *const fault_names[F_COUNT];

struct sim_options {
	unsigned n_servers, n_threads, n_agents, n_tensors, n_guests;
	unsigned n_workers[AGENTS_MAX];
	unsigned rounds, size;
	bool is_deterministic, has_ranks, is_work_slow, is_nic_alone, may_fail, is_forming_calm,
		is_priority_mixed, has_deaf, has_restarts, is_shrink, has_drains, has_stops,
		has_liar, is_late, has_old_plans, has_tenants, has_hung, has_greedy;
	unsigned backup; /* machines that a round need not wait for */
	uint32_t grace_ms;
	uint32_t slow_permille; /* share of submissions that are late */
	bool has_near;          /* some agents and servers share a host */
	bool is_elastic;
	bool has_unjoins;       /* waiting workers leave, and others replace them */
	unsigned n_first;       /* agents at the start; the others come later */
	unsigned barrier_every; /* rounds between barriers; 0: no barriers */
	uint32_t part_bytes;
	struct {
		uint8_t dtype, op;
		uint32_t n_elems;
	} tensors[TENSORS_MAX];
	uint64_t delay_ns, read_delay_ns, ctl_delay_ns, think_ns;
	uint32_t tail_permille, loss_permille, dup_permille, reorder_permille, eagain_permille,
		refuse_permille, ctl_again_permille, corrupt_permille, read_tail_permille,
		ctl_tail_permille;
	unsigned credits, reads_max, eager_max;
	uint64_t lead_bytes; /* of agents' connections */
	uint64_t turn_bytes;
	uint32_t ahead_bytes; /* as reported by transports */
	size_t staging_bytes, peer_window_bytes, window_bytes, job_inflight_bytes;
	uint32_t faults; /* bit per enum fault */
	uint64_t faults_ns, fault_gap_ns, restart_gap_ns, drain_gap_ns, lie_gap_ns;
};

/* ---- data plane ---- */

struct sim_pipe;
struct sim_end;
struct sim_eager;

struct sim_read {
	struct sim_read *next, **prev;
	struct xport_read *r;
	struct sim_end *end;
	struct sim_eager *eager; /* the eager bytes that it takes; NULL: it requests bytes */
	uint32_t done, piece;
	uint32_t crc; /* of the source when the read began, or the eager offer was sent */
	int status;
	bool is_over;
};

struct sim_port { /* one xport: of an agent, or of a server's thread */
	struct xport x;
	struct sim *s;
	struct sim_node *node;
	void (*enter)(void *owner); /* called before every callback */
	void (*leave)(void *owner);
	void *owner;
	struct {
		uint8_t *mem;
		size_t bytes;
	} segs[SEGS_MAX];
	unsigned n_segs;
	const struct sim_member *m; /* of an agent: its identity for servers */
	bool is_liar;               /* byzantine.c may change what is sent */
};

struct sim_end {
	struct xconn c; /* first */
	struct sim_pipe *pipe;
	struct sim_port *port;
	struct sim_end *peer;
	bool is_open, is_connecting, is_refused;
	unsigned in_flight; /* sent from here, not yet received there */
	uint64_t last_at;   /* when the latest message sent arrives here */
	uint64_t cut_until; /* nothing arrives here before */
	struct sim_read *reads;
	unsigned n_reads;
	uint64_t n_sent;         /* messages */
	struct sim_eager *eager; /* offers sent from here, newest first */
	unsigned n_eager;        /* of those still leaving */
};

struct sim_pipe {
	struct sim_pipe *next;
	struct sim_end agent, server;
	bool is_broken, has_lost; /* broken; and what was under way is lost */
	bool is_near;             /* within one host: offers are borrowed, and nothing has a CRC */
	unsigned server_idx, thread;
	uint64_t instance, agent_instance;
};

void port_init(struct sim *s, struct sim_port *p, struct sim_node *node,
	const struct xport_events *ev, void *core, void *owner, void (*enter)(void *),
	void (*leave)(void *));
/* Add a segment of n bytes, filled with a pattern. */
int port_segment(struct sim_port *p, size_t n_bytes, void **ret_mem, uint16_t *ret_segment);
/* Add existing memory as a segment after a restart. */
int port_segment_again(struct sim_port *p, void *mem, size_t n_bytes, uint16_t *ret_segment);
int sim_net_connect(struct sim *s, struct sim_port *agent, uint32_t peer_id, unsigned server_idx,
	unsigned thread, uint64_t instance, void *user, struct xconn **ret_conn);
/* Break the connection. The two sides notice it at different times. */
void pipe_break(struct sim *s, struct sim_pipe *p);
/* Send m as it is, if there is credit. */
void sim_net_say(struct sim_end *end, const struct wire_msg *m);
/* For eager.c: all bytes of a read are in its dst, or status is the reason why not. */
void read_arrived(struct sim_read *rd, int status);
void sim_net_room(struct sim_end *from);
uint64_t read_delay(struct sim *s);
/* End the process of this port: its ends are closed, and the others notice it later. */
void sim_net_kill(struct sim *s, struct sim_port *port, bool is_silent);
/* Close all ends of this port, as its owner would. */
void sim_net_close_all(struct sim *s, struct sim_port *port);

/* ---- control plane ---- */

struct sim_member;
struct sim_ctlconn {
	uint32_t id;
	struct sim_member *m;
	bool is_open_m, is_open_s; /* open at the member, open at the scheduler */
	bool is_broken;
	uint64_t last_m, last_s; /* arrival there of the latest message */
};

struct sim_member {
	struct sim *s;
	struct sim_node *node;
	enum role role;
	unsigned idx;
	struct sim_ctlconn *conn;
	bool is_welcome, is_connecting;
	unsigned n_tries;
	uint64_t instance, view, seq, echo, heard_ns;
	uint32_t id, term;
	uint64_t cut_to, cut_from; /* until then nothing arrives there, nothing leaves from there */
	uint8_t cluster_id[16];
	bool has_cluster_id;
	const char *host;
};

void member_start(struct sim_member *m);
void member_stop(struct sim_member *m); /* the process has ended */
void sim_member_send(struct sim_member *m, const struct ctl_msg *msg);
/* Called when the connection is up at the member. */
void member_conn_up(struct sim_member *m);
void member_conn_down(struct sim_member *m, const char *why);
void member_message(struct sim_member *m, const struct ctl_msg *msg);
void server_message(struct sim *s, unsigned idx, const struct ctl_msg *msg);
void agent_message(struct sim *s, unsigned idx, const struct ctl_msg *msg);

void ctl_connect(struct sim_member *m);
void ctl_send_up(struct sim_ctlconn *c, const struct ctl_msg *msg);
void ctl_close_m(struct sim_ctlconn *c);
void ctl_break(struct sim *s, struct sim_ctlconn *c);

struct sim_record {
	struct sim_record *next;
	size_t n_bytes;
	uint8_t bytes[];
};
struct sim_sched {
	struct sim_node node;
	struct sched_core *core;
	struct sim_ctlconn *conns[CONNS_MAX];
	uint32_t n_conns;
	uint64_t tick_at;
	struct sim_record *records, **tail;
	uint64_t durable_view, eio_until;
	/* persists and sends this many times until it is killed; 0: it is not killed */
	int die_after;
	bool is_dying;
	unsigned n_lives;
};
void sched_node_start(struct sim *s);
void sched_node_kill(struct sim *s);
void sched_settle(struct sim *s);

/* ---- servers ---- */

struct sim_thread {
	struct sim_server *server;
	unsigned idx;
	struct sim_port port;
	struct srv_core *core;
	uint64_t tick_at;
	bool is_work_posted;
	uint64_t last_ctl; /* when the control thread's latest item arrives */
};
struct sim_server {
	struct sim_node node;
	struct sim *s;
	struct sim_member m;
	struct sim_thread threads[THREADS_MAX];
	bool is_gone, has_cores;
	uint64_t agents_known[AGENTS_MAX + GUESTS_MAX]; /* their instances; 0: unknown */
	struct {
		uint32_t job, code;
	} fail;            /* to be reported until the job ends */
	unsigned n_orders; /* operators' orders about it */
	uint64_t leave_ns; /* the process ends then at the latest; 0: it continues */
	bool has_left;
};
void server_start(struct sim *s, unsigned idx);
void server_kill(struct sim *s, unsigned idx, bool is_silent);
/* Restart the server at once. None of its cores is on the stack when it receives a control
 * message. */
void server_restart(struct sim *s, unsigned idx, uint64_t span_ns);
bool server_has_job(const struct sim_server *srv);
/* Send LEAVE for a server whose process is to end (drain.c). */
void server_say_leave(struct sim_server *srv);
void server_left(struct sim_server *srv, const struct ctl_left *msg);
uint64_t server_start_delay(struct sim *s, unsigned idx);
/* hung.c: a server hangs while the scheduler restarts, or is cut off from it. */
struct sim_hung {
	unsigned server;
	bool is_cut;
	/* the fault, the restart of the scheduler, and the return of all agents; 0: not yet */
	uint64_t begun_ns, started_ns, back_ns;
};
void hung_draw(struct sim *s);
void hung_start(struct sim *s);
void drains_draw(struct sim *s);
void drains_start(struct sim *s);

/* ---- agents ---- */

struct sim_worker {
	bool has_joined, is_finished, has_ended;
	uint32_t asked_rank, rank, slot; /* slot: worker number in the job's member */
	int code;
	unsigned tensors_left;
};
struct sim_executor {          /* of a tensor on devices */
	uint64_t round;        /* last done, or in progress */
	bool is_done, is_mute; /* is_mute: the agent has a successor that has not run it again */
	uint32_t n_parts, part_bytes, n_landed;
	uint8_t part[PARTS_MAX];
};
struct sim_tensor_state {
	struct sim_agent *agent;
	unsigned idx;
	struct agt_tensor *t;
	bool is_planned;
	uint64_t round; /* last done, as seen by the trainers */
	int failed;
	uint8_t *in[WORKERS_MAX], *out[2];
	uint8_t *dev[WORKERS_MAX]; /* where trainers write: in, or device memory */
	/* a round that runs again although it was reported before; or 0 */
	uint64_t again;
	uint32_t crc[2]; /* of the results in out */
	/* Survives the agent's process: its memory, the trainers' rings, what the agent took from
	 * them by worker, and the plan. */
	uint8_t *mem;
	uint32_t mem_bytes;
	uint64_t ring[WORKERS_MAX], taken[WORKERS_MAX];
	uint32_t id, part_elems;
	struct agt_kept_part kept[PARTS_MAX];
	struct sim_executor exec;
};
struct sim_agent {
	struct sim_node node;
	struct sim_node trainers; /* they continue while it restarts */
	bool is_restarting, dies_at_done;
	struct kept_job {
		uint32_t n_members, flags;
		uint16_t my_member;
		struct ctl_rank ranks[WORKERS_MAX];
	} kept_job;
	struct sim *s;
	unsigned idx;
	struct sim_member m;
	struct sim_port port;
	struct agt_core *core;
	struct agt_job *job;
	bool has_job_msg, is_released, is_syncing, has_ended, is_evicted, has_failed_gpus;
	bool has_dropped_trainers; /* a successor without GPUs closes the trainers' sockets */
	uint32_t job_id, named_job;
	uint64_t job_view;
	uint64_t barrier;      /* the last one that it knows to be passed */
	uint64_t skipped;      /* rounds of the job before it joined */
	unsigned n_at_barrier; /* tensors */
	unsigned n_workers;
	struct sim_worker workers[WORKERS_MAX];
	struct sim_tensor_state tensors[TENSORS_MAX];
	struct {
		uint64_t instance;
		unsigned idx;
		bool is_up;
	} servers[64]; /* by member id */
	uint64_t tick_at;
	bool is_work_posted;
};
void agent_start(struct sim *s, unsigned idx);
void agent_lose(struct sim *s, unsigned idx);
/* End its process for span_ns. Trainers and memory remain. */
void agent_restart(struct sim *s, unsigned idx, uint64_t span_ns);
/* For restart.c: make a core, and do what the successor does with kept memory. */
void agent_core_make(struct sim_agent *a);
void agent_tensor_attach(struct sim_agent *a, unsigned t);
void agent_take_ring(struct sim_agent *a, struct sim_tensor_state *ts, unsigned w);
/* Submit for that worker. */
void agent_submit(struct sim_agent *a, struct sim_tensor_state *ts, unsigned w, uint64_t round);
/* Return the node for the trainers' own events: that of their agent when it never restarts
 * alone. */
struct sim_node *trainers_of(struct sim_agent *a);
void agent_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
void agent_join_timer(struct sim_agent *a);
/* Start to kill agents' processes as the options say. */
void restarts_start(struct sim *s);
bool agent_is_over(const struct sim_agent *a);    /* every worker has its JOB_END */
bool agent_is_settled(const struct sim_agent *a); /* all is planned and connected */

void agent_enter(void *owner);
void agent_leave(void *owner);

/* ---- tensors on devices (device.c) ---- */

bool device_is(const struct sim *s);
/* Callbacks of the core. */
void device_stage(void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
void device_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
/* Return whether all sums of a done round are on the devices. */
void device_done(struct sim_tensor_state *ts, uint64_t round);
/* Set up the tensor of a successor with its plan. Returns the round that it has to run again
 * although the trainers know it to be done (K6), or 0. */
uint64_t device_restart(struct sim_tensor_state *ts);
/* Lose the executor or its GPUs: the agent gives the job up and notifies the scheduler. Nothing
 * happens when it has no job. For jobs that may shrink: others would end. */
void device_lose(struct sim_agent *a);
/* Notify the scheduler again after a reconnection. */
void device_tell_lost(struct sim_agent *a);

/* ---- more jobs ---- */

struct guest;
struct guest_tensor {
	struct guest *guest;
	unsigned idx;
	struct agt_tensor *t;
	bool is_planned;
	int failed;
	uint64_t round; /* last done */
	uint8_t *in, *out[2];
};
/* C10: percent of the servers' memory. An eighth of it is enough for the other users' jobs. */
#define GREEDY_RESERVE 60
/* Names of the tensors that a greedy job declares beyond its own begin with that number. */
#define GREEDY_FIRST 100
struct guest_job {
	uint32_t id; /* 0: no worker has joined */
	uint32_t part_bytes, n_elems;
	unsigned rounds;
	bool has_liar;
};
struct guest {
	struct guest *agent; /* the guest in whose process it runs; mostly itself */
	struct sim_node node;
	struct sim *s;
	unsigned idx; /* GUESTS_OF_JOB consecutive guests are a job */
	struct sim_member m;
	struct sim_port port;
	struct agt_core *core;
	struct agt_job *job;
	bool has_joined, has_job_msg, is_finished, has_ended, is_released, is_syncing, is_named,
		is_liar, is_work_posted;
	uint32_t job_id, joined_id, rank; /* joined_id: the joined job, which may still form */
	unsigned tensors_left;
	struct guest_tensor tensors[GUEST_TENSORS];
	struct guest_server {
		uint64_t instance;
		unsigned idx;
		bool is_up;
	} servers[64]; /* by member id */
	uint64_t tick_at;
};
void guests_draw(struct sim *s);
void guests_start(struct sim *s);
void guest_message(struct sim *s, unsigned idx, const struct ctl_msg *msg);
bool guests_are_over(const struct sim *s);
void guests_close(struct sim *s);
void guests_end(struct sim *s);
/* Describe the guests that have not ended yet. */
size_t guests_describe(const struct sim *s, char *ret, size_t room);
/* Return whether this is the job of a misbehaving agent. */
bool guests_may_fail(const struct sim *s, uint32_t job);
void liar_start(struct guest *g);
/* Change a message m that the misbehaving agent's core sends. */
void liar_twists(struct sim *s, struct wire_msg *m);
/* Check that the scheduler has accepted nothing that it had to refuse. */
void liar_check(struct sim *s);

/* ---- oracle ---- */

struct sim_home { /* of a partition under a pgen */
	uint64_t pgen, instance;
	uint32_t server, job;
	uint16_t tensor, part, thread;
};
struct oracle {
	uint32_t job; /* a job that formed; 0: none */
	unsigned n_members;
	unsigned n_ranks[AGENTS_MAX];
	uint32_t ranks[AGENTS_MAX][WORKERS_MAX];
	struct sim_home homes[HOMES_MAX];
	unsigned n_homes;
	/* The first result to be delivered, which all others must equal. */
	struct result {
		bool is_known;
		uint32_t crc;
	} results[TENSORS_MAX][ROUNDS_MAX + 1];
	/* By tensor, partition and round: the pgen in which the result was made. */
	uint64_t made[TENSORS_MAX][PARTS_MAX][ROUNDS_MAX + 1];
	struct donation {
		uint64_t pgen;
		uint8_t tensor, part, round;
	} donations[DONATIONS_MAX];
	unsigned n_donations;
	bool has_end;
	uint32_t end_code;
	/* For jobs whose members change: which members are gone (one bit each), and the results of
	 * each agent. */
	uint32_t gone;
	uint32_t agents[AGENTS_MAX]; /* id of each member */
	uint64_t barrier;            /* the last one that was passed */
	uint64_t view;
	struct taken {
		bool is_known;
		uint32_t crc;
		uint32_t members; /* one bit per contributor */
	} taken[AGENTS_MAX][TENSORS_MAX][PARTS_MAX][ROUNDS_MAX + 1];
};
uint32_t tensor_bytes(const struct sim *s, unsigned t);
void oracle_fill(struct sim *s, unsigned t, uint32_t rank, uint64_t round, void *dst);
void oracle_job(struct sim *s, const struct ctl_job *job);
void oracle_plan(struct sim *s, const struct ctl_plan *plan);
/* Check a delivered result: its sum, and that all agents have the same. */
void oracle_result(struct sim *s, struct sim_agent *a, unsigned t, uint64_t round,
	const void *bytes, uint32_t workers);
/* Note that an agent took that result, or a server that donation: a result that exists somewhere is
 * never made again. */
struct peek;
void oracle_taken(struct sim *s, const struct peek *p);
void oracle_donated(struct sim *s, const struct peek *p);
/* ---- jobs whose members change (elastic.c) ---- */

bool elastic_is(const struct sim *s);
/* Draw after the other draws, so that these stay the same. */
void elastic_draw(struct sim *s);
/* Note a JOB message that was sent to any member. */
void elastic_job(struct sim *s, const struct ctl_job *job);
/* Return whether all tensors of a round are done here and a barrier follows: the agent then
 * waits. */
bool elastic_waits(const struct sim *s, uint64_t round);
/* Return whether the job may end with that code. */
bool elastic_may_end(const struct sim *s, uint32_t code);
/* Check a delivered round: each partition is the sum over the contributors that it names. */
void elastic_result(
	struct sim *s, struct sim_agent *a, unsigned t, uint64_t round, const void *bytes);
/* Check that agents that were in the job to its end have the same results. */
void elastic_end(struct sim *s);
/* Values of contributions (oracle.c). Return whether v is the reduction of elements [first, first +
 * n) over the members in the set. */
bool oracle_is_sum(const struct sim *s, unsigned t, uint64_t round, uint32_t first, uint32_t n,
	uint32_t members, const void *v);

/* Check that the scheduler sends nothing that is not durable. */
void oracle_sched_sends(struct sim *s, const struct sim_member *to, const struct ctl_msg *msg);

/* ---- the world ---- */

struct sim_totals {
	uint64_t seeds, events, messages, lost, dups, reordered, corrupted, agains, reads, eager,
		eager_reads, thrown, loans, views, rounds, faults[F_COUNT], failed_jobs, virtual_ns,
		lives, restarts, drains, leaves, guest_rounds, lies, slowest_ns, slowest_seed;
};

struct sim_queue {
	struct entry {
		uint64_t at, seq;
		struct sim_event *e;
	} * v;
	size_t n, cap;
	uint64_t seq;
};

struct sim_arena_block {
	struct sim_arena_block *next;
	size_t used, bytes;
	_Alignas(16) uint8_t mem[];
};

struct sim {
	uint64_t seed, rng, now;
	struct sim_queue queue;
	struct sim_event *free_events;
	struct sim_arena_block *arena, *arena_at;
	bool is_traced, has_violation, is_ending, has_faults_begun;
	char reason[256];
	struct sim_options o;
	struct sim_sched sched;
	struct sim_server servers[SERVERS_MAX];
	struct sim_agent agents[AGENTS_MAX];
	struct guest guests[GUESTS_MAX];
	struct guest_job guest_jobs[GUEST_JOBS];
	struct sim_pipe *pipes;
	struct oracle oracle;
	uint64_t faults_end, deadline;
	uint64_t agent_fault_ns; /* total duration of faults on the agents' control plane */
	struct sim_hung hung;
	unsigned n_faults;
	/* damaged payloads; counted twice where reports of damage may be doubled */
	unsigned n_corrupted;
	uint64_t n_loans; /* held by servers */
	struct sim_totals *tot;
};

void options_draw(struct sim *s);
void faults_start(struct sim *s);
/* Return how long an agent may be cut off from the scheduler, within the rest of the budget. */
uint64_t agent_span(struct sim *s, uint64_t most_ns);
void faults_job_formed(struct sim *s); /* the job has formed: in most histories faults start now */
/* Run one history. False: s->reason has the violation. */
bool sim_run(struct sim *s, uint64_t seed);
void sim_free(struct sim *s);
uint64_t sim_net_delay(struct sim *s);
uint64_t ctl_delay(struct sim *s);
#endif
