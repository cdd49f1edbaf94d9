#ifndef BPS_COMMON_BASE_ADDR_H
#define BPS_COMMON_BASE_ADDR_H
/* Network addresses as text: "host:port", "[v6]:port", "host", "*:port" (any local address). Values
 * without state; any thread. Only addr_lookup uses the network. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/error.h"

#define ADDR_HOST_BYTES 256
#define ADDR_TEXT_BYTES (ADDR_HOST_BYTES + 8)

struct addr {
	char host[ADDR_HOST_BYTES]; /* name or number, without brackets; "" is unset, "*" any */
	uint16_t port;
};

/* Parse text. If it has no port, use default_port; with default_port 0 the port is required. A bare
 * IPv6 address needs brackets only together with a port.
 * Errors: -EINVAL with a sentence. */
int addr_parse(
	struct addr *ret_addr, const char *text, uint16_t default_port, struct err_text *err);

/* Write "host:port" or "[v6]:port" into buf and return buf. */
const char *addr_format(const struct addr *a, char buf[static ADDR_TEXT_BYTES]);

/* Convert a numeric host (or "*", or "localhost") into a socket address without the resolver.
 * Errors: -EINVAL when it is a name. */
int addr_number(const struct addr *a, struct sockaddr_storage *ret_sa, socklen_t *ret_len);

/* Convert like addr_number; resolve a name and take the first answer. Blocks as long as the
 * resolver does: call it at program start, not in an event loop.
 * Errors: -EADDRNOTAVAIL with a sentence. */
int addr_lookup(const struct addr *a, struct sockaddr_storage *ret_sa, socklen_t *ret_len,
	struct err_text *err);

/* Return advice for an address that cannot be bound, as " (...)"; "" when there is none. rc: -errno
 * of bind(2) or listen(2). */
const char *addr_bind_hint(int rc);

/* True for 0.0.0.0 and ::, also v4-mapped. */
bool sockaddr_is_any(const struct sockaddr *sa);
/* True for 127/8, ::1 and v4-mapped 127/8. */
bool sockaddr_is_loopback(const struct sockaddr *sa);
/* True when both have the same host; ports are ignored. v4 and v4-mapped v6 compare equal. */
bool sockaddr_same_host(const struct sockaddr *a, const struct sockaddr *b);
/* Port in host order, 0 for other families. */
uint16_t sockaddr_port(const struct sockaddr *sa);
/* Write "1.2.3.4:5" or "[::1]:5" into buf and return buf. */
const char *sockaddr_format(const struct sockaddr *sa, char buf[static ADDR_TEXT_BYTES]);
#endif
