/* Writes a trace (trace_file.h). Thread: any. */
#include "bps-agent/steps/trace_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/daemon/jsontext.h"

#define US UINT64_C(1000)

/* Numbers of the first rows: steps, waits and rounds. */
enum row { ROW_STEPS = 1, ROW_WAITS = 2, ROW_ROUNDS = 1002, ROWS_MAX = 1000 };

struct trace_writer {
	FILE *out;
	struct trace_content *c;
	uint64_t base_ns; /* CLOCK_MONOTONIC at time 0 of the trace */
	/* ends of the last slices in the rows of waits and of rounds */
	uint64_t *wait_rows, *round_rows;
	unsigned n_wait_rows, n_round_rows;
};

static void write_text(FILE *out, const char *s)
{
	json_t *v = json_text_sanitized(s);

	json_dumpf(v, out, JSON_ENCODE_ANY);
	json_decref(v);
}

static void write_time(FILE *out, const char *key, uint64_t ns)
{
	fprintf(out, ",\"%s\":%" PRIu64 ".%03u", key, ns / US, (unsigned)(ns % US));
}

/* Write the start of a slice: everything before its name. */
static void begin_slice(
	struct trace_writer *w, unsigned row, const char *kind, uint64_t from_ns, uint64_t until_ns)
{
	fprintf(w->out, ",\n{\"ph\":\"X\",\"pid\":%" PRIu32 ",\"tid\":%u,\"cat\":\"%s\"", w->c->pid,
		row, kind);
	write_time(w->out, "ts", from_ns - w->base_ns);
	write_time(w->out, "dur", until_ns - from_ns);
	fputs(",\"name\":", w->out);
}

/* Name a row. number: of the row among those of its kind; 0: it is the only one. */
static void write_row_name(struct trace_writer *w, unsigned row, const char *name, unsigned number)
{
	char text[64];

	snprintf(text, sizeof(text), number ? "%s %u" : "%s", name, number);
	fprintf(w->out,
		",\n{\"ph\":\"M\",\"pid\":%" PRIu32
		",\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
		w->c->pid, row, text);
	fprintf(w->out,
		",\n{\"ph\":\"M\",\"pid\":%" PRIu32
		",\"tid\":%u,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%u}}",
		w->c->pid, row, row);
}

static int compare_by_start(const void *a, const void *b)
{
	const struct round_record *x = a, *y = b;

	return (x->began_ns > y->began_ns) - (x->began_ns < y->began_ns);
}

static int compare_by_id(const void *a, const void *b)
{
	uint32_t x = ((const struct trace_tensor *)a)->id, y = ((const struct trace_tensor *)b)->id;

	return (x > y) - (x < y);
}

static const struct trace_tensor *find_tensor(const struct trace_content *c, uint32_t id)
{
	struct trace_tensor key = {.id = id};

	return c->n_tensors ? bsearch(&key, c->tensors, c->n_tensors, sizeof(key), compare_by_id)
			    : NULL;
}

static const char *find_server(const struct trace_content *c, uint32_t id)
{
	for (size_t i = 0; i < c->n_servers; i++)
		if (c->servers[i].id == id)
			return c->servers[i].name;
	return NULL;
}

static uint64_t record_end_ns(const struct round_record *r)
{
	return r->began_ns + US * r->done_us;
}

/* Return the first row that is free at from_ns, and take it until until_ns. Beyond ROWS_MAX rows,
 * return the row that is free first; its slices may then overlap. */
static unsigned take_row(uint64_t *rows, unsigned *n_rows, uint64_t from_ns, uint64_t until_ns)
{
	unsigned best = 0;

	for (unsigned i = 0; i < *n_rows; i++) {
		if (rows[i] <= from_ns) {
			rows[i] = until_ns;
			return i;
		}
		if (rows[i] < rows[best])
			best = i;
	}
	if (*n_rows < ROWS_MAX)
		best = (*n_rows)++;
	rows[best] = until_ns;
	return best;
}

static void write_step(struct trace_writer *w, uint64_t step, uint64_t from_ns, uint64_t until_ns)
{
	begin_slice(w, ROW_STEPS, "step", from_ns, until_ns);
	fprintf(w->out, "\"step %" PRIu64 "\"}", step);
}

/* A step lasts until the next one begins. The last step has no end. */
static void write_steps(struct trace_writer *w)
{
	const struct round_record *first = NULL;

	for (size_t i = 0; i < w->c->n_records; i++) {
		const struct round_record *r = &w->c->records[i];

		if (!r->is_first_of_step)
			continue;
		if (first)
			write_step(w, first->round, first->began_ns, r->began_ns);
		first = r;
	}
}

static void write_phases(struct trace_writer *w, unsigned row, const struct round_record *r)
{
	uint32_t ends[N_PHASES], from_us = 0;

	round_record_phase_ends(r, ends);
	for (int p = 0; p < N_PHASES; p++) {
		if (ends[p] <= from_us)
			continue;
		begin_slice(w, row, p == PHASE_WAIT || p == PHASE_LOCAL ? "wait" : "work",
			r->began_ns + US * from_us, r->began_ns + US * ends[p]);
		if (p == PHASE_WAIT && r->last_member && r->last_member <= w->c->n_machines) {
			fputs("\"wait\",\"args\":{\"for\":", w->out);
			write_text(w->out, w->c->machines[r->last_member - 1].host);
			fputs(",\"agent\":", w->out);
			write_text(w->out, w->c->machines[r->last_member - 1].agent);
			fputs("}}", w->out);
		} else {
			fprintf(w->out, "\"%s\"}", round_phase_name(p));
		}
		from_us = ends[p];
	}
}

