#ifndef BPS_SERVER_THREAD_COUNT_H
#define BPS_SERVER_THREAD_COUNT_H
/* How many data threads a server takes when nobody says it. Alone on a machine: half of the
 * processors, since the kernel's network needs the others, and at most 8, which fill any card.
 * Beside an agent a quarter of that: the processors are the trainers'. Pure, but for the last. */
#include <stdbool.h>

#define COUNT_THREADS_MAX 8

/* At least 1. n_cpus: that it may run on. */
unsigned count_threads(unsigned n_cpus, bool is_beside_agent);
/* Processors that this process may run on. */
unsigned count_cpus(void);
/* Is there an agent's socket at this path? With systemd it is there before any daemon starts. */
bool count_sees_agent(const char *socket_path);
#endif
