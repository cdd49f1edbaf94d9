#ifndef BPS_TESTS_SIM_MOVE_H
#define BPS_TESTS_SIM_MOVE_H
/* move_parts injects a fault: some partitions of the running job get a new pgen, although no event
 * requires this. The server of such a partition may change or stay the same. The other functions
 * look up state in the scheduler's core. All these functions are in a separate file, because names
 * in the core's headers clash with names in sim.h. */
#include <stdint.h>

struct sched_core;

/* Give a new pgen to about half of the partitions. When the core handles its next event, the core
 * stores these changes durably and sends them. draw(ctx, n) returns a random number from 0 to
 * n - 1. */
void move_parts(struct sched_core *c, uint64_t (*draw)(void *ctx, uint64_t n), void *ctx);

/* Return the number of partitions on the server with the given name. */
uint64_t move_parts_at(const struct sched_core *c, const char *name);
/* Return the id of a forming or running job of the user, or 0. */
uint32_t move_job_of(const struct sched_core *c, uint32_t uid);
/* Return the number of machines that have not left the job. The job may have ended. */
unsigned move_machines_left(const struct sched_core *core, uint32_t job);
#endif
