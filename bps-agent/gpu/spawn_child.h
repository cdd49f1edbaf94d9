#ifndef BPS_AGENT_GPU_SPAWN_CHILD_H
#define BPS_AGENT_GPU_SPAWN_CHILD_H
/* Starts a child with default signals and all of the agent's environment but what is its own
 * affair. Thread-safe as long as nobody changes the environment. */
#include <spawn.h>
#include <sys/types.h>

/* program with one argument, or none when arg is NULL. files: what it has open. Errors: -errno. */
int spawn_child(
	const char *program, const char *arg, const posix_spawn_file_actions_t *files, pid_t *ret);
#endif
