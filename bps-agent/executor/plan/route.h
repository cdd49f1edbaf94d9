#ifndef BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
#define BPS_AGENT_EXECUTOR_PLAN_ROUTE_H
/* A route describes, for the engine, how the sum over one machine's GPUs gets to host memory
 * ("up"), and how the sum over all machines gets back ("down"). choose.h chooses the route. Members
 * (local ranks, each with a GPU) form groups. A group sums among its members and copies the sum to
 * host memory once. A group of one member copies without a sum. If there are several groups, the
 * CPU adds their sums when the partition is pushed. So a tensor has n_groups inputs in host memory.
 *
 *   name         groups           up                       down
 *   copy         n of 1           copy                     each member copies all
 *   rs_ag        1 of n           reduce-scatter, copy     copy a piece each, all-gather
 *   switch_sum   one per switch   reduce-scatter, copy     copy a piece each, all-gather in group
 *   roots        1 of n           reduce to a root, copy   copy to the root, broadcast
 *   ce           n of 1           copy                     copy a piece each, copies between GPUs
 *
 * Source: OSDI'20 section 4.2 for switch_sum and roots. Pure. Thread: any. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/device/device.h"

#define ROUTE_NAME_BYTES 16
/* Partitions up to this size in all go through the collectives together, as a chunk. A smaller
 * collective is inefficient: its launch must wait until the GPU gives the executor a time slice
 * beside the trainer. */
#define ROUTE_CHUNK_BYTES (UINT64_C(64) << 20)

enum route_up {
	UP_COPY,    /* groups have one member, which copies its tensor */
	UP_SCATTER, /* reduce_scatter in the group, each member copies its piece */
	/* reduce to one member, the root, which copies; the root changes from chunk to chunk */
	UP_REDUCE,
};
enum route_down {
	DOWN_COPY,   /* each member copies all of the sum */
	DOWN_GATHER, /* each member of a group copies its piece, then all_gather in the group */
	DOWN_BCAST,  /* the chunk's root copies, then broadcast in the group */
	DOWN_PEER,   /* each member copies its piece from the host, then to all other members */
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
	/* size of a chunk, whose partitions go through up and down together; 0: each partition is a
	 * chunk */
	uint64_t chunk_bytes;
	struct route_group groups[DEVICE_GPUS_MAX];
	uint8_t n_roots; /* used with UP_REDUCE; roots: positions in the only group */
	uint8_t roots[DEVICE_GPUS_MAX];
};

/* Return whether the route sums on GPUs, and therefore needs cliques. */
bool route_has_cliques(const struct route *s);

/* Return the range [*ret_first, *ret_first + *ret_bytes) of a chunk of chunk_bytes that member i of
 * n has in a scatter or gather. The members have equal blocks, and the last one also has the
 * remainder. */
void route_piece(
	uint64_t chunk_bytes, unsigned n, unsigned i, uint64_t *ret_first, uint64_t *ret_bytes);
/* Return the bytes of an equal block of route_piece, a multiple of 256. */
uint64_t route_block(uint64_t chunk_bytes, unsigned n);
#endif
