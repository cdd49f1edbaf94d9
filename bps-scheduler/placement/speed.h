#ifndef BPS_SCHEDULER_PLACEMENT_SPEED_H
#define BPS_SCHEDULER_PLACEMENT_SPEED_H
/* The assumed speed of the members' network cards. The first of these that is known counts: the
 * configured speed, the speed that the driver reports (both in HELLO), the speed that a member
 * measures (in its heartbeats; common/base/nicspeed.h). Otherwise the speed is unknown, and place.h
 * takes the median of the others.
 *
 * Measured speeds are lower bounds with some noise. So they are not followed continuously, but
 * taken over all at once. This happens when one of them differs by SPEED_STEP from its value at the
 * last time. The value compared is the best of the last SPEED_SPAN_NS to twice that. Speeds that
 * are less than SPEED_EQUAL below another one then count as equal to it, so that equal cards have
 * equal shares. All jobs are then checked for planned moves (balance.h).
 *
 * No speed is taken over within SPEED_SETTLE_NS of a member's first measurement, because the
 * others' come then. A member that restarts repeatedly delays the others by at most SPEED_WAIT_NS.
 * No speed is taken over within SPEED_GAP_NS of the last time. No job is evened out until the first
 * measurement has settled: otherwise a restart of the scheduler would undo earlier moves. A
 * restarted member measures again from scratch. Until then its card keeps its former speed.
 *
 * Why speeds neither oscillate nor slow a job down. A measurement is no less than the mean rate of
 * its card while the network was busy. It is no more than the card can do. By the first, the
 * present placement takes no longer at the measured speeds than it took. The best placement at
 * those speeds takes no longer than that. By the second, the cards do it in no more time. Giving a
 * card less load does not lower its measurement (nicspeed.h). A job moves only when that lowers the
 * fill of its fullest server by BALANCE_GAIN. So while no speed changes by SPEED_STEP, speeds.count
 * stays the same and no partition moves.
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

/* Process a member's heartbeat. */
void speed_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b);
/* Forget the measurements: the process of m is a new one. is_moved: it runs on another machine,
 * too. */
void speed_reset(struct sched_member *m, bool is_moved);
/* Take over the speeds that are due. Returns true if other speeds are used now; then the caller
 * requests balancing. */
bool speed_tick(struct sched_core *c);
/* Return the time until which no job is evened out, because first measurements are coming in. 0: no
 * such time. */
uint64_t speed_settles_ns(const struct sched_core *c);
/* Return the speed in Mbit/s; 0: not known. */
uint64_t speed_mbps(const struct sched_member *m);
/* Return the source of the speed: "set", "driver", "measured" or "unknown". */
const char *speed_source(const struct sched_member *m);
#endif
