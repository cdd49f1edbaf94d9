/* Formats pieces of bpsctl's screens (table_cells.h): values of a document as safe text, and
 * wrapped lines. This file fetches nothing. One thread. */
#include "bps-scheduler/bpsctl/table_cells.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/daemon/settings.h"
#include "common/wire/tensor_title.h"

/* number of problems that are shown for each code; further problems are only counted */
#define PROBLEMS_OF_A_CODE 3
/* Largest number of seconds that is shown. Counted from 1970, the seconds end in the year 5138. */
#define SEC_MAX 1e11

/* ---- reading ---- */

struct table_cell cell_text(const char *s)
{
	struct table_cell c;

	snprintf(c.s, sizeof(c.s), "%.*s", (int)sizeof(c.s) - 1, s ? s : "-");
	log_replace_unprintable(c.s);
	return c;
}

struct table_cell cell_str(json_t *o, const char *key)
{
	const char *v = json_string_value(json_object_get(o, key));

	return cell_text(v && *v ? v : "-");
}

uint64_t cell_num(json_t *o, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(o, key));

	return v > 0 ? (uint64_t)v : 0;
}

double cell_sec(json_t *o, const char *key)
{
	double v = json_number_value(json_object_get(o, key));

	return v < 0 ? 0 : v < SEC_MAX ? v : SEC_MAX;
}

struct table_cell cell_digits(json_t *o, const char *key)
{
	struct table_cell c;

	snprintf(c.s, sizeof(c.s), "%" PRIu64, cell_num(o, key));
	return c;
}

bool cell_is(json_t *o, const char *key, const char *value)
{
	const char *v = json_string_value(json_object_get(o, key));

	return v && strcmp(v, value) == 0;
}

struct table_cell cell_time_span(double s)
{
	struct table_cell c;
	unsigned long t = s > 0 ? (unsigned long)s : 0;

	if (s < 100)
		snprintf(c.s, sizeof(c.s), "%.1f s", s);
	else if (t < 86400)
		snprintf(c.s, sizeof(c.s), "%02lu:%02lu:%02lu", t / 3600, t / 60 % 60, t % 60);
	else if (t < 1000ul * 86400)
		snprintf(c.s, sizeof(c.s), "%lud %luh", t / 86400, t / 3600 % 24);
	else
		snprintf(c.s, sizeof(c.s), "%lud", t / 86400);
	return c;
}

