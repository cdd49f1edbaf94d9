#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

static atomic_int level_now = LOG_INFO;

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

int log_level_parse(const char *name, enum log_level *ret_level)
{
	static const struct {
		const char *name;
		enum log_level level;
	} names[] = {{"error", LOG_ERROR}, {"warn", LOG_WARN}, {"info", LOG_INFO},
		{"debug", LOG_DEBUG}, {"trace", LOG_TRACE}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i].name, name) == 0) {
			*ret_level = names[i].level;
			return 0;
		}
	}
	return -EINVAL;
}

bool log_enabled(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

void log_write(enum log_level level, const char *fmt, ...)
{
	char line[2048];
	int saved_errno = errno, prefix = 0, n;
	va_list ap;

	if (!log_enabled(level))
		return;
	if (!isatty(STDERR_FILENO))
		prefix = snprintf(line, sizeof(line), "<%d>", level > 7 ? 7 : (int)level);
	va_start(ap, fmt);
	n = vsnprintf(line + prefix, sizeof(line) - (size_t)prefix - 1, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	n += prefix;
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	for (int i = prefix; i < n; i++) /* one event is one line, whatever a peer's name holds */
		if ((unsigned char)line[i] < ' ')
			line[i] = '?';
	line[n++] = '\n';
	/* A log that cannot be written has nowhere to complain. */
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		errno = saved_errno;
	errno = saved_errno;
}

bool log_rate_pass(struct log_rate *r, uint32_t *ret_swallowed)
{
	uint64_t now_ms = clock_now_ms() + LOG_RATE_MS, window;

	window = atomic_load(&r->window_ms);
	if (now_ms - window >= LOG_RATE_MS &&
		atomic_compare_exchange_strong(&r->window_ms, &window, now_ms))
		atomic_store(&r->count, 0);
	if (atomic_fetch_add(&r->count, 1) >= LOG_RATE_BURST) {
		atomic_fetch_add(&r->swallowed, 1);
		return false;
	}
	*ret_swallowed = atomic_exchange(&r->swallowed, 0);
	return true;
}
