#ifndef BPS_COMMON_CLOCK_H
#define BPS_COMMON_CLOCK_H
/* The one clock of all programs: CLOCK_MONOTONIC, in nanoseconds. The cores never look at it; their
 * shells hand them the time. The wall clock is for what people read, never for a deadline. Any
 * thread. */
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

/* Seconds since 1970. */
static inline double clock_unix_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}
#endif
