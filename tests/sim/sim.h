#ifndef BPS_TESTS_SIM_H
#define BPS_TESTS_SIM_H
/* The simulator. A scheduler, servers, agents and trainers of one or more jobs run in one thread on
 * virtual time. The simulated network delays, loses and duplicates messages, and cuts and breaks
 * connections. A seed determines one history, which is the same in every run. The shipped cores
 * make all decisions. This folder has the shells around the cores, the network, the faults, and the
 * oracle, which checks results. See docs/explanation/simulator.md.
 *
 *   world.c   events, virtual time, the course of one history, what must hold at its end
 *   faults.c  options that are drawn from the seed, and the faults of the history
 *   move.c    the fault F_MOVE: moves partitions in the scheduler's core
 *   peek.c    look-ups in the agent's core (also peek_sched.c, peek_srv.c)
 *   net.c     the data plane: struct xport_ops over a network of connections
 *   eager.c   eager bytes, which are sent with an offer and without a request
 *   ctl.c     the control plane's connections, and the scheduler's code outside of its core
 *   member.c  what servers and agents have in common: HELLO, heartbeats, reconnecting
 *   server.c  the server's code outside of its core
 *   agent.c   the agent's code outside of its core, and the agent's trainers
 *   jobs.c    more jobs, with simpler agents ("guests")
 *   byzantine.c  a guest that misbehaves ("liar")
 *   drain.c   servers that are drained, end after LEAVE, or start late
 *   hung.c    a server that hangs while the scheduler restarts
 *   twin.c    a process on another machine that claims the name of a member
 *   restart.c an agent's process that dies, and its next process
 *   device.c  tensors on devices
 *   values.c  tensors whose value servers keep from round to round
 *   shards.c  tensors of whose sums each worker gets a shard
 *   fleet.c   many seeds in several processes
 *   times.c   the figures of a round in its results: who was last, and for how long others waited
 *   oracle.c  values of contributions, expected sums, the server of each partition
 *   elastic.c draws and checks for jobs whose members change */
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
#define WORKERS_MAX     2 /* maximum for each agent */
#define TENSORS_MAX     3
#define PARTS_MAX       8
#define PARTS_DRAWN     4 /* maximum for a tensor that is not in shards */
#define ROUNDS_MAX      12
#define ELEMS_MAX       512 /* maximum for each tensor */
#define BLOCKS_MAX      40  /* maximum for each tensor of a block type */
#define GUEST_JOBS      2
#define GUESTS_OF_JOB   2
#define GUESTS_MAX      (GUEST_JOBS * GUESTS_OF_JOB)
#define LIAR_UID        2000 /* user of the additional jobs that the misbehaving agent opens */
#define GUEST_TENSORS   2
#define GUEST_ELEMS_MAX 400
#define SUMS_BYTES      (256u << 10) /* memory that each thread of a server has for sums */
#define CONNS_MAX       4096         /* limit of control connections in one history */
#define SEGS_MAX        256
#define HOMES_MAX       512
#define DONATIONS_MAX   512
#define EVENT_BYTES     544

struct sim;
struct sim_event;
typedef void sim_event_fn(struct sim *s, struct sim_event *e);

/* ---- nodes and events ---- */

/* A process. Events for a paused process wait until the pause ends. Events for an earlier run of
 * the process (`life`) are dropped. */
struct sim_node {
	char name[24];
	bool is_up;
	uint32_t life;
	uint64_t paused_until;
};

struct sim_event {
	uint64_t at, seq;
	/* the process that gets the event; NULL: the event belongs to no process */
	struct sim_node *node;
	uint32_t life, n;
	sim_event_fn *fn;
	void *p;
	uint64_t a, b;
	uint8_t *big; /* all n bytes if they do not fit into `bytes`, else NULL; malloc'd */
	union {
		struct sim_event *next; /* next event in the list of free events */
		_Alignas(8) uint8_t bytes[EVENT_BYTES];
	};
};

