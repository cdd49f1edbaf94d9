#include "common/base/histogram.h"

void histogram_merge(struct histogram *h, const struct histogram *from)
{
	for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++)
		h->n[k] += from->n[k];
	h->sum_ns += from->sum_ns;
}

uint64_t histogram_count(const struct histogram *h)
{
	uint64_t n = 0;

	for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++)
		n += h->n[k];
	return n;
}

uint64_t histogram_quantile(const struct histogram *h, double q)
{
	double left = q * (double)histogram_count(h);

	if (left <= 0)
		return 0;
	for (unsigned k = 0; k < HISTOGRAM_BUCKETS - 1; k++) {
		uint64_t low = k ? HISTOGRAM_FIRST_NS << (k - 1) : 0;
		uint64_t high = HISTOGRAM_FIRST_NS << k;

		if (left <= (double)h->n[k])
			return low + (uint64_t)((double)(high - low) * left / (double)h->n[k]);
		left -= (double)h->n[k];
	}
	return HISTOGRAM_FIRST_NS << (HISTOGRAM_BUCKETS - 2);
}
