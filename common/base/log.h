#ifndef BPS_COMMON_BASE_LOG_H
#define BPS_COMMON_BASE_LOG_H
/* Writes the log to stderr, one line per event. A line is in lower case without a full stop. Fields
 * that an operator searches for have the form `key=value`. The functions are thread-safe, because
 * each line is a single write. Characters that cannot be printed, or
 * that could make one line look like two lines, are escaped. So the name of a peer or user cannot
 * forge a line. The format of a line depends on what stderr is:
 *
 *   terminal                  09:10:11.123 warn  text
 *   file                      <4>2026-11-20T09:10:11.123Z text
 *   pipe, socket              <4>text                 (sd-daemon(3); the reader adds the time)
 *   journal (JOURNAL_STREAM)  the journal's native protocol: field BPS_JOB=... for job=..., and
 *                             MESSAGE_ID= if the line has a LOG_ID. A line has the form for a
 *                             pipe if the journal cannot be reached, or if the line is an error
 *                             without a LOG_ID.
 *
 * Levels: error: the program cannot continue as requested. warn: something unexpected has happened;
 * the line also names the program's reaction. info: starts, stops and state changes. debug: events
 * of single objects. trace: each message that is sent or received (compiled in, off by default). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_ERROR = 3, LOG_WARN = 4, LOG_INFO = 6, LOG_DEBUG = 7, LOG_TRACE = 8 };

/* Kinds of lines for which tools search by MESSAGE_ID in the journal. An id is never reused for
 * another event. docs/reference/logs.md describes the ids. */
#define LOG_IDS(X)                                                                                 \
	X(START, "b096ad5a5e794e7c8b0c08bdba811ecc")                                               \
	X(SERVING, "a47d0cd388ff4e35924b8ffa3dcd430c")                                             \
	X(STOPPING, "3d9b6c956b7b4b1b8601e46fb952ecbc")                                            \
	X(RELOADED, "fa36012ff3f5474a939ba7b8b28afdc6")                                            \
	X(RELOAD_REFUSED, "73394e6e3d4a472d9aa047e595da0efd")                                      \
	X(KEY_CHANGED, "728eccabe7c04f3aa47e2128df1eefac")                                         \
	X(STUCK, "f28c38d33da1401c8cb97fd1e3c54285")                                               \
	X(JOINED, "4dd94f3d3ffe43fca54d6e348dd18690")                                              \
	X(SCHEDULER_LOST, "81ffce3e07484cada852a986e7b50268")                                      \
	X(REFUSED, "c888ef24ee2a4eb89056b16d870a008c")                                             \
	X(MEMBER, "c6868f9f40d74d7594e4cc9fe7df6b1a")                                              \
	X(JOB, "9c9594b2d163403a8f50a454de9108e3")                                                 \
	X(JOB_FAILED, "659ed0cd964b41e6b021176aed3d7cc8")                                          \
	X(TENSOR_REFUSED, "204ee8b387c3480a94158d4de1e94015")                                      \
	X(WORKER_REFUSED, "e50b8b6e5e4d49369fcdcc6f8ecf2ba4")                                      \
	X(STEERED, "4a0ea4aec0f04708b549ef10474f2f55")                                             \
	X(STATE_LOST, "6442f48e4b55448d95e0acb07bec2764")                                          \
	X(STATE_BACK, "d45b08a337d74ebc9703a356028aa977")                                          \
	X(STATE_CUT, "aa7e1390175d4644b8501335cfe89ed6")                                           \
	X(STRANGER, "405b3204a9e043f0a342cc01db47e69b")                                            \
	X(PEER_BROKEN, "e37c95f2badc488d8b8fc2107e06edeb")                                         \
	X(STRANDED, "eed003621d41466b8f77d7bf364e3c45")                                            \
	X(TRAINER_STALLED, "6bbf0755d44f4bd284b9cb7ea702a09a")

enum log_id {
	LOG_ID_NONE,
#define X(name, uuid) LOG_ID_##name,
	LOG_IDS(X)
#undef X
};
/* Combine a level and a LOG_ID into a value for the level argument of log_write and its macros. */
#define LOG_AS(level, id) ((unsigned)(level) | (unsigned)(LOG_ID_##id) << 8)

/* Set the least urgent level that is written. log_level_parse converts a name ("error" ...
 * "trace").
 * Errors: -EINVAL if no level has this name. */
void log_set_level(enum log_level level);
int log_level_parse(const char *name, enum log_level *ret_level);

bool log_level_is_enabled(enum log_level level);
/* Write a line. level: enum log_level, or LOG_AS. */
void log_write(unsigned level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Copy n bytes of src to dst, escaped as in the log. Control characters, line separators,
 * direction marks and invalid UTF-8 become \n, \t, \r or \xNN. The copy is cut to `room` bytes,
 * including its NUL byte. Returns the length of the copy. */
size_t log_escape(char *dst, size_t room, const char *src, size_t n);
/* Put a question mark in the place of every byte that log_escape would escape. Use the function for
 * screens with columns, because the length of the text stays the same. */
void log_replace_unprintable(char *s);

#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
	do {                                                                                       \
		if (log_level_is_enabled(LOG_DEBUG))                                               \
			log_write(LOG_DEBUG, __VA_ARGS__);                                         \
	} while (0)
#define log_trace(...)                                                                             \
	do {                                                                                       \
		if (log_level_is_enabled(LOG_TRACE))                                               \
			log_write(LOG_TRACE, __VA_ARGS__);                                         \
	} while (0)

/* log_rated: log an event that any peer or user can cause, at most LOG_RATE_BURST lines per minute
 * and call site. The next line that is written reports how many lines were suppressed. log_limited:
 * log at most LOG_LIMIT_BURST lines per minute and call site, for normal events that a client can
 * cause at any rate. */
#define LOG_RATE_MS     60000
#define LOG_RATE_BURST  5
#define LOG_LIMIT_BURST 600
struct log_rate {
	_Atomic uint64_t window_ms;
	_Atomic uint32_t count;
	_Atomic uint32_t swallowed;
};
bool log_rate_may_write(struct log_rate *r, uint32_t burst, uint32_t *ret_swallowed);
#define LOG_BURST_(burst, level, fmt, ...)                                                         \
	do {                                                                                       \
		static struct log_rate rate_;                                                      \
		uint32_t swallowed_;                                                               \
		if (log_rate_may_write(&rate_, burst, &swallowed_)) {                              \
			if (swallowed_)                                                            \
				log_write(level, fmt " swallowed=%u", ##__VA_ARGS__, swallowed_);  \
			else                                                                       \
				log_write(level, fmt, ##__VA_ARGS__);                              \
		}                                                                                  \
	} while (0)
#define log_rated(level, ...)   LOG_BURST_(LOG_RATE_BURST, level, __VA_ARGS__)
#define log_limited(level, ...) LOG_BURST_(LOG_LIMIT_BURST, level, __VA_ARGS__)
#endif
