/* Run many seeds in several forked processes, each with one thread. The counters of these processes
 * are in shared memory. */
#include "tests/sim/fleet.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/sim.h"

#define BLOCK 1000 /* number of seeds that a process runs before it reads is_over again */

struct sim_share {
	struct sim_totals tot;
	uint64_t n_bad;
};
struct sim_board {
	/* set by a process that finds a violation; every process reads it before each block of
	 * seeds */
	_Atomic bool is_over;
	struct sim_share shares[];
};

/* Add the counters of a process, `from`, to the totals `to`. If the slowest history in `from` is
 * slower than to->slowest_ns, copy the time and the seed of this history to `to`. */
static void add(struct sim_totals *to, const struct sim_totals *from)
{
	uint64_t *t = (uint64_t *)to;
	const uint64_t *f = (const uint64_t *)from;
	uint64_t ns = to->slowest_ns, seed = to->slowest_seed;

	for (size_t i = 0; i < sizeof(*to) / sizeof(*t); i++)
		t[i] += f[i];
	to->slowest_ns = from->slowest_ns > ns ? from->slowest_ns : ns;
	to->slowest_seed = from->slowest_ns > ns ? from->slowest_seed : seed;
}
_Static_assert(sizeof(struct sim_totals) % sizeof(uint64_t) == 0, "totals are numbers");

static void work(struct sim_board *b, unsigned me, unsigned n_jobs, uint64_t first, uint64_t last,
	bool keeps_going, fleet_run_fn *fn, void *ctx)
{
	struct sim_share *mine = &b->shares[me];

	for (uint64_t at = first + (uint64_t)me * BLOCK; at <= last && !atomic_load(&b->is_over);
		at += (uint64_t)n_jobs * BLOCK) {
		uint64_t end = last - at < BLOCK ? last : at + BLOCK - 1;

		mine->n_bad += fn(ctx, at, end, &mine->tot);
		if (mine->n_bad && !keeps_going)
			atomic_store(&b->is_over, true);
	}
}

/* Wait for one process to end. Return 0 when its exit status is 0, else 1. */
static unsigned reap(struct sim_board *b, bool keeps_going)
{
	int status = 0;

	if (wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (!keeps_going)
		atomic_store(&b->is_over, true);
	return 1;
}

uint64_t fleet_run(unsigned n_jobs, uint64_t first, uint64_t last, bool keeps_going,
	fleet_run_fn *fn, void *ctx, struct sim_totals *ret_tot)
{
	size_t bytes = sizeof(struct sim_board) + n_jobs * sizeof(struct sim_share);
	struct sim_board *b =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t n_bad = 0;
	unsigned n_started = 0;

	if (b == MAP_FAILED)
		abort();
	fflush(NULL);
	for (unsigned i = 0; i < n_jobs; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			work(b, i, n_jobs, first, last, keeps_going, fn, ctx);
			fflush(NULL);
			_exit(0);
		}
		n_started += pid > 0;
		n_bad += pid < 0;
	}
	while (n_started--)
		n_bad += reap(b, keeps_going);
	for (unsigned i = 0; i < n_jobs; i++) {
		add(ret_tot, &b->shares[i].tot);
		n_bad += b->shares[i].n_bad;
	}
	munmap(b, bytes);
	return n_bad;
}
