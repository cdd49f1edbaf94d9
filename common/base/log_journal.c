/* Send log lines to the journal by its native protocol ("Native Journal Protocol" in systemd's
 * documentation). A datagram consists of lines FIELD=value. An escaped log line contains no
 * newline, so the protocol's binary form of fields is not needed. Any thread may call the
 * functions. */
#include "common/base/log_impl.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define FIELD_MAX      32 /* largest number of letters in the key of a word such as job=7 */
#define FIELDS_MAX     16 /* largest number of fields that are added for the words of one line */

static const char *const uuids[] = {[LOG_ID_NONE] = NULL,
#define X(name, uuid) [LOG_ID_##name] = uuid,
	LOG_IDS(X)
#undef X
};

struct fields {
	char *buf;
	size_t n;
	unsigned count;
};

bool log_is_journal(const struct stat *st)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;

	return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && st->st_dev == dev &&
	       st->st_ino == ino;
}

/* Return the process's socket to the journal, or -1. The first caller opens the socket. When two
 * threads open a socket at the same time, one of the threads closes its socket and uses the other
 * socket. */
static int datagram_socket(void)
{
	static atomic_int sock = -1;
	int fd = atomic_load(&sock), none = -1;

	if (fd >= 0)
		return fd;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || atomic_compare_exchange_strong(&sock, &none, fd))
		return fd;
	close(fd);
	return none;
}

static void journal_add_field(struct fields *f, const char *name, const char *value, size_t n_value)
{
	size_t n_name = strlen(name);

	if (f->n + n_name + n_value + 2 > LOG_DATAGRAM_BYTES)
		return;
	memcpy(f->buf + f->n, name, n_name);
	f->n += n_name;
	f->buf[f->n++] = '=';
	memcpy(f->buf + f->n, value, n_value);
	f->n += n_value;
	f->buf[f->n++] = '\n';
}

/* Add a field for a word of the form key=value, for example BPS_JOB=7 for "job=7". Ignore a word
 * of any other form. */
static void journal_add_word_field(struct fields *f, const char *word, size_t n)
{
	const char *eq = memchr(word, '=', n);
	size_t n_key = eq ? (size_t)(eq - word) : 0, n_value = eq ? n - n_key - 1 : 0;
	char name[4 + FIELD_MAX + 1] = "BPS_";

	if (!n_key || n_key > FIELD_MAX || !n_value || f->count == FIELDS_MAX)
		return;
	for (size_t i = 0; i < n_key; i++) {
		if (word[i] != '_' && !islower((unsigned char)word[i]))
			return;
		name[4 + i] = (char)toupper((unsigned char)word[i]);
	}
	if (n_value >= 2 && eq[1] == '\'' && eq[n_value] == '\'')
		journal_add_field(f, name, eq + 2, n_value - 2);
	else
		journal_add_field(f, name, eq + 1, n_value);
	f->count++;
}

/* Add a field for each word of the form key=value. A blank between quotes does not end a word. An
 * apostrophe inside a word does not start a quotation. */
static void journal_add_text_fields(struct fields *f, const char *text, size_t n)
{
	size_t start = 0;
	bool is_quoted = false;

	for (size_t i = 0; i <= n; i++) {
		if (i < n && text[i] == '\'')
			is_quoted = !is_quoted && (i == start || (text[i - 1] == '=' && i + 1 < n));
		if (i < n && (text[i] != ' ' || is_quoted))
			continue;
		journal_add_word_field(f, text + start, i - start);
		start = i + 1;
	}
}

size_t log_format_datagram(char buf[static LOG_DATAGRAM_BYTES], int priority, enum log_id id,
	const char *text, size_t n)
{
	struct fields f = {.buf = buf};
	char digit = (char)('0' + priority);
	const char *program = program_invocation_short_name;

	journal_add_field(&f, "MESSAGE", text, n);
	journal_add_field(&f, "PRIORITY", &digit, 1);
	journal_add_field(&f, "SYSLOG_IDENTIFIER", program, strlen(program));
	if (uuids[id])
		journal_add_field(&f, "MESSAGE_ID", uuids[id], strlen(uuids[id]));
	journal_add_text_fields(&f, text, n);
	return f.n;
}

bool log_to_journal(int priority, enum log_id id, const char *text, size_t n)
{
	static const struct sockaddr_un sun = {.sun_family = AF_UNIX, .sun_path = JOURNAL_SOCKET};
	char buf[LOG_DATAGRAM_BYTES];
	int fd = datagram_socket();

	if (fd < 0)
		return false;
	n = log_format_datagram(buf, priority, id, text, n);
	return sendto(fd, buf, n, MSG_NOSIGNAL, (const struct sockaddr *)&sun, sizeof(sun)) >= 0;
}
