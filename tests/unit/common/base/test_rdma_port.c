/* Tests of the look-up of a network interface's RDMA port. The tests use folders like those of
 * /sys. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/base/rdma_port.h"

static char root[PATH_MAX / 4];

/* Make the folders of a path below the root. */
static void make_dirs(const char *at)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", root, at);
	for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(path, 0700);
		*p = '/';
	}
	mkdir(path, 0700);
}

static void make_file(const char *folder, const char *name, const char *text)
{
	char path[PATH_MAX];
	FILE *f;

	make_dirs(folder);
	snprintf(path, sizeof(path), "%s/%s/%s", root, folder, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static int make_root(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "/tmp/bps-rdma-XXXXXX");
	assert_non_null(mkdtemp(root));
	return 0;
}

static int drop_root(void **state)
{
	char command[PATH_MAX];

	(void)state;
	snprintf(command, sizeof(command), "rm -r '%s'", root);
	return system(command);
}

static void machine_without_rdma_has_no_port(void **state)
{
	(void)state;
	assert_false(rdma_port_is_active(root, "eth0"));
	assert_false(rdma_port_has_address(root, "127.0.0.1"));
}

static void roce_interface_is_found_beside_an_address_of_an_active_port(void **state)
{
	(void)state;
	make_file("class/infiniband/mlx5_0/ports/1", "state", "4: ACTIVE\n");
	make_file("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs", "0", "eth0\n");
	make_file("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs", "5", "eth0.100\n");
	make_file("class/infiniband/mlx5_1/ports/1", "state", "1: DOWN\n");
	make_file("class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs", "0", "eth1\n");
	assert_true(rdma_port_is_active(root, "eth0"));
	assert_true(rdma_port_is_active(root, "eth0.100"));
	assert_false(rdma_port_is_active(root, "eth1"));
	assert_false(rdma_port_is_active(root, "eth"));
	assert_false(rdma_port_is_active(root, "eth2"));
}

static void ipoib_interface_belongs_to_the_port_that_it_names(void **state)
{
	(void)state;
	make_file("class/infiniband/mlx5_2/ports/1", "state", "1: DOWN\n");
	make_file("class/infiniband/mlx5_2/ports/2", "state", "4: ACTIVE\n");
	make_dirs("class/net/ib0/device/infiniband/mlx5_2");
	make_file("class/net/ib0", "dev_port", "0\n");
	make_dirs("class/net/ib1/device/infiniband/mlx5_2");
	make_file("class/net/ib1", "dev_port", "1\n");
	assert_false(rdma_port_is_active(root, "ib0"));
	assert_true(rdma_port_is_active(root, "ib1"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(machine_without_rdma_has_no_port),
		cmocka_unit_test(roce_interface_is_found_beside_an_address_of_an_active_port),
		cmocka_unit_test(ipoib_interface_belongs_to_the_port_that_it_names),
	};

	return cmocka_run_group_tests(tests, make_root, drop_root);
}
