/* bps-probe: parses the arguments, runs one measurement and prints its line of JSON. The
 * measurements are in the other files of this folder (probe.h). */
#include "tests/bench/probe/probe.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <sys/resource.h>
#include <time.h>

#include "bps-scheduler/placement/place.h"

double probe_cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

double probe_now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

void *probe_alloc(size_t bytes)
{
	void *mem = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	if (!mem)
		probe_fail("cannot allocate %zu bytes", bytes);
	memset(mem, 0, bytes);
	return mem;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double probe_median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[n / 2];
}

void probe_fail(const char *fmt, ...)
{
	va_list ap;

	fputs("bps-probe: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(EXIT_FAILURE);
}

static size_t number(const char *text, size_t most)
{
	char *end;
	unsigned long long v = strtoull(text, &end, 10);

	if (*text < '1' || *text > '9' || *end || v > most)
		probe_fail("'%s' is not a number from 1 to %zu", text, most);
	return (size_t)v;
}

static void part(size_t bytes, unsigned n_servers)
{
	struct tensor_shape shape = shape_from_dtype_and_count(DTYPE_F32, bytes / sizeof(float));
	uint32_t elems = place_part_elems(&shape, 1, n_servers, bytes, 0);

	printf("{\"what\": \"part\", \"bytes\": %zu}\n", elems * sizeof(float));
}

static int usage(void)
{
	fputs("usage: bps-probe raw AGENTS SERVERS BYTES PART SECONDS\n"
	      "       bps-probe crc BYTES PART SECONDS\n"
	      "       bps-probe cores PROCESSES SECONDS\n"
	      "       bps-probe sum BYTES PART MEMBERS SECONDS\n"
	      "       bps-probe part BYTES SERVERS\n"
	      "       bps-probe kernels SECONDS\n",
		stderr);
	return EX_USAGE;
}

int main(int argc, char **argv)
{
	const size_t mem = (size_t)1 << 32;
	double seconds = argc > 2 ? strtod(argv[argc - 1], NULL) : 0;

	if (argc == 7 && !strcmp(argv[1], "raw"))
		probe_raw((unsigned)number(argv[2], PROBE_MEMBERS_MAX),
			(unsigned)number(argv[3], PROBE_MEMBERS_MAX), number(argv[4], mem),
			number(argv[5], mem), seconds);
	else if (argc == 5 && !strcmp(argv[1], "crc"))
		probe_crc(number(argv[2], mem), number(argv[3], mem), seconds);
	else if (argc == 4 && !strcmp(argv[1], "cores"))
		probe_cores((unsigned)number(argv[2], 1024), seconds);
	else if (argc == 6 && !strcmp(argv[1], "sum"))
		probe_sum(number(argv[2], mem), number(argv[3], mem),
			(unsigned)number(argv[4], PROBE_MEMBERS_MAX), seconds);
	else if (argc == 3 && !strcmp(argv[1], "kernels"))
		probe_kernels(seconds);
	else if (argc == 4 && !strcmp(argv[1], "part"))
		part(number(argv[2], mem), (unsigned)number(argv[3], 1024));
	else
		return usage();
	return 0;
}
