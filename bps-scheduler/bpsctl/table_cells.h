#ifndef BPS_SCHEDULER_BPSCTL_TABLE_CELLS_H
#define BPS_SCHEDULER_BPSCTL_TABLE_CELLS_H
/* Pieces of bpsctl's screens: values of a JSON document as text that is safe for a terminal, and
 * lines that wrap. A value that is missing or has the wrong type is shown as "-" or 0. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#define SCREEN_COLUMNS 98

struct table_cell {
	char s[128];
};

/* Copy text for a terminal: control characters become '?', NULL becomes "-". */
struct table_cell cell_text(const char *s);
/* Return a string of the document, made safe as in cell_text. */
struct table_cell cell_str(json_t *o, const char *key);
uint64_t cell_num(json_t *o, const char *key);
/* Return a number of seconds from the document, at least 0. */
double cell_sec(json_t *o, const char *key);
/* Return a number of the document as decimal text. The caller can cut the text to the width of a
 * column. */
struct table_cell cell_digits(json_t *o, const char *key);
bool cell_is(json_t *o, const char *key, const char *value);
struct table_cell cell_span(double s);
struct table_cell cell_size(uint64_t bytes);
/* Format a number, such as "18,412". Numbers from ten million on get a unit, such as "12.3 M". The
 * text has at most 7 columns for numbers up to 1e15. */
struct table_cell cell_count(uint64_t n);
/* Format a number per second, in at most 7 columns. */
struct table_cell cell_rate(double v);
/* Format the waiting times in a job's `pace`: the median and the 99th percentile in ms, such as
 * "12/55". The text has at most 15 columns. */
struct table_cell cell_wait(json_t *pace);
/* Format the delay of a job's slowest agent as "+41 ms", in at most 9 columns. */
struct table_cell cell_lag(json_t *slowest);
/* Return the state of a member. A member that is up may also be "drained", "draining" (the member
 * still has partitions) or "leaving". */
struct table_cell cell_state(json_t *m);
/* Return the time since the last message of a member that is up, otherwise the time since it went
 * down. */
struct table_cell cell_last_heard(json_t *m);
/* Return the name of a user of this machine, or the user's number if this machine has no name for
 * it. */
struct table_cell cell_user(uint64_t uid);

/* Print s after head. Wrapped lines are indented below s. cell_wrapped_key prints the string of
 * `key` in o, if o has such a string. */
void cell_wrapped(FILE *out, const char *head, const char *s);
void cell_wrapped_key(FILE *out, const char *head, json_t *o, const char *key);
/* Print the problems of a document, each with what is wrong, the effect, the action, and the
 * command that explains it. If a code has many problems, print only the first ones. */
void cell_problems(FILE *out, json_t *root);
/* Count the problems that are not muted. cell_count_code counts all problems with that code, also
 * the muted ones. */
size_t cell_count_problems(json_t *root);
size_t cell_count_code(json_t *root, const char *code);
/* Format a worker as "rank 3 (host node7, pid 4711)"; without host and pid if they are unknown. */
struct table_cell cell_worker(json_t *w);
#endif
