#ifndef BPS_SCHEDULER_MODEL_HOST_MEMORY_H
#define BPS_SCHEDULER_MODEL_HOST_MEMORY_H
/* The memory of the hosts, and how much of it each daemon can really use. Each daemon has its own
 * memory limit, but the daemons of one host share the memory of that host. If their limits add up
 * to more than the host has, each limit counts only in part: all limits are scaled down by the same
 * factor. All decisions about free memory on servers use the scaled limits. These are the decisions
 * about drains, moves, quotas, and the number of servers that the cluster can lose. All functions
 * run on the core's thread. */
#include <stdint.h>

struct sched_core;
struct sched_member;

struct host_memory {
	uint64_t bytes; /* memory of the host, as its daemons report it; 0: unknown */
	/* sum of the memory limits of those daemons of the host that are not dead */
	uint64_t promised_bytes;
};

/* Return an array with the memory of each host, indexed by host_idx of struct sched_member. The
 * caller frees it. */
struct host_memory *host_memory_new(const struct sched_core *c);
/* Return the memory that a server can use for sums, in bytes. The result 0 means unknown. */
uint64_t host_memory_of(const struct host_memory *hosts, const struct sched_member *m);
#endif
