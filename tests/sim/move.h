#ifndef BPS_TESTS_SIM_MOVE_H
#define BPS_TESTS_SIM_MOVE_H
/* A fault that the scheduler does not have a cause for yet, as draining a server and shrinking a
 * job will be: some partitions of the running job get a new pgen, at another server or at the same
 * one. Reaches into the scheduler's core, therefore apart from sim.h, whose names are others. */
#include <stdint.h>

struct sched_core;

/* Move about half of the partitions; the core's next event makes it durable and tells. draw(ctx,
 * n): 0 .. n - 1. */
void move_parts(struct sched_core *c, uint64_t (*draw)(void *ctx, uint64_t n), void *ctx);
/* Machines that have not left that job, which may have ended. */
unsigned move_machines_left(const struct sched_core *core, uint32_t job);
#endif
