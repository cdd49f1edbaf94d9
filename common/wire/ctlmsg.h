#ifndef BPS_COMMON_WIRE_CTLMSG_H
#define BPS_COMMON_WIRE_CTLMSG_H
/* Messages of the control channel between the scheduler and its members (servers and agents).
 * Plain structs; common/wire/codec.h carries them, ctlmsg.c holds the field tables. A frame is the
 * message's type (u16) and its struct (common/control/ctlchan.h).
 *
 *   member -> scheduler          scheduler -> member
 *   HELLO                        WELCOME | REFUSE
 *   BEAT                         BEAT
 *                                PEERS    who the other side of the data plane is
 *   JOIN (agent)                 JOINED, then JOB when the job is complete
 *   UNJOIN (agent)
 *   DECLARE (agent)              PLAN (tensors, partitions' servers) | TENSOR_FAIL
 *   WORKER (agent)               JOB_END
 *   FAIL (any)                   JOB_END
 *   LEAVE                        LEFT: a server, when its partitions are elsewhere
 *   WHY (agent)                  WHY_TEXT
 *   REPORT (agent)               PROBE
 *
 *   operator -> scheduler        scheduler -> operator
 *   STEER                        STEERED, then the connection is closed */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire/codec.h"

#define CTL_PROTO           1
#define CTL_NAME_MAX        63 /* host, member and user names */
#define CTL_JOB_NAME_MAX    127
#define CTL_TENSOR_NAME_MAX 255
#define CTL_TEXT_MAX        511
#define CTL_WHY_GONE_MAX    127 /* why a machine is no longer part of a job */
#define CTL_KEY_BYTES       32
#define CTL_TOKEN_BYTES     32
#define CTL_NO_ID           UINT32_MAX /* no tensor, no server, rank to be assigned */
#define CTL_WORKERS_MAX     65536      /* of a job */
#define CTL_LIST_MAX        4096       /* items of one DECLARE, PLAN or PEERS list */
#define CTL_TENSORS_MAX     (1u << 20) /* tensor ids of a job stay below */
#define CTL_STEER_ARGS_MAX  8          /* of one STEER, which has to fit into a stranger's 4 KiB */
#define CTL_STEER_VALUE_MAX 255
#define CTL_JSON_MAX        (512u << 10)
/* Memory of one decoded message; the largest by its other limits, a REPORT, takes half of it. */
#define CTL_MEM_MAX (8u << 20)

enum ctl_type {
	CTL_HELLO = 1,
	CTL_WELCOME,
	CTL_REFUSE,
	CTL_BEAT,
	CTL_PEERS,
	CTL_JOIN,
	CTL_JOINED,
	CTL_JOB,
	CTL_JOB_END,
	CTL_DECLARE,
	CTL_PLAN,
	CTL_TENSOR_FAIL,
	CTL_WORKER,
	CTL_FAIL,
	CTL_WHY,
	CTL_WHY_TEXT,
	CTL_PROBE,
	CTL_REPORT,
	CTL_STEER,
	CTL_STEERED,
	CTL_SIGHT,
	CTL_SEEN,
	CTL_LEAVE,
	CTL_LEFT,
	CTL_UNJOIN,
	CTL_TYPE_END
};

enum role { ROLE_SERVER = 1, ROLE_AGENT = 2 };

struct ctl_hello {
	uint16_t proto;    /* CTL_PROTO */
	uint8_t role;      /* enum role */
	uint64_t instance; /* random per process start */
	const char *name;  /* unique among members of this role; the host's name by default */
	const char *host;  /* the machine: an agent and a server of one host are colocated */
	const char *version;
	uint32_t pid;
	const char *addr; /* data plane: numeric address and port of the server's listener */
	uint16_t port;
	uint16_t threads;       /* data threads */
	uint64_t nic_mbps;      /* set, or its driver's; 0: not known */
	struct blob cluster_id; /* 16 bytes, empty when none is known */
	uint64_t view;          /* largest view seen */
	uint64_t quota_bytes;   /* memory that sums may take, 0: not told */
};

struct ctl_welcome {
	struct blob cluster_id;
	uint32_t term;
	uint64_t view;
	uint32_t member_id; /* of this name and role, stable across restarts */
	uint32_t beat_ms;   /* send a BEAT this often */
	uint32_t dead_ms;   /* silence after which the scheduler is taken for lost */
	uint32_t restarts;  /* how often this name has come back with another instance */
	uint32_t window_ms; /* to come back after the connection closed, before it counts as dead */
};