/* Post an event after delay_ns. The caller fills in the event that is returned. */
struct sim_event *sim_post(
	struct sim *s, struct sim_node *node, uint64_t delay_ns, sim_event_fn *fn);
/* Make room for n bytes in the event. Return the address of the room. */
uint8_t *event_room(struct sim_event *e, uint32_t n);
static inline uint8_t *event_bytes(struct sim_event *e)
{
	return e->big ? e->big : e->bytes;
}

/* Allocate zeroed memory, which is freed at the end of the history. */
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
uint64_t rnd_below(struct sim *s, uint64_t n); /* return a random number from 0 to n - 1 */
uint64_t rnd_between(struct sim *s, uint64_t lo, uint64_t hi);
bool rnd_chance(struct sim *s, uint32_t permille);
/* Hash x. Unlike rnd(), the function draws no random number, so it does not change later draws. */
uint64_t mix(uint64_t x);

/* ---- options: drawn from the seed ---- */

enum fault {
	F_CONN_LOSS, /* a data connection breaks */
	F_SRV_KILL,  /* a server dies and restarts without its memory */
	F_SRV_GONE,  /* a server dies and does not restart; never the only server that is left */
	F_SRV_PAUSE, /* a server is stopped for a while (SIGSTOP) */
	F_AGT_PAUSE,
	F_AGT_LOSS, /* an agent's machine is lost; the job may fail */
	/* An agent is stopped or cut off for longer than the scheduler waits for it. The job may
	 * fail. */
	F_AGT_LONG,
	F_SCHED_KILL,
	F_SCHED_PAUSE,
	F_SCHED_AT_SEND, /* the scheduler is killed at one of its next few writes or sends */
	F_PERSIST,       /* writes of the scheduler's state fail with EIO for a while */
	F_CTL_LOSS,      /* a control connection breaks */
	F_CTL_CUT,       /* one direction of a control connection is cut for a while */
	F_MOVE,          /* partitions get another server, or only another pgen */
	F_DATA_CUT,      /* one direction of a data connection is cut for a while */
	F_COUNT
};
extern const char *const fault_names[F_COUNT];

struct sim_options {
	unsigned n_servers, n_threads, n_agents, n_tensors, n_guests;
	unsigned n_workers[AGENTS_MAX];
	unsigned rounds, size;
	bool is_deterministic, has_ranks, is_work_slow, is_nic_alone, may_fail, is_forming_calm,
		is_priority_mixed, has_deaf, has_restarts, is_shrink, has_drains, has_stops,
		has_liar, is_threaded, is_late, has_old_plans, has_tenants, has_hung, has_greedy,
		has_failing;
	unsigned backup; /* number of machines that a round need not wait for */
	/* 1 + index of the agent whose workers finish before the last round; 0: none */
	unsigned leaver;
	uint32_t grace_ms;
	uint32_t slow_permille;    /* how many of 1000 submissions are delayed */
	uint32_t abstain_permille; /* how many of 1000 submissions have no values */
	bool has_near;             /* some agents and servers share a host */
	bool is_elastic;
	/* workers may leave while they wait for admission; new workers then replace them */
	bool has_unjoins;
	unsigned n_first;       /* agents at the start; the other agents start later */
	unsigned barrier_every; /* rounds between barriers; 0: no barriers */
	uint32_t part_bytes;
	struct {
		uint8_t dtype, op;
		bool is_value;   /* servers keep its value (values.c) */
		bool is_sharded; /* each worker gets a shard of its sums (shards.c) */
		uint32_t n_elems, n_values, stale;
	} tensors[TENSORS_MAX];
	uint64_t delay_ns, read_delay_ns, ctl_delay_ns, think_ns;
	uint32_t tail_permille, loss_permille, dup_permille, reorder_permille, eagain_permille,
		refuse_permille, ctl_again_permille, corrupt_permille, read_tail_permille,
		ctl_tail_permille;
	unsigned credits, reads_max, eager_max;
	uint64_t lead_bytes; /* lead_bytes and turn_bytes of the agents' cores (see agt_config) */
	uint64_t turn_bytes;
	uint32_t ahead_bytes; /* the ahead_bytes that the transport reports for each connection */
	size_t staging_bytes, peer_window_bytes, window_bytes, job_inflight_bytes;
	uint32_t faults; /* one bit for each value of enum fault */
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
	/* the eager bytes that the read takes; NULL: the read requests its bytes */
	struct sim_eager *eager;
	uint32_t done, piece;
	/* CRC of the source, computed when the read started or when the eager offer was sent */
	uint32_t crc;
	int status;
	bool is_over;
};

