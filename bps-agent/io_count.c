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

bool busy_has_few_threads(const struct busy_look *from, const struct busy_look *to,
	unsigned n_threads, unsigned n_cpus, struct err_text *ret_why)
{
	uint64_t span_ns = to->at_ns - from->at_ns, busy_ns = to->busy_ns - from->busy_ns;
	uint64_t idle_ns = to->idle_ns - from->idle_ns;
	unsigned most = count_io_threads(UINT64_MAX, false, n_cpus);
	unsigned more = 2 * n_threads < most ? 2 * n_threads : most;

	if (more <= n_threads || !from->idle_ns || idle_ns < IDLE_CPUS * span_ns ||
		busy_ns < n_threads * (span_ns / 100) * BUSY_PERCENT)
		return false;
	err_set(ret_why, 0,
		"the thread%s that move%s bytes had work for %llu %% of %llu s, while %llu of %u "
		"processors were idle: set threads to %u (it is %u), or nic-speed to the speed of "
		"the network card",
		n_threads > 1 ? "s" : "", n_threads > 1 ? "" : "s",
		(unsigned long long)(busy_ns / n_threads * 100 / span_ns),
		(unsigned long long)(span_ns / 1000000000), (unsigned long long)(idle_ns / span_ns),
		n_cpus, more, n_threads);
	return true;
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
