/* Parse and format network addresses, and resolve host names. Only addr_resolve_host calls the
 * resolver, and no function opens a socket. The functions keep no state and may be called on any
 * thread. */
#include "common/base/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static int addr_parse_port(const char *s, uint16_t *ret_port)
{
	unsigned long v = 0;

	if (!*s || strlen(s) > 5)
		return -EINVAL;
	for (; *s; s++) {
		if (*s < '0' || *s > '9')
			return -EINVAL;
		v = v * 10 + (unsigned long)(*s - '0');
	}
	if (v > 65535)
		return -EINVAL;
	*ret_port = (uint16_t)v;
	return 0;
}

static bool host_has_valid_characters(const char *host)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789.-_:%";

	return strcmp(host, "*") == 0 || (*host && strspn(host, allowed) == strlen(host));
}

/* Split the string `text` into host and port. *ret_port points to the port in `text`, or is NULL if
 * `text` has no port. */
static int addr_split_host_port(const char *text, char host[ADDR_HOST_BYTES], const char **ret_port)
{
	const char *end, *port = NULL, *from = text;

	if (*text == '[') {
		from = text + 1;
		end = strchr(text, ']');
		if (!end || (end[1] != '\0' && end[1] != ':'))
			return -EINVAL;
		if (end[1] == ':')
			port = end + 2;
	} else {
		end = strchr(text, ':');
		if (end && strchr(end + 1, ':'))
			/* Two colons without brackets: an IPv6 address without a port */
			end = NULL;
		if (end)
			port = end + 1;
		else
			end = text + strlen(text);
	}
	if (end == from || (size_t)(end - from) >= ADDR_HOST_BYTES)
		return -EINVAL;
	memcpy(host, from, (size_t)(end - from));
	host[end - from] = '\0';
	*ret_port = port;
	return 0;
}

int addr_parse(struct addr *ret_addr, const char *text, uint16_t default_port, struct err_text *err)
{
	struct addr a = {.port = default_port};
	const char *port;

	if (addr_split_host_port(text, a.host, &port) || !host_has_valid_characters(a.host))
		return err_set(err, -EINVAL,
			"'%s' is not an address (write host:port, 10.0.0.1:port or [v6]:port)",
			text);
	if (port && addr_parse_port(port, &a.port))
		return err_set(err, -EINVAL, "'%s' has no valid port (0 to 65535)", text);
	if (!port && !default_port)
		return err_set(err, -EINVAL, "'%s' has no port (write host:port)", text);
	*ret_addr = a;
	return 0;
}

const char *addr_format(const struct addr *a, char buf[static ADDR_TEXT_BYTES])
{
	bool is_v6 = strchr(a->host, ':') != NULL;

	snprintf(buf, ADDR_TEXT_BYTES, is_v6 ? "[%s]:%u" : "%s:%u", a->host, (unsigned)a->port);
	return buf;
}

static void sockaddr_set_port(struct sockaddr_storage *sa, uint16_t port)
{
	if (sa->ss_family == AF_INET6)
		((struct sockaddr_in6 *)sa)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)sa)->sin_port = htons(port);
}

static int host_resolve_first_address(
	const char *host, int flags, struct sockaddr_storage *ret_sa, socklen_t *ret_len)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags}, *info;
	int rc = getaddrinfo(host, NULL, &hints, &info);

	if (rc)
		return rc;
	memset(ret_sa, 0, sizeof(*ret_sa));
	memcpy(ret_sa, info->ai_addr, info->ai_addrlen);
	*ret_len = info->ai_addrlen;
	freeaddrinfo(info);
	return 0;
}

int addr_resolve_numeric(const struct addr *a, struct sockaddr_storage *ret_sa, socklen_t *ret_len)
{
	const char *host = a->host;

	if (strcmp(host, "*") == 0)
		host = "::";
	else if (strcmp(host, "localhost") == 0)
		host = "127.0.0.1";
	if (!*host || host_resolve_first_address(host, AI_NUMERICHOST, ret_sa, ret_len))
		return -EINVAL;
	sockaddr_set_port(ret_sa, a->port);
	return 0;
}

