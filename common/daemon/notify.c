/* Send messages to the service manager over $NOTIFY_SOCKET, with or without descriptors. Nothing is
 * received. Any thread may call the functions. */
#include "common/daemon/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/os/fd_passing.h"

#define SLOW_MS 200 /* longest wait for a slow manager, less than the watchdog time of any thread */

static int socket_address(const char *path, struct sockaddr_un *ret_sun, socklen_t *ret_len)
{
	size_t n = strlen(path);

	if ((path[0] != '/' && path[0] != '@') || n >= sizeof(ret_sun->sun_path))
		return -EINVAL;
	memset(ret_sun, 0, sizeof(*ret_sun));
	ret_sun->sun_family = AF_UNIX;
	memcpy(ret_sun->sun_path, path, n);
	/* The address of an abstract socket begins with a zero byte and has no terminator */
	if (path[0] == '@')
		ret_sun->sun_path[0] = '\0';
	*ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
	return 0;
}

/* Return the path of the manager's socket, or NULL if there is no service manager. */
static const char *notify_socket_path(void)
{
	const char *path = getenv("NOTIFY_SOCKET");

	return path && *path ? path : NULL;
}

bool notify_has_manager(void)
{
	return notify_socket_path() != NULL;
}

int notify_send(const char *lines, int fd, bool may_wait)
{
	const struct timeval tv = {.tv_usec = SLOW_MS * 1000};
	const char *path = notify_socket_path();
	union fd_passing_room room;
	struct sockaddr_un sun;
	struct iovec iov = {.iov_base = (void *)(uintptr_t)lines, .iov_len = strlen(lines)};
	struct msghdr msg = {.msg_name = &sun, .msg_iov = &iov, .msg_iovlen = 1};
	int sock, rc;

	if (!path)
		return 0;
	rc = socket_address(path, &sun, &msg.msg_namelen);
	if (rc)
		return rc;
	sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | (may_wait ? 0 : SOCK_NONBLOCK), 0);
	if (sock < 0)
		return -errno;
	if (may_wait)
		setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (fd >= 0)
		fd_passing_attach(&msg, &room, &fd, 1);
	rc = sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
	close(sock);
	return rc;
}

static int notify_send_status(const char *head, const char *status)
{
	char lines[600];

	snprintf(lines, sizeof(lines), "%sSTATUS=%s", head, status);
	/* Replace line ends, because a status is one line */
	for (char *p = lines + strlen(head); *p; p++)
		if (*p == '\n')
			*p = ' ';
	return notify_send(lines, -1, false);
}

int notify_ready(const char *status)
{
	return status ? notify_send_status("READY=1\n", status) : notify_send("READY=1", -1, false);
}

int notify_reloading(void)
{
	char lines[64];

	snprintf(lines, sizeof(lines), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
		clock_now_ns() / 1000);
	return notify_send(lines, -1, false);
}

int notify_status(const char *status)
{
	return notify_send_status("", status);
}

int notify_stopping(void)
{
	return notify_send("STOPPING=1", -1, false);
}

int notify_watchdog(void)
{
	return notify_send("WATCHDOG=1", -1, false);
}

uint64_t notify_watchdog_us(void)
{
	const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

	if (!usec || (pid && strtoull(pid, NULL, 10) != (unsigned long long)getpid()))
		return 0;
	return strtoull(usec, NULL, 10);
}