struct ctl_refuse {
	uint32_t code; /* positive value of the (negative) error code */
	const char *text;
};

#define CTL_BEAT_JOBS_MAX 16
#define CTL_BEAT_LATE_MAX 8
/* An agent that was last in some rounds of the last seconds. */
struct ctl_beat_late {
	uint32_t agent;  /* id */
	uint32_t rounds; /* in which it was last */
	uint32_t lag_us; /* median: behind the moment when half of the agents were there */
};
struct ctl_beat_job {
	uint32_t job;
	uint64_t round;  /* largest that is complete: the job's step */
	uint64_t rounds; /* of partitions, complete */
	uint64_t bytes;  /* of their contributions */
	/* Of the last seconds: rounds measured, and the time from first to last arrival. */
	uint32_t window_rounds;
	uint32_t wait_p50_us, wait_p99_us;
	struct ctl_beat_late *late; /* who is last most often first */
	uint32_t n_late;
};

/* May this member share memory with the others of its host? NO_PLACE: there is no folder for it. */
enum same_host_state { SAME_HOST_UNTOLD, SAME_HOST_OFF, SAME_HOST_NO_PLACE, SAME_HOST_ON };
const char *ctl_same_host_name(unsigned state);

/* Where the nic_mbps of a HELLO is from. */
enum nic_source { NIC_UNTOLD, NIC_SET, NIC_DRIVER };

struct ctl_beat {
	uint64_t seq;
	uint64_t echo; /* last seq received from the other side */
	uint64_t view; /* applied */
	/* A member's counters since its start, for the status screen and for alive-but-stuck. */
	uint64_t progress; /* grows whenever every loop of the process has turned */
	uint64_t rounds;   /* partitions completed */
	uint64_t rx_bytes;
	uint64_t tx_bytes;
	uint64_t mem_bytes;
	uint32_t connections; /* data connections up */
	uint32_t trainers;
	/* A server's, of the jobs that it sums for: the oldest CTL_BEAT_JOBS_MAX of them. */
	uint32_t sum_us; /* from the last contribution to the sum, of late */
	struct ctl_beat_job *jobs;
	uint32_t n_jobs;
	/* Shared memory with daemons of the same host, in none of the figures above. */
	uint8_t same_host; /* enum same_host_state */
	uint32_t same_host_connections;
	uint64_t same_host_bytes; /* taken */
	uint8_t nic_source;       /* enum nic_source */
	uint64_t measured_mbps;   /* that passed its card, where nothing tells; 0: not known yet */
};

/* State of a peer as its counterparts must know it; GONE removes it. */
enum peer_state { PEER_UP = 1, PEER_DOWN = 2, PEER_GONE = 3 };
struct ctl_peer {
	uint32_t id;
	uint8_t state;
	uint64_t instance;
	const char *name;
	const char *host;
	const char *addr;
	uint16_t port;
	uint16_t threads;
	struct blob key; /* CTL_KEY_BYTES: for tickets between these two instances */
};
struct ctl_peers {
	uint64_t view;
	/* Agents get servers, servers get agents; only what changed, after the first. */
	struct ctl_peer *peers;
	uint32_t n_peers;
};

enum job_flags {
	JOB_DETERMINISTIC = 1 << 0, /* add in order of ranks */
	JOB_DISTRIBUTED = 1 << 1,   /* use servers even when all workers are on one machine */
	JOB_SHRINK = 1 << 2,        /* a machine that is lost leaves the job, which goes on */
	JOB_ELASTIC = 1 << 3,       /* workers may join while it runs; with SHRINK only */
	JOB_FLAGS_KNOWN = JOB_DETERMINISTIC | JOB_DISTRIBUTED | JOB_SHRINK | JOB_ELASTIC,
};
/* Do the sums of a job stay on the one machine that it has? */
static inline bool job_is_local(uint32_t n_members, uint32_t flags)
{
	return n_members == 1 && !(flags & (JOB_DISTRIBUTED | JOB_ELASTIC));
}

