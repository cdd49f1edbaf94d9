#ifndef BPS_AGENT_GPU_SPAWN_CHILD_H
#define BPS_AGENT_GPU_SPAWN_CHILD_H
/* Starts a child with default signals and the agent's environment, except variables that are for
 * the agent only. Thread-safe as long as no thread changes the environment. */
#include <spawn.h>
#include <sys/types.h>

/* Start program with one argument, or none when arg is NULL. files: its descriptors. Errors:
 * -errno. */
int spawn_child(
	const char *program, const char *arg, const posix_spawn_file_actions_t *files, pid_t *ret);
#endif
