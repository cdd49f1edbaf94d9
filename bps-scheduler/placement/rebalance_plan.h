#ifndef BPS_SCHEDULER_PLACEMENT_REBALANCE_PLAN_H
#define BPS_SCHEDULER_PLACEMENT_REBALANCE_PLAN_H
/* Which partitions have to move for servers to have what they should, when they have something
 * already (place.h begins with nothing). Pure functions over the caller's arrays; no state.
 *
 * Each server has a share of the job (place_shares), and its fill is what it has over its share.
 * Again and again the fullest server gives a partition to the emptiest: the largest that does not
 * make that one the fuller of the two, else the smallest that still leaves both below what the
 * fullest had. So every move lowers the larger fill of two servers and none undoes another. */
#include <stddef.h>
#include <stdint.h>

struct placement;

struct rebalance_part {
	uint64_t bytes, need; /* need: memory on the server that has it */
	uint32_t server;      /* index into place.servers: where it is */
	uint32_t to;          /* out: where it goes; server: it stays */
	uint32_t order;       /* out: of the moves, from 0 */
	uint32_t ref;         /* the caller's */
};

struct rebalance_gain {
	double before, after; /* fill of the fullest server; 1: what its share says */
	uint32_t n_moves;
};

/* Plan all moves. p: with loads; its shares are set. rooms: bytes that each server's memory has
 * left;
 * they are used up. parts: sorted anew. */
struct rebalance_gain rebalance_plan(
	struct placement *p, uint64_t *rooms, struct rebalance_part *parts, size_t n_parts);
#endif
