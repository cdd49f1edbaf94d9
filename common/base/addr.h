#ifndef BPS_COMMON_BASE_ADDR_H
#define BPS_COMMON_BASE_ADDR_H
/* Network addresses as text: "host:port", "[v6]:port", "host", "*:port" (any local address). The
 * functions keep no state and may be called on any thread. Only addr_resolve_host uses the
 * network. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/error.h"

#define ADDR_HOST_BYTES 256
#define ADDR_TEXT_BYTES (ADDR_HOST_BYTES + 8)

struct addr {
	/* Host name or numeric address, without brackets. "" means that the address is unset. "*"
	 * means any local address. */
	char host[ADDR_HOST_BYTES];
	uint16_t port;
};

/* Parse the address in `text`. If `text` has no port, the port is default_port. If default_port is
 * 0, `text` must have a port.
 * An IPv6 address needs brackets only if a port follows.
 * Errors: -EINVAL; err gets the text. */
int addr_parse(
	struct addr *ret_addr, const char *text, uint16_t default_port, struct err_text *err);

/* Write "host:port" or "[v6]:port" into buf and return buf. */
const char *addr_format(const struct addr *a, char buf[static ADDR_TEXT_BYTES]);

/* Convert a numeric host, "*" or "localhost" into a socket address, without the resolver.
 * Errors: -EINVAL: the host is any other name. */
int addr_resolve_numeric(const struct addr *a, struct sockaddr_storage *ret_sa, socklen_t *ret_len);

/* Convert any host into a socket address. A name is resolved, and the first answer is used. The
 * resolver may block for seconds, so call the function at program start, not in an event loop.
 * Errors: -EADDRNOTAVAIL; err gets the text. */
int addr_resolve_host(const struct addr *a, struct sockaddr_storage *ret_sa, socklen_t *ret_len,
	struct err_text *err);

/* Return advice for an address that cannot be bound, in the form " (...)", or "" when there is
 * none. rc: the -errno that bind(2) or listen(2) has returned. */
const char *addr_bind_hint(int rc);

/* Return whether sa is 0.0.0.0, its v4-mapped form, or ::. */
bool sockaddr_is_any(const struct sockaddr *sa);
/* Return whether sa is in 127/8, is ::1, or is a v4-mapped address in 127/8. */
bool sockaddr_is_loopback(const struct sockaddr *sa);
/* Return whether `a` and `b` have the same host. Ports are ignored. An IPv4 address equals its
 * v4-mapped IPv6 form. */
bool sockaddr_same_host(const struct sockaddr *a, const struct sockaddr *b);
/* Return the port in host byte order; 0 for a family other than IPv4 and IPv6. */
uint16_t sockaddr_port(const struct sockaddr *sa);
/* Write "1.2.3.4:5" or "[::1]:5" into buf and return buf. */
const char *sockaddr_format(const struct sockaddr *sa, char buf[static ADDR_TEXT_BYTES]);
#endif
