#ifndef BPS_SCHEDULER_BPSCTL_TABLE_CELLS_H
#define BPS_SCHEDULER_BPSCTL_TABLE_CELLS_H
/* Functions for bpsctl's screens. They convert values of a JSON document to text that is safe for a
 * terminal, and wrap long lines. A value that is missing or has the wrong type is shown as "-" or
 * 0. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#define SCREEN_COLUMNS 98

struct table_cell {
	char s[128];
};

/* Copy text for a terminal, at most 127 bytes. Control characters become "?", NULL becomes "-". */
struct table_cell cell_text(const char *s);
/* Return the string in the field `key` of o, made safe as in cell_text. */
struct table_cell cell_str(json_t *o, const char *key);
uint64_t cell_num(json_t *o, const char *key);
/* Return the number of seconds in the field `key` of o. If the number is negative, return 0. */
double cell_sec(json_t *o, const char *key);
/* Return the number in the field `key` of o as decimal text. The caller can cut the text to the
 * width of a column. */
struct table_cell cell_digits(json_t *o, const char *key);
bool cell_is(json_t *o, const char *key, const char *value);
struct table_cell cell_time_span(double s);
struct table_cell cell_size(uint64_t bytes);
/* Format a number, such as "18,412". Numbers from ten million on get a unit, such as "12.3 M". The
 * text has at most 7 columns for numbers up to 1e15. */
struct table_cell cell_count(uint64_t n);
/* Format a number that may have a fraction, such as a rate, in at most 7 columns. */
struct table_cell cell_rate(double v);
/* Format the waiting times in a job's `pace`: the median and the 99th percentile in ms, such as
 * "12/55". The text has at most 15 columns. */
struct table_cell cell_wait_percentiles(json_t *pace);
/* Return how texts name the tensor in the field `key` of o: "'layer.0'", or "a barrier". */
struct table_cell cell_tensor(json_t *o, const char *key);
/* Return the host of the machine m or, if several agents of the list have this host, the name of
 * its agent. key: the field of m with the agent's name. */
struct table_cell cell_machine(json_t *agents, json_t *m, const char *key);
/* Return whether the workers of a job may be ahead of each other. */
bool cell_is_asynchronous(json_t *job);
/* Format the delay of a job's slowest agent as "+41 ms", in at most 9 columns. */
struct table_cell cell_slowest_lag(json_t *slowest);
/* Return the state of a member. A member that is up may also be "drained", "draining" (the member
 * still has partitions) or "leaving". */
struct table_cell cell_state(json_t *m);
/* If the member is up, return the time since the member's last message. If the member is not up,
 * return the time since the last change of the member's state. */
struct table_cell cell_last_heard(json_t *m);
/* Return the name that this machine has for the user uid, or the number uid if there is no name. */
struct table_cell cell_user_name(uint64_t uid);

/* Print the string s after the string `head`. If s is too long for one line, each further line
 * begins in the column in which s begins. cell_wrapped_key prints the value of `key` in o, if the
 * value is a string and not empty. */
void cell_wrapped(FILE *out, const char *head, const char *s);
void cell_wrapped_key(FILE *out, const char *head, json_t *o, const char *key);
/* Print the problems of a document that are not muted. For each problem, print what is wrong, the
 * effect, the action, and the command that explains the problem. If many problems have the same
 * code, print only the first of them, and the number of the others. */
void cell_print_problems(FILE *out, json_t *root);
/* Count the problems that are not muted. cell_count_code counts all problems that have the given
 * code, also the muted ones. */
size_t cell_count_problems(json_t *root);
size_t cell_count_code(json_t *root, const char *code);
/* Format a worker as "rank 3 (host node7, pid 4711)". If the worker's host is unknown, the text is
 * "rank 3". */
struct table_cell cell_worker(json_t *w);
#endif
