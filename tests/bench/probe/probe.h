#ifndef BPS_BENCH_PROBE_H
#define BPS_BENCH_PROBE_H
/* bps-probe measures one part of a push_pull alone, and prints a line of JSON. From the costs of
 * the parts, tests/bench/bars computes the best speed that a push_pull can have.
 *
 *   raw.c    bytes over TCP sockets and nothing else: epoll, sendmsg, recv
 *   cpu.c    crc32c of the bytes of a partition; how much processor time n processes get in total
 *   sum.c    the sums of the server's core
 *   plain.c  plain loops, for comparison with the sums of the server's core
 *   kernels.c  conversions and sums of one core, from memory
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
 * servers. Each server streams a sum to every agent. Both directions run at the same time. A stream
 * consists of pieces of `part` bytes, and a header precedes each piece. The processes' buffers are
 * as large as those of bps-agent and bps-server. */
void probe_raw(unsigned n, unsigned k, size_t bytes, size_t part, double seconds);
void probe_crc(size_t bytes, size_t part, double seconds);
/* Measure the total number of CPU seconds per second that n processes get. Each process only reads
 * the clock in a loop. */
void probe_cores(unsigned n, double seconds);
/* Measure the conversions and sums of one core, for `seconds` in all. */
void probe_kernels(double seconds);
void probe_sum(size_t bytes, size_t part, unsigned members, double seconds);

/* plain_add and plain_sum are the loops that a programmer would write first. The operands have the
 * type `dtype`. Sums of f16 and bf16 use f32 accumulators.
 *
 * plain_add adds the arrays, one after another, to an accumulator in memory. The accumulator is dst
 * itself for f32 and f64. For f16 and bf16 the accumulator is `acc`, which has n_elems floats, and
 * plain_add rounds it into dst at the end.
 *
 * plain_sum reads all n arrays in one pass over memory, except for f32 and f64 with n > 4. In this
 * case it reads four arrays in one pass, and each of the other arrays in a pass of its own. */
void plain_add(
	void *dst, void *acc, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype);
void plain_sum(void *dst, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype);
#endif
