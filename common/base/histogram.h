#ifndef BPS_COMMON_BASE_HISTOGRAM_H
#define BPS_COMMON_BASE_HISTOGRAM_H
/* Durations counted in buckets that double from 100 us to 13 s, and one for all above. Adding is a
 * few instructions and takes no memory, so it may stand on the data path. The same buckets
 * everywhere: histograms of threads and of processes can be added up, and Prometheus sees the same
 * bounds at each of them. Plain data, zeroed is empty; the owner's thread. */
#include <stdint.h>

#define HISTOGRAM_BUCKETS  19
#define HISTOGRAM_FIRST_NS UINT64_C(100000) /* bucket k ends at this << k, but for the last */

struct histogram {
	uint64_t n[HISTOGRAM_BUCKETS];
	uint64_t sum_ns;
};

static inline unsigned histogram_bucket(uint64_t ns)
{
	uint64_t units = ns ? (ns - 1) / HISTOGRAM_FIRST_NS : 0; /* a bound is its bucket's own */
	unsigned k = units ? 64 - (unsigned)__builtin_clzll(units) : 0;

	return k < HISTOGRAM_BUCKETS ? k : HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_add(struct histogram *h, uint64_t ns)
{
	h->n[histogram_bucket(ns)]++;
	h->sum_ns += ns;
}

/* Add from to h. */
void histogram_merge(struct histogram *h, const struct histogram *from);
uint64_t histogram_count(const struct histogram *h);
/* The value below which a share q (0 to 1) of all lie, as if each bucket were filled evenly; 0 when
 * there are none, the last bound when it lies above. Nanoseconds. */
uint64_t histogram_quantile(const struct histogram *h, double q);
#endif
