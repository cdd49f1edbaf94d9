#ifndef BPS_SERVER_THREAD_COUNT_H
#define BPS_SERVER_THREAD_COUNT_H
/* Chooses the number of data threads of a server if the configuration does not set it. A server
 * alone on its machine gets one thread per two processors, because the kernel's network code needs
 * the other processors. The server gets at most 8 threads, which are enough for any network card.
 * If an agent runs on the same host, the server gets a quarter of the threads that it would get
 * alone, because the trainers need the processors. */
#include <stdbool.h>

#define COUNT_THREADS_MAX 8

/* Return the number of data threads, at least 1. n_cpus: number of processors that the process may
 * run on. */
unsigned count_default_threads(unsigned n_cpus, bool is_beside_agent);
/* Return whether a socket exists at this path. The socket means that this host has an agent.
 * Possibly the agent does not run yet: with systemd the socket exists before any daemon starts. */
bool count_sees_agent(const char *socket_path);
#endif
