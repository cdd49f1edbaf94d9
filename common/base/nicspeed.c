/* Look up or measure the speed of the network card that carries this daemon's data. Reads sysfs and
 * the interface's counters, and sends nothing. A struct nic belongs to one thread. */
#include "common/base/nicspeed.h"

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <numa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/addr.h"
#include "common/base/first_line.h"

#define BYTES_PER_MBIT 125000.0
/* Largest number of layers of interfaces. A VLAN on a bond of cards has three layers, and one more
 * layer is allowed. */
#define STACK_MAX 4
/* Longest time between two samples. After a longer time the rate would be the mean of several
 * windows, so the measurement starts from scratch. */
#define LATE_NS (10 * NIC_WINDOW_NS)
/* When a plateau is lower than the measured rate, each sample lowers the rate by this part of the
 * difference. So the measured rate approaches the plateau with a time constant of 30 s of load. */
#define SINK (NIC_WINDOW_NS / 30e9)

/* ---- measuring ---- */

/* Return the lowest rate of the last NIC_PLATEAU windows if their rates agree, else 0. */
static double nic_way_plateau_rate(const struct nic_way *w)
{
	double least = w->rates[0], most = w->rates[0];

	if (w->n_rates < NIC_PLATEAU)
		return 0;
	for (unsigned i = 1; i < NIC_PLATEAU; i++) {
		least = w->rates[i] < least ? w->rates[i] : least;
		most = w->rates[i] > most ? w->rates[i] : most;
	}
	return most <= least * NIC_SPREAD && least >= NIC_MIN_MBPS * BYTES_PER_MBIT ? least : 0;
}

static double nic_way_add_sample(struct nic_way *w, double span_s, uint64_t bytes)
{
	double rate = (double)(bytes - w->bytes) / span_s;

	w->bytes = bytes;
	w->rates[w->next_rate] = rate;
	w->next_rate = (w->next_rate + 1) % NIC_PLATEAU;
	if (w->n_rates < NIC_PLATEAU)
		w->n_rates++;
	return rate;
}

bool nic_meter_add_sample(
	struct nic_meter *m, uint64_t now_ns, uint64_t rx_bytes, uint64_t tx_bytes)
{
	struct nic_way *rx = &m->ways[0], *tx = &m->ways[1];
	uint64_t span_ns = now_ns - m->at_ns;
	double span_s = (double)span_ns / 1e9, rate, flat;

	if (!m->at_ns || !span_ns || span_ns > LATE_NS || rx_bytes < rx->bytes ||
		tx_bytes < tx->bytes) {
		m->at_ns = now_ns;
		*rx = (struct nic_way){.bytes = rx_bytes};
		*tx = (struct nic_way){.bytes = tx_bytes};
		return false;
	}
	m->at_ns = now_ns;
	rate = nic_way_add_sample(rx, span_s, rx_bytes);
	rate += nic_way_add_sample(tx, span_s, tx_bytes);
	flat = nic_way_plateau_rate(rx);
	flat = nic_way_plateau_rate(tx) > flat ? nic_way_plateau_rate(tx) : flat;
	if (flat > m->rate)
		m->rate = flat;
	else if (flat > 0)
		m->rate -= (m->rate - flat) * SINK;
	return rate >= NIC_MIN_MBPS * BYTES_PER_MBIT;
}

uint64_t nic_meter_mbps(const struct nic_meter *m)
{
	double mbps = m->rate / BYTES_PER_MBIT + 0.5;

	return mbps < NIC_MAX_MBPS ? (uint64_t)mbps : NIC_MAX_MBPS;
}

/* ---- the driver's speed ---- */

static bool nic_has_sysfs_device(const char *sysfs, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/class/net/%s/device", sysfs, name);
	return access(path, F_OK) == 0;
}

static bool stands_on_cards(const char *sysfs, const char *name, unsigned depth)
{
	char path[PATH_MAX];
	unsigned n = 0, n_cards = 0;
	struct dirent *e;
	DIR *dir;

	if (nic_has_sysfs_device(sysfs, name))
		return true;
	snprintf(path, sizeof(path), "%s/class/net/%s", sysfs, name);
	dir = depth < STACK_MAX ? opendir(path) : NULL;
	if (!dir)
		return false;
	while ((e = readdir(dir))) {
		if (strncmp(e->d_name, "lower_", 6) != 0)
			continue;
		n++;
		n_cards += stands_on_cards(sysfs, e->d_name + 6, depth + 1);
	}
	closedir(dir);
	return n && n == n_cards;
}

uint64_t nic_driver_mbps(const char *sysfs, const char *name)
{
	char path[PATH_MAX], text[32];
	long mbps = 0;

	if (!stands_on_cards(sysfs, name, 0))
		return 0;
	snprintf(path, sizeof(path), "%s/class/net/%s/speed", sysfs, name);
	/* A driver reports -1 or 4294967295 for an unknown speed */
	if (first_line_read(path, text, sizeof(text)))
		mbps = strtol(text, NULL, 10);
	return mbps > 0 && mbps <= NIC_MAX_MBPS ? (uint64_t)mbps : 0;
}

