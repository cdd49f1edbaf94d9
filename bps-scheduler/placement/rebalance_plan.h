#ifndef BPS_SCHEDULER_PLACEMENT_REBALANCE_PLAN_H
#define BPS_SCHEDULER_PLACEMENT_REBALANCE_PLAN_H
/* Plans which partitions must move so that each server has its share of the job. (place.h places
 * partitions that have no server yet.) The functions are pure: they use only the caller's arrays.
 *
 * Each server has a share of the job (place_compute_shares). Its fill is its bytes divided by its
 * share. The plan repeatedly moves a partition from the server with the largest fill (the sender)
 * to the server with the smallest fill (the receiver). The plan chooses the largest partition that
 * meets this condition: after the move, the receiver's fill is at most the sender's fill. If there
 * is no such partition, the plan chooses the sender's smallest partition. In that case, the
 * receiver's fill after the move must be below the sender's fill before the move. So every move
 * lowers the larger fill of two servers, and no move undoes another. */
#include <stddef.h>
#include <stdint.h>

struct placement;

struct rebalance_part {
	/* bytes: size of the partition; need: bytes of memory that its sums take on a server */
	uint64_t bytes, need;
	uint32_t server; /* present server, an index into place.servers */
	/* result: new server, an index into place.servers; equal to `server` if the partition
	 * stays */
	uint32_t to;
	uint32_t order; /* result: position of this move in the order of the moves, from 0 */
	uint32_t ref;   /* any value of the caller; the plan does not use it */
};

struct rebalance_gain {
	/* fill of the fullest server before and after the moves; only their ratio has a meaning,
	 * because the shares of all servers may add up to more than the job */
	double before, after;
	uint32_t n_moves;
};

/* Plan all moves, and write the results to the array `parts`. p: machines and servers with their
 * present loads; this function sets their shares. rooms: number of free bytes in each server's
 * memory. The plan subtracts the bytes that the moved partitions need. parts: the function sorts
 * this array in place. */
struct rebalance_gain rebalance_plan(
	struct placement *p, uint64_t *rooms, struct rebalance_part *parts, size_t n_parts);
#endif
