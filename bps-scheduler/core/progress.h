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

/* A server's or agent's heartbeat; the core's time is that of the beat. */
void progress_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b);
/* The process behind m is another one now: what is known of the former one is forgotten. */
void progress_reset(struct sched_member *m);
#endif