struct sim_port { /* one xport of an agent or of a server's thread */
	struct xport x;
	struct sim *s;
	struct sim_node *node;
	void (*enter)(void *owner); /* called before every callback of the port */
	void (*leave)(void *owner);
	void *owner;
	struct {
		uint8_t *mem;
		size_t bytes;
	} segs[SEGS_MAX];
	unsigned n_segs;
	/* The agent or guest that owns the port, as a member of the cluster. Each connection of
	 * the port carries the member's id and instance. A server accepts the connection only if
	 * the scheduler has reported this instance. */
	const struct sim_member *m;
	bool is_threaded; /* the port's connections belong to I/O threads (io_threads.h) */
	bool is_liar;     /* byzantine.c may change the messages that this port sends */
};

struct sim_end {
	struct xconn c; /* the first field, so that a struct xconn can be cast */
	struct sim_pipe *pipe;
	struct sim_port *port;
	struct sim_end *peer;
	bool is_open, is_connecting, is_refused;
	/* is_closing: the core has closed this end, and it goes down later. wants_queue: the core
	 * waits for room in `queue`. */
	bool is_closing, wants_queue;
	struct sim_queued *queue; /* messages that wait for an I/O thread */
	unsigned n_queued;
	uint64_t tasks_at;  /* no message arrives at this end before this time */
	unsigned in_flight; /* number of messages sent from this end that have not arrived */
	uint64_t last_at;   /* arrival time of the latest message to this end */
	uint64_t cut_until; /* a message that would arrive before this time is delayed until then */
	struct sim_read *reads;
	unsigned n_reads;
	uint64_t n_sent;         /* number of messages sent */
	struct sim_eager *eager; /* eager offers sent from this end, newest first */
	unsigned n_eager;        /* number of eager offers whose bytes are still leaving this end */
};

struct sim_pipe {
	struct sim_pipe *next;
	struct sim_end agent, server;
	/* has_lost: the connection broke, and messages in flight are lost */
	bool is_broken, has_lost;
	/* The two ends are on one host. Offers are then borrowed in place (loans), and have no
	 * CRC. */
	bool is_near;
	unsigned server_idx, thread;
	uint64_t instance, agent_instance;
};

void port_init(struct sim *s, struct sim_port *p, struct sim_node *node,
	const struct xport_events *ev, void *core, void *owner, void (*enter)(void *),
	void (*leave)(void *));
/* Add a segment to the port. The segment consists of n_bytes bytes that are filled with a
 * pattern. */
int port_segment(struct sim_port *p, size_t n_bytes, void **ret_mem, uint16_t *ret_segment);
/* Add existing memory as a segment again, after a restart. */
int port_segment_again(struct sim_port *p, void *mem, size_t n_bytes, uint16_t *ret_segment);
int sim_net_connect(struct sim *s, struct sim_port *agent, uint32_t peer_id, unsigned server_idx,
	unsigned thread, uint64_t instance, void *user, struct xconn **ret_conn);
/* Send a message, or close this end, as the thread that owns the connection does. The functions are
 * those of struct xport_ops. */
