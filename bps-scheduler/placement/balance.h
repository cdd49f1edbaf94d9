#ifndef BPS_SCHEDULER_PLACEMENT_BALANCE_H
#define BPS_SCHEDULER_PLACEMENT_BALANCE_H
/* Makes planned moves: partitions move although their server is alive. They move away from servers
 * that are drained or leaving. They move to servers that joined or returned while a job runs, or
 * whose network cards turned out to be faster than those of other servers (speed.h).
 *
 * A move gives the partition another server and a new pgen (the view of its placement). By rule S4
 * (docs/reference/faults.md) the move takes effect between two rounds for all members. If a member
 * already has the result of the present round, the new server gets the result from that member.
 * Otherwise the round is summed again from scratch. No round fails. Contributions in flight for a
 * moving partition are sent again, so only a few partitions move at a time:
 *
 * - A batch is 1/BALANCE_BATCHES of the partitions that will move, but at least BALANCE_BATCH_MIN.
 * - The next batch follows when every agent of the job has applied the view of the previous batch
 *   and has sent a heartbeat recently. An agent whose heartbeats do not arrive stops the moves,
 *   because it would not receive the new placement and would delay its job (rule C4). There is one
 *   exception: if partitions of the job are on a server that is about to end, the job's batches do
 *   not wait for agents. With or without this exception, all servers that would take partitions
 *   must have sent a heartbeat recently.
 * - Each batch is durable before it is sent, like any change of the placement.
 *
 * Moves do not oscillate. A job is balanced only after a server has joined or returned, or after
 * placement has begun to use new speeds of the servers. In both cases, BALANCE_SETTLE_NS must have
 * passed since a server last joined or returned. The fill of a server is its bytes divided by its
 * share (place.h). Moves begin if they lower the fill of the fullest server by at least the
 * fraction BALANCE_GAIN of that fill. Further batches follow while their moves lower this fill by
 * at least the fraction BALANCE_REST. Each move goes between two servers and lowers the fill of the
 * fuller server, so the moves end. A partition moves only if its sums fit into the memory of the
 * new server.
 *
 * This file is part of the core: it runs on the core's thread and reads no clock. */
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

/* Check all jobs at the next tick, because some partitions must leave their server. */
void balance_schedule_now(struct sched_core *c);
/* Check at the next tick whether moves can balance the load of each job's servers. */
void balance_request_all_jobs(struct sched_core *c);
/* Handle a server that has joined or returned and accepts partitions: after BALANCE_SETTLE_NS,
 * check which partitions move to the server. */
void balance_gathered(struct sched_core *c);
/* If a check is due, move the next batch of partitions in each running job that needs moves. After
 * each call of this function, the caller must call sched_commit. */
void balance_tick(struct sched_core *c);

/* Return the memory that the sums of t will take on all servers together. The result assumes the
 * largest partition size that t can get. */
uint64_t balance_tensor_need(const struct sched_job *j, const struct sched_tensor *t);
/* Return how much of a server's memory may be planned for sums. `all`: result of host_memory_of; 0
 * means unknown, and then the result is 0. */
uint64_t balance_usable(uint64_t all);
/* Return how much memory of a server is free for further sums. `all`: result of host_memory_of; 0
 * means unknown. `need`: memory that the server's sums already take. If `all` is 0, the result is
 * UINT64_MAX. */
uint64_t balance_memory_room(uint64_t all, uint64_t need);
static inline uint64_t balance_add_room(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}
#endif
