#ifndef BPS_COMMON_LOG_H
#define BPS_COMMON_LOG_H
/* The log: one line per event on stderr with a systemd "<N>" priority prefix when stderr is not a
 * terminal. Lower case, no full stop, `key=value` tail for the fields that an operator greps for.
 * Thread-safe (one write per line). Rate-limited lines go through log_rated().
 *
 * error: cannot go on as asked; warn: odd, and what is done about it; info: starts, stops, state
 * changes; debug: per object; trace: per message (compiled in, off by default). */
#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR = 3, LOG_WARN = 4, LOG_INFO = 6, LOG_DEBUG = 7, LOG_TRACE = 8 };

/* Set the least urgent level that is written; from a name ("error" ... "trace") with
 * log_level_parse.
 * Errors: -EINVAL no such name. */
void log_set_level(enum log_level level);
int log_level_parse(const char *name, enum log_level *ret_level);

bool log_enabled(enum log_level level);
void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
	do {                                                                                       \
		if (log_enabled(LOG_DEBUG))                                                        \
			log_write(LOG_DEBUG, __VA_ARGS__);                                         \
	} while (0)
#define log_trace(...)                                                                             \
	do {                                                                                       \
		if (log_enabled(LOG_TRACE))                                                        \
			log_write(LOG_TRACE, __VA_ARGS__);                                         \
	} while (0)

/* Allows LOG_RATE_BURST lines per LOG_RATE_MS per call site; what was swallowed is told on the next
 * line that passes. For anything that a stranger or a client can cause. */
#define LOG_RATE_MS    60000
#define LOG_RATE_BURST 5
struct log_rate {
	_Atomic uint64_t window_ms;
	_Atomic uint32_t count;
	_Atomic uint32_t swallowed;
};
bool log_rate_pass(struct log_rate *r, uint32_t *ret_swallowed);
#define log_rated(level, fmt, ...)                                                                 \
	do {                                                                                       \
		static struct log_rate rate_;                                                      \
		uint32_t swallowed_;                                                               \
		if (log_rate_pass(&rate_, &swallowed_)) {                                          \
			if (swallowed_)                                                            \
				log_write(level, fmt " swallowed=%u", ##__VA_ARGS__, swallowed_);  \
			else                                                                       \
				log_write(level, fmt, ##__VA_ARGS__);                              \
		}                                                                                  \
	} while (0)
#endif
