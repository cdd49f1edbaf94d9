/* A worker with a tensor in device memory, or in the plain memory of bps-agent-host. The worker
 * checks the exact sum of every round. When FILE exists, rank 0 notifies the other workers, and all
 * workers end. The last line of output has the number of rounds.
 *   gpu-rounds FILE */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <bps.h>

#define N_ELEMS 300001

static void check(int rc, const char *what)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "gpu-rounds: %s: %s (%s)\n", what, bps_last_error(), bps_strerror(rc));
	exit(1);
}

int main(int argc, char **argv)
{
	struct bps_tensor *sum, *vote;
	struct bps *job;
	int64_t *values, n = 0, is_over = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: gpu-rounds FILE\n");
		return 64;
	}
	check(bps_open(NULL, &job), "open");
	check(bps_gpu_open(job, NULL), "open a GPU");
	check(bps_gpu_alloc(job, sizeof(*values) * N_ELEMS, (void **)&values), "alloc");
	check(bps_gpu_declare(job, "sum", BPS_I64, N_ELEMS, values, &sum), "declare");
	check(bps_declare(job, "vote", BPS_I64, 1, &vote), "declare");
	while (!is_over) {
		n++;
		for (int64_t i = 0; i < N_ELEMS; i++)
			values[i] = (i & 1023) * n + bps_rank(job);
		check(bps_gpu_push_pull(sum, BPS_SUM, BPS_PRIORITY_AUTO, NULL), "submit");
		check(bps_wait(sum, 0), "wait");
		for (int64_t i = 0; i < N_ELEMS; i++) {
			int64_t size = bps_size(job);

			if (values[i] == (i & 1023) * n * size + size * (size - 1) / 2)
				continue;
			fprintf(stderr,
				"gpu-rounds: round %" PRId64 ", element %" PRId64 ": %" PRId64 "\n",
				n, i, values[i]);
			return 1;
		}
		*(int64_t *)bps_input(vote) = bps_rank(job) == 0 && access(argv[1], F_OK) == 0;
		check(bps_push_pull(vote, BPS_SUM, BPS_PRIORITY_AUTO), "vote");
		check(bps_wait(vote, 0), "vote");
		is_over = *(const int64_t *)bps_output(vote);
	}
	check(bps_close(job, 0), "close");
	printf("%" PRId64 " rounds\n", n);
	return 0;
}
