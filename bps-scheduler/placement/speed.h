#ifndef BPS_SCHEDULER_PLACEMENT_SPEED_H
#define BPS_SCHEDULER_PLACEMENT_SPEED_H
/* Determines the speed that placement uses for each member's network card. There are three values:
 * the configured speed, the speed that the driver reports, and the speed that the member measures
 * (common/base/nicspeed.h). Placement uses the first known value in this order. HELLO contains the
 * first two values, and heartbeats contain the third. If no value is known, place.h uses the median
 * of the other cards.
 *
 * Measured speeds are lower bounds with some noise. So placement does not follow each measurement,
 * but updates all speeds at once. An update becomes due when the measured speed of a member differs
 * by the factor SPEED_STEP from its value at the previous update. A measured speed is the highest
 * measurement in a window that ends now. The length of the window varies between SPEED_SPAN_NS and
 * 2 * SPEED_SPAN_NS. An update treats two speeds as equal if they differ by less than the factor
 * SPEED_EQUAL, so that equal cards have equal shares. After an update the scheduler checks whether
 * moves can balance the load of each job's servers (balance.h).
 *
 * There is no update within SPEED_SETTLE_NS after a member's first measurement, because other
 * members usually make their first measurements during this time. A member that restarts repeatedly
 * delays an update by at most SPEED_WAIT_NS. Two updates are at least SPEED_GAP_NS apart. While the
 * first update since the scheduler's start is due but has not taken place, no job is balanced.
 * Without this wait, a restart of the scheduler would undo earlier moves. A restarted member
 * measures again from scratch. Until the member has measured, its previous speed stays in use.
 *
 * An update does not slow a job down. A measured speed is at least the mean rate of the card while
 * the network was busy, and at most the real speed of the card. Let T be the time that a round
 * really takes with the present placement.
 *   1. Compute the time of a round with the present placement from the measured speeds. The result
 *      is at most T, because the measured speeds are at least the mean rates.
 *   2. Compute the time with the best placement, again from the measured speeds. The result is at
 *      most the result of step 1.
 *   3. On the real cards, a round with the best placement takes at most the result of step 2,
 *      because the real speeds are at least the measured speeds.
 * So a round with the best placement takes at most T.
 *
 * Updates do not oscillate. A card with less load does not measure a lower speed (nicspeed.h).
 * While no speed changes by SPEED_STEP, there is no update, so no partition moves. After an update,
 * partitions of a job move only if the moves lower the fill of the job's fullest server by
 * BALANCE_GAIN.
 *
 * This file is part of the core: it runs on the core's thread and reads no clock. */
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

/* Record the speed that a member's heartbeat reports. */
void speed_receive_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b);
/* Forget the measurements of member m, because m has a new process. is_moved: the new process runs
 * on another machine than the former process, so forget the speed in use too. */
void speed_reset(struct sched_member *m, bool is_moved);
/* Update the speeds in use if an update is due. Returns true if an update took place. In this
 * case the caller must call balance_request_all_jobs. */
bool speed_tick(struct sched_core *c);
/* Return the time from which the scheduler may balance jobs. Before this time, the first
 * measurements are still arriving. 0: there is no need to wait. */
uint64_t speed_settles_ns(const struct sched_core *c);
/* Return the speed that placement uses for m, in Mbit/s; 0: not known. */
uint64_t speed_mbps(const struct sched_member *m);
/* Return the source of the speed that placement uses for m: "set", "driver", "measured" or
 * "unknown". */
const char *speed_source(const struct sched_member *m);
#endif
