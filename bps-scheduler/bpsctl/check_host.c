/* Checks the machine for `bpsctl check`: kernel, libraries, limits, huge pages, RDMA and GPU
 * devices, network cards. This file changes nothing; checks.c checks the daemons. One thread. */
#include <dirent.h>
#include <event2/event.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <openssl/crypto.h>
#include <rdma/fabric.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bps-scheduler/bpsctl/checks.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/addr.h"
#include "common/base/first_line.h"
#include "common/base/nicspeed.h"
#include "common/transport/fabric/fabric_gates.h"
#include "common/transport/fabric/libfabric.h"

#define FILES_MIN    4096
#define MEMLOCK_MIN  (UINT64_C(1) << 30)
#define KERNEL_MAJOR 5 /* bps needs pidfd_open(2), which Linux 5.3 introduced */
#define KERNEL_MINOR 3
#define IB_CLASS     "/sys/class/infiniband"

static void check_kernel_version(json_t *list)
{
	struct utsname u;
	int major = 0, minor = 0;

	if (uname(&u) < 0 || sscanf(u.release, "%d.%d", &major, &minor) != 2)
		check_result_append(
			list, CHECK_WARN, "kernel", "", "cannot read the kernel's version");
	else if (major < KERNEL_MAJOR || (major == KERNEL_MAJOR && minor < KERNEL_MINOR))
		check_result_append(list, CHECK_BAD, "kernel",
			"upgrade to 5.3 or newer (pidfd_open)", "%.64s is too old", u.release);
	else
		check_result_append(list, CHECK_OK, "kernel", "", "%.64s", u.release);
}

static void check_libraries(json_t *list)
{
	check_result_append(list, CHECK_OK, "libraries", "",
		"OpenSSL %.24s, libevent %.24s, jansson %.24s",
		OpenSSL_version(OPENSSL_VERSION_STRING), event_get_version(),
		jansson_version_str());
}

/* Read the soft limit `name` of the process `pid` from /proc/PID/limits. Returns false if the limit
 * cannot be read. */
static bool process_limit_read(int pid, const char *name, uint64_t *ret)
{
	char path[64], line[256];
	bool is_found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/limits", pid);
	f = fopen(path, "re");
	while (f && !is_found && fgets(line, sizeof(line), f)) {
		const char *value = line + strlen(name);

		if (strncmp(line, name, strlen(name)) != 0)
			continue;
		value += strspn(value, " ");
		*ret = strncmp(value, "unlimited", 9) == 0 ? UINT64_MAX : strtoull(value, NULL, 10);
		is_found = true;
	}
	if (f)
		fclose(f);
	return is_found;
}

static uint64_t own_soft_limit_get(int resource)
{
	struct rlimit r;

	if (getrlimit((__rlimit_resource_t)resource, &r) < 0 || r.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	return r.rlim_cur;
}

static uint64_t daemon_or_own_limit_get(
	const struct host_needs *needs, const char *name, int resource)
{
	uint64_t v;

	return needs->pid && process_limit_read(needs->pid, name, &v)
		       ? v
		       : own_soft_limit_get(resource);
}

static void check_resource_limits(json_t *list, const struct host_needs *needs)
{
	uint64_t files = daemon_or_own_limit_get(needs, "Max open files", RLIMIT_NOFILE);
	uint64_t locked = daemon_or_own_limit_get(needs, "Max locked memory", RLIMIT_MEMLOCK);
	const char *whose = needs->pid ? "(limit of the running daemon)" : "(limit of this shell)";

	if (files < FILES_MIN)
		check_result_append(list, CHECK_WARN, "open files",
			"LimitNOFILE=65536 in the unit, or ulimit -n 65536",
			"%llu %s: too few for many trainers and servers", (unsigned long long)files,
			whose);
	else
		check_result_append(list, CHECK_OK, "open files", "", "%s %s",
			files == UINT64_MAX ? "unlimited" : cell_count(files).s, whose);
	if (locked < MEMLOCK_MIN && needs->has_verbs)
		check_result_append(list, CHECK_BAD, "locked memory",
			"LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited",
			"%s %s: too little for RDMA, which locks the memory that it uses",
			cell_size(locked).s, whose);
	else
		check_result_append(list, CHECK_OK, "locked memory", "", "%s %s%s",
			locked == UINT64_MAX ? "unlimited" : cell_size(locked).s, whose,
			needs->has_verbs ? "" : "; TCP locks no memory");
}

static void check_huge_pages(json_t *list)
{
	unsigned long total = 0, unused = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f)) {
		sscanf(line, "HugePages_Total: %lu", &total);
		sscanf(line, "HugePages_Free: %lu", &unused);
	}
	if (f)
		fclose(f);
	if (total && unused == total)
		check_result_append(list, CHECK_WARN, "huge pages",
			"release them (vm.nr_hugepages=0), unless other programs need them",
			"%lu are reserved but unused; bps needs none", total);
	else
		check_result_append(
			list, CHECK_OK, "huge pages", "", "%lu reserved; bps needs none", total);
}

