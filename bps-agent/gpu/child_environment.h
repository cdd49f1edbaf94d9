#ifndef BPS_AGENT_GPU_CHILD_ENVIRONMENT_H
#define BPS_AGENT_GPU_CHILD_ENVIRONMENT_H
/* What a child of the agent finds in its environment: all but what is the agent's own affair.
 * Thread-safe as long as nobody changes the environment. */

/* Owns: free(3) it; the strings are the agent's. NULL: out of memory. */
char **child_environment(void);
#endif
