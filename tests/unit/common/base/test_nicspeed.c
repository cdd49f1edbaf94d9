/* The speed of a network card, as its driver states it or as measured from traffic. */
#include "common/base/nicspeed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MS   UINT64_C(1000000)
#define MBIT 125000 /* bytes per second */

/* ---- the driver ---- */

/* A folder that stands for /sys. The tests give paths relative to its subfolder class/net. */
static char root[PATH_MAX / 2];

static void path_of(const char *at, char ret[PATH_MAX])
{
	snprintf(ret, PATH_MAX, "%s/class/net/%s", root, at);
}

static void make_dir(const char *at)
{
	char path[PATH_MAX];

	path_of(at, path);
	assert_int_equal(mkdir(path, 0700), 0);
}

static void make_file(const char *at, const char *text)
{
	char path[PATH_MAX];
	FILE *f;

	path_of(at, path);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

/* Make the files of an interface. lower: name of the lower interface, or "" if there is none. */
static void make_card(const char *name, bool has_device, const char *speed, const char *lower)
{
	char at[128];

	make_dir(name);
	snprintf(at, sizeof(at), "%s/speed", name);
	make_file(at, speed);
	snprintf(at, sizeof(at), "%s/device", name);
	if (has_device)
		make_dir(at);
	snprintf(at, sizeof(at), "%s/lower_%s", name, lower);
	if (*lower)
		make_dir(at);
}

static int make_root(void **state)
{
	char path[PATH_MAX];

	(void)state;
	snprintf(root, sizeof(root), "/tmp/bps-nic-XXXXXX");
	assert_non_null(mkdtemp(root));
	snprintf(path, sizeof(path), "%s/class", root);
	assert_int_equal(mkdir(path, 0700), 0);
	make_dir("");
	return 0;
}

static int drop_root(void **state)
{
	char command[PATH_MAX];

	(void)state;
	snprintf(command, sizeof(command), "rm -r '%s'", root);
	return system(command);
}

static void driver_reports_the_speed_of_a_card(void **state)
{
	(void)state;
	make_card("eth0", true, "25000\n", "");
	assert_int_equal(nic_driver_mbps(root, "eth0"), 25000);
}

static void invented_and_unknown_speeds_are_ignored(void **state)
{
	(void)state;
	make_card("veth0", false, "10000\n", "");
	make_card("virt0", true, "-1\n", "");
	make_card("virt1", true, "4294967295\n", "");
	make_card("down0", true, "", "");
	assert_int_equal(nic_driver_mbps(root, "veth0"), 0);
	assert_int_equal(nic_driver_mbps(root, "virt0"), 0);
	assert_int_equal(nic_driver_mbps(root, "virt1"), 0);
	assert_int_equal(nic_driver_mbps(root, "down0"), 0);
	assert_int_equal(nic_driver_mbps(root, "none0"), 0);
}

static void bond_and_vlan_have_the_speed_of_cards_and_a_bridge_has_none(void **state)
{
	(void)state;
	make_card("card0", true, "10000\n", "");
	make_card("card1", true, "10000\n", "");
	make_card("tap0", false, "10\n", "");
	make_card("bond0", false, "20000\n", "card0");
	make_dir("bond0/lower_card1");
	make_card("vlan0", false, "20000\n", "bond0");
	make_card("br0", false, "10000\n", "card0");
	make_dir("br0/lower_tap0");
	/* knot0 is its own lower interface, but the search must end */
	make_card("knot0", false, "10000\n", "knot0");
	assert_int_equal(nic_driver_mbps(root, "bond0"), 20000);
	assert_int_equal(nic_driver_mbps(root, "vlan0"), 20000);
	assert_int_equal(nic_driver_mbps(root, "br0"), 0);
	assert_int_equal(nic_driver_mbps(root, "knot0"), 0);
}

static void counters_are_read_only_where_the_driver_is_silent(void **state)
{
	struct nic nic;

	(void)state;
	make_card("told0", true, "1000\n", "");
	nic_open_by_name(&nic, root, "told0");
	assert_int_equal(nic.driver_mbps, 1000);
	assert_false(nic_is_measured(&nic));
	nic_close(&nic);
	make_card("mute0", false, "10000\n", "");
	make_dir("mute0/statistics");
	make_file("mute0/statistics/rx_bytes", "0\n");
	make_file("mute0/statistics/tx_bytes", "0\n");
	nic_open_by_name(&nic, root, "mute0");
	assert_true(nic_is_measured(&nic));
	assert_false(nic_has_load(&nic));
	for (unsigned i = 0; i <= NIC_PLATEAU; i++) {
		char text[32];

		snprintf(text, sizeof(text), "%u\n", i * 20 * 1000 * (MBIT / 1000));
		make_file("mute0/statistics/tx_bytes", text);
		nic_sample(&nic, 1 + i * NIC_WINDOW_NS);
	}
	assert_true(nic_has_load(&nic));
	assert_false(nic_has_load(&nic));
	assert_int_equal(nic_meter_mbps(&nic.meter), 1000);
	nic_close(&nic);
	nic_open_by_host(&nic, root, "127.0.0.1");
	assert_false(nic_is_measured(&nic));
	assert_int_equal(nic.driver_mbps, 0);
	nic_close(&nic);
}

/* ---- the meter ---- */

struct fake_nic {
	struct nic_meter meter;
	uint64_t now_ns, rx, tx;
};

/* Simulate n measurement windows. In each window, the card receives at the rate rx_mbps and sends
 * at the rate tx_mbps. */
static void load(struct fake_nic *l, unsigned n, uint64_t rx_mbps, uint64_t tx_mbps)
{
	for (unsigned i = 0; i < n; i++) {
		l->now_ns += NIC_WINDOW_NS;
		l->rx += rx_mbps * MBIT / 1000 * (NIC_WINDOW_NS / MS);
		l->tx += tx_mbps * MBIT / 1000 * (NIC_WINDOW_NS / MS);
		nic_meter_add_sample(&l->meter, l->now_ns, l->rx, l->tx);
	}
}

static void plateau_in_either_direction_is_the_speed(void **state)
{
	struct fake_nic a = {.now_ns = 1}, b = {.now_ns = 1};

	(void)state;
	load(&a, NIC_PLATEAU, 900, 100); /* the first sample only starts the first window */
	assert_int_equal(nic_meter_mbps(&a.meter), 0);
	load(&a, 1, 900, 100);
	assert_int_equal(nic_meter_mbps(&a.meter), 900);
	load(&b, 10, 100, 700);
	assert_int_equal(nic_meter_mbps(&b.meter), 700);
}

static void bursts_and_seldom_updated_counters_are_no_speed(void **state)
{
	struct fake_nic l = {.now_ns = 1};

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		load(&l, 2, 10000, 10000);
		load(&l, 3, 0, 0);
	}
	assert_int_equal(nic_meter_mbps(&l.meter), 0);
	load(&l, 10, 500, 500);
	load(&l, 2, 10000, 500);
	assert_int_equal(nic_meter_mbps(&l.meter), 500);
}

