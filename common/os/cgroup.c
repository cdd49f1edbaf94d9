/* Reads the limits of control groups. The files of a group are below the mount point of its
 * controller. In a container, the mount point often shows the container's own group, and the path
 * in /proc/self/cgroup does not exist there. So the limits of all groups on the path that exist are
 * read, up to the mount point itself. */
#include "common/os/cgroup.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/first_line.h"

#define PATH_BYTES 4096

static const char *self_path = "/proc/self/cgroup", *mount_path = "/sys/fs/cgroup";

void cgroup_set_paths(const char *self, const char *mount)
{
	self_path = self;
	mount_path = mount;
}

/* Called for each group on the path: dir is the group's folder. */
typedef void visit_fn(void *ctx, const char *dir, bool is_v2);

/* Call fn for the folder mount/path and for the folders above it, up to mount. */
static void cgroup_visit_ancestors(
	const char *mount, char *path, bool is_v2, visit_fn *fn, void *ctx)
{
	char dir[2 * PATH_BYTES];
	char *slash;

	do {
		snprintf(dir, sizeof(dir), "%s%s", mount, path);
		fn(ctx, dir, is_v2);
		slash = strrchr(path, '/');
		if (slash)
			*slash = 0;
	} while (slash);
}

/* Return whether the list of controllers, such as "cpu,cpuacct", has the controller. */
static bool has_controller(const char *list, const char *controller)
{
	size_t n = strlen(controller);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, controller, n) == 0 && (at[n] == 0 || at[n] == ','))
			return true;
	}
	return false;
}

/* Call fn for the groups of the process that the controller manages, from the innermost one on. */
static void cgroup_visit_groups(const char *controller, visit_fn *fn, void *ctx)
{
	char line[PATH_BYTES], mount[PATH_BYTES];
	FILE *f = fopen(self_path, "re");

	while (f && fgets(line, sizeof(line), f)) {
		char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = 0;
		list++;
		path[strcspn(path, "\n")] = 0;
		if (!*list) {
			cgroup_visit_ancestors(mount_path, path, true, fn, ctx);
		} else if (has_controller(list, controller)) {
			snprintf(mount, sizeof(mount), "%s/%s", mount_path, list);
			cgroup_visit_ancestors(mount, path, false, fn, ctx);
		}
	}
	if (f)
		fclose(f);
}

/* Read the words of the first line of dir/name as numbers. A word that is no number, such as "max",
 * gives -1. Returns how many numbers were read, at most n. */
static int cgroup_read_numbers(const char *dir, const char *name, long long *ret, int n)
{
	char path[2 * PATH_BYTES + 64], line[128] = "", *at = line, *word, *end;
	int k = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	first_line_read(path, line, sizeof(line));
	while (k < n && (word = strtok_r(at, " ", &at))) {
		ret[k] = strtoll(word, &end, 10);
		if (*end)
			ret[k] = -1;
		k++;
	}
	return k;
}

/* ---- memory ---- */

static void cgroup_min_memory_limit(void *ctx, const char *dir, bool is_v2)
{
	uint64_t *least = ctx;
	long long limit;

	if (cgroup_read_numbers(dir, is_v2 ? "memory.max" : "memory.limit_in_bytes", &limit, 1) ==
			1 &&
		limit > 0 && (uint64_t)limit < *least)
		*least = (uint64_t)limit;
}

uint64_t cgroup_memory_bytes(void)
{
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	cgroup_visit_groups("memory", cgroup_min_memory_limit, &bytes);
	return bytes;
}

/* memory.events also counts the kills in the groups below */
static void cgroup_max_oom_kills(void *ctx, const char *dir, bool is_v2)
{
	char path[2 * PATH_BYTES + 64], line[128];
	uint64_t *most = ctx;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, is_v2 ? "memory.events" : "memory.oom_control");
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long long n;

		if (sscanf(line, "oom_kill %llu", &n) == 1 && n > *most)
			*most = n;
	}
	if (f)
		fclose(f);
}

uint64_t cgroup_oom_kills(void)
{
	uint64_t most = 0;

	cgroup_visit_groups("memory", cgroup_max_oom_kills, &most);
	return most;
}

/* ---- processors ---- */

static void cgroup_min_cpu_quota(void *ctx, const char *dir, bool is_v2)
{
	unsigned *least = ctx;
	long long v[2] = {-1, -1};
	bool is_known =
		is_v2 ? cgroup_read_numbers(dir, "cpu.max", v, 2) == 2
		      : cgroup_read_numbers(dir, "cpu.cfs_quota_us", v, 1) == 1 &&
				cgroup_read_numbers(dir, "cpu.cfs_period_us", v + 1, 1) == 1;

	if (!is_known || v[0] <= 0 || v[1] <= 0)
		return;
	v[0] = (v[0] + v[1] - 1) / v[1];
	if (v[0] < *least)
		*least = (unsigned)v[0];
}

unsigned cgroup_cpus_source(enum cpus_source *ret_source)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned all = n > 0 ? (unsigned)n : 1, mine = all, cpus;
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		mine = (unsigned)CPU_COUNT(&set);
	cpus = mine;
	cgroup_visit_groups("cpu", cgroup_min_cpu_quota, &cpus);
	*ret_source = cpus < mine ? CPUS_OF_QUOTA : mine < all ? CPUS_OF_AFFINITY : CPUS_OF_MACHINE;
	return cpus ? cpus : 1;
}

unsigned cgroup_cpu_count(void)
{
	enum cpus_source source;

	return cgroup_cpus_source(&source);
}

/* ---- processes and threads ---- */

struct pids_limit {
	bool is_known;
	uint64_t most, left;
};

static void cgroup_min_pids_left(void *ctx, const char *dir, bool is_v2)
{
	struct pids_limit *l = ctx;
	long long most, used;
	uint64_t left;

	(void)is_v2;
	if (cgroup_read_numbers(dir, "pids.max", &most, 1) != 1 || most < 0 ||
		cgroup_read_numbers(dir, "pids.current", &used, 1) != 1 || used < 0)
		return;
	left = used < most ? (uint64_t)(most - used) : 0;
	if (!l->is_known || left < l->left)
		*l = (struct pids_limit){true, (uint64_t)most, left};
}

bool cgroup_pids(uint64_t *ret_most, uint64_t *ret_left)
{
	struct pids_limit l = {.is_known = false};

	cgroup_visit_groups("pids", cgroup_min_pids_left, &l);
	if (l.is_known) {
		*ret_most = l.most;
		*ret_left = l.left;
	}
	return l.is_known;
}
