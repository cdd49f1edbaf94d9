/* Limits of control groups of both versions, in folders of the test. */
#include "common/os/cgroup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64], self[80], mount[80];
static uint64_t machine_bytes;
static unsigned machine_cpus;

/* Write a file, and make the folders above it. path is relative to the test's folder. */
static void put(const char *path, const char *text)
{
	char whole[256];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s/%s", root, path);
	for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		mkdir(whole, 0700);
		*at = '/';
	}
	f = fopen(whole, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static int setup(void **state)
{
	(void)state;
	machine_bytes = cgroup_memory_bytes();
	machine_cpus = cgroup_cpu_count();
	strcpy(root, "/tmp/bps-cgroup-XXXXXX");
	assert_non_null(mkdtemp(root));
	snprintf(self, sizeof(self), "%s/self", root);
	snprintf(mount, sizeof(mount), "%s/mount", root);
	cgroup_set_paths(self, mount);
	return 0;
}

static int teardown(void **state)
{
	char command[96];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", root);
	assert_int_equal(system(command), 0);
	cgroup_set_paths("/proc/self/cgroup", "/sys/fs/cgroup");
	return 0;
}

static void without_groups_the_machine_is_the_limit(void **state)
{
	(void)state;
	assert_true(cgroup_memory_bytes() >= machine_bytes);
	assert_true(cgroup_cpu_count() >= machine_cpus);
	assert_int_equal(cgroup_oom_kills(), 0);
	put("self", "garbage\n::\n0::/none\n5:memory\n");
	assert_true(cgroup_memory_bytes() >= machine_bytes);
	assert_true(cgroup_cpu_count() >= machine_cpus);
}

static void least_limit_on_the_path_counts_in_version_2(void **state)
{
	(void)state;
	put("self", "0::/a/b\n");
	put("mount/a/memory.max", "67108864\n");
	put("mount/a/b/memory.max", "max\n");
	put("mount/a/b/cpu.max", "max 100000\n");
	put("mount/a/cpu.max", "50000 100000\n");
	put("mount/a/memory.events", "low 0\noom 3\noom_kill 2\n");
	assert_int_equal(cgroup_memory_bytes(), 64 << 20);
	assert_int_equal(cgroup_cpu_count(), 1); /* half a processor */
	assert_int_equal(cgroup_oom_kills(), 2);
	put("mount/a/cpu.max", "150000 100000\n");
	assert_int_equal(cgroup_cpu_count(), machine_cpus < 2 ? 1 : 2); /* rounded up */
	put("mount/a/b/memory.max", "4096\n");
	assert_int_equal(cgroup_memory_bytes(), 4096);
}

static void containers_own_group_at_the_mount_point_counts(void **state)
{
	(void)state;
	put("self", "4:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n0::/\n");
	put("mount/memory/memory.limit_in_bytes", "1048576\n");
	put("mount/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
	put("mount/cpu,cpuacct/cpu.cfs_quota_us", "100000\n");
	put("mount/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
	assert_int_equal(cgroup_memory_bytes(), 1 << 20);
	assert_int_equal(cgroup_cpu_count(), 1);
	assert_int_equal(cgroup_oom_kills(), 7);
}

static void limits_that_are_none_are_ignored(void **state)
{
	(void)state;
	put("self", "4:memory:/x\n3:cpu:/x\n2:memoryless:/y\n");
	put("mount/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
	put("mount/memoryless/y/memory.limit_in_bytes", "4096\n");
	put("mount/cpu/x/cpu.cfs_quota_us", "-1\n");
	put("mount/cpu/x/cpu.cfs_period_us", "100000\n");
	assert_true(cgroup_memory_bytes() >= machine_bytes);
	assert_true(cgroup_cpu_count() >= machine_cpus);
	put("mount/memory/x/memory.limit_in_bytes", "");
	assert_true(cgroup_memory_bytes() >= machine_bytes);
}

static void reason_of_the_number_of_processors_is_the_least_limit(void **state)
{
	enum cpus_source source;

	(void)state;
	put("self", "3:cpu:/x\n");
	assert_int_equal(cgroup_cpus_source(&source), machine_cpus);
	assert_int_not_equal(source, CPUS_OF_QUOTA);
	put("mount/cpu/x/cpu.cfs_period_us", "100000\n");
	put("mount/cpu/x/cpu.cfs_quota_us", "100000\n");
	assert_int_equal(cgroup_cpus_source(&source), 1);
	if (machine_cpus > 1)
		assert_int_equal(source, CPUS_OF_QUOTA);
}

static void group_with_the_fewest_pids_left_counts(void **state)
{
	uint64_t most, left;

	(void)state;
	put("self", "5:pids:/a/b\n0::/\n");
	assert_false(cgroup_pids(&most, &left));
	put("mount/pids/a/b/pids.max", "max\n");
	put("mount/pids/a/b/pids.current", "7\n");
	assert_false(cgroup_pids(&most, &left));
	put("mount/pids/a/pids.max", "100\n");
	put("mount/pids/a/pids.current", "90\n");
	assert_true(cgroup_pids(&most, &left));
	assert_int_equal(most, 100);
	assert_int_equal(left, 10);
	put("mount/pids/a/b/pids.max", "5\n");
	assert_true(cgroup_pids(&most, &left));
	assert_int_equal(most, 5);
	assert_int_equal(left, 0); /* the limit was lowered below the present number */
	put("self", "0::/a\n");
	put("mount/a/pids.max", "64\n");
	put("mount/a/pids.current", "60\n");
	assert_true(cgroup_pids(&most, &left));
	assert_int_equal(left, 4);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(without_groups_the_machine_is_the_limit),
		T(least_limit_on_the_path_counts_in_version_2),
		T(containers_own_group_at_the_mount_point_counts),
		T(limits_that_are_none_are_ignored),
		T(reason_of_the_number_of_processors_is_the_least_limit),
		T(group_with_the_fewest_pids_left_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
