#ifndef BPS_SCHEDULER_CORE_PROGRESS_H
#define BPS_SCHEDULER_CORE_PROGRESS_H
/* Computes figures from the servers' heartbeats (ctl_beat.jobs): the pace of jobs and members, and
 * the agent that delays a job. The figures are for users: they are not durable, and no decision
 * depends on them.
 *
 * A straggler is the one agent whose contribution arrives last in most rounds of the past few
 * seconds. The agent's delay must be at least PROGRESS_LAG_MIN_US, and at least the fraction
 * PROGRESS_STEP_SHARE of a step's time. The state of being a straggler has hysteresis: one slow
 * step does not set the state, and one quick step does not clear it.
 *
 * A job has a score between 0 and PROGRESS_SURE, which is updated each second. The score rises by 1
 * if the job's slowest agent looks like a straggler. The score falls by 1 if that agent does not
 * look like one, or if there were fewer than PROGRESS_ROUNDS_MIN rounds. The score stays the same
 * if a figure is only slightly below its limit (PROGRESS_CLEAR_FACTOR). The agent becomes a
 * straggler when the score reaches PROGRESS_SURE, and stops being one when the score reaches 0.
 *
 * All functions run on the core's thread. */
#include <stdint.h>

#include "common/wire/ctlmsg.h"

struct sched_core;
struct sched_member;

#define PROGRESS_SURE 3
/* If a job had fewer rounds than this in the past few seconds, no agent looks like a straggler. */
#define PROGRESS_ROUNDS_MIN 8
#define PROGRESS_LAG_MIN_US 5000 /* a delay below this limit counts as noise */
#define PROGRESS_STEP_SHARE 0.02 /* a delay below this fraction of a step's time is not reported */
/* Fraction of a limit. A figure below this fraction of its limit lowers the score. A figure between
 * this fraction and the limit does not change the score. */
#define PROGRESS_CLEAR_FACTOR 0.8
#define PROGRESS_EVERY_NS     UINT64_C(1000000000)
#define PROGRESS_RATE_NS      UINT64_C(2000000000) /* minimum time over which rates are computed */

/* Update the figures from a heartbeat of a server or agent. c->now_ns must be set. */
void progress_receive_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b);
/* Forget the figures of m's previous process, because another process has replaced it. */
void progress_reset(struct sched_member *m);
#endif
