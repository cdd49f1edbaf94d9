#ifndef BPS_COMMON_CLOCK_H
#define BPS_COMMON_CLOCK_H
/* The one clock of all programs: CLOCK_MONOTONIC, in nanoseconds. The cores never look at it; their
 * shells hand them the time. Any thread. */
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_now_ms(void)
{
	return clock_now_ns() / 1000000;
}
#endif
