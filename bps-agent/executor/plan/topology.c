/* Reads the positions of GPUs and network cards on the PCI buses from sysfs. Adds the facts that
 * the executor reports. strategy.c chooses a strategy by the resulting topology. Has no state.
 * Thread: any. */
#include "bps-agent/executor/plan/topology.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MAX 8192 /* limit of the number of entries of bus/pci/devices that are read */
#define DEPTH_MAX   32   /* limit of the number of bridges above a device */
#define NAMES_MAX   8    /* limit of the number of interfaces of a card */
#define ATTR_BYTES  64

#define VENDOR_NVIDIA  0x10de
#define CLASS_NETWORK  0x02
#define CLASS_DISPLAY  0x03
#define CLASS_NVSWITCH 0x0680 /* PCI class "other bridge" */
#define LINK_MBPS_MAX  10000000
#define NUMA_MAX       1023

/* ---- PCI addresses ---- */

static bool pci_take_hex_digits(const char **s, unsigned least, unsigned most, uint64_t *ret)
{
	unsigned n = 0;
	uint64_t v = 0;

	for (; n < most; n++) {
		char c = (*s)[n];
		unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
				 : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
				 : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
							: 16;
		if (digit == 16)
			break;
		v = v << 4 | digit;
	}
	if (n < least)
		return false;
	*s += n;
	*ret = v;
	return true;
}

static bool pci_take_character(const char **s, char c)
{
	return **s == c && ++*s;
}

bool topo_pci_parse(const char *s, uint64_t *ret)
{
	uint64_t domain, bus, dev, fn;

	if (!pci_take_hex_digits(&s, 4, 8, &domain) || !pci_take_character(&s, ':') ||
		!pci_take_hex_digits(&s, 2, 2, &bus) || !pci_take_character(&s, ':') ||
		!pci_take_hex_digits(&s, 2, 2, &dev) || !pci_take_character(&s, '.') ||
		!pci_take_hex_digits(&s, 1, 1, &fn) || *s || dev > 31 || fn > 7)
		return false;
	*ret = domain << 16 | bus << 8 | dev << 3 | fn;
	return true;
}

void topo_pci_format(uint64_t pci, char ret[TOPO_PCI_BYTES])
{
	if (pci == TOPO_NO_PCI)
		snprintf(ret, TOPO_PCI_BYTES, "-");
	else
		snprintf(ret, TOPO_PCI_BYTES, "%04x:%02x:%02x.%x", (unsigned)(pci >> 16),
			(unsigned)(pci >> 8 & 0xff), (unsigned)(pci >> 3 & 0x1f),
			(unsigned)(pci & 7));
}

/* Return whether s is the name of a host bridge, such as "pci0000:15". */
static bool is_host_bridge(const char *s)
{
	uint64_t unused;

	if (strncmp(s, "pci", 3) != 0)
		return false;
	s += 3;
	return pci_take_hex_digits(&s, 4, 8, &unused) && pci_take_character(&s, ':') &&
	       pci_take_hex_digits(&s, 2, 2, &unused) && !*s;
}

/* ---- attributes ---- */

/* Read a small file that has one line of printable characters. Errors: -errno; -EBADMSG: the file
 * has other content. */
static int sysfs_read_line(int dir, const char *path, char ret[ATTR_BYTES])
{
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, ret, ATTR_BYTES);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n < 0)
		return (int)n;
	if (n > 0 && n < ATTR_BYTES && ret[n - 1] == '\n')
		n--;
	if (n == 0 || n == ATTR_BYTES)
		return -EBADMSG;
	ret[n] = '\0';
	for (ssize_t i = 0; i < n; i++)
		if (ret[i] < ' ' || ret[i] > '~')
			return -EBADMSG;
	return 0;
}

/* Read a file that has one number from `least` to `most`. Errors: those of sysfs_read_line. */
static int sysfs_read_number(
	int dir, const char *path, long long least, long long most, long long *ret)
{
	char text[ATTR_BYTES], *end;
	long long v;
	int rc = sysfs_read_line(dir, path, text);

	if (rc < 0)
		return rc;
	errno = 0;
	v = strtoll(text, &end, 0);
	if (errno || *end || end == text || v < least || v > most)
		return -EBADMSG;
	*ret = v;
	return 0;
}

/* Return the number in a file of a device. device: name of the device's folder. name: path of the
 * file in this folder. Returns `otherwise` if the file cannot be read or the number is invalid.
 * Counts an invalid number in t->n_odd. */
