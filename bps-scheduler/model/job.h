#ifndef BPS_SCHEDULER_MODEL_JOB_H
#define BPS_SCHEDULER_MODEL_JOB_H
/* A job: its workers, the machines that they run on (job members), and the workers that wait to be
 * let in (newcomers). */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/stall.h"
#include "common/wire/ctlmsg.h"

struct sched_core;
struct sched_tensor;

/* The progress of a job (core/progress.h). All fields are zero until a server has reported the
 * job. */
struct sched_progress {
	bool is_known; /* at least one server has reported the job */
	uint64_t at_ns, round_then, bytes_then;
	uint64_t round, bytes;
	/* number of completed rounds, summed over all partitions of all servers that are up */
	uint64_t partition_rounds;
	double steps_s, bytes_s;
	/* number of rounds in the past few seconds; the fields below are computed from them */
	uint32_t rounds;
	/* time from the first to the last contribution of a round */
	uint32_t wait_p50_us, wait_p99_us;
	/* `slowest` is the id of the agent that most often contributed last, or 0 if there is none.
	 * slowest_rounds is the number of rounds in which this agent was last. slowest_lag_us is
	 * the mean delay of the agent in these rounds. */
	uint32_t slowest, slowest_rounds, slowest_lag_us;
	unsigned score;
	bool is_straggling; /* the slowest agent is a straggler */
};

/* ABSENT: no worker has this rank. ATTACHED: the worker has joined. DONE: it has finished. GONE:
 * its machine has left the running job. */
enum worker_state { WORKER_ABSENT, WORKER_ATTACHED, WORKER_DONE, WORKER_GONE };
struct sched_worker {
	enum worker_state state;
	uint32_t agent, pid, seq;
	/* the open transaction lets this worker in; JOINED is sent once the transaction is
	 * durable */
	bool is_fresh;
	uint64_t barrier; /* number of the barrier at which the worker waits, or last waited */
	/* DONE: number of the last probe that had begun before. Not durable. */
	uint32_t done_seq;
};

enum job_state { JOB_FORMING, JOB_RUNNING, JOB_ENDED, JOB_STATES };
/* A machine of a job. Its index in the job's array is its member number. A member that is gone
 * keeps its number, because the contributors of earlier results are named by number. */
struct sched_job_member {
	uint32_t agent, n_ranks, low_rank;
	uint32_t local_size; /* number of workers on this machine; only used in an elastic job */
	bool is_gone;
	bool is_untold; /* the member is gone, and its agent has not been notified yet */
	/* the member's agent waits for PLAN, which is sent once the open transaction is durable */
	bool is_owed_plan;
	char *why;      /* reason why the member is gone; set when is_gone */
	uint64_t since; /* view in which the machine became a member */
};
/* A worker that waits to be let into a running job. */
struct sched_newcomer {
	uint32_t agent, pid, seq, asked_rank, local_size;
};
struct sched_job {
	uint32_t id, uid;
	enum job_state state;
	char *name;
	uint32_t size, flags, part_bytes;
	/* number of backup machines: a round may complete without the contributions of up to this
	 * number of machines */
	uint16_t backup;
	uint32_t grace_ms;
	/* largest number of workers of an elastic job; 0: the job is not elastic, so its number of
	 * workers is fixed */
	uint32_t max_size;
	uint64_t barrier; /* number of the last barrier that all workers have passed */
	/* border_barrier is the number of the last barrier at which workers were let in. `border`
	 * is the view that began at that barrier. In this view, rounds began to count from 1
	 * again. */
	uint64_t border, border_barrier;
	uint32_t n_at_barrier; /* number of workers that already wait at the next barrier */
	struct sched_newcomer *newcomers;
	uint32_t n_newcomers, newcomers_room;
	bool has_token;
	/* proof of the job token, not the token itself; see admission.c */
	uint8_t token[CTL_TOKEN_BYTES];
	uint64_t view;   /* view in which the job's members or its barrier last changed */
	uint64_t formed; /* view in which the job formed */
	/* Time at which the present state began, on a clock that starts at the boot of the machine.
	 * If a job ended before the boot, this time is negative, so the value wraps around. */
	uint64_t since_ns;
	struct sched_worker *workers; /* array of n_room workers, indexed by rank */
	uint32_t n_room, next_free_rank;
	/* number of workers that have joined and are not gone; number of workers that are gone */
	uint32_t n_joined, n_gone;
	uint32_t n_done; /* number of workers that have finished; n_joined counts them too */
	struct sched_job_member *members;
	uint32_t n_members, members_room;
	uint32_t n_left; /* number of members that are gone */
	/* hash table of the tensors by name, an array of n_buckets lists */
	struct sched_tensor **buckets;
	uint32_t n_buckets, n_tensors;
	/* array of the n_placed tensors in the state PLACED, indexed by tensor id */
	struct sched_tensor **placed;
	uint32_t n_placed, placed_room;
	/* tensors that became READY or PLACED in the open transaction */
	struct sched_tensor *fresh, **fresh_tail;
	uint64_t bytes;         /* size of all PLACED tensors together, in bytes */
	uint64_t claimed_bytes; /* size of all declared tensors except FAILED ones, in bytes */
	/* bytes of server memory for the sums of all declared tensors except FAILED ones */
	uint64_t claimed_sums;
	/* some tensors were accepted unchecked, because the servers' memory was unknown */
	bool is_unchecked;
	/* array of n_loads sizes, indexed by server id: bytes of the job's partitions on that
	 * server */
	uint64_t *loads;
	uint32_t n_loads;
	uint32_t n_orphans; /* number of the job's partitions without a server */
	struct sched_progress progress;
	struct sched_stall stall;
	uint32_t stalled_tensor; /* tensor of the last event about a stalled worker */
	/* round of the last event about a stalled worker; 0: no such event has occurred */
	uint64_t stalled_round;
	/* Why the job ended: the error code, a text, and the host and the rank of the cause.
	 * cause_host is NULL if the cause is not known. cause_rank is CTL_NO_ID if the cause is a
	 * whole machine. */
	uint32_t code;
	char *end_text, *cause_host;
	uint32_t cause_rank;
	/* Text of the first TENSOR_FAIL message for this job; NULL: no tensor was refused. A worker
	 * ends when its tensor is refused, so this text explains why workers are lost. Not
	 * durable. */
	char *first_failure;
	/* Text that names the first machine that the job lost, and that states the reason for the
	 * loss. NULL: the job has lost no machine. Not durable. */
	char *first_loss;
	/* the open transaction has changed some part of the job, and the job is in the list
	 * c->dirty_jobs */
	bool is_dirty;
	/* the open transaction changed the job itself, so JOB or JOB_END must be sent */
	bool is_changed;
	/* the open transaction moved partitions of tensors that were already PLACED when it began,
	 * or gave these partitions a new pgen */
	bool has_moved;
	bool owes_plans; /* at least one member of the job has is_owed_plan set */
	/* The fields below describe planned moves of partitions between live servers
	 * (balance.h). */
	/* Set when servers join or their speeds change. The next check then computes whether moves
	 * would balance the job. */
	bool wants_balance;
	/* number of partitions per batch of moves; 0: no moves are under way */
	uint32_t batch;
	uint64_t moved_ns, moved_view; /* time and view of the last move */
	struct sched_job *next, *next_dirty;
};

