#ifndef BPS_COMMON_DAEMON_HTTP_HOST_H
#define BPS_COMMON_DAEMON_HTTP_HOST_H
/* Check that the Host of an HTTP request names this daemon. The check stops DNS rebinding. In such
 * an attack, the owner of a web page changes the address of the page's own host name to a loopback
 * address. A browser on this machine then lets the page read the daemon's answers. The check
 * detects the attack, because the Host field of these requests has the page's host name.
 *
 * The functions keep no state and may be called on any thread. */
#include <stdbool.h>
#include <sys/socket.h>

#include "common/base/addr.h"

/* Return whether `host` is a name of this daemon. host: value of the Host field, with or without a
 * port. The names of the daemon are a loopback name or address, the host of `listen`, and this
 * machine's name with or without its domain. The names in `names`, separated by blanks or commas,
 * and the address `local` are names of the daemon as well. local: local address of the connection;
 * NULL: unknown. */
bool http_host_is_ours(const char *host, const struct addr *listen, const struct sockaddr *local,
	const char *names);
#endif
