#ifndef BPS_BENCH_PROBE_H
#define BPS_BENCH_PROBE_H
/* bps-probe measures, each alone, what a push_pull is made of, and prints a line of JSON. What
 * these leave at best is what tests/bench/bars holds the whole against.
 *
 *   raw.c    bytes over TCP sockets and nothing else: epoll, sendmsg, recv
 *   cpu.c    crc32c of the bytes of a partition; how much of the processors one gets
 *   sum.c    the server core's sums, beside
 *   plain.c  a plain loop over the same operands
 *   main.c   part, of a tensor of f32: the scheduler's choice, of its own code
 *
 * One thread; raw and cores start processes. */
#include <stddef.h>
#include <stdint.h>

#include "common/data/dtype.h"

#define PROBE_MEMBERS_MAX 16

/* CPU seconds of this process, user and system. */
double probe_cpu_s(void);
double probe_now_s(void);
/* Zeroed memory whose pages are there; ends the program when there is none. */
void *probe_alloc(size_t bytes);
/* Sorts v; the middle one of n >= 1. */
double probe_median(double *v, unsigned n);
/* Says it on stderr and ends the program. */
void probe_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* n agents and k servers, a process each, one connection per pair. Each agent streams its tensor,
 * divided between the servers, and each server a sum to every agent, in pieces of part bytes
 * behind a header; both directions at once, through memory as large as ours. */
void probe_raw(unsigned n, unsigned k, size_t bytes, size_t part, double seconds);
void probe_crc(size_t bytes, size_t part, double seconds);
/* n processes that only count: CPU seconds that they get per second. */
void probe_cores(unsigned n, double seconds);
void probe_sum(size_t bytes, size_t part, unsigned members, double seconds);

/* The loops that anybody would write; operands of dtype, accumulators of f32 for f16 and bf16.
 * plain_add: one array after the other onto an accumulator in memory, then rounded into dst; acc:
 * n_elems floats, for f16 and bf16 only. plain_sum: all n arrays in a single pass over memory. */
void plain_add(
	void *dst, void *acc, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype);
void plain_sum(void *dst, const void *const *src, unsigned n, size_t n_elems, enum dtype dtype);
#endif
