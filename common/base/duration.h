#ifndef BPS_COMMON_BASE_DURATION_H
#define BPS_COMMON_BASE_DURATION_H
/* Parses durations: "500ms", "90s", "30min" or "30m", "4h", "2d". Settings have their own parser,
 * because their syntax is stricter and each has a range (common/daemon/settings.h). Any thread may
 * call the function. */
#include <stdint.h>

#define NS_PER_MS UINT64_C(1000000)

/* Parse a duration into milliseconds. Returns 0 when text is not a duration from 1 ms to max_ms. */
uint64_t duration_parse_ms(const char *text, uint64_t max_ms);
#endif