/* ---- RDMA ---- */

/* Append the active ports of a device to ret, as "mlx5_0/1". Returns the number of active ports. */
static unsigned append_active_ports(const char *device, char *ret, size_t room)
{
	char path[512], state[64];
	unsigned n = 0;

	for (unsigned port = 1; port <= 4; port++) {
		size_t used = strlen(ret);

		snprintf(path, sizeof(path), IB_CLASS "/%.64s/ports/%u/state", device, port);
		if (!first_line_read(path, state, sizeof(state)) || !strstr(state, "ACTIVE"))
			continue;
		snprintf(ret + used, room - used, "%s%.32s/%u", used ? " " : "", device, port);
		n++;
	}
	return n;
}

/* Only the providers tcp and verbs need libfabric. Check libfabric if a daemon's settings select
 * one of the two, or if the host has RDMA devices. */
static void check_libfabric(json_t *list, const struct host_needs *needs)
{
	struct err_text err = {0};
	uint32_t v;

	if (libfabric_load(&err) < 0) {
		check_result_append(list, needs->has_libfabric ? CHECK_BAD : CHECK_WARN,
			"libfabric", "install libfabric " FABRIC_VERSIONS_TEXT, "%s", err.s);
		return;
	}
	v = fi_version();
	check_result_append(
		list, CHECK_OK, "libfabric", "", "bpsctl loads %u.%u", FI_MAJOR(v), FI_MINOR(v));
}