int addr_resolve_host(const struct addr *a, struct sockaddr_storage *ret_sa, socklen_t *ret_len,
	struct err_text *err)
{
	int rc;

	if (addr_resolve_numeric(a, ret_sa, ret_len) == 0)
		return 0;
	rc = host_resolve_first_address(a->host, AI_ADDRCONFIG, ret_sa, ret_len);
	if (rc)
		return err_set(
			err, -EADDRNOTAVAIL, "cannot resolve '%s': %s", a->host, gai_strerror(rc));
	sockaddr_set_port(ret_sa, a->port);
	return 0;
}

/* Write the address as 16 bytes. An IPv4 address is written as a v4-mapped IPv6 address. Returns
 * false if the address is neither IPv4 nor IPv6. */
static bool sockaddr_map_to_ipv6(const struct sockaddr *sa, uint8_t ret_ip[16])
{
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

	if (sa->sa_family == AF_INET6) {
		memcpy(ret_ip, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
		return true;
	}
	if (sa->sa_family != AF_INET)
		return false;
	memcpy(ret_ip, mapped, 12);
	memcpy(ret_ip + 12, &((const struct sockaddr_in *)sa)->sin_addr, 4);
	return true;
}

const char *addr_bind_hint(int rc)
{
	switch (rc) {
	case -EADDRINUSE:
		return " (another program listens on this port: `ss -ltnp` shows the program; stop "
		       "it, or choose another port)";
	case -EADDRNOTAVAIL:
		return " (no interface of this machine has that address: choose another address, "
		       "or bring its interface up)";
	case -EACCES:
		return " (ports below 1024 need privileges: choose a higher port)";
	default:
		return "";
	}
}

bool sockaddr_is_any(const struct sockaddr *sa)
{
	static const uint8_t v6_any[16] = {0}, v4_any[16] = {[10] = 0xff, [11] = 0xff};
	uint8_t ip[16];

	return sockaddr_map_to_ipv6(sa, ip) &&
	       (memcmp(ip, v6_any, 16) == 0 || memcmp(ip, v4_any, 16) == 0);
}

bool sockaddr_is_loopback(const struct sockaddr *sa)
{
	static const uint8_t v6_loopback[16] = {[15] = 1};
	static const uint8_t mapped_127[13] = {[10] = 0xff, [11] = 0xff, [12] = 127};
	uint8_t ip[16];

	if (!sockaddr_map_to_ipv6(sa, ip))
		return false;
	return memcmp(ip, v6_loopback, 16) == 0 || memcmp(ip, mapped_127, 13) == 0;
}

bool sockaddr_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
	uint8_t ip_a[16], ip_b[16];

	return sockaddr_map_to_ipv6(a, ip_a) && sockaddr_map_to_ipv6(b, ip_b) &&
	       memcmp(ip_a, ip_b, 16) == 0;
}

uint16_t sockaddr_port(const struct sockaddr *sa)
{
	if (sa->sa_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)sa)->sin6_port);
	if (sa->sa_family == AF_INET)
		return ntohs(((const struct sockaddr_in *)sa)->sin_port);
	return 0;
}

const char *sockaddr_format(const struct sockaddr *sa, char buf[static ADDR_TEXT_BYTES])
{
	struct addr a = {.port = sockaddr_port(sa)};
	const void *ip = sa->sa_family == AF_INET6
				 ? (const void *)&((const struct sockaddr_in6 *)sa)->sin6_addr
				 : (const void *)&((const struct sockaddr_in *)sa)->sin_addr;

	if (!inet_ntop(sa->sa_family, ip, a.host, sizeof(a.host)))
		snprintf(a.host, sizeof(a.host), "?");
	return addr_format(&a, buf);
}
