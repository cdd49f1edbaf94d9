#ifndef BPS_COMMON_BASE_HISTOGRAM_H
#define BPS_COMMON_BASE_HISTOGRAM_H
/* Histogram of durations. The upper bounds of the buckets double from 100 us to 13 s, and the last
 * bucket is for longer durations. Adding a duration takes a few instructions and allocates no
 * memory, so the data path may add durations. All histograms have the same buckets, so histograms
 * of several threads and processes can be merged. A zeroed struct is an empty histogram. Only the
 * thread that owns a histogram may use the histogram. */
#include <stdint.h>

#define HISTOGRAM_BUCKETS 19
/* The upper bound of bucket k is HISTOGRAM_FIRST_NS << k. The last bucket has no upper bound. */
#define HISTOGRAM_FIRST_NS UINT64_C(100000)

struct histogram {
	uint64_t n[HISTOGRAM_BUCKETS];
	uint64_t sum_ns;
};

static inline unsigned histogram_bucket(uint64_t ns)
{
	/* Subtract 1, so that a duration equal to a bound belongs to the bucket that ends there */
	uint64_t units = ns ? (ns - 1) / HISTOGRAM_FIRST_NS : 0;
	unsigned k = units ? 64 - (unsigned)__builtin_clzll(units) : 0;

	return k < HISTOGRAM_BUCKETS ? k : HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_add(struct histogram *h, uint64_t ns)
{
	h->n[histogram_bucket(ns)]++;
	h->sum_ns += ns;
}

/* Add the counts and the sum of `from` to h. */
void histogram_merge(struct histogram *h, const struct histogram *from);
uint64_t histogram_count(const struct histogram *h);
/* Return the q-quantile in nanoseconds: a share q (0 to 1) of all durations is below this value.
 * The durations in each bucket are assumed to be spread evenly. Returns 0 for an empty histogram.
 * If the quantile is in the last bucket, returns the lower bound of that bucket. */
uint64_t histogram_quantile(const struct histogram *h, double q);
#endif