void nic_local_cpus(const char *sysfs, const char *name, cpu_set_t *ret)
{
	char path[PATH_MAX], text[1024];
	struct bitmask *cpus = NULL;

	CPU_ZERO(ret);
	snprintf(path, sizeof(path), "%s/class/net/%s/device/local_cpulist", sysfs, name);
	if (*name && first_line_read(path, text, sizeof(text)))
		cpus = numa_parse_cpustring_all(text);
	for (unsigned i = 0; cpus && i < cpus->size && i < CPU_SETSIZE; i++)
		if (numa_bitmask_isbitset(cpus, i))
			CPU_SET(i, ret);
	if (cpus)
		numa_bitmask_free(cpus);
}

/* ---- the interface ---- */

static int nic_open_counter(const char *sysfs, const char *name, const char *counter)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/class/net/%s/statistics/%s", sysfs, name, counter);
	return open(path, O_RDONLY | O_CLOEXEC);
}

void nic_open_by_name(struct nic *nic, const char *sysfs, const char *name)
{
	*nic = (struct nic){.rx_fd = -1, .tx_fd = -1};
	snprintf(nic->name, sizeof(nic->name), "%s", name);
	nic->driver_mbps = nic_driver_mbps(sysfs, name);
	if (nic->driver_mbps)
		return;
	nic->rx_fd = nic_open_counter(sysfs, name, "rx_bytes");
	nic->tx_fd = nic_open_counter(sysfs, name, "tx_bytes");
	if (nic->rx_fd < 0 || nic->tx_fd < 0)
		nic_close(nic);
}

static void sockaddr_store(struct sockaddr_storage *to, const struct sockaddr *from)
{
	if (!to)
		return;
	*to = (struct sockaddr_storage){0};
	if (from && from->sa_family == AF_INET)
		memcpy(to, from, sizeof(struct sockaddr_in));
	else if (from && from->sa_family == AF_INET6)
		memcpy(to, from, sizeof(struct sockaddr_in6));
}

bool nic_find_by_host(const char *host, char ret_name[IF_NAMESIZE],
	struct sockaddr_storage *ret_addr, struct sockaddr_storage *ret_mask)
{
	struct addr addr = {.port = 0};
	struct sockaddr_storage sa;
	struct ifaddrs *all = NULL;
	bool is_found = false;
	socklen_t len;

	snprintf(addr.host, sizeof(addr.host), "%s", host);
	if (addr_resolve_numeric(&addr, &sa, &len) < 0 || getifaddrs(&all) < 0)
		return false;
	for (const struct ifaddrs *i = all; i && !is_found; i = i->ifa_next) {
		if ((i->ifa_flags & IFF_LOOPBACK) || !i->ifa_addr ||
			!sockaddr_same_host(i->ifa_addr, (struct sockaddr *)&sa))
			continue;
		/* An address with a label has the name "eth1:label". */
		snprintf(
			ret_name, IF_NAMESIZE, "%.*s", (int)strcspn(i->ifa_name, ":"), i->ifa_name);
		sockaddr_store(ret_addr, i->ifa_addr);
		sockaddr_store(ret_mask, i->ifa_netmask);
		is_found = true;
	}
	freeifaddrs(all);
	return is_found;
}

void nic_open_by_host(struct nic *nic, const char *sysfs, const char *host)
{
	char name[IF_NAMESIZE];

	*nic = (struct nic){.rx_fd = -1, .tx_fd = -1};
	if (nic_find_by_host(host, name, NULL, NULL))
		nic_open_by_name(nic, sysfs, name);
}

void nic_close(struct nic *nic)
{
	if (!nic->name[0])
		return;
	if (nic->rx_fd >= 0)
		close(nic->rx_fd);
	if (nic->tx_fd >= 0)
		close(nic->tx_fd);
	nic->rx_fd = nic->tx_fd = -1;
}

static bool nic_read_counter(int fd, uint64_t *ret)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return false;
	text[n] = '\0';
	*ret = strtoull(text, NULL, 10);
	return true;
}

static bool nic_read_both_counters(struct nic *nic, uint64_t *ret_rx, uint64_t *ret_tx)
{
	if (!nic_is_measured(nic))
		return false;
	if (nic_read_counter(nic->rx_fd, ret_rx) && nic_read_counter(nic->tx_fd, ret_tx))
		return true;
	nic_close(nic); /* the interface no longer exists */
	return false;
}

bool nic_sample(struct nic *nic, uint64_t now_ns)
{
	uint64_t rx, tx;

	return nic_read_both_counters(nic, &rx, &tx) &&
	       nic_meter_add_sample(&nic->meter, now_ns, rx, tx);
}

bool nic_has_load(struct nic *nic)
{
	const double least = NIC_MIN_MBPS * BYTES_PER_MBIT * NIC_PLATEAU * NIC_WINDOW_NS / 1e9;
	uint64_t rx, tx, before = nic->looked_bytes;

	if (!nic_read_both_counters(nic, &rx, &tx))
		return false;
	nic->looked_bytes = rx + tx;
	return (double)(rx + tx - before) >= least;
}
