#ifndef BPS_SCHEDULER_CORE_PROGRESS_H
#define BPS_SCHEDULER_CORE_PROGRESS_H
/* How fast jobs and members go, and who holds a job up: put together from what servers tell with
 * their heartbeats (ctl_beat.jobs). Figures for people; nothing durable, nothing decides by them.
 *
 * A straggler is the one agent that is last in most rounds of the last seconds by a time that
 * matters. Its state has hysteresis, so that it is not raised by one slow step nor cleared by a
 * quick one:
 *
 *   score 0 .. PROGRESS_SURE; each second +1 when it looks like one, -1 when it does not, else as it is
 *   raised when the score gets to PROGRESS_SURE, cleared when it gets to 0
 *
 * Same thread as the core. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/ctlmsg.h"

struct sched_core;
struct sched_member;

#define PROGRESS_SURE         3
#define PROGRESS_ROUNDS_MIN   8    /* fewer tell nothing */
#define PROGRESS_LAG_MIN_US   5000 /* less is noise */
#define PROGRESS_STEP_SHARE   0.02 /* of a step: less is not worth a word */
#define PROGRESS_CLEAR_FACTOR 0.8  /* of what raises it */
#define PROGRESS_EVERY_NS     UINT64_C(1000000000)
#define PROGRESS_RATE_NS      UINT64_C(2000000000) /* rates are over at least so long */

/* Bytes that a member has moved; a sample and the rate since the one before. */
struct sched_traffic {
	uint64_t at_ns, rx_bytes, tx_bytes;
	double rx_bytes_s, tx_bytes_s;
};

/* What one server tells of a job; lists are copied. */
struct sched_server_report {
	struct ctl_beat_job job; /* its late is not valid */
	struct ctl_beat_late late[CTL_BEAT_LATE_MAX];
};

/* Of a job; zeroed is empty. */
struct sched_progress {
	bool is_known; /* some server has told of it */
	uint64_t at_ns, round_then, bytes_then;
	uint64_t round, bytes;
	double steps_s, bytes_s;
	uint32_t rounds;                   /* measured in the last seconds */
	uint32_t wait_p50_us, wait_p99_us; /* from the first to the last arrival */
	uint32_t slowest, slowest_rounds,
		slowest_lag_us; /* agent that is last most often, 0: none */
	unsigned score;
	bool is_straggling; /* the slowest one, above */
};

/* A server that takes long from the last contribution to the sum. score and is_slow have the
 * hysteresis of a straggler, per beat in which it has summed; without sums it recovers. */
struct sched_sum_delay {
	unsigned score;
	bool is_slow;
};

/* A server's or agent's heartbeat; the core's time is that of the beat. */
void progress_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b);
/* The process behind m is another one now: what is known of the former one is forgotten. */
void progress_reset(struct sched_member *m);
#endif
