#ifndef BPS_COMMON_WIRE_CTLMSG_JOB_H
#define BPS_COMMON_WIRE_CTLMSG_JOB_H
/* Control messages about jobs and their workers. See ctlmsg.h. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/codec.h"
#include "common/wire/ctlmsg_cause.h"

enum job_flags {
	/* Add the workers' gradients in the order of their ranks, so that sums are reproducible */
	JOB_DETERMINISTIC = 1 << 0,
	JOB_DISTRIBUTED = 1 << 1, /* use servers even when all workers are on one machine */
	/* When a machine is lost, the job continues without that machine */
	JOB_SHRINK = 1 << 2,
	/* Workers may join while the job runs; valid only with JOB_SHRINK */
	JOB_ELASTIC = 1 << 3,
	JOB_FLAGS_KNOWN = JOB_DETERMINISTIC | JOB_DISTRIBUTED | JOB_SHRINK | JOB_ELASTIC,
};
/* Return whether a job uses no server: all its workers are on one machine, and neither
 * JOB_DISTRIBUTED nor JOB_ELASTIC is set. */
static inline bool job_is_local(uint32_t n_members, uint32_t flags)
{
	return n_members == 1 && !(flags & (JOB_DISTRIBUTED | JOB_ELASTIC));
}

/* An agent reports that a trainer has attached. The answer, JOINED, has the same seq. */
struct ctl_join {
	uint32_t seq;
	uint32_t uid;
	const char *job;
	uint32_t rank; /* the worker's rank; CTL_NO_ID: the scheduler assigns a rank */
	uint32_t size;
	uint32_t flags; /* enum job_flags; all workers of the job must send the same flags */
	uint32_t pid;
	/* Requested partition size in bytes, the same for all workers. 0: the scheduler chooses */
	uint32_t part_bytes;
	/* Proof that the trainer has the job's token. The proof is CTL_TOKEN_BYTES long. If the job
	 * has no token, this field is empty. */
	struct blob token;
	/* backup: number of machines that a round need not wait for. grace_ms: how long a round
	 * still waits for these machines after all other machines have contributed. All workers
	 * must send the same values. */
	uint16_t backup;
	uint32_t grace_ms;
	/* Fields for an elastic job only. max_size: largest number of workers that the job may
	 * have. All workers must send the same max_size. The field `size` is the number of workers
	 * at the job's start. local_size: number of workers that join on this machine. */
	uint32_t max_size;
	uint32_t local_size;
};
/* The worker of the JOIN with this seq has ended before it got a JOINED with a rank. Its place in
 * the job is free again. */
struct ctl_unjoin {
	uint32_t seq;
};
/* Answer to JOIN. If the field `job` is CTL_NO_ID, the worker waits until the job's next barrier,
 * where the job admits the worker. Then the scheduler sends a second JOINED. */
struct ctl_joined {
	uint32_t seq;
	uint32_t code; /* 0, or an error code as a positive number */
	const char *text;
	uint32_t job;
	uint32_t rank;
};

struct ctl_rank {
	uint32_t rank;
};
/* Item of a job's list of members. The list is sorted by member number. A lost member stays in the
 * list, so that the other members keep their numbers */
struct ctl_job_member {
	uint32_t agent; /* agent id */
	const char *host;
	/* Ranks of the member's workers. If the member is lost: the ranks before the loss. */
	struct ctl_rank *ranks;
	uint32_t n_ranks;
	uint8_t is_gone;
	const char *why;  /* reason why the member was lost; empty if it was not lost */
	uint64_t since;   /* view in which the agent became a member of this job */
	const char *name; /* the agent's name; "": unknown */
};
/* The scheduler reports that a job is complete: all its workers have joined. When the job's members
 * change, the scheduler sends JOB again, with a larger view. */
struct ctl_job {
	uint64_t view;
	uint32_t job;
	uint32_t uid;
	const char *name;
	uint32_t size; /* number of ranks; every rank is less than this number */
	uint32_t flags;
	struct ctl_job_member *members;
	uint32_t n_members;
	/* View in which the job was formed. The view distinguishes jobs with the same id, because a
	 * restarted scheduler may use an id again */
	uint64_t formed;
	uint16_t backup; /* the fields backup and grace_ms have the same meaning as in JOIN */
	uint32_t grace_ms;
	/* Number of the last barrier that all workers have passed. The first barrier has number
	 * 1 */
	uint64_t barrier;
	/* border: view in which the job last admitted new workers; in that view, rounds began to
	 * count from 1 again. border_barrier: number of the barrier at which these workers were
	 * admitted. The two fields are 0 if the job has admitted no new workers. */
	uint64_t border, border_barrier;
};
struct ctl_job_end {
	uint32_t job;
	uint32_t code; /* error code as a positive number; 0: every worker has finished */
	const char *text;
	struct ctl_cause cause;
};

/* FINISHED: the worker called bps_close and waits for JOB_END. LOST: the worker ended without
 * bps_close. AT_BARRIER: the worker waits for a JOB with the number of this barrier. The agent
 * sends AT_BARRIER again after each JOB with a smaller barrier number. */
enum worker_event { WORKER_FINISHED = 1, WORKER_LOST = 2, WORKER_AT_BARRIER = 3 };
struct ctl_worker {
	uint32_t job;
	uint32_t rank;
	uint8_t event;
	const char *text; /* for LOST: text that states how the worker ended, with pid and signal */
	/* For AT_BARRIER: number of the barrier. Each barrier's number is larger by 1 than the
	 * number of the previous barrier */
	uint64_t barrier;
};

/* A member reports that a job cannot go on, and why. */
struct ctl_fail {
	uint32_t job;
	uint32_t code;
	const char *text;
	struct ctl_cause cause;
};
#endif
