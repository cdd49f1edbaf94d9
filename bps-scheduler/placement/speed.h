#ifndef BPS_SCHEDULER_PLACEMENT_SPEED_H
#define BPS_SCHEDULER_PLACEMENT_SPEED_H
/* How fast the members' network cards are taken to be: what is set, else what the driver tells (both
 * in HELLO), else what a member measures (in its heartbeats; common/base/nicspeed.h), else nothing,
 * which place.h takes as the median of the others.
 *
 * Measured speeds are lower bounds with some noise, so they are not followed but taken over, all at
 * once: when one of them, as the best of the last SPEED_SPAN_NS to twice that, is SPEED_STEP away
 * from what it was the last time. Then those that are less than SPEED_EQUAL below another one count as
 * that one, so that equal cards have equal shares; and all jobs are looked at for planned moves
 * (balance.h).
 *
 * Nothing is taken over within SPEED_SETTLE_NS of a member's first measure, for the others' come
 * then (but one that restarts again and again holds up nobody for longer than SPEED_WAIT_NS), nor
 * within SPEED_GAP_NS of the last time; until the first has settled no job is evened out,
 * else a restart of the scheduler would undo what it did. A member that has restarted measures anew;
 * its card is taken to be as fast as before until then.
 *
 * Why it does not oscillate, nor make a job slower. A measure is no less than the mean rate of its
 * card while the network was busy, and no more than what the card can do. By the first, the present
 * placement takes no longer at the measured speeds than it took; the one that is best at those takes
 * no longer than that; and by the second the cards do it in no more time. Giving a card less does not
 * make its measure less (nicspeed.h), and a job moves only when that lowers the fill of its fullest
 * server by BALANCE_GAIN. So with speeds that do not change by SPEED_STEP, speeds.count stays what it
 * is, and no partition moves.
 *
 * Part of the core: its thread, no clock. */
#include <stdbool.h>
#include <stdint.h>

struct sched_core;
struct sched_member;
struct ctl_beat;

#define SPEED_STEP      1.15
#define SPEED_EQUAL     1.2
#define SPEED_SPAN_NS   UINT64_C(5000000000)
#define SPEED_SETTLE_NS UINT64_C(3000000000)
#define SPEED_WAIT_NS   UINT64_C(10000000000)
#define SPEED_GAP_NS    UINT64_C(10000000000)

/* A member's heartbeat. */
void speed_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b);
/* The process behind m is another one. is_moved: on another machine too. */
void speed_reset(struct sched_member *m, bool is_moved);
/* Take over what is due. Returns whether other speeds are used now; then the caller lets the jobs be
 * balanced. */
bool speed_tick(struct sched_core *c);
/* Until when no job is to be evened out, since measures are only coming in; 0: they are not. */
uint64_t speed_settles_ns(const struct sched_core *c);
/* In Mbit/s; 0: not known. */
uint64_t speed_mbps(const struct sched_member *m);
/* Where that is from: "set", "driver", "measured" or "unknown". */
const char *speed_source(const struct sched_member *m);
#endif
