#ifndef BPS_COMMON_BASE_CLOCK_H
#define BPS_COMMON_BASE_CLOCK_H
/* The clock of all programs: CLOCK_MONOTONIC, in nanoseconds. The cores (pure state machines) do
 * not read the clock; their callers pass the time. Programs use the wall clock for display. The
 * scheduler also uses the wall clock to find the end of a mute after a reboot
 * (bps-scheduler/model/mute.h). Any thread may call the functions. */
#include <stdint.h>
#include <time.h>

#include "common/base/duration.h"

static inline uint64_t clock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_now_ms(void)
{
	return clock_now_ns() / NS_PER_MS;
}

/* Return the time that the clock will show `timeout_ms` milliseconds from now. */
static inline uint64_t clock_deadline(uint32_t timeout_ms)
{
	return clock_now_ns() + timeout_ms * NS_PER_MS;
}

/* Return the milliseconds until deadline_ns, rounded up; 0 when the deadline has passed. */
static inline uint32_t clock_ms_until_deadline(uint64_t deadline_ns)
{
	uint64_t now = clock_now_ns();
	uint64_t ms = now < deadline_ns ? (deadline_ns - now + NS_PER_MS - 1) / NS_PER_MS : 0;

	return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

/* Return the wall-clock time in seconds since 1970. */
static inline double clock_unix_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}
#endif
