#ifndef BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
#define BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
/* How the sum over one machine's GPUs gets into host memory, and the sum over all machines back, in
 * the form that the engine follows; which one it is has been chosen elsewhere. Members
 * (local ranks, each with a GPU) fall into groups. A group sums among its members, or has one
 * member only, and brings that sum to host memory once; several groups' sums are added by the CPU
 * when the partition is pushed (so a tensor has n_groups inputs in host memory).
 *
 *   name         groups           up                       down
 *   copy         n of 1           copy                     everybody copies all
 *   rs_ag        1 of n           reduce-scatter, copy     copy a piece each, all-gather
 *   switch_sum   one per switch   reduce-scatter, copy     copy a piece each, all-gather in the group
 *   roots        1 of n           reduce to a root, copy   copy to the root, broadcast
 *   ce           n of 1           copy                     copy a piece each, copies between GPUs
 *
 * Source: OSDI'20 section 4.2 for switch_sum and roots. Pure; any thread. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/device/device.h"

#define ROUTE_NAME_BYTES 16
/* Collectives of less than this are not worth a launch in a second process, which waits for its
 * time slice: partitions travel through the GPUs' stages together up to it. */
#define ROUTE_CHUNK_BYTES (UINT64_C(64) << 20)

enum route_up {
	UP_COPY,    /* groups of one */
	UP_SCATTER, /* reduce_scatter in the group, each member copies its piece */
	UP_REDUCE,  /* reduce to one member, which copies; chunks take turns over the roots */
};
enum route_down {
	DOWN_COPY,   /* everybody copies all */
	DOWN_GATHER, /* each member of a group copies its piece, all_gather in the group */
	DOWN_BCAST,  /* the chunk's root copies, broadcast in the group */
	DOWN_PEER,   /* each member of the machine copies its piece, then to all others */
};

struct route_group {
	uint8_t n;
	uint8_t member[DEVICE_GPUS_MAX];
};

struct route {
	char name[ROUTE_NAME_BYTES];
	enum route_up up;
	enum route_down down;
	uint8_t n_members, n_groups;
	uint64_t chunk_bytes; /* partitions that go through up and down together; 0: each alone */
	struct route_group groups[DEVICE_GPUS_MAX];
	uint8_t n_roots; /* UP_REDUCE; places in the one group */
	uint8_t roots[DEVICE_GPUS_MAX];
};

/* Does it sum on GPUs? Then it needs cliques. */
bool route_has_cliques(const struct route *s);

/* Bytes [*ret_first, *ret_first + *ret_bytes) of a chunk of that many are member i's of n in a
 * scatter or gather: equal blocks, and the last member has what is left too. */
void route_piece(
	uint64_t chunk_bytes, unsigned n, unsigned i, uint64_t *ret_first, uint64_t *ret_bytes);
/* Bytes of such a block, a multiple of 256. */
uint64_t route_block(uint64_t chunk_bytes, unsigned n);
#endif
