#ifndef BPS_SCHEDULER_PLACEMENT_BALANCE_H
#define BPS_SCHEDULER_PLACEMENT_BALANCE_H
/* Planned moves: partitions that move although their server is alive. They move away from servers
 * that are drained or leaving. They move towards servers that came or returned while a job runs, or
 * whose cards turned out to be faster than others' (speed.h).
 *
 * A move is a new pgen for the partition at another server. By rule S4 it takes effect between two
 * rounds for all members. A round whose result some member has is donated. A round whose result no
 * member has is summed again from scratch. No round fails. A move costs the moving partitions what
 * they have in flight at that moment, so few of them move at a time:
 *
 * - A batch has a BALANCE_BATCHES-th of those that will move, and at least BALANCE_BATCH_MIN.
 * - The next batch follows when every agent of the job has sent a heartbeat since and has applied
 *   the view of the last batch. An agent that the scheduler does not receive from stops the moves:
 *   it would delay its job without knowing (C4). Only a server that is about to end does not wait
 *   for that, because its partitions move in any case. The scheduler must receive from all servers
 *   that would take partitions.
 * - Each batch is durable before it is sent, as any change of places.
 *
 * Moves do not oscillate. A job is evened out only after servers have come (and stayed for
 * BALANCE_SETTLE_NS) or other speeds are used. It starts when it lowers the fill of the job's
 * fullest server, compared to the shares of place.h, by BALANCE_GAIN. It continues until no more
 * than BALANCE_REST can be gained. Each move lowers the fill of the fuller of the two servers, so
 * the moves end. A partition moves only if its sums fit into the memory of the new server.
 *
 * Part of the core: its thread, no clock. */
#include <stdint.h>

struct sched_core;
struct sched_job;
struct sched_member;
struct sched_tensor;

#define BALANCE_BATCHES   8
#define BALANCE_BATCH_MIN 16
#define BALANCE_SETTLE_NS UINT64_C(2000000000)
#define BALANCE_GAIN      0.15
#define BALANCE_REST      0.03

/* Check all jobs at the next tick: some partitions must leave their server. */
void balance_soon(struct sched_core *c);
/* Even out all jobs from the next tick on. */
void balance_all(struct sched_core *c);
/* Handle a new server that takes partitions: check after a while which ones it can take over. */
void balance_gathered(struct sched_core *c);
/* Move the partitions that are due; the caller commits. */
void balance_tick(struct sched_core *c);

/* Return the memory that the sums of its partitions take on each member, by id. The caller frees
 * it. */
uint64_t *balance_needs(const struct sched_core *c);
/* Return the memory that the sums of t will take on servers, in partitions of the largest size that
 * the job may get. */
uint64_t balance_tensor_need(const struct sched_job *j, const struct sched_tensor *t);
/* Return the memory that a server has left for sums. all: of host_memory_of; 0: unknown, and then
 * the result is UINT64_MAX. */
uint64_t balance_room(uint64_t all, uint64_t need);
static inline uint64_t balance_add_room(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}
#endif
