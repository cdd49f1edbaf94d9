#ifndef BPS_COMMON_OS_CGROUP_H
#define BPS_COMMON_OS_CGROUP_H
/* Limits of the control group of this process, such as those of a container, versions 1 and 2. The
 * defaults for memory and threads come from these limits where they are below the machine's. Any
 * thread may call the functions. They read files on each call. */
#include <stdbool.h>
#include <stdint.h>

/* Limit on the number of processors: the machine has no more, the affinity mask, or the quota of a
 * control group. */
enum cpus_source { CPUS_OF_MACHINE, CPUS_OF_AFFINITY, CPUS_OF_QUOTA };

/* Return how many bytes of memory this process and its control group may use: the memory of the
 * machine, or the least limit of the control group and the groups above it. */
uint64_t cgroup_memory_bytes(void);
/* Return the number of processors that the process may use, at least 1: those of its affinity mask,
 * or the least quota of the control group and the groups above it, rounded up. */
unsigned cgroup_cpu_count(void);
/* Return the same number, and the limit that it comes from. */
unsigned cgroup_cpus_source(enum cpus_source *ret_source);
/* Read how many processes and threads the control group may have, and how many of them are left: of
 * the groups on the path, the one with the fewest left. Returns false if no group has a limit. */
bool cgroup_pids(uint64_t *ret_most, uint64_t *ret_left);
/* Return how many processes of the control group the kernel has killed for lack of memory. */
uint64_t cgroup_oom_kills(void);

/* For tests: read the group from `self` instead of /proc/self/cgroup, and the limits below `mount`
 * instead of /sys/fs/cgroup. */
void cgroup_set_paths(const char *self, const char *mount);
#endif