static long long sysfs_read_attribute(struct topology *t, int devices, const char *device,
	const char *name, long long least, long long most, long long otherwise)
{
	char path[TOPO_PCI_BYTES + ATTR_BYTES];
	long long v = otherwise;

	snprintf(path, sizeof(path), "%.19s/%.40s", device, name);
	if (sysfs_read_number(devices, path, least, most, &v) == -EBADMSG)
		t->n_odd++;
	return v;
}

/* ---- where a device is ---- */

struct topo_place {
	uint64_t port; /* address of the root port, or TOPO_NO_PCI if there is none */
	bool has_switch;
	char bridge[TOPO_PCI_BYTES];
};

/* Parse the path of a device, such as "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0". The
 * part before the host bridge (pci0000:15) is ignored. Returns false if the rest of the path has
 * another form. Overwrites path. */
static bool topo_place_parse(char *path, uint64_t device, struct topo_place *ret)
{
	uint64_t above[DEPTH_MAX] = {0};
	unsigned n = 0;
	bool is_below = false;
	char *save = NULL;

	*ret = (struct topo_place){.port = TOPO_NO_PCI};
	for (char *s = strtok_r(path, "/", &save); s; s = strtok_r(NULL, "/", &save)) {
		/* use the last host bridge of the path, because a host bridge can be below a device
		 * of another host bridge */
		if (is_host_bridge(s)) {
			snprintf(ret->bridge, sizeof(ret->bridge), "%.19s", s);
			is_below = true;
			n = 0;
		} else if (is_below && (n == DEPTH_MAX || !topo_pci_parse(s, &above[n++]))) {
			return false;
		}
	}
	if (n == 0 || above[n - 1] != device)
		return false;
	if (n > 1)
		ret->port = above[0];
	ret->has_switch = n > 2;
	return true;
}

/* Return the index of the device's uplink, or TOPO_NONE. Adds the uplink if it is new. */
static uint32_t topology_get_uplink(struct topology *t, int devices, const char *name, uint64_t pci)
{
	char path[PATH_MAX];
	ssize_t n = readlinkat(devices, name, path, sizeof(path) - 1);
	struct topo_place at;

	path[n > 0 ? n : 0] = '\0';
	if (n <= 0 || !topo_place_parse(path, pci, &at)) {
		t->n_odd++;
		return TOPO_NONE;
	}
	if (at.port == TOPO_NO_PCI)
		return TOPO_NONE;
	for (unsigned i = 0; i < t->n_uplinks; i++) {
		if (t->uplinks[i].pci != at.port)
			continue;
		t->uplinks[i].has_switch |= at.has_switch;
		return i;
	}
	if (t->n_uplinks == TOPO_PORTS_MAX) {
		t->n_odd++;
		return TOPO_NONE;
	}
	t->uplinks[t->n_uplinks] =
		(struct topo_uplink){.pci = at.port, .has_switch = at.has_switch};
	memcpy(t->uplinks[t->n_uplinks].bridge, at.bridge, sizeof(at.bridge));
	return t->n_uplinks++;
}

/* ---- devices ---- */

static void topology_add_gpu(struct topology *t, int devices, const char *name, uint64_t pci)
{
	struct topo_gpu *g = &t->gpus[t->n_gpus];

	if (t->n_gpus == TOPO_GPUS_MAX) {
		t->n_odd++;
		return;
	}
	*g = (struct topo_gpu){.pci = pci, .uplink = topology_get_uplink(t, devices, name, pci)};
	g->numa = (int32_t)sysfs_read_attribute(t, devices, name, "numa_node", -1, NUMA_MAX, -1);
	g->device = (uint16_t)sysfs_read_attribute(t, devices, name, "device", 0, UINT16_MAX, 0);
	t->n_gpus++;
}

/* List the file names in a subfolder of a device's folder. what: name of the subfolder, for example
 * "net". Returns the number of names. */
