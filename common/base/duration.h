#ifndef BPS_COMMON_BASE_DURATION_H
#define BPS_COMMON_BASE_DURATION_H
/* Spans of time as people write them: "500ms", "90s", "30min" or "30m", "4h", "2d". Settings have
 * their own (common/daemon/settings.h), which are finer and have ranges. Any thread. */
#include <stdint.h>

/* Milliseconds; 0 when text is no span of 1 ms to max_ms. */
uint64_t duration_ms(const char *text, uint64_t max_ms);
#endif