/* Return the upper bound of the ranks of j (exclusive). */
static inline uint32_t sched_rank_bound(const struct sched_job *j)
{
	return j->max_size > j->size ? j->max_size : j->size;
}
/* Return how many workers a forming job lacks. An elastic job may have more than `size` workers
 * while it still waits for the other workers of a machine. */
static inline uint32_t sched_job_missing_count(const struct sched_job *j)
{
	return j->n_joined < j->size ? j->size - j->n_joined : 0;
}
const char *sched_job_state_name(enum job_state s);
/* Set a job's state. No other code writes the state. `why` is the reason of the change, for the
 * log. Pass NULL if the state comes from a record. Then the change is not logged. */
void sched_job_set_state(
	struct sched_core *c, struct sched_job *j, enum job_state to, const char *why);
/* Create a job that is on no list yet. The job gets a copy of the string `name`. */
struct sched_job *sched_job_new(uint32_t id, uint32_t uid, const char *name, uint32_t size);
void sched_job_free(struct sched_core *c, struct sched_job *j);
/* Put j on the list for its state: c->ended, or c->jobs for forming and running jobs. */
void sched_job_link(struct sched_core *c, struct sched_job *j);
/* Remove j, which has not ended, from its list. */
void sched_job_unlink(struct sched_core *c, struct sched_job *j);
/* Free all ended jobs except the last ENDED_MAX. */
void sched_ended_trim(struct sched_core *c);
/* Return the entry of worker `rank`. The table grows if necessary. The returned pointer is valid
 * until the next call of sched_worker_at for this job. */
struct sched_worker *sched_worker_at(struct sched_job *j, uint32_t rank);
/* Add an agent to the job's members. The agent must not be a member yet. The returned pointer is
 * valid until the job gets another member. */
struct sched_job_member *sched_job_member_add(struct sched_job *j, uint32_t agent);
/* Assign the rank, which must be free, to a worker of the agent. seq: number of the worker's JOIN
 * message. */
void sched_job_attach(
	struct sched_job *j, uint32_t rank, uint32_t agent, uint32_t pid, uint32_t seq);
/* Mark member i and its workers as gone. why: the reason, which is copied. */
void sched_job_member_drop(struct sched_core *c, struct sched_job *j, uint32_t i, const char *why);
/* Update scaled_bytes of the servers that have partitions of j. Call this function after the number
 * of j's members has changed from `was` to j->n_members. */
void sched_job_rescale(struct sched_core *c, const struct sched_job *j, uint32_t was);
/* Remove the job's newcomers of one agent, without notifying that agent. If `agent` is CTL_NO_ID,
 * remove the newcomers of all agents, and notify these agents that the job has ended. */
void sched_newcomers_drop(struct sched_core *c, struct sched_job *j, uint32_t agent);
#endif