static void check_rdma_devices(json_t *list, const struct host_needs *needs)
{
	DIR *dir = opendir(IB_CLASS);
	unsigned n_devices = 0, n_ports = 0;
	const struct dirent *e;
	char ports[256] = "";

	while (dir && (e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		n_devices++;
		n_ports += append_active_ports(e->d_name, ports, sizeof(ports));
	}
	if (dir)
		closedir(dir);
	if (n_devices || needs->has_libfabric)
		check_libfabric(list, needs);
	if (!n_devices)
		check_result_append(list, needs->has_verbs ? CHECK_BAD : CHECK_OK, "RDMA",
			needs->has_verbs
				? "load the driver of the RDMA device, or set provider = sockets"
				: "",
			"no RDMA device%s", needs->has_verbs ? "" : "; TCP is used");
	else if (!n_ports)
		check_result_append(list, needs->has_verbs ? CHECK_BAD : CHECK_WARN, "RDMA",
			"check the cable, the switch, and the subnet manager",
			"%u RDMA devices, but no port is up", n_devices);
	else if (access("/dev/infiniband/rdma_cm", F_OK) < 0)
		check_result_append(list, needs->has_verbs ? CHECK_BAD : CHECK_WARN, "RDMA",
			"modprobe rdma_ucm", "/dev/infiniband/rdma_cm does not exist");
	else
		check_result_append(list, CHECK_OK, "RDMA", "", "ports up: %s", ports);
}

/* ---- GPU ---- */

static void check_gpu_devices(json_t *list)
{
	char version[128] = "";
	unsigned n = 0;
	char path[32];

	while (n < 64 && snprintf(path, sizeof(path), "/dev/nvidia%u", n) > 0 &&
		access(path, F_OK) == 0)
		n++;
	if (access("/proc/driver/nvidia/version", F_OK) < 0) {
		check_result_append(
			list, CHECK_OK, "GPU", "", "no NVIDIA driver; tensors are in host memory");
		return;
	}
	first_line_read("/proc/driver/nvidia/version", version, sizeof(version));
	if (!n || access("/dev/nvidiactl", F_OK) < 0 || access("/dev/nvidia-uvm", F_OK) < 0)
		check_result_append(list, CHECK_WARN, "GPU",
			"systemctl enable --now nvidia-persistenced (or run nvidia-modprobe -u)",
			"the NVIDIA driver is loaded, but some of its device nodes are missing");
	else
		check_result_append(
			list, CHECK_OK, "GPU", "", "%u NVIDIA devices, %.60s", n, version);
}

void check_host(json_t *list, const struct host_needs *needs)
{
	check_kernel_version(list);
	check_libraries(list);
	check_resource_limits(list, needs);
	check_huge_pages(list);
	check_rdma_devices(list, needs);
	check_gpu_devices(list);
}

/* ---- network cards ---- */

/* Return whether one of the agent's cards is this interface. */
static bool cards_have(json_t *cards, const char *name)
{
	json_t *card;
	size_t i;

	json_array_foreach (cards, i, card)
		if (cell_is(card, "name", name))
			return true;
	return false;
}

/* Return the speed in Mbit/s of the agent's fastest card; 0: unknown. */
static uint64_t cards_most_mbps(json_t *cards)
{
	uint64_t most = 0, mbps;
	json_t *card;
	size_t i;

	json_array_foreach (cards, i, card) {
		mbps = cell_num(card, "told_mbps");
		most = mbps > most ? mbps : most;
	}
	return most;
}

/* Return whether the interface is below one of the agent's cards, such as the card below a VLAN. */
static bool cards_stand_on(json_t *cards, const char *name)
{
	char path[128];
	json_t *card;
	size_t i;

	json_array_foreach (cards, i, card) {
		snprintf(path, sizeof(path), NIC_SYSFS "/class/net/%.15s/lower_%.15s",
			cell_str(card, "name").s, name);
		if (access(path, F_OK) == 0)
			return true;
	}
	return false;
}

/* Warn of each interface that is as fast as the agent's cards, and is not one of them. */
static void check_unused_interfaces(json_t *list, json_t *cards)
{
	uint64_t most = cards_most_mbps(cards);
	struct ifaddrs *all = NULL;
	char at[ADDR_TEXT_BYTES];

	if (!most || getifaddrs(&all) < 0)
		return;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
		bool is_up = i->ifa_flags & IFF_UP && i->ifa_flags & IFF_RUNNING;

		if (!is_up || !i->ifa_addr || i->ifa_addr->sa_family != AF_INET ||
			cards_have(cards, i->ifa_name) || cards_stand_on(cards, i->ifa_name) ||
			nic_driver_mbps(NIC_SYSFS, i->ifa_name) < most)
			continue;
		sockaddr_format(i->ifa_addr, at);
		if (strrchr(at, ':'))
			*strrchr(at, ':') = '\0';
		check_result_append(list, CHECK_WARN, "network cards",
			"if the card is on the training network, add its address to `cards` of the "
			"agent",
			"%.15s (%s) is as fast as the agent's cards, and the agent does not use it",
			i->ifa_name, at);
	}
	freeifaddrs(all);
}

void check_cards(json_t *list, json_t *agent)
{
	json_t *cards = json_object_get(agent, "cards"), *card;
	bool has_connections = cell_num(agent, "connections") > 0, is_well = true;
	size_t i;

	check_unused_interfaces(list, cards);
	if (json_array_size(cards) < 2 || !has_connections)
		return;
	json_array_foreach (cards, i, card) {
		if (cell_num(card, "connections"))
			continue;
		is_well = false;
		check_result_append(list, CHECK_WARN, "network cards",
			"let the servers listen on this card's subnet, or give them more data "
			"threads; see the agent's log if the card was left out",
			"%.15s (%.45s) has no connection, while the agent's other cards have",
			cell_str(card, "name").s, cell_str(card, "address").s);
	}
	if (is_well)
		check_result_append(list, CHECK_OK, "network cards", "",
			"all %zu cards of the agent have connections", json_array_size(cards));
}
