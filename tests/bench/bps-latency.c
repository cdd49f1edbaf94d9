/* Time of one push_pull of a small tensor, one in flight: a worker of a job (see bpsrun). Rank 0 prints
 * "bps BYTES N MEDIAN_US P99_US". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libbpsclient/bps.h"

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int run(struct bps *b, size_t bytes, unsigned n, unsigned warmup, double *us)
{
	struct bps_tensor *t;
	float *in;
	int rc = bps_declare(b, "latency", BPS_F32, bytes / sizeof(float), &t);

	if (rc < 0)
		return rc;
	in = bps_input(t);
	for (unsigned i = 0; i < warmup + n; i++) {
		double start;

		for (size_t k = 0; k < bytes / sizeof(float); k++)
			in[k] = (float)i;
		start = now_us();
		rc = bps_push_pull(t, BPS_SUM, BPS_PRIORITY_AUTO);
		if (rc == 0)
			rc = bps_wait(t, 0);
		if (rc < 0)
			return rc;
		if (i >= warmup)
			us[i - warmup] = now_us() - start;
		if (((const float *)bps_output(t))[bytes / sizeof(float) - 1] !=
			(float)i * (float)bps_size(b)) {
			fprintf(stderr, "bps-latency: wrong sum in round %u\n", i);
			return -1;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 4096;
	unsigned n = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 5000;
	double *us = calloc(n ? n : 1, sizeof(*us));
	struct bps *b;
	int rc;

	if (!us || !n || bytes < sizeof(float)) {
		fprintf(stderr, "usage: bps-latency [BYTES [ROUNDS]]\n");
		return 64;
	}
	rc = bps_open(NULL, &b);
	if (rc == 0)
		rc = run(b, bytes, n, n / 5 + 10, us);
	if (rc < 0) {
		fprintf(stderr, "bps-latency: %s\n", bps_last_error());
		return 1;
	}
	qsort(us, n, sizeof(*us), by_value);
	if (bps_rank(b) == 0)
		printf("bps %zu %u %.1f %.1f\n", bytes, n, us[n / 2], us[n - 1 - n / 100]);
	free(us);
	return bps_close(b, 0) < 0;
}
