#ifndef BPS_TESTS_SIM_MOVE_H
#define BPS_TESTS_SIM_MOVE_H
/* A fault without a cause: some partitions of the running job get a new pgen, at another server or
 * at the same one. Also look-ups in the scheduler's core. They are separate because the core's
 * names clash with those of sim.h. */
#include <stdint.h>

struct sched_core;

/* Move about half of the partitions. The core's next event makes the move durable and sends it.
 * draw(ctx, n): 0 .. n - 1. */
void move_parts(struct sched_core *c, uint64_t (*draw)(void *ctx, uint64_t n), void *ctx);

/* Return the number of partitions on the server of that name. */
uint64_t move_parts_at(const struct sched_core *c, const char *name);
/* Return a forming or running job of that user; 0: none. */
uint32_t move_job_of(const struct sched_core *c, uint32_t uid);
/* Return the number of machines that have not left that job, which may have ended. */
unsigned move_machines_left(const struct sched_core *core, uint32_t job);
#endif
