#ifndef BPS_SCHEDULER_MODEL_HOST_MEMORY_H
#define BPS_SCHEDULER_MODEL_HOST_MEMORY_H
/* Memory of the hosts, and what their daemons may take of it. The daemons of one host share its
 * memory, whatever each of them is allowed. Where they may take more than the host has, each counts
 * with the same fraction of its limit. Everything that asks for the room of servers uses this:
 * drains, moves, quotas and the losses that a cluster tolerates. Thread: the core's. */
#include <stdint.h>

struct sched_core;
struct sched_member;

struct host_memory {
	uint64_t bytes;          /* as its daemons report; 0: unknown */
	uint64_t promised_bytes; /* limits of its usable daemons */
};

/* Return the memory of all hosts, by host_idx. The caller frees it. */
struct host_memory *host_memory_new(const struct sched_core *c);
/* Return the memory that a server has for sums; 0: unknown. */
uint64_t host_memory_of(const struct host_memory *hosts, const struct sched_member *m);
#endif
