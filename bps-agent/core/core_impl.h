#ifndef BPS_AGENT_CORE_CORE_IMPL_H
#define BPS_AGENT_CORE_CORE_IMPL_H
/* Objects that all files of the agent's core share: tensors, jobs and the core itself. Partitions
 * (part.h), links (link.h) and shares of links (lockstep.h) have headers of their own.
 *   core.c             jobs, tensors, plans; calls of the shell
 *   partition_stall.c  where a round hangs
 * Their invariants are in tests/invariants/agt_core_check.c. */
#include <sys/queue.h>

#include "bps-agent/core/core.h"
#include "common/base/heap.h"
#include "common/data/dtype.h"
#include "common/data/reduce.h"

struct agt_part;
struct lockstep_server;

struct agt_tensor {
	TAILQ_ENTRY(agt_tensor) link;
	struct agt_job *job;
	void *user;
	uint8_t dtype, op;
	bool is_planned;
	bool is_running;   /* round + 1 is under way */
	bool is_device;    /* the executor copies its bytes to the inputs and from the outputs */
	bool is_unstaging; /* all sums are in, but not all are on the devices */
	bool has_landed;   /* not running, but parts of round + 1 landed before a restart */
	int failed;        /* 0, or the code that its rounds end with */
	uint16_t priority;
	uint32_t id;
	uint64_t n_elems;
	uint32_t part_elems, n_parts, parts_left;
	uint64_t round;       /* last complete */
	uint64_t begun_seq;   /* of round + 1: its position among the rounds of all jobs */
	uint32_t n_submitted; /* local workers that submitted round + 1 */
	struct agt_mem staging, out[2];
	struct agt_part *parts;
	struct agt_kept_part *own_kept; /* used when the shell keeps none */
	uint64_t *submitted;            /* per worker */
	uint32_t n_in;
	struct agt_mem in[]; /* per worker; of a device tensor: one per input */
};

struct agt_job {
	TAILQ_ENTRY(agt_job) link;
	struct agt_core *core;
	uint32_t id, size;
	uint16_t member, n_members;
	uint32_t n_workers; /* local workers */
	uint64_t tensor_bytes;
	int failed;
	bool is_local;   /* no server takes part */
	uint64_t border; /* view; a partition with an older pgen waits for its new place */
	/* servers on this host then check what they take from this agent, too (B6) */
	bool may_shrink;
	bool has_backup; /* rounds may complete without this agent, so others need its HAVE */
	bool is_closing;
	uint32_t n_reads; /* running reads; the last one frees a closing job */
	void (*release)(void *ctx);
	void *release_ctx;
	TAILQ_HEAD(, agt_tensor) tensors;
	struct agt_tensor **by_id;
	uint32_t n_by_id;
	uint32_t *ranks;   /* per local worker */
	uint64_t inflight; /* bytes */
	size_t n_parts;
	struct heap parked; /* READY partitions that wait until inflight is smaller */
	/* lagging: shares that others are held for, the one furthest behind first. held: the held
	 * shares. */
	struct heap lagging, held;
	size_t n_shares;
	struct lockstep_server *homes; /* how many bytes live on each server */
	size_t n_homes, homes_room;
	bool is_in_step; /* connections that are ahead are held in this burst */
	uint64_t burst;  /* number of bursts so far; one begins when an empty lagging is filled */
	/* Urgency of the first share's next contribution at the last release of held shares. */
	uint64_t behind_urgency;
};

struct agt_core {
	struct agt_config cfg;
	struct agt_env env;
	uint64_t n_begun; /* rounds started so far, of all tensors */
	struct xport *x;
	TAILQ_HEAD(, agt_job) jobs;
	TAILQ_HEAD(, agt_link) links, active;
	struct heap local;       /* READY partitions of jobs with one member */
	struct heap timers;      /* of partitions, key: deadline */
	struct heap link_timers; /* key: next attempt to connect */
	size_t n_parts, n_links;
	uint64_t now_ns;
	float *scratch;
	struct agt_stats stats;
};

#define AGT_BLOCK_ELEMS 8192

/* Returns NULL if the job is not known, or closing. */
struct agt_job *agt_job_find(struct agt_core *core, uint32_t id);
/* Count one more complete partition of the round under way; the last one ends the round. */
void agt_tensor_part_done(struct agt_tensor *t);
/* Fail the job for a local reason: its rounds end with code, env->fail reports it. */
void agt_job_error(struct agt_job *job, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Free a job that is closing once none of its reads runs. */
void agt_job_reads_ended(struct agt_job *job);

/* Move the parked partitions that fit now back to their links. */
void job_unpark(struct agt_job *job);
#endif
