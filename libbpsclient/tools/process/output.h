#ifndef BPS_TOOLS_OUTPUT_H
#define BPS_TOOLS_OUTPUT_H
/* The output of bpsrun: its own messages, and the lines of its children, with a prefix in front of
 * each line. All functions run on bpsrun's only thread. */
#include <stdbool.h>
#include <stddef.h>

/* A child's stdout or stderr, split into lines. fd: bpsrun's end of the pipe, -1: closed; to:
 * descriptor to which bpsrun writes the lines. */
struct output_stream {
	int fd, to;
	int copy_fd;       /* file that gets the same bytes; -1: none */
	char prefix[16];   /* stands in front of each line, for example "[3] " */
	bool has_progress; /* the child writes '\r': print its text before the line is complete */
	bool has_return;   /* the last byte was '\r': the next text is printed over the line */
	size_t n;
	char buf[16384];
};

/* Print a line on stderr that begins with the program's name, such as "bpsrun: ". */
void output_print_message(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Create a pipe for a child's output. output_read_and_print writes the lines to the descriptor
 * `to`. *ret_write: the child's end of the pipe, which the caller closes. Errors: -errno. */
int output_open(struct output_stream *s, int to, const char *prefix, int *ret_write);
/* Append the child's output also to a file, without prefixes. Errors: -errno; the error was
 * printed. */
int output_copy_to(struct output_stream *s, const char *path);
/* Write the child's available output to s->to, without waiting. Returns false if no more output is
 * available at present. */
bool output_read_and_print(struct output_stream *s);
void output_close(struct output_stream *s);
/* Read the last lines of the log of the daemon `name`. Print those whose level is `least` (enum
 * log_level) or more urgent, and those without a level. */
void output_print_log_tail(const char *name, const char *log, int least);
#endif
