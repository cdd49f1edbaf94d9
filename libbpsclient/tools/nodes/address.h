#ifndef BPS_TOOLS_ADDRESS_H
#define BPS_TOOLS_ADDRESS_H
/* The addresses of this node: which addresses it has, and which one it uses toward another node.
 * The functions keep no state, and send nothing. */
#include <stdbool.h>
#include <sys/socket.h>

#include "common/base/error.h"

/* Return whether an interface of this node has the address. */
bool address_is_own(const struct sockaddr *sa);
/* Return whether `host` is the host name of this node, or a name or number of one of its
 * addresses. */
bool address_host_is_own(const char *host);
/* Find the address of this node toward another one: that of a socket which is connected to it. The
 * port of *ret is 0. Errors: -errno; err gets the text. */
int address_toward(const struct sockaddr *sa, socklen_t len, struct sockaddr_storage *ret,
	struct err_text *err);
/* Find the address of the interface `name`. family: AF_INET or AF_INET6. The port of *ret is 0.
 * Errors: -ENODEV; err gets the text, which lists the interfaces. */
int address_of_interface(
	const char *name, int family, struct sockaddr_storage *ret, struct err_text *err);
/* Write the number of an address, without port and brackets. */
void address_write_host(const struct sockaddr *sa, char *ret, size_t room);
#endif
