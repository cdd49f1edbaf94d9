#ifndef BPS_AGENT_GPU_SPAWN_CHILD_H
#define BPS_AGENT_GPU_SPAWN_CHILD_H
/* Starts a child process with default signal handling. The child gets the agent's environment,
 * without the variables that only the agent may have. Thread: any, but no thread may change the
 * environment during the call. */
#include <spawn.h>
#include <sys/types.h>

/* Start the program at the path `program` with the argument `arg`, or without arguments if `arg` is
 * NULL. The actions in `files` set up the child's descriptors. Errors: -errno. */
int spawn_child(
	const char *program, const char *arg, const posix_spawn_file_actions_t *files, pid_t *ret);
#endif