static void write_round(struct trace_writer *w, const struct round_record *r)
{
	const struct trace_tensor *t = find_tensor(w->c, r->tensor);
	const char *server = find_server(w->c, r->server);
	unsigned row = ROW_ROUNDS +
		       take_row(w->round_rows, &w->n_round_rows, r->began_ns, record_end_ns(r));

	begin_slice(w, row, "round", r->began_ns, record_end_ns(r));
	write_text(w->out, t ? t->name : "?");
	fprintf(w->out, ",\"args\":{\"round\":%" PRIu64 ",\"bytes\":%" PRIu64, r->round,
		t ? t->bytes : 0);
	if (server) {
		fprintf(w->out, ",\"last partition\":%" PRIu32 ",\"server\":", r->part);
		write_text(w->out, server);
	}
	fputs("}}", w->out);
	write_phases(w, row, r);
}

static void write_wait(struct trace_writer *w, const struct round_record *r)
{
	const struct trace_tensor *t = find_tensor(w->c, r->tensor);
	uint64_t until_ns = record_end_ns(r), from_ns = until_ns - US * r->waited_us;
	unsigned row = ROW_WAITS + take_row(w->wait_rows, &w->n_wait_rows, from_ns, until_ns);

	begin_slice(w, row, "wait", from_ns, until_ns);
	write_text(w->out, t ? t->name : "?");
	fprintf(w->out, ",\"args\":{\"round\":%" PRIu64 "}}", r->round);
}

/* Return the start of the earliest slice. A wait does not begin before its round, or the trainer
 * has written a wrong time. */
static uint64_t trace_base_ns(struct trace_content *c)
{
	for (size_t i = 0; i < c->n_records; i++)
		if (c->records[i].waited_us > c->records[i].done_us)
			c->records[i].waited_us = c->records[i].done_us;
	return c->n_records ? c->records[0].began_ns : 0;
}

/* Describe the machine, which is the process of the trace. */
static void write_process_field(
	struct trace_writer *w, const char *event, const char *key, const char *value)
{
	fprintf(w->out,
		"\n{\"ph\":\"M\",\"pid\":%" PRIu32 ",\"tid\":0,\"name\":\"%s\",\"args\":{\"%s\":",
		w->c->pid, event, key);
	write_text(w->out, value);
	fputs("}}", w->out);
}

static void trace_write_all(struct trace_writer *w)
{
	struct trace_content *c = w->c;
	char process[sizeof(c->here->agent) + sizeof("bps-agent ")];

	snprintf(process, sizeof(process), "bps-agent %s", c->here->agent);

	fprintf(w->out,
		"{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":%" PRId64
		",\"bps\":{\"records\":%zu,\"lost\":%" PRIu64 ",\"job\":",
		(int64_t)w->base_ns + c->epoch_ns, c->n_records, c->n_lost);
	write_text(w->out, c->job);
	fputs(",\"host\":", w->out);
	write_text(w->out, c->here->host);
	fputs(",\"agent\":", w->out);
	write_text(w->out, c->here->agent);
	fputs("},\"traceEvents\":[", w->out);
	write_process_field(w, "process_name", "name", process);
	putc(',', w->out);
	write_process_field(w, "process_labels", "labels", c->here->host);
	write_steps(w);
	for (size_t i = 0; i < c->n_records; i++) {
		write_round(w, &c->records[i]);
		if (c->records[i].waited_us)
			write_wait(w, &c->records[i]);
	}
	write_row_name(w, ROW_STEPS, "steps", 0);
	for (unsigned i = 0; i < w->n_wait_rows; i++)
		write_row_name(w, ROW_WAITS + i, "waits", i + 1);
	for (unsigned i = 0; i < w->n_round_rows; i++)
		write_row_name(w, ROW_ROUNDS + i, "rounds", i + 1);
	fputs("\n]}\n", w->out);
}

int trace_file_write(FILE *out, struct trace_content *c)
{
	struct trace_writer w = {.out = out, .c = c};
	int rc;

	if (c->n_records)
		qsort(c->records, c->n_records, sizeof(*c->records), compare_by_start);
	if (c->n_tensors)
		qsort(c->tensors, c->n_tensors, sizeof(*c->tensors), compare_by_id);
	w.base_ns = trace_base_ns(c);
	w.wait_rows = calloc(ROWS_MAX, sizeof(*w.wait_rows));
	w.round_rows = calloc(ROWS_MAX, sizeof(*w.round_rows));
	rc = w.wait_rows && w.round_rows ? 0 : -ENOMEM;
	if (rc == 0)
		trace_write_all(&w);
	free(w.wait_rows);
	free(w.round_rows);
	return rc == 0 && (fflush(out) != 0 || ferror(out)) ? -EIO : rc;
}
