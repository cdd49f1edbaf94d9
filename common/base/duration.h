#ifndef BPS_COMMON_BASE_DURATION_H
#define BPS_COMMON_BASE_DURATION_H
/* Durations as text: "500ms", "90s", "30min" or "30m", "4h", "2d". This parser is not for
 * settings, which have a stricter syntax and ranges (common/daemon/settings.h). Any thread may call
 * the function. */
#include <stdint.h>

#define NS_PER_MS UINT64_C(1000000)

/* Parse a duration into milliseconds. Returns 0 when text is not a duration from 1 ms to max_ms. */
uint64_t duration_ms(const char *text, uint64_t max_ms);
#endif
