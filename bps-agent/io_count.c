#include "bps-agent/io_count.h"

#include <stdio.h>
#include <unistd.h>

#include "bps-agent/io/io_threads.h"

#define TCP_MBPS     15000
#define VERBS_MBPS   100000
#define BUSY_PERCENT 90
#define IDLE_CPUS    2

unsigned count_io_threads(uint64_t nic_mbps, bool is_verbs, unsigned n_cpus)
{
	uint64_t each = is_verbs ? VERBS_MBPS : TCP_MBPS;
	uint64_t n = nic_mbps / each + (nic_mbps % each != 0);

	if (n > n_cpus / 4)
		n = n_cpus / 4;
	if (n > IO_THREADS_MAX)
		n = IO_THREADS_MAX;
	return n ? (unsigned)n : 1;
}

unsigned busy_more_threads(const struct busy_look *from, const struct busy_look *to,
	unsigned n_threads, unsigned n_cpus, unsigned *ret_percent)
{
	uint64_t span_ns = to->at_ns - from->at_ns, busy_ns = to->busy_ns - from->busy_ns;
	uint64_t idle_ns = to->idle_ns - from->idle_ns;
	unsigned most = count_io_threads(UINT64_MAX, false, n_cpus);
	unsigned more = 2 * n_threads < most ? 2 * n_threads : most;

	*ret_percent = span_ns ? (unsigned)(busy_ns / n_threads * 100 / span_ns) : 0;
	if (more <= n_threads || !from->idle_ns || idle_ns < IDLE_CPUS * span_ns)
		return 0;
	return *ret_percent < BUSY_PERCENT ? 0 : more;
}

uint64_t busy_read_idle_ns(void)
{
	unsigned long long idle = 0, waits = 0;
	FILE *f = fopen("/proc/stat", "re");
	int n = 0;

	if (f) {
		n = fscanf(f, "cpu %*u %*u %*u %llu %llu", &idle, &waits);
		fclose(f);
	}
	return n == 2 ? (idle + waits) * (1000000000 / (uint64_t)sysconf(_SC_CLK_TCK)) : 0;
}
