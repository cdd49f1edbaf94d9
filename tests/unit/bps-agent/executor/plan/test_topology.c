/* Tests of the topology: the positions of devices on a machine's PCI buses. The topology is read
 * from folders that have the layout of sysfs. */
#include "bps-agent/executor/plan/topology.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/topo_fixture.h"

#define GPU  "class=0x030200 vendor=0x10de device=0x2335"
#define CARD "class=0x020000 vendor=0x15b3 numa_node=0"

static struct topo_fixture fixture;
static struct topology topo;

static void make(const char *name)
{
	topo_fixture_make(&fixture, name);
	topo_fixture_read(&fixture, &topo);
	topo_fixture_remove(&fixture);
}

static int empty(void **state)
{
	(void)state;
	topo_fixture_empty(&fixture);
	return 0;
}

static int removed(void **state)
{
	(void)state;
	topo_fixture_remove(&fixture);
	return 0;
}

static void assert_pci(uint64_t pci, const char *text)
{
	char is[TOPO_PCI_BYTES];

	topo_pci_format(pci, is);
	assert_string_equal(is, text);
}

static void addresses_are_read_and_written_the_same(void **state)
{
	static const char *const good[] = {
		"0000:00:00.0", "0000:3b:1f.7", "10000:e1:00.0", "ffffffff:ff:1f.7"};
	static const char *const bad[] = {"", "0000", "000:00:00.0", "0000:0:00.0", "0000:00:20.0",
		"0000:00:00.8", "0000:00:00.0 ", "0000:00:00.", "123456789:00:00.0", "0000:gg:00.0",
		"-"};
	uint64_t pci;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(topo_pci_parse(good[i], &pci));
		assert_pci(pci, good[i]);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(topo_pci_parse(bad[i], &pci));
	assert_true(topo_pci_parse("0000003B:0A:00.0", &pci));
	assert_pci(pci, "003b:0a:00.0");
	assert_pci(TOPO_NO_PCI, "-");
}

static void a_tree_of_switches_is_seen_as_it_is(void **state)
{
	static const char *const bridges[] = {
		"pci0000:00", "pci0000:40", "pci0000:80", "pci0000:a0"};

	(void)state;
	make("dgx");
	assert_int_equal(topo.n_gpus, 8);
	assert_int_equal(topo.n_nics, 9);
	assert_int_equal(topo.n_nvswitches, 6);
	assert_int_equal(topo.n_odd, 0);
	assert_int_equal(topo.n_uplinks, 5);
	for (unsigned i = 0; i < 8; i++) {
		const struct topo_gpu *g = &topo.gpus[i];
		const struct topo_uplink *up = &topo.uplinks[g->uplink];

		assert_int_equal(g->numa, i / 2);
		assert_int_equal(g->links, 0xff & ~(1u << i));
		assert_int_equal(g->uplink, topo.gpus[i ^ 1].uplink);
		assert_true(up->has_switch);
		assert_int_equal(up->n_gpus, 2);
		assert_int_equal(up->n_nics, 2);
		assert_string_equal(up->bridge, bridges[i / 2]);
	}
	assert_pci(topo.gpus[0].pci, "0000:07:00.0");
	assert_pci(topo.uplinks[topo.gpus[7].uplink].pci, "0000:a0:01.1");
	assert_int_equal(topo.nics[0].mbps, 200000);
	assert_string_equal(topo.nics[8].name, "enp225s0");
}

static void a_switch_below_a_switch_shares_its_uplink(void **state)
{
	(void)state;
	make("one-switch");
	assert_int_equal(topo.n_uplinks, 1);
	assert_int_equal(topo.uplinks[0].n_gpus, 4);
	assert_int_equal(topo.uplinks[0].n_nics, 1);
	assert_string_equal(topo.nics[0].name, "mlx5_0");
}

static void devices_of_a_virtual_machine_have_no_uplink(void **state)
{
	(void)state;
	make("vm");
	assert_int_equal(topo.n_gpus, 4);
	assert_int_equal(topo.n_uplinks, 0);
	assert_int_equal(topo.n_odd, 0);
	assert_int_equal(topo.gpus[3].uplink, TOPO_NONE);
	assert_true(topo.nics[0].is_up);
	assert_string_equal(topo.nics[0].name, "");
}

static void a_card_without_its_cable_does_not_count(void **state)
{
	(void)state;
	make("card-down");
	assert_int_equal(topo.n_nics, 2);
	assert_false(topo.nics[0].is_up);
	assert_true(topo.nics[1].is_up);
	assert_int_equal(topo.uplinks[topo.gpus[0].uplink].n_nics, 0);
	assert_int_equal(topo.uplinks[topo.gpus[4].uplink].n_nics, 1);
}

static void invalid_devices_are_counted_and_left_out(void **state)
{
	(void)state;
	make("broken");
	assert_int_equal(topo.n_odd, fixture.n_odd);
	assert_int_equal(topo.n_gpus, 4);
	assert_int_equal(topo.gpus[0].numa, -1);
	assert_int_equal(topo.gpus[1].numa, -1);
	assert_int_equal(topo.gpus[1].device, 0);
	assert_int_not_equal(topo.gpus[0].uplink, topo.gpus[1].uplink);
	/* the folder of GPU 2 is a link to another GPU's folder */
	assert_int_equal(topo.gpus[2].uplink, TOPO_NONE);
	/* the folder of GPU 3 is not below any bridge */
	assert_int_equal(topo.gpus[3].uplink, TOPO_NONE);
}

