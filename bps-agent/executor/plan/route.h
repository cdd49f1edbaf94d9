#ifndef BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
#define BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
/* Route of the sum over one machine's GPUs to host memory, and of the sum over all machines back,
 * in the form that the engine follows. The route is chosen elsewhere. Members (local ranks, each
 * with a GPU) form groups. A group sums among its members, or has one member only, and copies that
 * sum to host memory once. The CPU adds the sums of several groups when the partition is pushed (so
 * a tensor has n_groups inputs in host memory).
 *
 *   name         groups           up                       down
 *   copy         n of 1           copy                     each member copies all
 *   rs_ag        1 of n           reduce-scatter, copy     copy a piece each, all-gather
 *   switch_sum   one per switch   reduce-scatter, copy     copy a piece each, all-gather in group
 *   roots        1 of n           reduce to a root, copy   copy to the root, broadcast
 *   ce           n of 1           copy                     copy a piece each, copies between GPUs
 *
 * Source: OSDI'20 section 4.2 for switch_sum and roots. Pure; any thread. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/device/device.h"

#define ROUTE_NAME_BYTES 16
/* Size up to which partitions travel through the GPUs' stages together. A collective of less is not
 * worth a launch in a second process, which waits for its time slice. */
#define ROUTE_CHUNK_BYTES (UINT64_C(64) << 20)

enum route_up {
	UP_COPY,    /* groups of one */
	UP_SCATTER, /* reduce_scatter in the group, each member copies its piece */
	UP_REDUCE,  /* reduce to one member, which copies; chunks take turns over the roots */
};
enum route_down {
	DOWN_COPY,   /* each member copies all */
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
	/* partitions that go through up and down together; 0: each separately */
	uint64_t chunk_bytes;
	struct route_group groups[DEVICE_GPUS_MAX];
	uint8_t n_roots; /* UP_REDUCE; places in the one group */
	uint8_t roots[DEVICE_GPUS_MAX];
};

/* Return whether the route sums on GPUs. Then it needs cliques. */
bool route_has_cliques(const struct route *s);

/* Return the range [*ret_first, *ret_first + *ret_bytes) of a chunk of chunk_bytes that member i of
 * n has in a scatter or gather: equal blocks, and the last member also has the rest. */
void route_piece(
	uint64_t chunk_bytes, unsigned n, unsigned i, uint64_t *ret_first, uint64_t *ret_bytes);
/* Return the bytes of such a block, a multiple of 256. */
uint64_t route_block(uint64_t chunk_bytes, unsigned n);
#endif
