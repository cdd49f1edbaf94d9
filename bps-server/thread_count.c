#include "bps-server/thread_count.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

unsigned count_threads(unsigned n_cpus, bool is_beside_agent)
{
	unsigned n = n_cpus / 2;

	if (n > COUNT_THREADS_MAX)
		n = COUNT_THREADS_MAX;
	if (is_beside_agent)
		n /= 4;
	return n ? n : 1;
}

unsigned count_cpus(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (unsigned)CPU_COUNT(&set);
	return n > 0 ? (unsigned)n : 1;
}

bool count_sees_agent(const char *socket_path)
{
	struct stat st;

	return *socket_path && lstat(socket_path, &st) == 0 && S_ISSOCK(st.st_mode);
}
