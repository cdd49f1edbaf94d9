#ifndef BPS_BENCH_PROBE_H
#define BPS_BENCH_PROBE_H
/* bps-probe measures one part of a push_pull alone, and prints a line of JSON. From the costs of
 * the parts, tests/bench/bars computes the best speed that a push_pull can have.
 *
 *   raw.c    bytes over TCP sockets and nothing else: epoll, sendmsg, recv
 *   cpu.c    crc32c of the bytes of a partition; the share of the processors that processes get
 *   sum.c    the sums of the server's core
 *   plain.c  a plain loop over the same operands, to compare with
 *   main.c   "part": the partition size that the scheduler chooses for a tensor of f32
 *
 * The program has one thread. The commands "raw" and "cores" (in cpu.c) also start processes. */
#include <stddef.h>
#include <stdint.h>

#include "common/data/dtype.h"

#define PROBE_MEMBERS_MAX 16

/* Return the CPU seconds of this process, user and system. */
double probe_cpu_s(void);
double probe_now_s(void);
/* Return zeroed memory whose pages are allocated. Ends the program when there is none. */
void *probe_alloc(size_t bytes);
/* Sort v and return the median of its n >= 1 values. */
double probe_median(double *v, unsigned n);
/* Print the message on stderr and end the program. */
void probe_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Measure TCP with n agents and k servers. Each agent and each server is a process, and each
 * pair of an agent and a server has a connection. Each agent streams its tensor, divided among the
 * servers. Each server streams a sum to every agent. Both directions run at the same time, in
 * pieces of `part` bytes behind a header. Buffers are as large as those of our own programs. */
void probe_raw(unsigned n, unsigned k, size_t bytes, size_t part, double seconds);
void probe_crc(size_t bytes, size_t part, double seconds);
/* Measure the total number of CPU seconds per second that n processes get. Each process only reads
 * the clock in a loop. */
void probe_cores(unsigned n, double seconds);
void probe_sum(size_t bytes, size_t part, unsigned members, double seconds);

/* The loops that a programmer would write first. Operands have type dtype; f16 and bf16 have f32
 * accumulators. plain_add adds one array after the other to an accumulator in memory, and then
 * rounds into dst. acc: n_elems floats, for f16 and bf16 only. plain_sum reads all n arrays in a
 * single pass over memory. */
void plain_add(
	void *dst, void *acc, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype);
void plain_sum(void *dst, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype);
#endif
