#include "common/daemon/name_claim.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 16
/* Largest length of a name in bytes (name_claim.h). The name must fit into sun_path, which has 108
 * bytes, of which the first is zero. */
#define NAME_BYTES 100
/* Largest number of attempts to claim a name whose holder cannot be identified. If a holder ends
 * between bind(2) and connect(2), the next attempt succeeds. */
#define ATTEMPTS 3

static socklen_t name_claim_address(const char *name, struct sockaddr_un *ret)
{
	int n;

	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(ret->sun_path + 1, NAME_BYTES + 1, "%s", name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			   (size_t)(n > NAME_BYTES ? NAME_BYTES : n));
}

/* Find the process that listens on the socket: connect to the socket, and read the credentials that
 * the kernel recorded when that process called listen(2). Returns false when no process listens or
 * the connect fails. */
static bool name_claim_find_holder(const struct sockaddr_un *sun, socklen_t len, struct ucred *ret)
{
	socklen_t n = sizeof(*ret);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool is_known;

	if (fd < 0)
		return false;
	is_known = connect(fd, (const struct sockaddr *)sun, len) == 0 &&
		   getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &n) == 0;
	close(fd);
	return is_known;
}

void name_claim_drain(int fd)
{
	int asked;

	while (fd >= 0 && (asked = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		close(asked);
}

/* Listen on the address. Return the socket, or -errno. */
static int name_claim_listen(const struct sockaddr_un *sun, socklen_t len)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;

	if (fd < 0)
		return -errno;
	if (bind(fd, (const struct sockaddr *)sun, len) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

int name_claim(const char *name, int *ret_fd, pid_t *ret_holder)
{
	struct sockaddr_un sun;
	socklen_t len = name_claim_address(name, &sun);
	struct ucred holder;

	for (int i = 0; i < ATTEMPTS; i++) {
		int fd = name_claim_listen(&sun, len);

		if (fd < 0 && fd != -EADDRINUSE)
			return fd;
		if (fd >= 0) {
			*ret_fd = fd;
			return 0;
		}
		if (!name_claim_find_holder(&sun, len, &holder))
			continue;
		if (holder.uid != geteuid() && holder.uid != 0)
			break;
		*ret_holder = holder.pid;
		return -EADDRINUSE;
	}
	*ret_fd = -1;
	return 0;
}