/* A trainer has attached to this agent. seq comes back in JOINED. */
struct ctl_join {
	uint32_t seq;
	uint32_t uid;
	const char *job;
	uint32_t rank; /* CTL_NO_ID: assign one */
	uint32_t size;
	uint32_t flags; /* enum job_flags; must agree among the workers */
	uint32_t pid;
	uint32_t part_bytes; /* wanted partition size, 0: the scheduler's choice; must agree */
	struct blob token;   /* CTL_TOKEN_BYTES, proof of the job's token; empty: it has none */
	/* Machines that a round need not wait for, and how long it does after the last one that it
	 * needs; must agree. */
	uint16_t backup;
	uint32_t grace_ms;
	/* Of an elastic job: how many workers it may have (size: with how many it begins), which
	 * must agree, and how many of them join on this machine. */
	uint32_t max_size;
	uint32_t local_size;
};
/* The worker of that JOIN is gone, and had no JOINED with a rank: its place is free again. */
struct ctl_unjoin {
	uint32_t seq;
};
/* job CTL_NO_ID: the worker waits to be let in at the job's next barrier; another JOINED
 * follows. */
struct ctl_joined {
	uint32_t seq;
	uint32_t code; /* 0, or the positive value of the error code */
	const char *text;
	uint32_t job;
	uint32_t rank;
};

struct ctl_rank {
	uint32_t rank;
};
struct ctl_job_member { /* in order of the member number, which it keeps when it is gone */
	uint32_t agent; /* id of the agent */
	const char *host;
	struct ctl_rank *ranks; /* of one that is gone: those that it had */
	uint32_t n_ranks;
	uint8_t is_gone;
	const char *why; /* it is gone */
	uint64_t since;  /* the view in which it became a member */
};
/* A job is complete, or its members changed (larger view). */
struct ctl_job {
	uint64_t view;
	uint32_t job;
	uint32_t uid;
	const char *name;
	uint32_t size; /* ranks are below it */
	uint32_t flags;
	struct ctl_job_member *members;
	uint32_t n_members;
	uint64_t formed; /* the view in which it formed: this job, and no other of its number */
	uint16_t backup; /* as in JOIN */
	uint32_t grace_ms;
	uint64_t barrier; /* the last one that all have passed, from 1 */
	/* When workers joined last: the view, from which on rounds count from 1 anew, and the
	 * number of the barrier; 0: never. */
	uint64_t border, border_barrier;
};
struct ctl_job_end {
	uint32_t job;
	uint32_t code; /* 0: every worker has finished */
	const char *text;
};

struct ctl_decl {
	uint32_t rank; /* the first local worker that declared it */
	const char *name;
	uint8_t dtype;
	uint64_t n_elems;
};
struct ctl_declare {
	uint32_t job;
	struct ctl_decl *tensors;
	uint32_t n_tensors;
};

/* Tensors whose names begin so are the library's own, behind its collectives. */
#define CTL_OWN_TENSORS "__bps."
struct ctl_tensor {
	uint32_t tensor;
	const char *name;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t part_elems; /* elements of every partition but the last */
};
/* Partitions first .. first + n - 1 of a tensor belong to that server's thread since view pgen. */
struct ctl_run {
	uint32_t tensor;
	uint32_t first;
	uint32_t n;
	uint32_t server; /* id; CTL_NO_ID: none is left, wait */
	uint64_t instance;
	uint16_t thread;
	uint64_t pgen;
};
/* New tensors and the place of partitions. Runs override older ones with a smaller pgen. A server
 * gets the runs that it has or had; an agent gets all. */
struct ctl_plan {
	uint64_t view;
	uint32_t job;
	struct ctl_tensor *tensors;
	uint32_t n_tensors;
	struct ctl_run *runs;
	uint32_t n_runs;
};
struct ctl_tensor_fail {
	uint32_t job;
	const char *name;
	uint32_t code;
	const char *text;
};

/* FINISHED: the worker called bps_close and waits for JOB_END. LOST: it went without. AT_BARRIER:
 * it waits for JOB to have that barrier; to be said again after each JOB that does not. */
enum worker_event { WORKER_FINISHED = 1, WORKER_LOST = 2, WORKER_AT_BARRIER = 3 };
struct ctl_worker {
	uint32_t job;
	uint32_t rank;
	uint8_t event;
	const char *text; /* how it was lost: pid, signal */
	uint64_t barrier; /* AT_BARRIER: its number, the last one and 1 */
};

/* This job cannot go on. */
struct ctl_fail {
	uint32_t job;
	uint32_t code;
	const char *text;
};

