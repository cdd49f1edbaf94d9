#ifndef BPS_TESTS_SIM_FLEET_H
#define BPS_TESTS_SIM_FLEET_H
/* Run a range of seeds in several processes. Process k of n runs the blocks k, k + n, k + 2n, ...
 * Each history runs within one process. Each process has its own counters in shared memory. After
 * all processes have ended, fleet_run adds their counters to *ret_tot. */
#include <stdbool.h>
#include <stdint.h>

struct sim_totals;

/* Run the seeds from `first` to `last` in the calling process. Add the counters to *tot, and return
 * the number of seeds with a violation. If the caller of fleet_run did not set `keeps_going`, stop
 * after the first seed with a violation. */
typedef uint64_t fleet_run_fn(void *ctx, uint64_t first, uint64_t last, struct sim_totals *tot);

/* Return the number of violations of all processes. A process that dies counts as one violation,
 * and prints its seed before it dies. */
uint64_t fleet_run(unsigned n_jobs, uint64_t first, uint64_t last, bool keeps_going,
	fleet_run_fn *fn, void *ctx, struct sim_totals *ret_tot);
#endif
