#ifndef BPS_SCHEDULER_MODEL_JOB_H
#define BPS_SCHEDULER_MODEL_JOB_H
/* A job: its workers, the machines that they run on (job members) and workers that wait to be let
 * in. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/stall.h"
#include "common/wire/ctlmsg.h"

struct sched_core;
struct sched_tensor;

/* The progress of a job (core/progress.h). Zeroed is empty. */
struct sched_progress {
	bool is_known; /* some server has told of it */
	uint64_t at_ns, round_then, bytes_then;
	uint64_t round, bytes;
	uint64_t partition_rounds; /* complete, at all servers that are up */
	double steps_s, bytes_s;
	uint32_t rounds;                   /* measured in the last seconds */
	uint32_t wait_p50_us, wait_p99_us; /* from the first to the last arrival */
	uint32_t slowest, slowest_rounds,
		slowest_lag_us; /* agent that is last most often, 0: none */
	unsigned score;
	bool is_straggling; /* the slowest one, above */
};

/* GONE: its machine has left the running job. */
enum worker_state { WORKER_ABSENT, WORKER_ATTACHED, WORKER_DONE, WORKER_GONE };
struct sched_worker {
	enum worker_state state;
	uint32_t agent, pid, seq;
	bool is_fresh;    /* let in with this transaction: JOINED is to be sent */
	uint64_t barrier; /* at which it waits, or the last one at which it did */
};

enum job_state { JOB_FORMING, JOB_RUNNING, JOB_ENDED, JOB_STATES };
/* Keeps its number when it is gone: results of before name it. */
struct sched_job_member {
	uint32_t agent, n_ranks, low_rank;
	uint32_t local_size; /* that it will have in an elastic job */
	bool is_gone;
	bool is_untold;    /* it is gone, and does not know yet */
	bool is_owed_plan; /* it asked for one that is not durable yet */
	char *why;         /* it is gone */
	uint64_t since;    /* view */
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
	uint32_t max_size; /* 0: not elastic, and size holds */
	uint64_t barrier;  /* last one that all have passed */
	uint64_t border,
		border_barrier; /* of the last one at which workers were let in: its view */
	uint32_t n_at_barrier;  /* workers that wait at the next one */
	struct sched_newcomer *newcomers;
	uint32_t n_newcomers, newcomers_room;
	bool has_token;
	uint8_t token[CTL_TOKEN_BYTES]; /* its proof; see admission.c */
	uint64_t view;                  /* of its members */
	uint64_t formed;                /* view */
	uint64_t since_ns; /* of the state; ENDED: modulo 2^64, for it may be before the boot */
	struct sched_worker *workers; /* [n_room], rank is the index */
	uint32_t n_room, next_free_rank;
	uint32_t n_joined, n_gone; /* n_joined: without those that are gone */
	uint32_t n_done;           /* of n_joined */
	struct sched_job_member *members;
	uint32_t n_members, members_room;
	uint32_t n_left;               /* members that are gone */
	struct sched_tensor **buckets; /* [n_buckets], by name */
	uint32_t n_buckets, n_tensors;
	struct sched_tensor **placed; /* by id */
	uint32_t n_placed, placed_room;
	struct sched_tensor *fresh, **fresh_tail; /* READY, or PLACED in this transaction */
	uint64_t bytes;                           /* of READY and PLACED tensors */
	uint64_t claimed_bytes;                   /* of all but FAILED ones */
	uint64_t *loads;                          /* [n_loads], bytes by server id */
	uint32_t n_loads;
	uint32_t n_orphans; /* parts without server */
	struct sched_progress progress;
	struct sched_stall stall;
	uint32_t stalled_tensor; /* of the last event about a trainer that has stalled */
	uint64_t stalled_round;  /* 0: there was none */
	uint32_t code;
	char *end_text;
	/* Text of the first TENSOR_FAIL, NULL: none. Workers end because of one, so it explains their
	 * ends. Not durable. */
	char *first_failure;
	bool is_dirty;   /* in c->dirty_jobs */
	bool is_changed; /* JOB or JOB_END is to be sent */
	bool has_moved;  /* parts of tensors that are not fresh */
	bool owes_plans; /* to some of its members */
	/* Planned moves (balance.h): */
	bool wants_balance;            /* servers have come since its partitions were placed */
	uint32_t batch;                /* partitions that move at a time; 0: none are moving */
	uint64_t moved_ns, moved_view; /* of the last of them */
	struct sched_job *next, *next_dirty;
};

/* Ranks of j are below it. */
static inline uint32_t sched_rank_bound(const struct sched_job *j)
{
	return j->max_size > j->size ? j->max_size : j->size;
}
const char *sched_job_state_name(enum job_state s);
/* The only writer of a job's state. why: for the log. NULL: the state comes from a record, which is
 * not logged. */
void sched_job_set_state(
	struct sched_core *c, struct sched_job *j, enum job_state to, const char *why);
/* On no list yet. name: copied. */
struct sched_job *sched_job_new(uint32_t id, uint32_t uid, const char *name, uint32_t size);
void sched_job_free(struct sched_core *c, struct sched_job *j);
/* Put j on the list of its state: ended jobs, or those that form and run. */
void sched_job_link(struct sched_core *c, struct sched_job *j);
/* Take j, which has not ended, from its list. */
void sched_job_unlink(struct sched_core *c, struct sched_job *j);
/* Forget all but the ENDED_MAX jobs that ended last. */
void sched_ended_trim(struct sched_core *c);
/* Make room for that rank. Lent until the next call. */
struct sched_worker *sched_worker_at(struct sched_job *j, uint32_t rank);
/* Add the entry of an agent, which has none. */
struct sched_job_member *sched_job_member_add(struct sched_job *j, uint32_t agent);
/* Give that rank, which is free, to a worker of this agent. seq: of its JOIN. */
void sched_job_attach(
	struct sched_job *j, uint32_t rank, uint32_t agent, uint32_t pid, uint32_t seq);
/* Mark member i, and its workers, as gone. */
void sched_job_member_drop(struct sched_core *c, struct sched_job *j, uint32_t i, const char *why);
/* Correct the servers' loads of j's partitions when it has n_members instead of `was`. */
void sched_job_rescale(struct sched_core *c, const struct sched_job *j, uint32_t was);
/* Drop the newcomers of that agent. CTL_NO_ID: those of all agents, which are told that the job has
 * ended. */
void sched_newcomers_drop(struct sched_core *c, struct sched_job *j, uint32_t agent);
#endif
