#include "bps-agent/gpu/child_environment.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* What is the agent's own business: its service manager, credentials and settings. */
static bool is_private(const char *variable)
{
	static const char *const ours[] = {
		"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "CREDENTIALS_DIRECTORY=", "BPS_"};

	if (!strncmp(variable, "BPS_DEVICE_", 11))
		return false;
	for (unsigned i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!strncmp(variable, ours[i], strlen(ours[i])))
			return true;
	return false;
}

char **child_environment(void)
{
	size_t n = 0, k = 0;
	char **v;

	while (environ[n])
		n++;
	v = calloc(n + 1, sizeof(char *));
	if (!v)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (!is_private(environ[i]))
			v[k++] = environ[i];
	return v;
}
