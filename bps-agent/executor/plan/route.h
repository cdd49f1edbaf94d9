#ifndef BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
#define BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
/* A route defines how the engine moves sums between a machine's GPUs and host memory. The sum over
 * the machine's GPUs moves "up" to host memory. The sum over all machines moves "down" to the GPUs.
 * choose.h chooses the route. Members (local ranks, each with a GPU) form groups. A group sums the
 * tensors of its members and copies the sum to host memory once. A group of one member copies its
 * tensor. If there are several groups, the CPU adds their sums when the partition is pushed. So a
 * tensor has n_groups inputs in host memory.
 *
 *   name         groups           up                       down
 *   copy         n groups of 1    copy                     each member copies all
 *   rs_ag        1 group of n     reduce-scatter, copy     copy a piece each, all-gather
 *   switch_sum   one per switch   reduce-scatter, copy     copy a piece each, all-gather in group
 *   roots        1 group of n     reduce to a root, copy   copy to the root, broadcast
 *   ce           n groups of 1    copy                     copy a piece each, copy to other GPUs
 *
 * The strategies switch_sum and roots come from the OSDI'20 paper (strategy.h), section 4.2. The
 * functions have no state. Thread: any. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/device/device.h"

#define ROUTE_NAME_BYTES 16
/* Size of a chunk: total bytes of the partitions that one collective sums. Smaller chunks need more
 * launches of collectives. The trainer uses the GPU, too, so each launch must wait for a time slice
 * of the GPU. */
#define ROUTE_CHUNK_BYTES (UINT64_C(64) << 20)

enum route_up {
	UP_COPY,    /* each group has one member, which copies its tensor */
	UP_SCATTER, /* reduce_scatter in the group, then each member copies its piece */
	/* Reduce in the group to one member, the chunk's root. The root then copies the sum to the
	 * host. If the route has several roots, successive chunks of a tensor have different
	 * roots. */
	UP_REDUCE,
};
enum route_down {
	DOWN_COPY,   /* each member copies all of the sum */
	DOWN_GATHER, /* each member of a group copies its piece, then all_gather in the group */
	DOWN_BCAST,  /* the chunk's root copies the sum, then broadcasts it in the group */
	DOWN_PEER,   /* each member copies its piece from host to GPU, then to all other GPUs */
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
	/* size of a chunk in bytes; 0: each partition is a chunk */
	uint64_t chunk_bytes;
	struct route_group groups[DEVICE_GPUS_MAX];
	/* used with UP_REDUCE: number of entries in the array `roots`. An entry is the position of
	 * a root in the route's only group. */
	uint8_t n_roots;
	uint8_t roots[DEVICE_GPUS_MAX];
};

/* Return whether the route sums on GPUs, and therefore needs cliques. */
bool route_has_cliques(const struct route *s);

/* Compute member i's piece of a chunk in a scatter or gather among n members. *ret_first: offset of
 * the piece in the chunk; *ret_bytes: its size. The members have equal blocks, and the last member
 * also has the remainder. */
void route_piece_range(
	uint64_t chunk_bytes, unsigned n, unsigned i, uint64_t *ret_first, uint64_t *ret_bytes);
/* Return the size of one of the equal blocks into which route_piece_range divides the chunk. The
 * size is a multiple of 256 bytes. */
uint64_t route_block_bytes(uint64_t chunk_bytes, unsigned n);
#endif
