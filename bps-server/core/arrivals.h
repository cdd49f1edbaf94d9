#ifndef BPS_SERVER_CORE_ARRIVALS_H
#define BPS_SERVER_CORE_ARRIVALS_H
/* Measures which member of a job contributes last. Only a server can measure this, because an agent
 * does not know when the other agents contribute. For each complete round of a partition, the
 * server records the time from the first to the last offer. The server also records the member that
 * offered last, and this member's lag. The lag begins when half of the members have offered. So if
 * two of sixteen machines are slow, each shows its whole lag in the rounds in which it is last.
 *
 * A round is not measured if a member sent two offers (after a lost connection), or if a member
 * already had the round's sum. In both cases the times of the round are distorted.
 *
 * Figures for operators cover the present window of five seconds and the previous window. When the
 * present window is full, a new window begins and the previous window is dropped. Counters for
 * Prometheus cover the job's lifetime on this thread.
 *
 * Memory is allocated only when the job is created. The core of a data thread owns this memory. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/histogram.h"
#include "common/wire/ctlmsg.h"

#define ARRIVALS_WINDOW_NS UINT64_C(5000000000)
/* largest number of jobs in a report; if there are more, the report has the oldest jobs */
#define ARRIVALS_JOBS_MAX CTL_BEAT_JOBS_MAX
/* largest number of members of a job in a report; if the job has more members, the report has those
 * that most often contribute last */
#define ARRIVALS_LATE_MAX CTL_BEAT_LATE_MAX

/* Arrival times of the offers for the round in a slot. The field `n` counts the offers. half_ns:
 * time at which half of the members had offered. All fields are zero before the first offer. */
struct arrivals_round {
	uint64_t first_ns, half_ns, last_ns;
	uint16_t n, last_member;
};

struct arrivals_member {
	uint32_t agent; /* agent id */
	uint64_t last;  /* number of rounds in which the member was the last to contribute */
	/* number of rounds in which the member was the last to contribute; [0]: in the present
	 * window; [1]: in the previous window */
	uint32_t window_last[2];
	/* histograms of the member's lags in the rounds in which the member was the last to
	 * contribute; [0]: in the present window; [1]: in the previous window */
	uint32_t window_lag[2][HISTOGRAM_BUCKETS];
};

/* Arrival figures of one job and of its members. */
struct arrivals {
	/* number of complete rounds of partitions, and bytes of all their contributions */
	uint64_t rounds, bytes;
	uint64_t round; /* number of the newest complete round, which is the job's step */
	struct histogram wait;
	struct histogram window_wait[2];
	uint64_t window_ns;         /* start of the present window */
	unsigned n_members, n_live; /* n_live: members that have not left */
	struct arrivals_member members[];
};

struct arrivals_late {
	uint32_t agent;
	/* number of rounds in the job's lifetime in which the member was the last to contribute */
	uint64_t last;
	/* number of rounds, in the present and the previous window together, in which the member
	 * was the last to contribute */
	uint32_t window_last;
	/* histogram of the member's lags in the rounds that window_last counts; the field `sum` of
	 * the histogram is not set */
	struct histogram lag;
};
struct arrivals_job {
	uint32_t job;
	char name[CTL_JOB_NAME_MAX + 1];
	uint64_t rounds, bytes, round;
	struct histogram wait, window_wait;
	unsigned n_late;
	/* the n_late members that were the last to contribute in the most rounds, sorted by the
	 * number of these rounds, largest number first */
	struct arrivals_late late[ARRIVALS_LATE_MAX];
};
/* Figures of one data thread, or of all data threads together. */
struct arrivals_figures {
	unsigned n_jobs;
	struct arrivals_job jobs[ARRIVALS_JOBS_MAX];
};

/* Record that a member's offer for the round has arrived. n_members: number of members that have
 * not left the job. */
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

/* Convert a known time to microseconds, rounded down, from 1 to UINT32_MAX. In messages, 0 means
 * that a time is not known (T3). */
uint32_t arrivals_known_us(uint64_t ns);

/* Create the arrival figures of a job. The caller fills in the members' agents, and frees the
 * result with free(). NULL: out of memory. */
struct arrivals *arrivals_new(unsigned n_members, uint64_t now_ns);
/* Count n_rounds complete rounds of a partition, the last of which is `round`. bytes: size of all
 * their contributions. */
void arrivals_count_rounds(struct arrivals *a, uint64_t n_rounds, uint64_t round, uint64_t bytes);
/* Count a complete round, and record its times. bytes: size of all its contributions. */
void arrivals_complete(
	struct arrivals *a, const struct arrivals_round *r, uint64_t round, uint64_t bytes);
/* Record that a round with backup machines ended without this member. is_first: this is the first
 * call of arrivals_late for the round. */
void arrivals_record_late_member(struct arrivals *a, const struct arrivals_round *r,
	uint16_t member, bool is_first, uint64_t now_ns);
/* Start a new window if the present window is full. The cost is O(members), so do not call this
 * function for each message. */
void arrivals_roll_window(struct arrivals *a, uint64_t now_ns);
/* Fill in the figures of a job, except its number and name. */
void arrivals_report(const struct arrivals *a, struct arrivals_job *ret);
/* Add the figures of a thread to the sum over all threads. */
void arrivals_merge(struct arrivals_figures *to, const struct arrivals_figures *from);
/* Convert the figures for the heartbeat. The array `ret` has room for ARRIVALS_JOBS_MAX jobs. The
 * array `late` has room for ARRIVALS_JOBS_MAX * ARRIVALS_LATE_MAX entries. The field `late` of each
 * job in `ret` points into the array `late`. Returns the number of jobs. */
uint32_t arrivals_fill_beat(
	const struct arrivals_figures *f, struct ctl_beat_job *ret, struct ctl_beat_late *late);
#endif
