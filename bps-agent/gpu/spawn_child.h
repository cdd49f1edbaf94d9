#ifndef BPS_AGENT_GPU_SPAWN_CHILD_H
#define BPS_AGENT_GPU_SPAWN_CHILD_H
/* Starts a child process with default signal handling. It gets the agent's environment without the
 * variables that only the agent may have. Thread: any, as long as no thread changes the
 * environment. */
#include <spawn.h>
#include <sys/types.h>

/* Start program with the argument arg, or with none if arg is NULL. files: actions that set up the
 * child's descriptors. Errors: -errno. */
int spawn_child(
	const char *program, const char *arg, const posix_spawn_file_actions_t *files, pid_t *ret);
#endif
