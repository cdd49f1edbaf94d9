/* Look up RDMA ports of network interfaces in sysfs. Reads files only; opens no device and needs no
 * library. Any thread may call the functions. */
#include "common/base/rdma_port.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/first_line.h"
#include "common/base/nicspeed.h"

/* Return whether the interface has one of the port's addresses. */
static bool has_roce_address(const char *port, const char *interface)
{
	char path[PATH_MAX], name[IF_NAMESIZE + 1];
	bool is_there = false;
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "%.3000s/gid_attrs/ndevs", port);
	dir = opendir(path);
	if (!dir)
		return false;
	while (!is_there && (e = readdir(dir))) {
		snprintf(path, sizeof(path), "%.3000s/gid_attrs/ndevs/%.64s", port, e->d_name);
		/* The kernel reports an error for a read of an unused entry. The loop skips such an
		 * entry. */
		is_there = e->d_name[0] != '.' && first_line_read(path, name, sizeof(name)) &&
			   strcmp(name, interface) == 0;
	}
	closedir(dir);
	return is_there;
}

/* Return whether the interface is the IPoIB interface of this port. */
static bool interface_is_ipoib_of_port(
	const char *sysfs, const char *interface, const char *device, unsigned long port)
{
	char path[PATH_MAX], text[32];

	snprintf(path, sizeof(path), "%.2000s/class/net/%s/device/infiniband/%.64s", sysfs,
		interface, device);
	if (access(path, F_OK) < 0)
		return false;
	snprintf(path, sizeof(path), "%.2000s/class/net/%s/dev_port", sysfs, interface);
	return first_line_read(path, text, sizeof(text)) && strtoul(text, NULL, 10) + 1 == port;
}

static bool rdma_device_has_interface(const char *sysfs, const char *device, const char *interface)
{
	char ports[PATH_MAX], port[PATH_MAX], path[PATH_MAX], state[32];
	bool is_there = false;
	struct dirent *e;
	DIR *dir;

	snprintf(ports, sizeof(ports), "%.2000s/class/infiniband/%.64s/ports", sysfs, device);
	dir = opendir(ports);
	if (!dir)
		return false;
	while (!is_there && (e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(port, sizeof(port), "%.2900s/%.64s", ports, e->d_name);
		snprintf(path, sizeof(path), "%.3000s/state", port);
		if (!first_line_read(path, state, sizeof(state)) || !strstr(state, "ACTIVE"))
			continue;
		is_there = has_roce_address(port, interface) ||
			   interface_is_ipoib_of_port(
				   sysfs, interface, device, strtoul(e->d_name, NULL, 10));
	}
	closedir(dir);
	return is_there;
}

bool rdma_port_is_active(const char *sysfs, const char *interface)
{
	char path[PATH_MAX];
	bool is_there = false;
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "%.2000s/class/infiniband", sysfs);
	dir = opendir(path);
	if (!dir)
		return false;
	while (!is_there && (e = readdir(dir)))
		is_there = e->d_name[0] != '.' &&
			   rdma_device_has_interface(sysfs, e->d_name, interface);
	closedir(dir);
	return is_there;
}

bool rdma_port_has_address(const char *sysfs, const char *host)
{
	char name[IF_NAMESIZE];

	return nic_find_by_host(host, name) && rdma_port_is_active(sysfs, name);
}