int sim_net_send(struct xconn *c, const struct wire_msg *m);
int sim_net_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient);
void sim_net_close(struct xconn *c, const char *why);
/* Break the connection. Its two ends notice the break at different times. */
void pipe_break(struct sim *s, struct sim_pipe *p);
/* Send m unchanged. Do nothing if the end is closed or m cannot be encoded validly. */
void sim_net_say(struct sim_end *end, const struct wire_msg *m);
/* Complete a read for eager.c. status: 0 when all bytes are in the read's dst, or the reason why
 * they cannot arrive. */
void read_arrived(struct sim_read *rd, int status);
void sim_net_room(struct sim_end *from);
uint64_t read_delay(struct sim *s);
/* Kill the process of this port. The process's ends of connections are closed, and the peers notice
 * the broken connections later. is_silent: the peers notice only by a time-out. */
void sim_net_kill(struct sim *s, struct sim_port *port, bool is_silent);
/* Close this port's end of each of its connections, as the process that owns the port would. */
void sim_net_close_all(struct sim *s, struct sim_port *port);

/* ---- control plane ---- */

struct sim_member;
struct sim_ctlconn {
	uint32_t id;
	struct sim_member *m;
	/* is_open_m: the member's end is open. is_open_s: the scheduler's end is open. */
	bool is_open_m, is_open_s;
	bool is_broken;
	/* last_m: arrival time of the latest message to the member. last_s: arrival time of the
	 * latest message to the scheduler. */
	uint64_t last_m, last_s;
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
	/* times at which a cut ends: messages to the member arrive at cut_to or later, and messages
	 * from the member arrive at cut_from or later */
	uint64_t cut_to, cut_from;
	uint8_t cluster_id[16];
	bool has_cluster_id;
	const char *host;
};

void member_start(struct sim_member *m);
void member_stop(struct sim_member *m); /* call it after the member's process has ended */
void sim_member_send(struct sim_member *m, const struct ctl_msg *msg);
/* Called when the member's connection is up. */
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
	/* Number of writes and sends after which the scheduler is killed; 0: it is not killed. */
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
	struct xport_events events; /* those of the core, between calls of times.c */
	uint64_t tick_at;
	bool is_work_posted;
	/* arrival time of the latest message from the control thread to this thread */
	uint64_t last_ctl;
};
struct sim_server {
	struct sim_node node;
	struct sim *s;
	struct sim_member m;
	struct sim_thread threads[THREADS_MAX];
	bool is_gone, has_cores;
	/* for each agent: the instance that the scheduler last reported to the server; 0: none
	 * yet */
	uint64_t agents_known[AGENTS_MAX + GUESTS_MAX];
	unsigned n_orders; /* number of operators' orders to drain or undrain this server */
	uint64_t leave_ns; /* time by which the process must end; 0: the process need not end */
	bool has_left;
};
void server_start(struct sim *s, unsigned idx);
void server_kill(struct sim *s, unsigned idx, bool is_silent);
/* End the server's process and start the next one after span_ns. The server's cores are freed, so
 * do not call this function from a callback of a core. Call the function, for example, when a
 * control message arrives. */
void server_restart(struct sim *s, unsigned idx, uint64_t span_ns);
bool server_has_job(const struct sim_server *srv);
/* Send LEAVE, because the server's process is about to end (drain.c). */
void server_say_leave(struct sim_server *srv);
void server_left(struct sim_server *srv, const struct ctl_left *msg);
uint64_t server_start_delay(struct sim *s, unsigned idx);
/* State of hung.c. While the scheduler restarts, a server hangs or loses only its connection to the
 * scheduler (is_cut). */
struct sim_hung {
	unsigned server;
	bool is_cut;
	/* Times at which the fault began, the scheduler ran again, and all agents were connected
	 * again; 0: not yet. */
	uint64_t begun_ns, started_ns, back_ns;
};
void hung_draw(struct sim *s);
void hung_start(struct sim *s);
/* A process on another machine claims the name of a member. twin_receives: the scheduler sends a
 * message to this process. */
