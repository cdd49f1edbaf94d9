#ifndef BPS_SCHEDULER_PLACEMENT_REBALANCE_PLAN_H
#define BPS_SCHEDULER_PLACEMENT_REBALANCE_PLAN_H
/* Plan which placed partitions must move so that each server has its share. place.h plans for
 * servers without partitions. Pure functions over the caller's arrays; no state.
 *
 * Each server has a share of the job (place_shares). Its fill is its bytes over its share.
 * Repeatedly the fullest server gives a partition to the emptiest. This is the largest partition
 * that does not make the receiver the fuller of the two. If there is none, it is the smallest one
 * that leaves both below the former maximum. So every move lowers the larger fill of two servers,
 * and no move undoes another. */
#include <stddef.h>
#include <stdint.h>

struct placement;

struct rebalance_part {
	uint64_t bytes, need; /* need: memory on its server */
	uint32_t server;      /* present server, an index into place.servers */
	uint32_t to;          /* out: server after the plan; equal to `server` if it stays */
	uint32_t order;       /* out: order among the moves, from 0 */
	uint32_t ref;         /* for the caller's use */
};

struct rebalance_gain {
	double before, after; /* fill of the fullest server; 1: exactly its share */
	uint32_t n_moves;
};

/* Plan all moves. p: with loads; this sets its shares. rooms: bytes left in each server's memory;
 * the plan subtracts from them. parts: sorted in place. */
struct rebalance_gain rebalance_plan(
	struct placement *p, uint64_t *rooms, struct rebalance_part *parts, size_t n_parts);
#endif
