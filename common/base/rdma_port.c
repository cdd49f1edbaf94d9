/* Look up RDMA ports of network interfaces in sysfs. Reads files only; opens no device and needs no
 * library. Any thread may call the functions. */
#include "common/base/rdma_port.h"

#include <glob.h>
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
	glob_t found;

	snprintf(path, sizeof(path), "%.3000s/gid_attrs/ndevs/*", port);
	if (glob(path, GLOB_NOSORT, NULL, &found))
		return false;
	/* The kernel reports an error for a read of an unused entry. Skip such an entry. */
	for (size_t i = 0; i < found.gl_pathc && !is_there; i++)
		is_there = first_line_read(found.gl_pathv[i], name, sizeof(name)) &&
			   strcmp(name, interface) == 0;
	globfree(&found);
	return is_there;
}

/* Return whether the interface is the IPoIB interface of this port. port: its path, which ends in
 * DEVICE/ports/NUMBER. */
static bool interface_is_ipoib_of_port(const char *sysfs, const char *interface, const char *port)
{
	const char *device = port + strlen(sysfs) + strlen("/class/infiniband/");
	char path[PATH_MAX], text[32];

	snprintf(path, sizeof(path), "%.2000s/class/net/%s/device/infiniband/%.*s", sysfs,
		interface, (int)strcspn(device, "/"), device);
	if (access(path, F_OK) < 0)
		return false;
	snprintf(path, sizeof(path), "%.2000s/class/net/%s/dev_port", sysfs, interface);
	return first_line_read(path, text, sizeof(text)) &&
	       strtoul(text, NULL, 10) + 1 == strtoul(strrchr(port, '/') + 1, NULL, 10);
}

bool rdma_port_is_active(const char *sysfs, const char *interface)
{
	char path[PATH_MAX], state[32];
	bool is_there = false;
	glob_t found;

	snprintf(path, sizeof(path), "%.2000s/class/infiniband/*/ports/*", sysfs);
	if (glob(path, GLOB_NOSORT, NULL, &found))
		return false;
	for (size_t i = 0; i < found.gl_pathc && !is_there; i++) {
		const char *port = found.gl_pathv[i];

		snprintf(path, sizeof(path), "%.3000s/state", port);
		is_there = first_line_read(path, state, sizeof(state)) && strstr(state, "ACTIVE") &&
			   (has_roce_address(port, interface) ||
				   interface_is_ipoib_of_port(sysfs, interface, port));
	}
	globfree(&found);
	return is_there;
}

bool rdma_port_has_address(const char *sysfs, const char *host)
{
	char name[IF_NAMESIZE];

	return nic_find_by_host(host, name, NULL, NULL) && rdma_port_is_active(sysfs, name);
}
