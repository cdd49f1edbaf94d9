#include "bps-agent/gpu/spawn_child.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* Return whether the child must not get the environment variable. Private variables are those of
 * the service manager, of credentials and of the agent's settings. */
static bool is_private_variable(const char *variable)
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

/* Build the child's environment. The caller frees the array, but not the strings, which belong to
 * the agent's environment. */
static char **child_build_environment(void)
{
	size_t n = 0, k = 0;
	char **v;

	while (environ[n])
		n++;
	v = calloc(n + 1, sizeof(char *));
	if (!v)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (!is_private_variable(environ[i]))
			v[k++] = environ[i];
	return v;
}

int spawn_child(
	const char *program, const char *arg, const posix_spawn_file_actions_t *files, pid_t *ret)
{
	char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t)arg, NULL};
	char **env = child_build_environment();
	posix_spawnattr_t attr;
	sigset_t none, all;
	int rc;

	if (!env)
		return -ENOMEM;
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	rc = posix_spawn(ret, program, files, &attr, argv, env);
	free(env);
	posix_spawnattr_destroy(&attr);
	return -rc;
}
