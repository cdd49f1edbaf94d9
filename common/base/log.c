/* The log: format a line for its destination (terminal, file, pipe or journal), escape the line,
 * and limit the rate of a call site. log_journal.c implements the journal's protocol. The functions
 * are thread-safe: each line is written with one system call. */
#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log_impl.h"

#define HEAD_BYTES 48   /* room for the level and the time, which precede the text */
#define RAW_BYTES  2048 /* longest line before escaping; a longer line is cut */
#define TEXT_BYTES 4096 /* longest line after escaping; a longer line is cut */

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

bool log_level_is_enabled(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

/* ---- escaping ---- */

/* Return the number of bytes of the UTF-8 character at s; 0: the character is invalid or must be
 * escaped. */
static size_t utf8_printable_length(const unsigned char *s, size_t n)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
	uint32_t c = s[0] & (len == 4 ? 0x07u : len == 3 ? 0x0fu : 0x1fu);

	if (len == 1)
		return s[0] >= ' ' && s[0] != 0x7f;
	if (!len || len > n || s[0] > 0xf4)
		return 0;
	for (size_t i = 1; i < len; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3fu);
	}
	if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return 0;
	if (c < 0xa0 || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
		(c >= 0x2066 && c <= 0x2069))
		/* control characters, line separators and direction marks must be escaped */
		return 0;
	return len;
}

static size_t log_escape_byte(char *ret, unsigned char b)
{
	static const char hex[] = "0123456789abcdef";

	ret[0] = '\\';
	if (b == '\n' || b == '\r' || b == '\t') {
		ret[1] = b == '\n' ? 'n' : b == '\r' ? 'r' : 't';
		return 2;
	}
	ret[1] = 'x';
	ret[2] = hex[b >> 4];
	ret[3] = hex[b & 15];
	return 4;
}

size_t log_escape(char *dst, size_t room, const char *src, size_t n)
{
	size_t out = 0;

	for (size_t i = 0; i < n;) {
		size_t len = utf8_printable_length((const unsigned char *)src + i, n - i);
		char escaped[4];
		const char *piece = len ? src + i : escaped;
		size_t n_piece = len ? len : log_escape_byte(escaped, (unsigned char)src[i]);

		if (out + n_piece >= room)
			break;
		memcpy(dst + out, piece, n_piece);
		out += n_piece;
		i += len ? len : 1;
	}
	dst[out] = '\0';
	return out;
}

void log_replace_unprintable(char *s)
{
	for (size_t len; *s; s += len ? len : 1) {
		len = utf8_printable_length((const unsigned char *)s, strnlen(s, 4));
		if (!len)
			*s = '?';
	}
}

/* ---- writing ---- */

static size_t log_format_time(char *buf, size_t room, bool is_local)
{
	struct timespec now;
	struct tm tm;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &now);
	if (is_local)
		n = strftime(buf, room, "%H:%M:%S", localtime_r(&now.tv_sec, &tm));
	else
		n = strftime(buf, room, "%FT%T", gmtime_r(&now.tv_sec, &tm));
	return n + (size_t)snprintf(buf + n, room - n, ".%03ld", now.tv_nsec / 1000000);
}

/* Convert a level to a syslog priority. syslog has nothing below debug, so trace becomes debug. */
static unsigned log_syslog_priority(unsigned level)
{
	return level > LOG_DEBUG ? LOG_DEBUG : level;
}

/* Write the start of a line, which precedes the message text. */
static size_t log_format_prefix(char *buf, size_t room, unsigned level, const struct stat *st)
{
	static const char *const words[] = {[LOG_ERROR] = "error",
		[LOG_WARN] = "warn ",
		[LOG_INFO] = "info ",
		[LOG_DEBUG] = "debug",
		[LOG_TRACE] = "trace"};
	size_t n;

	if (S_ISCHR(st->st_mode) && isatty(STDERR_FILENO)) {
		n = log_format_time(buf, room, true);
		return n + (size_t)snprintf(buf + n, room - n, " %s ", words[level]);
	}
	n = (size_t)snprintf(buf, room, "<%u>", log_syslog_priority(level));
	if (!S_ISREG(st->st_mode))
		return n;
	n += log_format_time(buf + n, room - n, false);
	return n + (size_t)snprintf(buf + n, room - n, "Z ");
}

/* Return whether this log line is possibly the last line before the process ends. That is possible
 * for an error without an id. Such a line is written to stderr, not sent to the journal as a
 * datagram. The journal looks up the unit of a datagram's sender only when the journal reads the
 * datagram. If the sender has ended by then, the journal finds no unit. For stderr, the journal has
 * the unit from the start. */
static bool log_line_may_be_last(unsigned level, enum log_id id)
{
	return level == LOG_ERROR && id == LOG_ID_NONE;
}

static void log_write_line(unsigned level, enum log_id id, const char *text, size_t n_text)
{
	char line[HEAD_BYTES + TEXT_BYTES + 1];
	struct stat st;
	size_t n;

	if (fstat(STDERR_FILENO, &st) < 0)
		return;
	if (log_is_journal(&st) && !log_line_may_be_last(level, id) &&
		log_to_journal((int)log_syslog_priority(level), id, text, n_text))
		return;
	n = log_format_prefix(line, HEAD_BYTES, level, &st);
	memcpy(line + n, text, n_text);
	n += n_text;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0)
		return; /* the log itself cannot be written, so the error cannot be reported */
}

void log_write(unsigned level, const char *fmt, ...)
{
	char raw[RAW_BYTES], text[TEXT_BYTES];
	int saved_errno = errno, n;
	enum log_id id = (enum log_id)(level >> 8);
	va_list ap;

	level &= 0xff;
	if (!log_level_is_enabled((enum log_level)level))
		return;
	va_start(ap, fmt);
	n = vsnprintf(raw, sizeof(raw), fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof(raw))
		n = (int)sizeof(raw) - 1;
	if (n >= 0)
		log_write_line(level, id, text, log_escape(text, sizeof(text), raw, (size_t)n));
	errno = saved_errno;
}

/* ---- rate limits ---- */

bool log_rate_may_write(struct log_rate *r, uint32_t burst, uint32_t *ret_swallowed)
{
	/* Add the length of a window to the time. So the window of a zeroed struct log_rate, which
	 * starts at 0, counts as expired even just after boot. */
	uint64_t now_ms = clock_now_ms() + LOG_RATE_MS;
	uint64_t window = atomic_load(&r->window_ms);

	if (now_ms - window >= LOG_RATE_MS &&
		atomic_compare_exchange_strong(&r->window_ms, &window, now_ms))
		atomic_store(&r->count, 0);
	if (atomic_fetch_add(&r->count, 1) >= burst) {
		atomic_fetch_add(&r->swallowed, 1);
		return false;
	}
	*ret_swallowed = atomic_exchange(&r->swallowed, 0);
	return true;
}
