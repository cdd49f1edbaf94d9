#ifndef BPS_COMMON_DAEMON_HTTP_HOST_H
#define BPS_COMMON_DAEMON_HTTP_HOST_H
/* Check that the Host of an HTTP request names this daemon. A web page can point a name of its own
 * at a loopback address and then read what a browser on this machine can read (DNS rebinding). The
 * Host of such a request is the page's name.
 *
 * No state; any thread. */
#include <stdbool.h>
#include <sys/socket.h>

#include "common/base/addr.h"

/* True for loopback names and addresses, the host that listen has, the local address of the
 * connection (NULL: unknown), this machine's name with and without its domain, and names in
 * `names`, which are separated by blanks or commas.
 * host: the field's value, with or without a port. */
bool http_host_is_ours(const char *host, const struct addr *listen, const struct sockaddr *local,
	const char *names);
#endif
