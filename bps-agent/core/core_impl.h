#ifndef BPS_AGENT_CORE_CORE_IMPL_H
#define BPS_AGENT_CORE_CORE_IMPL_H
/* Structures that all files of the agent's core share: tensors, jobs and the core itself.
 * Partitions (part.h), links (link.h) and a job's shares of links (lockstep.h) have headers of
 * their own.
 *   core.c             jobs, tensors, plans; functions of core.h
 *   partition_stall.c  finds what a round waits for
 *   round_record.c     writes down where the time of each round went
 * The invariants of the core are in tests/invariants/agt_core_check.c. */
#include <sys/queue.h>

#include "bps-agent/core/core.h"
#include "bps-agent/core/round_record.h"
#include "common/base/heap.h"
#include "common/data/shape.h"
#include "common/data/reduce.h"

struct agt_part;
struct lockstep_server;

struct agt_tensor {
	TAILQ_ENTRY(agt_tensor) link;
	struct agt_job *job;
	void *user;
	struct tensor_shape shape;
	uint8_t op;
	bool is_planned;
	bool is_running; /* `round` + 1 is in progress */
	/* the tensor is on devices: the executor copies its bytes to the inputs and from the
	 * outputs */
	bool is_device;
	bool is_unstaging; /* all sums are in host memory, but not all are on the devices */
	/* some partitions received their sums of `round` + 1 before the agent restarted, and the
	 * restarted agent has not yet started `round` + 1 again */
	bool has_landed;
	/* error code with which the tensor's rounds end; 0: the tensor has not failed */
	int failed;
	uint16_t priority;
	uint32_t id;
	uint32_t part_elems, n_parts, parts_left, n_shards;
	uint64_t round; /* the last complete round */
	/* Sequence number of the round in progress. The core numbers the rounds of all tensors in
	 * the order in which they start. */
	uint64_t begun_seq;
	uint32_t n_submitted; /* number of local workers that submitted the round after `round` */
	/* Times of the round after `round`, as far as they are known. is_pushed, has_landing: the
	 * record's times pushed_us and offered_us are set. */
	struct round_record record;
	bool is_pushed, has_landing;
	/* Number of partitions whose task is at the transport. If the tensor fails meanwhile, the
	 * workers learn of it when this number falls to 0 (is_end_due, rule A10). */
	uint32_t n_tasks;
	bool is_end_due;
	struct agt_mem staging, out[2];
	struct agt_part *parts;
	/* memory for the partitions' state, used when env.keep is NULL */
	struct agt_kept_part *own_kept;
	uint64_t *submitted; /* last submitted round of each local worker */
	uint32_t n_in;
	/* Inputs whose values are in the contribution to the round in progress; the workers of the
	 * other inputs abstain. is_given: array of n_in. n_given: number of these inputs.
	 * first_given: index of the first of them. They change only while no round is in progress,
	 * because a task may read them (A9). */
	bool *is_given;
	uint32_t n_given, first_given;
	float *weights; /* array of n_in: number of workers whose values each input contains */
	/* array of n_in: one in-slot per local worker, or the inputs of a device tensor */
	struct agt_mem in[];
};