static void more_devices_than_fit_are_counted(void **state)
{
	char line[256];

	(void)state;
	for (unsigned i = 0; i < TOPO_GPUS_MAX + 6; i++) {
		snprintf(line, sizeof(line), "device pci0000:00/0000:%02x:00.0 " GPU, i);
		topo_fixture_line(&fixture, line);
		snprintf(line, sizeof(line),
			"device pci0001:00/0001:00:%02x.%u/0001:%02x:00.0 " CARD, i / 8, i % 8,
			i + 1);
		topo_fixture_line(&fixture, line);
	}
	topo_fixture_read(&fixture, &topo);
	assert_int_equal(topo.n_gpus, TOPO_GPUS_MAX);
	assert_int_equal(topo.n_nics, TOPO_NICS_MAX);
	assert_int_equal(topo.n_odd, 12);
}

static void long_lines_control_characters_and_deep_paths_are_refused(void **state)
{
	char line[2048], path[1024] = "pci0000:00";

	(void)state;
	topo_fixture_line(&fixture, "device pci0000:00/0000:01:00.0 class=0x030200 "
				    "vendor=0x10de numa_node=000000000000000000000000000000000000"
				    "0000000000000000000000000000000000000000000001");
	topo_fixture_line(&fixture,
		"device pci0000:00/0000:02:00.0 class=0x030200 vendor=0x10de numa_node=\033[2J");
	for (unsigned i = 0; i < 40; i++)
		snprintf(
			path + strlen(path), sizeof(path) - strlen(path), "/0000:%02x:00.0", i + 3);
	snprintf(line, sizeof(line), "device %s " GPU, path);
	topo_fixture_line(&fixture, line);
	topo_fixture_read(&fixture, &topo);
	assert_int_equal(topo.n_gpus, 3);
	/* two devices have invalid NUMA nodes, and the path of the third device is too deep */
	assert_int_equal(topo.n_odd, 3);
	assert_int_equal(topo.n_uplinks, 0);
}

static void a_domain_below_another_device_has_its_own_tree(void **state)
{
	(void)state;
	topo_fixture_line(&fixture, "device pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/"
				    "10000:01:00.0 " GPU);
	topo_fixture_read(&fixture, &topo);
	assert_int_equal(topo.n_uplinks, 1);
	assert_pci(topo.uplinks[0].pci, "10000:00:02.0");
	assert_string_equal(topo.uplinks[0].bridge, "pci10000:00");
}

static void a_machine_without_pci_is_reported(void **state)
{
	struct err_text err = {""};

	(void)state;
	assert_int_equal(topology_read("/nonexistent", &topo, &err), -ENOENT);
	assert_string_equal(err.s, "cannot list '/nonexistent/bus/pci/devices': "
				   "No such file or directory");
}

static void reports_add_what_only_the_driver_knows(void **state)
{
	(void)state;
	make("two-switches-roots");
	assert_true(topo.is_refined);
	assert_int_equal(topo.n_gpus, 8);
	assert_true(topo.gpus[5].has_uuid);
	assert_int_equal(topo.gpus[5].uuid[0], 6);
	assert_int_equal(topo.gpus[5].links, 0xdf);
	assert_string_equal(topo.gpus[5].name, "GPU of a test");
	assert_int_equal(topo.gpus[5].device, 0x1db6);
	assert_int_not_equal(topo.gpus[5].uplink, TOPO_NONE);
}

static void instances_of_a_gpu_reach_no_other_gpu(void **state)
{
	(void)state;
	make("mig");
	assert_int_equal(topo.n_gpus, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(topo.gpus[i].is_mig);
		assert_int_equal(topo.gpus[i].links | topo.gpus[i].peers, 0);
		assert_int_equal(topo.gpus[i].uplink, 0);
	}
}

static void reports_are_checked_like_any_other_bytes(void **state)
{
	struct topo_report reports[TOPO_GPUS_MAX + 1];
	struct err_text err = {""};

	(void)state;
	memset(reports, 0xff, sizeof(reports));
	topo_fixture_read(&fixture, &topo);
	assert_int_equal(topology_refine(&topo, reports, TOPO_GPUS_MAX + 1, &err), -E2BIG);
	assert_false(topo.is_refined);
	assert_int_equal(topology_refine(&topo, reports, TOPO_GPUS_MAX, &err), 0);
	for (unsigned i = 0; i < TOPO_GPUS_MAX; i++) {
		assert_pci(topo.gpus[i].pci, "-");
		assert_int_equal(topo.gpus[i].uplink, TOPO_NONE);
		assert_int_equal(topo.gpus[i].numa, -1);
		assert_int_equal(strlen(topo.gpus[i].name), TOPO_NAME_BYTES - 1);
		assert_false(topo.gpus[i].links >> i & 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses_are_read_and_written_the_same),
		cmocka_unit_test(a_tree_of_switches_is_seen_as_it_is),
		cmocka_unit_test(a_switch_below_a_switch_shares_its_uplink),
		cmocka_unit_test(devices_of_a_virtual_machine_have_no_uplink),
		cmocka_unit_test(a_card_without_its_cable_does_not_count),
		cmocka_unit_test(invalid_devices_are_counted_and_left_out),
		cmocka_unit_test_setup_teardown(more_devices_than_fit_are_counted, empty, removed),
		cmocka_unit_test_setup_teardown(
			long_lines_control_characters_and_deep_paths_are_refused, empty, removed),
		cmocka_unit_test_setup_teardown(
			a_domain_below_another_device_has_its_own_tree, empty, removed),
		cmocka_unit_test(a_machine_without_pci_is_reported),
		cmocka_unit_test(reports_add_what_only_the_driver_knows),
		cmocka_unit_test(instances_of_a_gpu_reach_no_other_gpu),
		cmocka_unit_test_setup_teardown(
			reports_are_checked_like_any_other_bytes, empty, removed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
