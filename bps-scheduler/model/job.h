#ifndef BPS_SCHEDULER_MODEL_JOB_H
#define BPS_SCHEDULER_MODEL_JOB_H
/* A job: its workers, the machines that they run on (job members) and the workers that wait to be
 * let in. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/stall.h"
#include "common/wire/ctlmsg.h"

struct sched_core;
struct sched_tensor;

/* The progress of a job (core/progress.h). Zeroed: nothing is known. */
struct sched_progress {
	bool is_known; /* at least one server has reported the job */
	uint64_t at_ns, round_then, bytes_then;
	uint64_t round, bytes;
	uint64_t partition_rounds; /* complete at all servers that are up */
	double steps_s, bytes_s;
	uint32_t rounds;                   /* measured in the last seconds */
	uint32_t wait_p50_us, wait_p99_us; /* from the first to the last arrival */
	uint32_t slowest, slowest_rounds,
		slowest_lag_us; /* agent that is last most often; 0: none */
	unsigned score;
	bool is_straggling; /* the slowest agent is a straggler */
};

/* GONE: its machine has left the running job. */
enum worker_state { WORKER_ABSENT, WORKER_ATTACHED, WORKER_DONE, WORKER_GONE };
struct sched_worker {
	enum worker_state state;
	uint32_t agent, pid, seq;
	bool is_fresh;    /* let in by this transaction: JOINED is still to be sent */
	uint64_t barrier; /* barrier at which the worker waits, or last waited */
};

enum job_state { JOB_FORMING, JOB_RUNNING, JOB_ENDED, JOB_STATES };
/* A member that is gone keeps its number, because earlier results name it. */
struct sched_job_member {
	uint32_t agent, n_ranks, low_rank;
	uint32_t local_size; /* number of its workers in an elastic job */
	bool is_gone;
	bool is_untold;    /* it is gone and has not been notified */
	bool is_owed_plan; /* it requested a plan that is not durable yet */
	char *why;         /* reason why it is gone */
	uint64_t since;    /* view since which it is a member */
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
	uint16_t backup; /* machines that a round need not wait for */
	uint32_t grace_ms;
	uint32_t max_size; /* 0: not elastic, size is fixed */
	uint64_t barrier;  /* last barrier that all workers have passed */
	uint64_t border,
		border_barrier; /* last barrier at which workers were let in, and its view */
	uint32_t n_at_barrier;  /* workers that wait at the next barrier */
	struct sched_newcomer *newcomers;
	uint32_t n_newcomers, newcomers_room;
	bool has_token;
	uint8_t token[CTL_TOKEN_BYTES]; /* proof of the token; see admission.c */
	uint64_t view;                  /* view of its members */
	uint64_t formed;                /* view in which it formed */
	/* time of the present state; ENDED: modulo 2^64, because it may be before the boot */
	uint64_t since_ns;
	struct sched_worker *workers; /* [n_room], indexed by rank */
	uint32_t n_room, next_free_rank;
	uint32_t n_joined, n_gone; /* n_joined does not count those that are gone */
	uint32_t n_done;           /* part of n_joined */
	struct sched_job_member *members;
	uint32_t n_members, members_room;
	uint32_t n_left;               /* members that are gone */
	struct sched_tensor **buckets; /* [n_buckets], by name */
	uint32_t n_buckets, n_tensors;
	struct sched_tensor **placed; /* by id */
	uint32_t n_placed, placed_room;
	struct sched_tensor *fresh, **fresh_tail; /* READY, or PLACED by this transaction */
	uint64_t bytes;                           /* of READY and PLACED tensors */
	uint64_t claimed_bytes;                   /* of all tensors except FAILED ones */
	uint64_t claimed_sums;                    /* memory that these take on servers */
	bool is_unchecked;                        /* some were claimed while no server was there */
	uint64_t *loads;                          /* [n_loads], bytes by server id */
	uint32_t n_loads;
	uint32_t n_orphans; /* partitions without a server */
	struct sched_progress progress;
	struct sched_stall stall;
	uint32_t stalled_tensor; /* tensor and round of the last event about a stalled trainer */
	uint64_t stalled_round;  /* 0: no such event */
	uint32_t code;           /* of its end, with text and cause */
	char *end_text, *cause_host; /* cause_host: NULL if the cause is not known */
	uint32_t cause_rank;
	/* Text of the first TENSOR_FAIL, NULL: none. Workers end because of one, so it explains
	 * their ends. Not durable. */
	char *first_failure;
	char *first_loss; /* the first machine that the job lost, and the reason; the same */
	bool is_dirty;    /* in c->dirty_jobs */
	bool is_changed;  /* JOB or JOB_END is still to be sent */
	bool has_moved;   /* partitions of tensors that are not fresh have moved */
	bool owes_plans;  /* some of its members have requested a plan */
	/* Planned moves (balance.h). */
	bool wants_balance;            /* servers came after its partitions were placed */
	uint32_t batch;                /* partitions per batch of moves; 0: no moves under way */
	uint64_t moved_ns, moved_view; /* time and view of the last move */
	struct sched_job *next, *next_dirty;
};

/* Upper bound of the ranks of j (exclusive). */
static inline uint32_t sched_rank_bound(const struct sched_job *j)
{
	return j->max_size > j->size ? j->max_size : j->size;
}
const char *sched_job_state_name(enum job_state s);
/* Set a job's state; no other code writes it. why: for the log; NULL: the state comes from a record
 * and is not logged. */
void sched_job_set_state(
	struct sched_core *c, struct sched_job *j, enum job_state to, const char *why);
/* Create a job that is on no list yet. name is copied. */
struct sched_job *sched_job_new(uint32_t id, uint32_t uid, const char *name, uint32_t size);
void sched_job_free(struct sched_core *c, struct sched_job *j);
/* Put j on the list for its state: ended jobs, or forming and running jobs. */
void sched_job_link(struct sched_core *c, struct sched_job *j);
/* Remove j, which has not ended, from its list. */
void sched_job_unlink(struct sched_core *c, struct sched_job *j);
/* Free all ended jobs except the last ENDED_MAX. */
void sched_ended_trim(struct sched_core *c);
/* Make room for that rank. The pointer is valid until the next call. */
struct sched_worker *sched_worker_at(struct sched_job *j, uint32_t rank);
/* Add an entry for an agent that has none. */
struct sched_job_member *sched_job_member_add(struct sched_job *j, uint32_t agent);
/* Give a free rank to a worker of this agent. seq: number of its JOIN. */
void sched_job_attach(
	struct sched_job *j, uint32_t rank, uint32_t agent, uint32_t pid, uint32_t seq);
/* Mark member i and its workers as gone. */
void sched_job_member_drop(struct sched_core *c, struct sched_job *j, uint32_t i, const char *why);
/* Adjust the servers' loads of j's partitions after the number of members changed from `was` to
 * n_members. */
void sched_job_rescale(struct sched_core *c, const struct sched_job *j, uint32_t was);
/* Remove the newcomers of that agent. CTL_NO_ID: remove those of all agents, and notify the agents
 * that the job has ended. */
void sched_newcomers_drop(struct sched_core *c, struct sched_job *j, uint32_t agent);
#endif
