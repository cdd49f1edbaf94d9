#ifndef BPS_AGENT_IO_COUNT_H
#define BPS_AGENT_IO_COUNT_H
/* Chooses the number of I/O threads of an agent if the configuration does not set it, and notices
 * an agent that has too few. An I/O thread carries about 15 Gbit/s over TCP (17 to 22 were
 * measured), and about 100 Gbit/s over verbs (a guess). The agent takes at most a quarter of the
 * processors, because the trainers need the others. Threads that are not needed are parked
 * (io/io_threads.h), so they cost little. The functions keep no state. */
#include <stdbool.h>
#include <stdint.h>

/* Return the number of threads, 1 to IO_THREADS_MAX. 1: the data thread does all work. nic_mbps:
 * speed of the network card in Mbit/s; 0: unknown. n_cpus: number of processors that the process
 * may run on. */
unsigned count_io_threads(uint64_t nic_mbps, bool is_verbs, unsigned n_cpus);

/* How busy the threads were between two looks. */
struct busy_look {
	uint64_t at_ns;   /* time of the look */
	uint64_t busy_ns; /* sum over the threads that move bytes, since they started */
	uint64_t idle_ns; /* sum over the processors of this machine, since it started */
};
#define BUSY_LOOK_NS UINT64_C(10000000000)

/* Return how many threads would carry more, or 0 if n_threads are enough. They are too few if they
 * worked for 90 % of the time between two looks, while at least two processors of the machine were
 * idle. *ret_percent: part of the time in which they worked. */
unsigned busy_more_threads(const struct busy_look *from, const struct busy_look *to,
	unsigned n_threads, unsigned n_cpus, unsigned *ret_percent);
/* Read the idle time of all processors from /proc/stat, in nanoseconds; 0: it cannot be read. */
uint64_t busy_read_idle_ns(void);
#endif
