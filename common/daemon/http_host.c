#include "common/daemon/http_host.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SEPARATORS " \t,"

static bool host_is_machine_name(const char *host)
{
	char name[ADDR_HOST_BYTES] = "";

	if (gethostname(name, sizeof(name) - 1) < 0 || !*name)
		return false;
	if (strcasecmp(host, name) == 0)
		return true;
	name[strcspn(name, ".")] = '\0';
	return strcasecmp(host, name) == 0;
}

static bool host_is_in_name_list(const char *host, const char *names)
{
	size_t n_host = strlen(host), n;

	for (const char *at = names; *(at += strspn(at, SEPARATORS)); at += n) {
		n = strcspn(at, SEPARATORS);
		if (n == n_host && strncasecmp(at, host, n) == 0)
			return true;
	}
	return false;
}

static bool host_is_own_numeric_address(const struct addr *a, const struct sockaddr *local)
{
	struct sockaddr_storage sa;
	socklen_t len;

	if (strcmp(a->host, "*") == 0 || addr_resolve_numeric(a, &sa, &len))
		return false;
	return sockaddr_is_loopback((struct sockaddr *)&sa) ||
	       (local && sockaddr_same_host((struct sockaddr *)&sa, local));
}

bool http_host_is_ours(const char *host, const struct addr *listen, const struct sockaddr *local,
	const char *names)
{
	struct addr a;
	size_t n;

	if (addr_parse(&a, host, 80, NULL))
		return false;
	n = strlen(a.host);
	/* remove the dot at the end of a fully qualified domain name */
	if (n > 1 && a.host[n - 1] == '.')
		a.host[n - 1] = '\0';
	return strcasecmp(a.host, "localhost") == 0 || host_is_own_numeric_address(&a, local) ||
	       (*listen->host && strcasecmp(a.host, listen->host) == 0 &&
		       strcmp(a.host, "*") != 0) ||
	       host_is_machine_name(a.host) || host_is_in_name_list(a.host, names);
}
