#ifndef BPS_SERVER_CORE_ARRIVALS_H
#define BPS_SERVER_CORE_ARRIVALS_H
/* Who arrives last. Only a server sees it: an agent knows when it has pushed, not when the others
 * have. Of each complete round of a partition are noted the time from its first to its last offer,
 * and who was last by how much, which is counted from the moment when half of the machines were
 * there: with two slow machines among sixteen each of them is late, not only the very last.
 *
 * A round in which somebody spoke twice (a resend after a lost connection) or had the sum already
 * is not measured: its times are those of the fault.
 *
 * Figures for people are those of the last five to ten seconds: two windows, of which the older one
 * is forgotten when the younger one is full. Counters for Prometheus are of the job's life on this
 * thread.
 *
 * Nothing here is allocated after the job; a data thread's core owns it. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/histogram.h"
#include "common/wire/ctlmsg.h"

#define ARRIVALS_WINDOW_NS UINT64_C(5000000000)
#define ARRIVALS_JOBS_MAX  CTL_BEAT_JOBS_MAX /* that are told of; the oldest ones */
#define ARRIVALS_LATE_MAX  CTL_BEAT_LATE_MAX /* of a job: those who are last most often */

/* Of a slot's round. Zeroed is empty. */
struct arrivals_round {
	uint64_t first_ns, half_ns, last_ns;
	uint16_t n, last_member;
};

struct arrivals_member {
	uint32_t agent;                            /* id */
	uint64_t last;                             /* rounds in which it was last */
	uint32_t window_last[2];                   /* the younger window first */
	uint32_t window_lag[2][HISTOGRAM_BUCKETS]; /* of those rounds */
};

/* Of a job, with its members behind it. */
struct arrivals {
	uint64_t rounds, bytes; /* complete partition rounds; their contributions */
	uint64_t round;         /* largest complete one: the job's step */
	struct histogram wait;
	struct histogram window_wait[2];
	uint64_t window_ns;         /* start of the younger window */
	unsigned n_members, n_live; /* n_live: without those that have left */
	struct arrivals_member members[];
};

struct arrivals_late {
	uint32_t agent;
	uint64_t last;        /* in all */
	uint32_t window_last; /* of late */
	struct histogram lag; /* of late; without its sum */
};
struct arrivals_job {
	uint32_t job;
	char name[CTL_JOB_NAME_MAX + 1];
	uint64_t rounds, bytes, round;
	struct histogram wait, window_wait;
	unsigned n_late;
	struct arrivals_late late[ARRIVALS_LATE_MAX]; /* the worst first */
};
/* What is told of a data thread, or of all of them. */
struct arrivals_figures {
	unsigned n_jobs;
	struct arrivals_job jobs[ARRIVALS_JOBS_MAX];
};

/* One offer of this round; n_members of the job. */
static inline void arrivals_offer(
	struct arrivals_round *r, uint16_t member, unsigned n_members, uint64_t now_ns)
{
	if (r->n == 0)
		r->first_ns = now_ns;
	r->n++;
	if (r->n == (n_members + 1) / 2)
		r->half_ns = now_ns;
	r->last_ns = now_ns;
	r->last_member = member;
}

/* The owner fills in the members' agents; freed with free(). NULL: out of memory. */
struct arrivals *arrivals_new(unsigned n_members, uint64_t now_ns);
/* The round is complete; bytes of all its contributions. */
void arrivals_complete(
	struct arrivals *a, const struct arrivals_round *r, uint64_t round, uint64_t bytes);
/* A round of a job with backup workers did not wait for that member. is_first: of this round. */
void arrivals_late(struct arrivals *a, const struct arrivals_round *r, uint16_t member,
	bool is_first, uint64_t now_ns);
/* Begin a new window when it is time. O(members), so not for each message. */
void arrivals_roll(struct arrivals *a, uint64_t now_ns);
/* Fill in the figures of a job, but for its number and name. */
void arrivals_report(const struct arrivals *a, struct arrivals_job *ret);
/* Add another thread's figures. */
void arrivals_merge(struct arrivals_figures *to, const struct arrivals_figures *from);
/* As the heartbeat carries them; ret: room for ARRIVALS_JOBS_MAX, late: for ARRIVALS_JOBS_MAX *
 * ARRIVALS_LATE_MAX, to which the jobs will point. Returns how many jobs. */
uint32_t arrivals_fill_beat(
	const struct arrivals_figures *f, struct ctl_beat_job *ret, struct ctl_beat_late *late);
#endif
