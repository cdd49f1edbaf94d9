/* Choose the congestion control of data sockets, and set it. See congestion.h for the reasons. The
 * functions keep no state and may be called on any thread. */
#include "common/transport/flow/congestion.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"

#define AUTO   "auto"
#define SYSTEM "system"
#define BBR    "bbr" /* also the prefix of the names bbr2 and bbr3 in patched kernels */

static const char *const instead[] = {"cubic", "reno"};

const char *congestion_choose(const char *wanted, const char *system,
	int (*may_use)(void *ctx, const char *name), void *ctx, struct err_text *err)
{
	int rc;

	if (strcmp(wanted, SYSTEM) == 0)
		return "";
	if (strcmp(wanted, AUTO) == 0) {
		if (strncmp(system, BBR, strlen(BBR)) != 0)
			return "";
		for (size_t i = 0; i < sizeof(instead) / sizeof(instead[0]); i++)
			if (may_use(ctx, instead[i]) == 0)
				return instead[i];
		return "";
	}
	rc = may_use(ctx, wanted);
	if (rc == 0)
		return wanted;
	if (rc == -EPERM)
		err_set(err, -EINVAL,
			"this user may not use congestion-control '%s': add it to sysctl "
			"net.ipv4.tcp_allowed_congestion_control, or choose 'auto'",
			wanted);
	else
		err_set(err, -EINVAL,
			"this kernel has no congestion-control '%s': choose 'auto', 'system', or a "
			"name listed in sysctl net.ipv4.tcp_available_congestion_control",
			wanted);
	return NULL;
}

int congestion_set(int fd, const char *name)
{
	if (!*name)
		return 0;
	return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) ? -errno
											  : 0;
}

static int may_use(void *ctx, const char *name)
{
	return congestion_set(*(const int *)ctx, name);
}

static void congestion_log_choice(const char *wanted, const char *system, const char *name)
{
	if (strcmp(wanted, AUTO) != 0 || strncmp(system, BBR, strlen(BBR)) != 0)
		return;
	if (*name)
		log_info("data connections use congestion control %s, not the system's default %s "
			 "(congestion-control = auto)",
			name, system);
	if (strcmp(name, instead[0]) != 0)
		log_info("congestion control %s would be faster for data connections: add it to "
			 "sysctl "
			 "net.ipv4.tcp_allowed_congestion_control",
			instead[0]);
}

int congestion_find(const char *wanted, char *ret, struct err_text *err)
{
	char system[CONGESTION_NAME_MAX + 2] = "";
	socklen_t len = CONGESTION_NAME_MAX + 1;
	const char *name;
	int fd, rc = 0;

	*ret = '\0';
	if (strcmp(wanted, SYSTEM) == 0)
		return 0;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (fd < 0) /* this host has no IPv4 */
		fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (fd < 0)
		return err_set(err, -errno, "cannot open a TCP socket: %s", strerror(errno));
	/* If the kernel does not report its default, use an empty name. congestion_choose then
	 * keeps the kernel's default, unless the settings name another congestion control. */
	if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, system, &len))
		*system = '\0';
	name = congestion_choose(wanted, system, may_use, &fd, err);
	if (name) {
		snprintf(ret, CONGESTION_NAME_MAX + 1, "%s", name);
		congestion_log_choice(wanted, system, name);
	} else {
		rc = -EINVAL;
	}
	close(fd);
	return rc;
}

void congestion_set_or_warn(int fd, const char *name)
{
	int rc = congestion_set(fd, name);

	if (rc)
		log_rated(LOG_WARN,
			"cannot set congestion control '%s': %s; the data connection uses the "
			"system's default",
			name, strerror(-rc));
}