static unsigned sysfs_list_names(
	int devices, const char *device, const char *what, char ret[NAMES_MAX][TOPO_NAME_BYTES])
{
	char path[TOPO_PCI_BYTES + ATTR_BYTES];
	struct dirent *e;
	unsigned n = 0;
	DIR *dir;
	int fd;

	snprintf(path, sizeof(path), "%.19s/%.40s", device, what);
	fd = openat(devices, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	while (n < NAMES_MAX && (e = readdir(dir))) {
		size_t len = strnlen(e->d_name, TOPO_NAME_BYTES);

		if (e->d_name[0] == '.' || len >= 32)
			continue;
		memcpy(ret[n++], e->d_name, len + 1);
	}
	closedir(dir);
	return n;
}

/* Read state and speed of a card's network interfaces. Use the values of the fastest interface that
 * is up. */
static void nic_read_interfaces(
	struct topology *t, int devices, const char *device, struct topo_nic *nic)
{
	char names[NAMES_MAX][TOPO_NAME_BYTES];
	unsigned n = sysfs_list_names(devices, device, "net", names), n_down = 0;

	for (unsigned i = 0; i < n; i++) {
		char path[2 * ATTR_BYTES], state[ATTR_BYTES];
		bool is_down;
		uint32_t mbps;

		snprintf(path, sizeof(path), "%.19s/net/%.31s/operstate", device, names[i]);
		is_down = sysfs_read_line(devices, path, state) == 0 && strcmp(state, "up") != 0 &&
			  strcmp(state, "unknown") != 0;
		n_down += is_down;
		snprintf(path, sizeof(path), "net/%.31s/speed", names[i]);
		/* The kernel reports a speed of -1 if the speed is not known, and an error while
		 * the interface is down. */
		mbps = (uint32_t)sysfs_read_attribute(t, devices, device, path, -1, UINT32_MAX, 0);
		mbps = mbps > LINK_MBPS_MAX ? 0 : mbps;
		if (!*nic->name || (!is_down && mbps > nic->mbps))
			memcpy(nic->name, names[i], sizeof(nic->name));
		if (!is_down && mbps > nic->mbps)
			nic->mbps = mbps;
	}
	nic->is_up = n == 0 || n_down < n;
}

/* Read the state of an InfiniBand card, if it has no network interface. */
static void nic_read_infiniband(int devices, const char *device, struct topo_nic *nic)
{
	char names[NAMES_MAX][TOPO_NAME_BYTES], path[2 * ATTR_BYTES], state[ATTR_BYTES];

	if (*nic->name || sysfs_list_names(devices, device, "infiniband", names) == 0)
		return;
	memcpy(nic->name, names[0], sizeof(nic->name));
	snprintf(path, sizeof(path), "%.19s/infiniband/%.31s/ports/1/state", device, names[0]);
	if (sysfs_read_line(devices, path, state) == 0 && strncmp(state, "4:", 2) != 0)
		nic->is_up = false;
}

static void topology_add_nic(struct topology *t, int devices, const char *name, uint64_t pci)
{
	struct topo_nic *nic = &t->nics[t->n_nics];

	if (t->n_nics == TOPO_NICS_MAX) {
		t->n_odd++;
		return;
	}
	*nic = (struct topo_nic){.pci = pci, .uplink = topology_get_uplink(t, devices, name, pci)};
	nic->numa = (int32_t)sysfs_read_attribute(t, devices, name, "numa_node", -1, NUMA_MAX, -1);
	nic_read_interfaces(t, devices, name, nic);
	nic_read_infiniband(devices, name, nic);
	t->n_nics++;
}

static void topology_add_device(struct topology *t, int devices, const char *name)
{
	uint64_t pci;
	long long kind, vendor;

	if (!topo_pci_parse(name, &pci)) {
		t->n_odd++;
		return;
	}
	kind = sysfs_read_attribute(t, devices, name, "class", 0, 0xffffff, 0);
	if (kind >> 16 == CLASS_NETWORK) {
		topology_add_nic(t, devices, name, pci);
		return;
	}
	if (kind >> 16 != CLASS_DISPLAY && kind >> 8 != CLASS_NVSWITCH)
		return;
	vendor = sysfs_read_attribute(t, devices, name, "vendor", 0, UINT16_MAX, 0);
	if (vendor != VENDOR_NVIDIA)
		return;
	if (kind >> 16 == CLASS_DISPLAY)
		topology_add_gpu(t, devices, name, pci);
	else
		t->n_nvswitches++;
}

/* ---- the whole machine ---- */

/* Compare two GPUs, or two cards, by address, which is the first field of both structs. */
static int compare_by_pci_address(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void uplinks_count_devices(struct topology *t)
{
	for (unsigned i = 0; i < t->n_uplinks; i++)
		t->uplinks[i].n_gpus = t->uplinks[i].n_nics = 0;
	for (unsigned i = 0; i < t->n_gpus; i++)
		if (t->gpus[i].uplink != TOPO_NONE)
			t->uplinks[t->gpus[i].uplink].n_gpus++;
	for (unsigned i = 0; i < t->n_nics; i++)
		if (t->nics[i].uplink != TOPO_NONE && t->nics[i].is_up)
			t->uplinks[t->nics[i].uplink].n_nics++;
}

/* Sort the uplinks by address. Then correct the indices of uplinks in the fields `uplink` of all
 * GPUs and cards. */
static void topology_sort_uplinks(struct topology *t)
{
	uint32_t place[TOPO_PORTS_MAX] = {0};
	struct topo_uplink sorted[TOPO_PORTS_MAX] = {{0}};

	for (unsigned i = 0; i < t->n_uplinks; i++) {
		place[i] = 0;
		for (unsigned k = 0; k < t->n_uplinks; k++)
			place[i] += t->uplinks[k].pci < t->uplinks[i].pci;
		sorted[place[i]] = t->uplinks[i];
	}
	memcpy(t->uplinks, sorted, t->n_uplinks * sizeof(sorted[0]));
	for (unsigned i = 0; i < t->n_gpus; i++)
		if (t->gpus[i].uplink != TOPO_NONE)
			t->gpus[i].uplink = place[t->gpus[i].uplink];
	for (unsigned i = 0; i < t->n_nics; i++)
		if (t->nics[i].uplink != TOPO_NONE)
			t->nics[i].uplink = place[t->nics[i].uplink];
}

static uint64_t mask_of_other_gpus(unsigned self, unsigned n)
{
	uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;

	return all & ~(UINT64_C(1) << self);
}

int topology_read(const char *root, struct topology *ret, struct err_text *err)
{
	char path[PATH_MAX];
	struct dirent *e;
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/bus/pci/devices", root);
	dir = opendir(path);
	if (!dir)
		return err_set(err, -errno, "cannot list '%s': %s", path, strerror(errno));
	memset(ret, 0, sizeof(*ret));
	while ((e = readdir(dir)))
		if (e->d_name[0] != '.' && n++ < DEVICES_MAX)
			topology_add_device(ret, dirfd(dir), e->d_name);
	closedir(dir);
	ret->n_odd += n > DEVICES_MAX;
	qsort(ret->gpus, ret->n_gpus, sizeof(ret->gpus[0]), compare_by_pci_address);
	qsort(ret->nics, ret->n_nics, sizeof(ret->nics[0]), compare_by_pci_address);
	for (unsigned i = 0; ret->n_nvswitches && i < ret->n_gpus; i++)
		ret->gpus[i].links = mask_of_other_gpus(i, ret->n_gpus);
	topology_sort_uplinks(ret);
	uplinks_count_devices(ret);
	return 0;
}

/* Return whether reports[self] describes a part of a GPU (MIG). Returns true if reports[self] is
 * marked as a part, or if another element of reports has the same PCI address. */
static bool report_is_mig_part(const struct topo_report *reports, unsigned n, unsigned self)
{
	for (unsigned i = 0; i < n; i++)
		if (i != self && *reports[i].pci &&
			strncmp(reports[i].pci, reports[self].pci, TOPO_PCI_BYTES) == 0)
			return true;
	return reports[self].is_mig;
}

static void topology_refine_gpu(const struct topology *t, const struct topo_report *reports,
	unsigned self, unsigned n, struct topo_gpu *ret)
{
	const struct topo_report *r = &reports[self];
	uint64_t pci;

	*ret = (struct topo_gpu){.pci = TOPO_NO_PCI, .uplink = TOPO_NONE, .numa = -1};
	if (memchr(r->pci, 0, sizeof(r->pci)) && topo_pci_parse(r->pci, &pci)) {
		ret->pci = pci;
		for (unsigned i = 0; i < t->n_gpus; i++)
			if (t->gpus[i].pci == pci)
				*ret = t->gpus[i];
	}
	if (r->numa >= 0 && r->numa <= NUMA_MAX)
		ret->numa = r->numa;
	ret->is_mig = report_is_mig_part(reports, n, self);
	ret->has_uuid = true;
	memcpy(ret->uuid, r->uuid, sizeof(ret->uuid));
	memcpy(ret->name, r->name, sizeof(ret->name));
	ret->name[sizeof(ret->name) - 1] = '\0';
	ret->links = ret->is_mig ? 0 : r->links & mask_of_other_gpus(self, n);
	ret->peers = ret->is_mig ? 0 : r->peers & mask_of_other_gpus(self, n);
}

int topology_refine(
	struct topology *t, const struct topo_report *reports, unsigned n, struct err_text *err)
{
	struct topo_gpu *gpus;

	if (n > TOPO_GPUS_MAX)
		return err_set(err, -E2BIG,
			"the executor reports %u GPUs, but at most %u can be used", n,
			TOPO_GPUS_MAX);
	gpus = calloc(TOPO_GPUS_MAX, sizeof(*gpus));
	if (!gpus)
		return err_set(err, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < n; i++)
		topology_refine_gpu(t, reports, i, n, &gpus[i]);
	memcpy(t->gpus, gpus, sizeof(t->gpus));
	free(gpus);
	t->n_gpus = n;
	t->is_refined = true;
	uplinks_count_devices(t);
	return 0;
}
