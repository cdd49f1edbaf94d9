#ifndef BPS_SCHEDULER_PLACEMENT_BALANCE_H
#define BPS_SCHEDULER_PLACEMENT_BALANCE_H
/* Partitions that move although their server lives: away from servers that are drained or leave,
 * and towards servers that came or came back while a job runs, or whose cards have turned out to be
 * faster than others' (speed.h).
 *
 * A move is a new pgen for the partition at another server. Rule S4 makes it take effect between
 * two rounds for everybody: a round that somebody has the result of is donated, one that nobody has
 * is begun anew, and no round fails. What that costs is what the partitions that move have under
 * way at that moment, so few of them move at a time:
 *
 *   - a BALANCE_BATCHES-th of those that will move, and at least BALANCE_BATCH_MIN;
 *   - the next ones when every agent of the job has been heard since and has applied the view of
 *     the last ones. An agent that the scheduler does not hear stops them: it would hold up its job
 *     without knowing (C4). Only a server that is about to end does not wait for that: its
 *     partitions will move in any case. All servers that would take something must be heard;
 *   - each batch is durable before it is told, as any change of places.
 *
 * Nothing flaps: a job is evened out only after servers have come (and stayed for
 * BALANCE_SETTLE_NS) or other speeds are used, when that lowers the fill of its fullest server,
 * compared to the shares of place.h, by BALANCE_GAIN; then until no more than BALANCE_REST is to be
 * gained. Each move lowers the fill of the fuller of the two servers, so it ends. Only partitions
 * whose sums fit into the memory of the new server move.
 *
 * Part of the core: its thread, no clock. */
#include <stdint.h>

struct sched_core;
struct sched_member;

#define BALANCE_BATCHES   8
#define BALANCE_BATCH_MIN 16
#define BALANCE_SETTLE_NS UINT64_C(2000000000)
#define BALANCE_GAIN      0.15
#define BALANCE_REST      0.03

/* Something is to leave its place: look at all jobs at the next tick. */
void balance_soon(struct sched_core *c);
/* Even all jobs out from the next tick on. */
void balance_all(struct sched_core *c);
/* A server that takes partitions is there now: after a while see what it can take over. */
void balance_gathered(struct sched_core *c);
/* Move what is due; the caller commits. */
void balance_tick(struct sched_core *c);

/* Memory that the sums of its partitions take on each member, by id; the caller's to free. */
uint64_t *balance_needs(const struct sched_core *c);
/* What more it has room for, UINT64_MAX when it does not tell. */
uint64_t balance_room(const struct sched_member *m, uint64_t need);
static inline uint64_t balance_add_room(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}
#endif
