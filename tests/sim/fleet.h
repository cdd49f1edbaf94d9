#ifndef BPS_TESTS_SIM_FLEET_H
#define BPS_TESTS_SIM_FLEET_H
/* A range of seeds in several processes: each takes every n-th block of them, and what they count
 * comes together in memory that they share. One history is one process's as always. */
#include <stdbool.h>
#include <stdint.h>

struct sim_totals;

/* The caller's part of it: runs seeds first to last, adds to tot, returns how many were violated.
 * Where that is not 0 and the fleet does not keep going, it is not called again. */
typedef uint64_t fleet_run_fn(void *ctx, uint64_t first, uint64_t last, struct sim_totals *tot);

/* Returns the violations of all; a process that dies (it has said at which seed) is one. */
uint64_t fleet_run(unsigned n_jobs, uint64_t first, uint64_t last, bool keeps_going,
	fleet_run_fn *fn, void *ctx, struct sim_totals *ret_tot);
#endif