void twin_start(struct sim *s);
void twin_receives(struct sim *s, const struct ctl_msg *msg);
void drains_draw(struct sim *s);
void drains_start(struct sim *s);

/* ---- agents ---- */

struct sim_worker {
	bool has_joined, is_finished, has_ended;
	/* slot: the worker's index among the workers of its machine */
	uint32_t asked_rank, rank, slot;
	int code;
	unsigned tensors_left;
};
struct sim_executor {   /* the executor's state of one tensor */
	uint64_t round; /* the round in progress, or the last round that is done */
	/* is_mute: the executor reports no steps. A restart of the agent sets is_mute. The flag is
	 * cleared when the restarted agent runs `round` again or runs the round after it. */
	bool is_done, is_mute;
	uint32_t n_parts, part_bytes, n_landed;
	uint8_t part[PARTS_MAX];
};
struct sim_tensor_state {
	struct sim_agent *agent;
	unsigned idx;
	struct agt_tensor *t;
	bool is_planned;
	uint64_t round; /* the last round whose end was reported to the trainers */
	int failed;
	uint8_t *in[WORKERS_MAX], *out[2];
	/* Memory into which trainers write: device memory. Without devices, `dev[w]` equals
	 * `in[w]`. */
	uint8_t *dev[WORKERS_MAX];
	/* A round that runs again although the end of the round was reported before the restart.
	 * 0: none. */
	uint64_t again;
	uint32_t crc[2]; /* CRCs of the results in out[0] and out[1] */
	/* for each element of a value, the number of deltas in the last answer (values.c) */
	uint8_t counts[ELEMS_MAX];
	/* State that survives the agent's process: memory shared with trainers, the trainers'
	 * rings, the last round taken from each worker's ring, and the plan. */
	uint8_t *mem;
	uint32_t mem_bytes;
	uint64_t ring[WORKERS_MAX], taken[WORKERS_MAX];
	uint32_t id, part_elems;
	struct agt_kept_part kept[PARTS_MAX];
	struct sim_executor exec;
};
struct sim_agent {
	struct sim_node node;
	/* the trainers' processes, which continue while the agent restarts */
	struct sim_node trainers;
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
	/* the restarted agent has no GPUs, so it has closed the trainers' sockets */
	bool has_dropped_trainers;
	uint32_t job_id, named_job;
	uint64_t job_view;
	/* index of the newest barrier whose passing was reported to this agent */
	uint64_t barrier;
	uint64_t skipped;      /* number of rounds that the job did before this agent joined */
	unsigned n_at_barrier; /* number of tensors that have reached the barrier */
	unsigned n_workers;
	struct sim_worker workers[WORKERS_MAX];
	struct sim_tensor_state tensors[TENSORS_MAX];
	struct {
		uint64_t instance;
		unsigned idx;
		bool is_up;
	} servers[64]; /* indexed by member id */
	uint64_t tick_at;
	bool is_work_posted;
};
void agent_start(struct sim *s, unsigned idx);
void agent_lose(struct sim *s, unsigned idx);
/* Kill the agent's process and start the next one after span_ns. The trainers and the shared memory
 * remain. */
void agent_restart(struct sim *s, unsigned idx, uint64_t span_ns);
/* For restart.c: make a core and attach the memory that survived the agent's previous process. */
void agent_core_make(struct sim_agent *a);
void agent_tensor_attach(struct sim_agent *a, unsigned t);
void agent_take_ring(struct sim_agent *a, struct sim_tensor_state *ts, unsigned w);
/* Submit a round of worker w to the core. */
void agent_submit(struct sim_agent *a, struct sim_tensor_state *ts, unsigned w, uint64_t round);
/* Return the node of the trainers' own events. In histories without restarts, return the node of
 * the agent. */
