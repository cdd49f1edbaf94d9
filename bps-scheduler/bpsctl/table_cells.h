#ifndef BPS_SCHEDULER_BPSCTL_TABLE_CELLS_H
#define BPS_SCHEDULER_BPSCTL_TABLE_CELLS_H
/* Pieces of bpsctl's screens: values of a JSON document as text that is safe for a terminal, and
 * lines that wrap. What is missing or of another type is "-" or 0. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#define SCREEN_COLUMNS 98

struct table_cell {
	char s[128];
};

/* What may go to a terminal: control characters are '?', and NULL is "-". */
struct table_cell cell_text(const char *s);
/* A string of the document, as cell_text. */
struct table_cell cell_str(json_t *o, const char *key);
uint64_t cell_num(json_t *o, const char *key);
/* At least 0. */
double cell_sec(json_t *o, const char *key);
/* The number in digits, for a column that cuts it. */
struct table_cell cell_digits(json_t *o, const char *key);
bool cell_is(json_t *o, const char *key, const char *value);
struct table_cell cell_span(double s);
struct table_cell cell_size(uint64_t bytes);
/* "18,412", from ten million on "12.3 M": at most 7 columns up to 1e15. */
struct table_cell cell_count(uint64_t n);
/* A number per second, in at most 7 columns. */
struct table_cell cell_rate(double v);
/* Of a job's pace: "12/55", milliseconds, in at most 15 columns. */
struct table_cell cell_wait(json_t *pace);
/* Of a pace's slowest: "+41 ms", in at most 9 columns. */
struct table_cell cell_lag(json_t *slowest);
/* State of a member; of one that is up also "drained", "draining" (partitions are still there) and
 * "leaving". */
struct table_cell cell_state(json_t *m);
/* How long a member has not been heard, or has been in its state. */
struct table_cell cell_last_heard(json_t *m);
/* Name of a user of this machine, else the number. */
struct table_cell cell_user(uint64_t uid);

/* Print s behind head, wrapped at words under itself; wrapped_key: a string of o, if it is
 * there. */
void cell_wrapped(FILE *out, const char *head, const char *s);
void cell_wrapped_key(FILE *out, const char *head, json_t *o, const char *key);
/* The list "problems" of a document, each with its lines; of many of one code the first ones. */
void cell_problems(FILE *out, json_t *root);
/* How many of them are not muted; with a code, how many are of this one, muted or not. */
size_t cell_count_problems(json_t *root);
size_t cell_count_code(json_t *root, const char *code);
/* "rank 3 (host node7, pid 4711)" of a worker; pid and host where they are known. */
struct table_cell cell_worker(json_t *w);
#endif