static void light_load_is_no_speed(void **state)
{
	struct fake_nic l = {.now_ns = 1};

	(void)state;
	load(&l, 100, NIC_MIN_MBPS - 1, 1);
	assert_int_equal(nic_meter_mbps(&l.meter), 0);
}

/* Per round, the second card has half of the first card's load. Both cards have the same speed, so
 * the second card needs half of the time. */
static void less_load_per_round_does_not_look_slower(void **state)
{
	struct fake_nic a = {.now_ns = 1}, b = {.now_ns = 1};

	(void)state;
	for (unsigned round = 0; round < 200; round++) {
		load(&a, 10, 1000, 0);
		load(&a, 10, 0, 0);
		load(&b, 5, 1000, 0);
		load(&b, 15, 0, 0);
	}
	assert_int_equal(nic_meter_mbps(&a.meter), 1000);
	assert_int_equal(nic_meter_mbps(&b.meter), 1000);
}

static void speed_rises_at_once_and_sinks_slowly(void **state)
{
	struct fake_nic l = {.now_ns = 1};
	uint64_t mbps;

	(void)state;
	load(&l, 10, 1000, 0);
	load(&l, 50, 500, 0); /* 50 windows take a second */
	mbps = nic_meter_mbps(&l.meter);
	assert_true(mbps > 950 && mbps < 1000);
	load(&l, 100 * 50, 500, 0);
	mbps = nic_meter_mbps(&l.meter);
	assert_true(mbps >= 500 && mbps < 550);
	load(&l, 10 * 60 * 50, 0, 0); /* without load the speed stays known */
	assert_int_equal(nic_meter_mbps(&l.meter), mbps);
	load(&l, 4, 2000, 0);
	assert_int_equal(nic_meter_mbps(&l.meter), 2000);
}

static void windows_with_pauses_or_reset_counters_are_ignored(void **state)
{
	struct fake_nic l = {.now_ns = 1};

	(void)state;
	load(&l, 10, 100, 0);
	/* after a long time without samples, the counters have grown by a large amount */
	l.now_ns += 10000 * MS;
	l.rx += UINT64_C(1) << 40;
	load(&l, 10, 100, 0);
	l.rx = 0;
	load(&l, 10, 100, 0);
	assert_int_equal(nic_meter_mbps(&l.meter), 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(driver_reports_the_speed_of_a_card),
		cmocka_unit_test(invented_and_unknown_speeds_are_ignored),
		cmocka_unit_test(bond_and_vlan_have_the_speed_of_cards_and_a_bridge_has_none),
		cmocka_unit_test(counters_are_read_only_where_the_driver_is_silent),
		cmocka_unit_test(plateau_in_either_direction_is_the_speed),
		cmocka_unit_test(bursts_and_seldom_updated_counters_are_no_speed),
		cmocka_unit_test(light_load_is_no_speed),
		cmocka_unit_test(less_load_per_round_does_not_look_slower),
		cmocka_unit_test(speed_rises_at_once_and_sinks_slowly),
		cmocka_unit_test(windows_with_pauses_or_reset_counters_are_ignored),
	};

	return cmocka_run_group_tests(tests, make_root, drop_root);
}
