/* Finds the addresses of this node. A socket that is connected for datagrams sends nothing, so the
 * other node need not run. */
#include "libbpsclient/tools/nodes/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/addr.h"
#include "common/os/machine.h"

static socklen_t sockaddr_length(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static bool is_internet_family(const struct ifaddrs *i)
{
	return i->ifa_addr &&
	       (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

bool address_is_own(const struct sockaddr *sa)
{
	struct ifaddrs *all;
	bool is_own = sockaddr_is_loopback(sa);

	if (is_own || getifaddrs(&all) < 0)
		return is_own;
	for (const struct ifaddrs *i = all; i && !is_own; i = i->ifa_next)
		is_own = is_internet_family(i) && sockaddr_same_host(i->ifa_addr, sa);
	freeifaddrs(all);
	return is_own;
}

bool address_host_is_own(const char *host)
{
	char name[MACHINE_NAME_BYTES], domain[MACHINE_NAME_BYTES], whole[256] = "";
	struct addr a = {.port = 0};
	struct sockaddr_storage sa;
	struct err_text err;
	socklen_t len;

	machine_host_name(name, domain);
	gethostname(whole, sizeof(whole) - 1);
	if (strcasecmp(host, name) == 0 || strcasecmp(host, whole) == 0)
		return true;
	snprintf(a.host, sizeof(a.host), "%s", host);
	return addr_resolve_host(&a, &sa, &len, &err) == 0 &&
	       address_is_own((struct sockaddr *)&sa);
}

int address_toward(const struct sockaddr *sa, socklen_t len, struct sockaddr_storage *ret,
	struct err_text *err)
{
	int fd = socket(sa->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc = 0;
	socklen_t own_len = sizeof(*ret);
	char text[ADDR_TEXT_BYTES];

	if (fd < 0 || connect(fd, sa, len) < 0 ||
		getsockname(fd, (struct sockaddr *)ret, &own_len) < 0)
		rc = err_set(err, -errno, "cannot find a way to %s: %s", sockaddr_format(sa, text),
			strerror(errno));
	if (fd >= 0)
		close(fd);
	if (!rc && ret->ss_family == AF_INET)
		((struct sockaddr_in *)ret)->sin_port = 0;
	if (!rc && ret->ss_family == AF_INET6)
		((struct sockaddr_in6 *)ret)->sin6_port = 0;
	return rc;
}

int address_of_interface(
	const char *name, int family, struct sockaddr_storage *ret, struct err_text *err)
{
	char known[256] = "";
	struct ifaddrs *all;
	bool is_found = false;
	size_t used = 0;

	if (getifaddrs(&all) < 0)
		return err_set(err, -errno, "cannot list the interfaces: %s", strerror(errno));
	for (const struct ifaddrs *i = all; i && !is_found; i = i->ifa_next) {
		if (!is_internet_family(i) || i->ifa_addr->sa_family != family)
			continue;
		is_found = strcmp(i->ifa_name, name) == 0;
		if (is_found)
			memcpy(ret, i->ifa_addr, sockaddr_length(i->ifa_addr));
		else if (used < sizeof(known))
			used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
				used ? ", " : "", i->ifa_name);
	}
	freeifaddrs(all);
	if (is_found)
		return 0;
	return err_set(err, -ENODEV, "no interface '%s' has an %s address; those with one: %s",
		name, family == AF_INET ? "IPv4" : "IPv6", known);
}

void address_write_host(const struct sockaddr *sa, char *ret, size_t room)
{
	const void *ip = sa->sa_family == AF_INET6
				 ? (const void *)&((const struct sockaddr_in6 *)sa)->sin6_addr
				 : (const void *)&((const struct sockaddr_in *)sa)->sin_addr;

	if (!inet_ntop(sa->sa_family, ip, ret, (socklen_t)room))
		snprintf(ret, room, "?");
}