/* Why does (tensor, round) not complete? tensor is CTL_NO_ID for the forming of the job. The
 * scheduler asks all agents of the job (PROBE, REPORT) for at most a second and answers. */
struct ctl_why {
	uint32_t seq;
	uint32_t job;
	uint32_t tensor;
	uint64_t round;
};
struct ctl_why_text {
	uint32_t seq;
	const char *text;
};
struct ctl_probe {
	uint32_t seq;
	uint32_t job;
	uint32_t tensor; /* CTL_NO_ID: only the general figures */
};
enum ctl_gpu_open { /* bps_gpu_open, in which the workers of one machine wait for each other */
	GPU_OPEN_NONE,
	GPU_OPEN_WAITS,   /* it waits there */
	GPU_OPEN_MISSING, /* it has not called it, and others wait */
};
struct ctl_report_worker {
	uint32_t rank;
	uint32_t pid;
	uint64_t submitted; /* last round of the asked tensor that it submitted */
	uint64_t calls;     /* push_pulls submitted in all */
	uint64_t completed;
	uint32_t quiet_ms;      /* since its last submission */
	uint32_t oldest_tensor; /* waiting longest, CTL_NO_ID: none */
	uint64_t oldest_round;
	uint32_t oldest_ms;
	uint8_t is_attached;
	uint8_t gpu_open;     /* enum ctl_gpu_open */
	uint32_t gpu_open_ms; /* since the first of the machine called it */
};
struct ctl_report {
	uint32_t seq;
	uint32_t job;
	const char *text; /* what this agent's network waits for, "" when nothing */
	struct ctl_report_worker *workers;
	uint32_t n_workers;
};

/* One thing that an operator wants done, the first and only message of its connection. */
struct ctl_steer_arg {
	const char *name;
	const char *value;
};
struct ctl_steer {
	const char *verb;   /* "job kill" */
	const char *target; /* what it acts on, "" nothing */
	struct ctl_steer_arg *args;
	uint32_t n_args;
	/* Who asks, as its own host says: for the record, never for a decision. */
	uint32_t uid;
	const char *user;
	const char *host;
};
struct ctl_steered {
	uint32_t code;    /* 0: done; else the positive value of the error code */
	const char *text; /* one sentence: what was done, or why not */
	const char *json; /* more, for programs; "" nothing */
};

/* Rule C4. SIGHT: the scheduler, which does not hear an agent, asks whether its data path lives.
 * SEEN: a server has a connection to that very instance; who has none says nothing. */
struct ctl_sight {
	uint32_t agent; /* id */
	uint64_t instance;
	uint32_t quiet_ms; /* SEEN: since the agent was heard; SIGHT: 0 */
};

/* A server is about to end; its partitions should be elsewhere before. LEFT: they are (code 0), or
 * it need not wait for that. */
struct ctl_leave {
	uint32_t bound_ms; /* it ends after that in any case */
};
struct ctl_left {
	uint32_t code; /* 0, or the positive value of the error code */
	const char *text;
};

struct ctl_msg {
	uint16_t type; /* enum ctl_type, selects the member */
	union {
		struct ctl_hello hello;
		struct ctl_welcome welcome;
		struct ctl_refuse refuse;
		struct ctl_beat beat;
		struct ctl_peers peers;
		struct ctl_join join;
		struct ctl_joined joined;
		struct ctl_job job;
		struct ctl_job_end job_end;
		struct ctl_declare declare;
		struct ctl_plan plan;
		struct ctl_tensor_fail tensor_fail;
		struct ctl_worker worker;
		struct ctl_fail fail;
		struct ctl_why why;
		struct ctl_why_text why_text;
		struct ctl_probe probe;
		struct ctl_report report;
		struct ctl_steer steer;
		struct ctl_steered steered;
		struct ctl_sight sight; /* SIGHT and SEEN */
		struct ctl_leave leave;
		struct ctl_left left;
		struct ctl_unjoin unjoin;
	};
};

/* Layout of a type's struct and its name ("HELLO"); NULL for an unknown type. */
const struct layout *ctl_layout(unsigned type);
const char *ctl_type_name(unsigned type);

/* Decode a frame's body into *ret; *ret_mem as codec_decode. Errors: as codec_decode, BPS_EPROTO
 * unknown type. */
struct err_text;
int ctl_decode(unsigned type, const void *buf, size_t n_bytes, struct ctl_msg *ret, void **ret_mem,
	struct err_text *err);
#endif
