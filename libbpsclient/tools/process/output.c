/* Prints the output of the children line by line, with a prefix in front of each line. Also prints
 * the program's own messages. One thread. */
#include "libbpsclient/tools/process/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/error.h"
#include "common/os/limits.h"

#define TAIL_BYTES 4096
#define TAIL_LINES 12

/* Stream whose last text is on the screen without a newline, as of a progress bar; NULL: none. It
 * is the state of the process's terminal, so it is not a field of a struct. */
static const struct output_stream *unfinished;

void output_print_message(const char *fmt, ...)
{
	char line[1024];

	format_arguments(line, fmt);
	if (unfinished)
		dprintf(unfinished->to, "\n");
	unfinished = NULL;
	dprintf(STDERR_FILENO, "%s: %s\n", program_invocation_short_name, line);
}

static void output_write_all(int fd, const char *p, size_t n)
{
	ssize_t done;

	while (n > 0) {
		done = write(fd, p, n);
		if (done < 0 && errno != EINTR)
			/* No process reads the output any more. Drop the output, and let the job
			 * continue. */
			return;
		if (done > 0) {
			p += done;
			n -= (size_t)done;
		}
	}
}

/* Print a text, with the prefix in front of it unless it continues the stream's unfinished line.
 * begin: "\r" to write over that line, else "". end: "\n", or "" to leave the line unfinished. */
static void output_print_text(const struct output_stream *s, const char *begin, const char *text,
	size_t n, const char *end)
{
	char whole[sizeof(s->buf) + 48];
	int head = 0;

	if (unfinished && unfinished != s)
		output_write_all(unfinished->to, "\n", 1);
	if (unfinished != s || *begin)
		head = snprintf(
			whole, sizeof(whole), "%s%s", unfinished == s ? begin : "", s->prefix);
	memcpy(whole + head, text, n);
	if (*end)
		whole[(size_t)head + n++] = *end;
	/* one write per line, so that lines of different children do not mix */
	output_write_all(s->to, whole, (size_t)head + n);
	unfinished = *end ? NULL : s;
}

/* Print a line without its newline. Each part of the line that begins with '\r' is printed over
 * the part before. */
static void output_print_line(struct output_stream *s, const char *line, size_t n, const char *end)
{
	const char *stop = line + n;

	while (line < stop) {
		const char *next =
			s->has_progress ? memchr(line, '\r', (size_t)(stop - line)) : NULL;

		if (!next)
			break;
		if (next > line)
			output_print_text(
				s, s->has_return ? "\r" : "", line, (size_t)(next - line), "");
		s->has_return = true;
		line = next + 1;
	}
	if (line == stop && !*end)
		return;
	output_print_text(
		s, line < stop && s->has_return ? "\r" : "", line, (size_t)(stop - line), end);
	s->has_return = false;
}

static void output_print_buffered_lines(struct output_stream *s)
{
	char *start = s->buf, *end = s->buf + s->n, *nl;

	s->has_progress |= memchr(start, '\r', s->n) != NULL;
	while ((nl = memchr(start, '\n', (size_t)(end - start)))) {
		output_print_line(s, start, (size_t)(nl - start), "\n");
		start = nl + 1;
	}
	s->n = (size_t)(end - start);
	memmove(s->buf, start, s->n);
	if (s->n && s->has_progress) {
		output_print_line(s, s->buf, s->n, "");
		s->n = 0;
	} else if (s->n == sizeof(s->buf)) { /* the line fills the buffer: print it in parts */
		output_print_text(s, "", s->buf, s->n, "\n");
		s->n = 0;
	}
}

void output_close(struct output_stream *s)
{
	if (s->fd < 0)
		return;
	if (s->n || unfinished == s)
		output_print_text(s, "", s->buf, s->n, "\n");
	s->n = 0;
	close(s->fd);
	if (s->copy_fd >= 0)
		close(s->copy_fd);
	s->fd = s->copy_fd = -1;
}

int output_open(struct output_stream *s, int to, const char *prefix, int *ret_write)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0) {
		struct err_text err;
		int rc = limits_explain(-errno, "cannot make a pipe for a worker's output", &err);

		output_print_message("%s", err.s);
		return rc;
	}
	fcntl(p[0], F_SETFL, O_NONBLOCK);
	s->fd = p[0];
	s->copy_fd = -1;
	s->to = to;
	snprintf(s->prefix, sizeof(s->prefix), "%s", prefix);
	*ret_write = p[1];
	return 0;
}

int output_copy_to(struct output_stream *s, const char *path)
{
	int rc;

	s->copy_fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0666);
	if (s->copy_fd >= 0)
		return 0;
	rc = -errno;
	output_print_message("cannot write the output to '%s': %s", path, strerror(errno));
	return rc;
}

bool output_read_and_print(struct output_stream *s)
{
	ssize_t n;

	if (s->fd < 0)
		return false;
	n = read(s->fd, s->buf + s->n, sizeof(s->buf) - s->n);
	if (n < 0)
		return errno == EINTR;
	if (!n) {
		output_close(s);
		return false;
	}
	if (s->copy_fd >= 0)
		output_write_all(s->copy_fd, s->buf + s->n, (size_t)n);
	s->n += (size_t)n;
	output_print_buffered_lines(s);
	return true;
}

void output_print_log_tail(const char *name, const char *log, int least)
{
	char buf[TAIL_BYTES + 1], *line = buf, *p;
	int fd = open(log, O_RDONLY | O_CLOEXEC), lines = 0;
	off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
	ssize_t n = 0;
	bool has_level;

	if (size > 0)
		n = pread(fd, buf, TAIL_BYTES, size > TAIL_BYTES ? size - TAIL_BYTES : 0);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return;
	buf[n] = 0;
	for (p = buf + n - 1; p > buf && lines < TAIL_LINES; p--)
		if (p[-1] == '\n' && ++lines == TAIL_LINES)
			line = p;
	for (p = strtok(line, "\n"); p; p = strtok(NULL, "\n")) {
		has_level = p[0] == '<' && p[1] >= '0' && p[1] <= '9' && p[2] == '>';
		if (!has_level || p[1] - '0' <= least)
			output_print_message("%s: %s", name, has_level ? p + 3 : p);
	}
}