struct agt_job {
	TAILQ_ENTRY(agt_job) link;
	struct agt_core *core;
	uint32_t id, size;
	uint16_t member, n_members;
	uint32_t n_workers; /* local workers */
	uint64_t tensor_bytes;
	int failed;
	bool is_local; /* the job has one member, so no server takes part */
	/* view of the latest barrier at which workers joined; a partition whose pgen is less than
	 * this view waits for its new placement */
	uint64_t border;
	/* The job continues when a machine is lost. In such a job, even contributions to servers on
	 * this host have a crc. The server reads and checks these contributions, and does not sum
	 * them in place (rule B6 of docs/reference/faults.md). */
	bool may_shrink;
	/* The job has backup machines, so a round may complete without this agent. A server accepts
	 * contributions to round r only when every member has the result of round r - 2 (rule J8).
	 * Other members may therefore wait for this agent's HAVE. */
	bool has_backup;
	bool is_closing;
	/* numbers of running reads and tasks; a closing job is freed when both fall to 0 */
	uint32_t n_reads, n_tasks;
	void (*release)(void *ctx);
	void *release_ctx;
	TAILQ_HEAD(, agt_tensor) tensors;
	struct agt_tensor **by_id;
	uint32_t n_by_id;
	uint32_t *ranks;   /* rank of each local worker */
	uint64_t inflight; /* bytes of the job's contributions in flight */
	size_t n_parts;
	/* READY partitions that wait until fewer bytes of the job are in flight */
	struct heap parked;
	/* lagging: shares that other shares may have to wait for; the first share has the least
	 * progress. held: shares that wait for the first share of `lagging`. */
	struct heap lagging, held;
	size_t n_shares;
	struct lockstep_server *homes; /* bytes of the job's partitions on each server */
	size_t n_homes, homes_room;
	/* whether shares with more progress wait for the share with the least progress */
	bool is_in_step;
	/* number of bursts so far; a burst begins when the empty heap `lagging` gets a first
	 * share */
	uint64_t burst;
	/* Stored by the most recent call of release_ready_shares (lockstep.c): the urgency of the
	 * next contribution of the share that had the least progress. UINT64_MAX: `lagging` was
	 * empty at that call. */
	uint64_t behind_urgency;
};

struct agt_core {
	struct agt_config cfg;
	struct agt_env env;
	uint64_t n_begun; /* number of rounds that have started, counted over all tensors */
	struct xport *x;
	TAILQ_HEAD(, agt_job) jobs;
	TAILQ_HEAD(, agt_link) links, active;
	struct heap local;       /* READY partitions of jobs with one member */
	uint32_t n_local_tasks;  /* number of these jobs' partitions whose sum is being computed */
	struct heap timers;      /* timers of partitions, key: deadline */
	struct heap link_timers; /* timers of links, key: time of the next attempt to connect */
	size_t n_parts, n_links;
	uint64_t now_ns;
	struct agt_stats stats;
};

#ifndef AGT_STEP_VALUES /* the simulator defines smaller steps */
/* Number of values in a step of a local sum */
#define AGT_STEP_VALUES 8192
#endif

/* Return the number of local workers whose values are in the contribution to the round in
 * progress. */
static inline uint32_t tensor_n_contributing_workers(const struct agt_tensor *t)
{
	return t->is_device ? t->job->n_workers : t->n_given;
}

/* Return whether servers keep the tensor's value from round to round. */
static inline bool tensor_is_value(const struct agt_tensor *t)
{
	return t->shape.mode == MODE_VALUE;
}

/* Find the job whose id is `id`. Returns NULL if there is no such job, or if it is closing. */
struct agt_job *agt_job_find(struct agt_core *core, uint32_t id);
/* Count one more complete partition of the round in progress. The round ends when all its
 * partitions are complete. */
void agt_tensor_part_done(struct agt_tensor *t);
/* Record that the local worker with this index submits the next round. Call this function before
 * n_submitted is raised. */
void agt_tensor_record_submission(struct agt_tensor *t, uint32_t worker);
/* Record that a contribution of the round in progress is sent, or that its local sum starts. */
void agt_tensor_record_push(struct agt_tensor *t);
/* Record that the sum of the partition has landed. offered_ns: time at which the server offered the
 * sum. m: the server's RESULT. */
void agt_tensor_record_landing(
	const struct agt_part *part, uint64_t offered_ns, const struct wire_msg *m);
/* Count a complete round, complete its record, and pass the record to env->record. */
void agt_tensor_round_complete(struct agt_tensor *t);
/* Fail the job because this agent has found an error. The job's rounds end with the error
 * `code`, and env->fail reports the text. */
void agt_job_fail_and_report(struct agt_job *job, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Free the job if it is closing and none of its reads and tasks runs. */
void agt_job_work_ended(struct agt_job *job);
/* Report the failure of the tensor's round, if it waits for tasks that have now ended (A10). */
void agt_tensor_task_ended(struct agt_tensor *t);

/* Move partitions from job->parked back to the queues of their links, as far as the limit of the
 * job's bytes in flight allows. */
void job_unpark_parts(struct agt_job *job);
#endif
