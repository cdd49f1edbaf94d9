#ifndef BPS_COMMON_WIRE_CTLMSG_JOB_H
#define BPS_COMMON_WIRE_CTLMSG_JOB_H
/* Control messages about jobs and their workers. See ctlmsg.h. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/codec.h"

enum job_flags {
	JOB_DETERMINISTIC = 1 << 0, /* add in order of ranks */
	JOB_DISTRIBUTED = 1 << 1,   /* use servers even when all workers are on one machine */
	JOB_SHRINK = 1 << 2,        /* the job goes on without a machine that is lost */
	JOB_ELASTIC = 1 << 3,       /* workers may join while it runs; with SHRINK only */
	JOB_FLAGS_KNOWN = JOB_DETERMINISTIC | JOB_DISTRIBUTED | JOB_SHRINK | JOB_ELASTIC,
};
/* Return whether the sums of a job stay on its only machine. */
static inline bool job_is_local(uint32_t n_members, uint32_t flags)
{
	return n_members == 1 && !(flags & (JOB_DISTRIBUTED | JOB_ELASTIC));
}

/* A trainer has attached to this agent. JOINED returns seq. */
struct ctl_join {
	uint32_t seq;
	uint32_t uid;
	const char *job;
	uint32_t rank; /* CTL_NO_ID: assign one */
	uint32_t size;
	uint32_t flags; /* enum job_flags; must agree among the workers */
	uint32_t pid;
	uint32_t part_bytes; /* requested partition size, 0: the scheduler's choice; must agree */
	struct blob token;   /* CTL_TOKEN_BYTES, proof of the job's token; empty: no token */
	/* Machines that a round need not wait for, and how long it waits for them after the last
	 * one that it needs; must agree. */
	uint16_t backup;
	uint32_t grace_ms;
	/* Elastic job: the most workers it may have (size is the number at its start), which must
	 * agree, and how many of them join on this machine. */
	uint32_t max_size;
	uint32_t local_size;
};
/* The worker of that JOIN has ended, and had no JOINED with a rank: its place is free again. */
struct ctl_unjoin {
	uint32_t seq;
};
/* Answer to JOIN. job CTL_NO_ID: the worker waits to be let in at the job's next barrier; another
 * JOINED follows. */
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
struct ctl_job_member { /* in order of the member number, which a lost member keeps */
	uint32_t agent; /* agent id */
	const char *host;
	/* Ranks of the member's workers; of a lost member, its former ones */
	struct ctl_rank *ranks;
	uint32_t n_ranks;
	uint8_t is_gone;
	const char *why; /* non-empty: it was lost, and why */
	uint64_t since;  /* view in which it became a member */
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
	uint64_t formed; /* view in which the job formed; distinguishes jobs with the same number */
	uint16_t backup; /* same as in JOIN */
	uint32_t grace_ms;
	uint64_t barrier; /* the last one that all workers have passed, from 1 */
	/* View and barrier number at which workers joined last. Rounds count from 1 again since
	 * that view. 0: never. */
	uint64_t border, border_barrier;
};
struct ctl_job_end {
	uint32_t job;
	uint32_t code; /* 0: every worker has finished */
	const char *text;
};

/* FINISHED: the worker called bps_close and waits for JOB_END. LOST: it ended without bps_close.
 * AT_BARRIER: it waits for a JOB with that barrier; send it again after each JOB with a smaller
 * one. */
enum worker_event { WORKER_FINISHED = 1, WORKER_LOST = 2, WORKER_AT_BARRIER = 3 };
struct ctl_worker {
	uint32_t job;
	uint32_t rank;
	uint8_t event;
	const char *text; /* how it was lost: pid, signal */
	uint64_t barrier; /* AT_BARRIER: its number, the last one plus 1 */
};

/* A member reports that this job cannot go on. */
struct ctl_fail {
	uint32_t job;
	uint32_t code;
	const char *text;
};
#endif
