#include "bps-server/thread_count.h"

#include <sys/stat.h>

unsigned count_default_threads(unsigned n_cpus, bool is_beside_agent)
{
	unsigned n = n_cpus / 2;

	if (n > COUNT_THREADS_MAX)
		n = COUNT_THREADS_MAX;
	if (is_beside_agent)
		n /= 4;
	return n ? n : 1;
}

bool count_sees_agent(const char *socket_path)
{
	struct stat st;

	return *socket_path && lstat(socket_path, &st) == 0 && S_ISSOCK(st.st_mode);
}
