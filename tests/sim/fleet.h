#ifndef BPS_TESTS_SIM_FLEET_H
#define BPS_TESTS_SIM_FLEET_H
/* A range of seeds in several processes. Each takes every n-th block, and their counters are added
 * in shared memory. One history runs in one process as always. */
#include <stdbool.h>
#include <stdint.h>

struct sim_totals;

/* Run seeds first to last in the caller, add to tot, and return how many were violated. When that
 * is not 0 and the fleet does not keep going, it is not called again. */
typedef uint64_t fleet_run_fn(void *ctx, uint64_t first, uint64_t last, struct sim_totals *tot);

/* Return the violations of all processes. A process that dies counts as one; it has printed its
 * seed. */
uint64_t fleet_run(unsigned n_jobs, uint64_t first, uint64_t last, bool keeps_going,
	fleet_run_fn *fn, void *ctx, struct sim_totals *ret_tot);
#endif