struct sim_node *trainers_of(struct sim_agent *a);
void agent_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
void agent_join_timer(struct sim_agent *a);
/* Schedule the agent restarts that the options of the history demand. */
void restarts_start(struct sim *s);
/* Return whether every worker has received JOB_END. */
bool agent_is_over(const struct sim_agent *a);
/* Return whether all tensors are planned and all connections are up. */
bool agent_is_settled(const struct sim_agent *a);

void agent_enter(void *owner);
void agent_leave(void *owner);

/* ---- tensors on devices (device.c) ---- */

bool device_is(const struct sim *s);
/* Callbacks of the agent's core. */
void device_stage(void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
void device_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
/* Check, when a round is done, that all of its sums are on the devices. */
void device_done(struct sim_tensor_state *ts, uint64_t round);
/* Update the state of the tensor's executor after a restart of the agent. Return the round that the
 * agent has to run again although the end of this round was reported to the trainers (K6). If there
 * is no such round, return 0. */
uint64_t device_restart(struct sim_tensor_state *ts);
/* Simulate the loss of the agent's executor or GPUs. The agent fails its job and notifies the
 * scheduler. If the agent has no job, the function does nothing. Call the function only if
 * `is_shrink` is set, because a job that is not allowed to shrink would end. */
void device_lose(struct sim_agent *a);
/* Notify the scheduler of the lost GPUs again, after a reconnection. */
void device_tell_lost(struct sim_agent *a);

/* ---- more jobs ---- */

struct guest;
struct guest_tensor {
	struct guest *guest;
	unsigned idx;
	struct agt_tensor *t;
	bool is_planned;
	int failed;
	uint64_t round; /* the last round that is done */
	uint8_t *in, *out[2];
};
/* Percent of the servers' memory that is reserved for users who need little (rule C10). Such a user
 * can declare up to an eighth of the reserve. For each user except the greedy one, the user's
 * simulated jobs fit into an eighth of the reserve. */
#define GREEDY_RESERVE 60
/* Number in the name of the first extra tensor that a greedy job declares. */
#define GREEDY_FIRST 100
struct guest_job {
	uint32_t id; /* 0: no worker has joined yet */
	uint32_t part_bytes, n_elems;
	unsigned rounds;
	bool has_liar;
};
struct guest {
	/* The guest that owns the agent process in which this guest runs. In most histories, each
	 * guest has an agent process of its own, and `agent` points to the guest itself. */
	struct guest *agent;
	struct sim_node node;
	struct sim *s;
	unsigned idx; /* every GUESTS_OF_JOB consecutive guests form a job */
	struct sim_member m;
	struct sim_port port;
	struct agt_core *core;
	struct agt_job *job;
	bool has_joined, has_job_msg, is_finished, has_ended, is_released, is_syncing, is_named,
		is_liar, is_work_posted;
	/* joined_id: the job that the guest has joined and that may still be forming */
	uint32_t job_id, joined_id, rank;
	unsigned tensors_left;
	/* failed: error code, as a positive number, of the tensor that fails on the first agent of
	 * the job; 0: it has not failed. knows_failed: the scheduler has reported the failure. */
	uint32_t failed;
	bool knows_failed;
	struct guest_tensor tensors[GUEST_TENSORS];
	struct guest_server {
		uint64_t instance;
		unsigned idx;
		bool is_up;
	} servers[64]; /* indexed by member id */
	uint64_t tick_at;
};
void guests_draw(struct sim *s);
void guests_start(struct sim *s);
void guest_message(struct sim *s, unsigned idx, const struct ctl_msg *msg);
bool guests_are_over(const struct sim *s);
void guests_close(struct sim *s);
void guests_end(struct sim *s);
/* Describe the guests that have not ended, for an error text. */
size_t guests_describe(const struct sim *s, char *ret, size_t room);
/* Return whether the job belongs to the misbehaving agent. Such a job may fail. */
bool guests_may_fail(const struct sim *s, uint32_t job);
void liar_start(struct guest *g);
/* Change a message m that the misbehaving agent's core sends. */
void liar_twists(struct sim *s, struct wire_msg *m);
/* Check that the scheduler has accepted nothing that it had to refuse. */
void liar_check(struct sim *s);

/* ---- oracle ---- */

struct sim_home { /* the server, instance and thread that have a partition under a pgen */
	uint64_t pgen, instance;
	uint32_t server, job;
	uint16_t tensor, part, thread;
};
struct oracle {
	uint32_t job; /* id of the job that formed last; 0: none */
	unsigned n_members;
	unsigned n_ranks[AGENTS_MAX];
	uint32_t ranks[AGENTS_MAX][WORKERS_MAX];
	struct sim_home homes[HOMES_MAX];
	unsigned n_homes;
	/* The first delivered result of each tensor and round. All later results must equal it. */
	struct result {
		bool is_known;
		uint32_t crc;
	} results[TENSORS_MAX][ROUNDS_MAX + 1];
	/* made[tensor][partition][round]: pgen under which the result was computed; 0: no agent has
	 * accepted a result yet */
	uint64_t made[TENSORS_MAX][PARTS_MAX][ROUNDS_MAX + 1];
	struct donation {
		uint64_t pgen;
		uint8_t tensor, part, round;
	} donations[DONATIONS_MAX];
	unsigned n_donations;
	bool has_end;
	uint32_t end_code;
	/* The fields from `gone` to `taken` are for jobs whose members change. gone: a bit for each
	 * removed member. taken: the results of each agent. */
	uint32_t gone;
	uint32_t agents[AGENTS_MAX]; /* agent id of each member */
	uint64_t barrier;            /* index of the newest barrier that was passed */
	uint64_t view;
	struct taken {
		bool is_known;
		uint32_t crc;
		uint32_t members; /* a bit for each contributor */
	} taken[AGENTS_MAX][TENSORS_MAX][PARTS_MAX][ROUNDS_MAX + 1];
};
uint32_t tensor_bytes(const struct sim *s, unsigned t);
void oracle_fill(struct sim *s, unsigned t, uint32_t rank, uint64_t round, void *dst);
/* ---- values.c ---- */

/* Return whether servers keep the tensor's value from round to round. */
bool values_is(const struct sim *s, unsigned t);
void values_draw(struct sim *s);
struct tensor_shape values_shape(const struct sim *s, unsigned t);
/* Write the delta of a rank, which is the same in every round. */
void values_fill(const struct sim *s, unsigned t, uint32_t rank, float *dst);
/* Check the answer to a round: it has each delta exactly once, those of this agent up to this
 * round, and those of all others within the bound. */
void values_result(struct sim *s, struct sim_agent *a, unsigned t, uint64_t round, const float *v);

bool shards_is(const struct sim *s, unsigned t);
/* Call it after values_draw. */
void shards_draw(struct sim *s);
/* Check the shards of this agent's workers, and that the owners of all others have theirs. */
void shards_result(
	struct sim *s, struct sim_agent *a, unsigned t, uint64_t round, const uint8_t *bytes);
/* Return the agent that has the rank, or NULL. *ret_worker: the rank's worker. */
const struct sim_agent *sim_agent_of_rank(const struct sim *s, uint32_t rank, unsigned *ret_worker);

/* Return whether the rank abstains from the round. */
bool oracle_abstains(const struct sim *s, unsigned t, uint32_t rank, uint64_t round);
/* Return a bit mask of the members whose ranks all abstain from the round. */
uint32_t oracle_abstained_members(const struct sim *s, unsigned t, uint64_t round);
void oracle_job(struct sim *s, const struct ctl_job *job);
void oracle_plan(struct sim *s, const struct ctl_plan *plan);
/* Check that the sum of a delivered result is right, and that all agents have the same result. */
void oracle_result(struct sim *s, struct sim_agent *a, unsigned t, uint64_t round,
	const void *bytes, uint32_t workers);
/* Record that an agent accepted a result, or that a server accepted a donation. While a result
 * exists anywhere, it must not be computed again. */
struct peek;
void oracle_taken(struct sim *s, const struct peek *p);
void oracle_donated(struct sim *s, const struct peek *p);
/* ---- jobs whose members change (elastic.c) ---- */

bool elastic_is(const struct sim *s);
/* Draw the options of jobs whose members change. Call it after all other draws, so that the other
 * draws stay the same. */
void elastic_draw(struct sim *s);
/* Record a JOB message that was sent to any member. */
void elastic_job(struct sim *s, const struct ctl_job *job);
/* Return whether an agent that has done all tensors of the round must wait at a barrier. */
bool elastic_waits(const struct sim *s, uint64_t round);
/* Return whether the rules allow the job to end with the status `code`. */
bool elastic_may_end(const struct sim *s, uint32_t code);
/* Check a delivered round: each partition must be the sum of the inputs of the contributors that
 * the agent's core has recorded for the partition. */
void elastic_result(
	struct sim *s, struct sim_agent *a, unsigned t, uint64_t round, const void *bytes);
/* Check that the agents that were in the job at its end have the same results. */
void elastic_end(struct sim *s);
/* Return whether the elements [first, first + n) of v are the reduction over the members whose bits
 * are set in `members` (oracle.c). */
bool oracle_is_sum(const struct sim *s, unsigned t, uint64_t round, uint32_t first, uint32_t n,
	uint32_t members, const void *v);

/* ---- times.c ---- */

/* Record that a server has handled a message about a round that it has. was_over: the sum or the
 * donation of the round had begun before. */
void times_server_takes(struct sim *s, const struct wire_msg *m, bool was_over);
/* If the message is a result for an agent, check its figures. */
void times_check(struct sim *s, const struct sim_end *to, const struct wire_msg *m);
/* Check an agent's record of a round: its phases follow each other, and end now (T4). ctx: the
 * agent. A function of struct agt_env. */
void times_check_record(void *ctx, void *tensor_user, const struct round_record *record);

/* Check a message that the scheduler sends: its view must be durable. */
void oracle_sched_sends(struct sim *s, const struct sim_member *to, const struct ctl_msg *msg);

/* ---- the world ---- */

struct sim_totals {
	uint64_t seeds, events, messages, lost, dups, reordered, corrupted, agains, reads, eager,
		eager_reads, thrown, loans, views, rounds, abstentions, faults[F_COUNT],
		failed_jobs, virtual_ns, lives, restarts, drains, leaves, guest_rounds, lies, tasks,
		slowest_ns, slowest_seed;
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
	struct sim_times *times; /* of times.c; NULL: no contribution has arrived */
	uint64_t faults_end, deadline;
	/* total duration of the faults on the agents' control plane so far */
	uint64_t agent_fault_ns;
	struct sim_hung hung;
	struct sim_ctlconn twin; /* the scheduler's end of a connection of the twin (twin.c) */
	unsigned n_faults;
	/* Number of damaged payloads so far. If the history duplicates messages, each damaged
	 * payload counts twice. */
	unsigned n_corrupted;
	uint64_t n_loans; /* loans that servers hold now */
	struct sim_totals *tot;
};

void options_draw(struct sim *s);
void faults_start(struct sim *s);
/* Draw the time for which a fault separates an agent from the scheduler. The time is at most
 * most_ns. In histories whose jobs must succeed, all these faults together last at most
 * AGENT_FAULT_NS. */
uint64_t agent_span(struct sim *s, uint64_t most_ns);
/* Record that the job has formed. In most histories the faults start at that time. */
void faults_job_formed(struct sim *s);
/* Run the history of a seed. Returns false on a violation, which s->reason describes. */
bool sim_run(struct sim *s, uint64_t seed);
void sim_free(struct sim *s);
uint64_t sim_net_delay(struct sim *s);
uint64_t ctl_delay(struct sim *s);
#endif