struct table_cell cell_size(uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = (double)bytes;
	unsigned u = 0;
	struct table_cell c;

	while (v >= 1024 && u < 6) {
		v /= 1024;
		u++;
	}
	snprintf(c.s, sizeof(c.s), u && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
	return c;
}

struct table_cell cell_count(uint64_t n)
{
	struct table_cell c;

	if (n < 1000)
		snprintf(c.s, sizeof(c.s), "%" PRIu64, n);
	else if (n < 1000000)
		snprintf(c.s, sizeof(c.s), "%" PRIu64 ",%03" PRIu64, n / 1000, n % 1000);
	else if (n < 1000000000)
		snprintf(c.s, sizeof(c.s), "%.1f M", (double)n / 1e6);
	else if (n < 1000000000000)
		snprintf(c.s, sizeof(c.s), "%.1f G", (double)n / 1e9);
	else
		snprintf(c.s, sizeof(c.s), "%.1e", (double)n);
	return c;
}

struct table_cell cell_rate(double v)
{
	struct table_cell c;

	snprintf(c.s, sizeof(c.s),
		v < 9.995   ? "%.2f"
		: v < 99.95 ? "%.1f"
		: v < 1e6   ? "%.0f"
			    : "%.1e",
		v);
	return c;
}

/* Format seconds as milliseconds, in at most 6 columns. */
static struct table_cell cell_milliseconds(double s)
{
	struct table_cell c;
	double ms = s * 1e3;

	snprintf(c.s, sizeof(c.s), ms < 9.95 ? "%.1f" : ms < 1e6 ? "%.0f" : "%.0e", ms);
	return c;
}

struct table_cell cell_wait_percentiles(json_t *pace)
{
	struct table_cell c;

	snprintf(c.s, sizeof(c.s), "%.7s/%.7s", cell_milliseconds(cell_sec(pace, "wait_p50_s")).s,
		cell_milliseconds(cell_sec(pace, "wait_p99_s")).s);
	return c;
}

struct table_cell cell_tensor(json_t *o, const char *key)
{
	const char *name = json_string_value(json_object_get(o, key));
	char title[TENSOR_TITLE_BYTES];

	return cell_text(tensor_title(name ? name : "-", title));
}

struct table_cell cell_machine(json_t *agents, json_t *m, const char *key)
{
	const char *host = json_string_value(json_object_get(m, "host"));
	size_t i, n = 0;
	json_t *a;

	json_array_foreach (agents, i, a)
		n += host && cell_is(a, "host", host);
	return cell_str(m, n > 1 ? key : "host");
}

bool cell_is_asynchronous(json_t *job)
{
	json_t *values = json_object_get(job, "values");

	return json_is_object(values) &&
	       (json_is_null(json_object_get(values, "stale")) || cell_num(values, "stale") > 0);
}

struct table_cell cell_slowest_lag(json_t *slowest)
{
	struct table_cell c;
	double s = cell_sec(slowest, "lag_s");

	if (s < 10)
		snprintf(c.s, sizeof(c.s), "+%.10s ms", cell_milliseconds(s).s);
	else
		snprintf(c.s, sizeof(c.s), "+%.0f s", s < 99999 ? s : 99999);
	return c;
}

/* Read the name from /etc/passwd only, because the query of a directory service might exceed
 * bpsctl's time limit. */
struct table_cell cell_user_name(uint64_t uid)
{
	FILE *f = fopen("/etc/passwd", "re");
	const struct passwd *p;
	struct table_cell c;

	snprintf(c.s, sizeof(c.s), "%" PRIu64, uid);
	while (f && (p = fgetpwent(f)))
		if (p->pw_uid == uid)
			snprintf(c.s, sizeof(c.s), "%s", p->pw_name);
	if (f)
		fclose(f);
	return c;
}

/* ---- problems ---- */

/* Print the string s after the string `head`. If s is too long for one line, each further line
 * begins in the column in which s begins. */
void cell_wrapped(FILE *out, const char *head, const char *s)
{
	char *text = strdup(s);

	if (!text)
		return;
	log_replace_unprintable(text);
	settings_print_wrapped(out, head, text, SCREEN_COLUMNS);
	free(text);
}

void cell_wrapped_key(FILE *out, const char *head, json_t *o, const char *key)
{
	const char *v = json_string_value(json_object_get(o, key));

	if (v && *v)
		cell_wrapped(out, head, v);
}

static const char *problem_code_or_dash(json_t *problem)
{
	const char *code = json_string_value(json_object_get(problem, "code"));

	return code ? code : "-";
}

static void print_problem_details(FILE *out, json_t *p)
{
	char head[64];

	snprintf(head, sizeof(head), "%c %-13.40s ", cell_is(p, "severity", "ERR") ? 'X' : '!',
		cell_str(p, "code").s);
	cell_wrapped_key(out, head, p, "what");
	cell_wrapped_key(out, "    effect:  ", p, "effect");
	cell_wrapped_key(out, "    action:  ", p, "action");
	cell_wrapped_key(out, "    see:     ", p, "see");
}

/* Count the problems before list[i] that have the same code as list[i]. */
static size_t count_same_code_before(json_t *list, size_t i)
{
	const char *code = problem_code_or_dash(json_array_get(list, i));
	size_t n = 0;

	for (size_t k = 0; k < i; k++)
		n += strcmp(problem_code_or_dash(json_array_get(list, k)), code) == 0;
	return n;
}

void cell_print_problems(FILE *out, json_t *root)
{
	json_t *list = json_object_get(root, "problems"), *p;
	size_t i, shown = 0;

	json_array_foreach (list, i, p) {
		size_t n = count_same_code_before(list, i);

		if (json_is_true(json_object_get(p, "muted")))
			continue;
		shown++;
		if (n < PROBLEMS_OF_A_CODE)
			print_problem_details(out, p);
		else if (n + 1 == cell_count_code(root, problem_code_or_dash(p)))
			fprintf(out, "  %-13.40s (%zu more of these: --json)\n",
				cell_str(p, "code").s, n + 1 - PROBLEMS_OF_A_CODE);
	}
	if (shown)
		putc('\n', out);
}

size_t cell_count_problems(json_t *root)
{
	json_t *p;
	size_t i, n = 0;

	json_array_foreach (json_object_get(root, "problems"), i, p)
		n += !json_is_true(json_object_get(p, "muted"));
	return n;
}

size_t cell_count_code(json_t *root, const char *code)
{
	json_t *p;
	size_t i, n = 0;

	json_array_foreach (json_object_get(root, "problems"), i, p)
		n += strcmp(problem_code_or_dash(p), code) == 0;
	return n;
}

struct table_cell cell_worker(json_t *w)
{
	struct table_cell c;

	if (json_object_get(w, "host"))
		snprintf(c.s, sizeof(c.s), "rank %" PRIu64 " (host %.63s, pid %" PRIu64 ")",
			cell_num(w, "rank"), cell_str(w, "host").s, cell_num(w, "pid"));
	else
		snprintf(c.s, sizeof(c.s), "rank %" PRIu64, cell_num(w, "rank"));
	return c;
}

struct table_cell cell_last_heard(json_t *m)
{
	return cell_time_span(cell_sec(m, cell_is(m, "state", "up") ? "quiet_s" : "state_s"));
}

struct table_cell cell_state(json_t *m)
{
	bool is_drained = json_is_true(json_object_get(m, "is_drained"));
	bool is_leaving = json_is_true(json_object_get(m, "is_leaving"));

	if (!cell_is(m, "state", "up") || (!is_drained && !is_leaving))
		return cell_str(m, "state");
	if (is_leaving)
		return cell_text("leaving");
	return cell_text(cell_num(m, "partitions") ? "draining" : "drained");
}
