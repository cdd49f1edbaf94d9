/* Prints the screen of a single job (screen.h): its pace, its workers and its problems. This file
 * fetches nothing. One thread. */
#include "bps-scheduler/bpsctl/screen.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/error.h"
#include "common/wire/round_phase.h"

/* Time in seconds. The exit code is 1 if a worker is behind and has submitted nothing for longer
 * than this. */
#define QUIET_LONG_S    5.0
#define WORKER_ROWS_MAX 32
#define STEP_ROWS_MAX   16
#define TYPES_SHOWN     6

/* ---- one job ---- */

/* A worker of an asynchronous job may be behind: this is no reason to name it. */
static bool is_worker_left_or_behind(json_t *job, json_t *w)
{
	return json_is_false(json_object_get(w, "attached")) ||
	       (cell_num(w, "behind") > 0 && !cell_is_asynchronous(job));
}

static int screen_job_exit_code(json_t *root)
{
	json_t *job = json_object_get(root, "job"), *w;
	size_t i;

	if (cell_is(job, "state", "ended"))
		return cell_num(job, "code") ? 2 : 0;
	if (cell_is(job, "state", "forming") || cell_num(job, "waiting_partitions") ||
		json_array_size(json_object_get(root, "missing")) || cell_count_problems(root))
		return 1;
	json_array_foreach (json_object_get(root, "workers"), i, w)
		if (is_worker_left_or_behind(job, w) && cell_sec(w, "quiet_s") > QUIET_LONG_S)
			return 1;
	return 0;
}

/* Show the progress of the job, such as its steps per second and its bytes per second. The job's
 * servers report these figures. */
static void print_job_pace(FILE *out, json_t *pace)
{
	json_t *slowest = json_object_get(pace, "slowest");
	double share = cell_sec(slowest, "share");

	if (!json_is_object(pace))
		return;
	fprintf(out, "  round %s   %s steps/s   push %s GB/s",
		cell_count(cell_num(pace, "round")).s, cell_rate(cell_sec(pace, "steps_s")).s,
		cell_rate(cell_sec(pace, "push_bytes_s") / 1e9).s);
	if (cell_num(pace, "rounds"))
		fprintf(out, "   wait %s ms (p50/p99)", cell_wait_percentiles(pace).s);
	putc('\n', out);
	if (json_is_object(slowest))
		fprintf(out, "  last in %.0f %% of the rounds: agent %.24s on %.24s, %s\n",
			100 * (share < 1 ? share : 1), cell_str(slowest, "agent").s,
			cell_str(slowest, "host").s, cell_slowest_lag(slowest).s);
}

/* Phases of the exposed time in the order of their columns, with the one first that another machine
 * causes. */
static const enum round_phase shown_phases[N_PHASES] = {
	PHASE_WAIT, PHASE_PUSH, PHASE_SUM, PHASE_PULL, PHASE_QUEUE, PHASE_LOCAL};

static void print_step_time(FILE *out, int width, json_t *s, const char *key)
{
	double ms = 1e3 * cell_sec(s, key);

	fprintf(out, " %*.*f", width, ms < 999.95 ? 1 : 0, ms);
}

/* Print one row of times in ms: where the time of a step goes. agents: machines of the job. */
static void print_step_row(FILE *out, const char *machine, json_t *s, json_t *agents)
{
	json_t *last = json_object_get(s, "last");
	double n = cell_sec(s, "n");
	char key[16];

	fprintf(out, "%-14.14s", machine);
	print_step_time(out, 6, s, "length_s");
	print_step_time(out, 7, s, "computing_s");
	print_step_time(out, 7, s, "exposed_s");
	for (int p = 0; p < N_PHASES; p++) {
		snprintf(key, sizeof(key), "%s_s", round_phase_name(shown_phases[p]));
		print_step_time(out, p ? 5 : 6, s, key);
	}
	if (json_is_object(last) && n > 0)
		fprintf(out, "  %.14s (%.0f %%)", cell_machine(agents, last, "agent").s,
			100 * cell_sec(s, "n_last") / n);
	putc('\n', out);
}

static void print_step_heading(FILE *out)
{
	fprintf(out, "\n%-14s %6s %7s %7s", "MACHINE", "STEP", "COMPUTE", "EXPOSED");
	for (int p = 0; p < N_PHASES; p++) {
		char name[16];
		size_t n = (size_t)snprintf(
			name, sizeof(name), p ? "%s" : "= %s", round_phase_name(shown_phases[p]));

		for (size_t i = 0; i < n; i++)
			name[i] = (char)toupper((unsigned char)name[i]);
		fprintf(out, " %*s", p ? 5 : 6, name);
	}
	fprintf(out, "  WAITS FOR\n");
}

static double agent_computing_s(json_t *agent)
{
	return cell_sec(json_object_get(agent, "steps"), "computing_s");
}

static int longest_computing_first(const void *a, const void *b)
{
	double x = agent_computing_s(*(json_t *const *)a),
	       y = agent_computing_s(*(json_t *const *)b);

	return (x < y) - (x > y);
}

/* Print a row for each machine, beginning with the one that computes longest. Returns the number of
 * machines whose steps are known. */
static size_t print_step_rows(FILE *out, json_t *agents)
{
	json_t **sorted = calloc(json_array_size(agents) + 1, sizeof(json_t *)), *a;
	size_t i, n = 0;

	json_array_foreach (agents, i, a)
		if (sorted && json_is_object(json_object_get(a, "steps")))
			sorted[n++] = a;
	if (n)
		qsort(sorted, n, sizeof(json_t *), longest_computing_first);
	for (i = 0; i < n && i < STEP_ROWS_MAX; i++)
		print_step_row(out, cell_machine(agents, sorted[i], "name").s,
			json_object_get(sorted[i], "steps"), agents);
	if (n > STEP_ROWS_MAX)
		fprintf(out, "(and %zu more machine%s with less computing; --json shows all)\n",
			n - STEP_ROWS_MAX, plural_suffix_of(n - STEP_ROWS_MAX));
	free(sorted);
	return n;
}

/* Show where the time of the last steps went, on each machine and in the mean of the machines. */
static void print_steps(FILE *out, json_t *root)
{
	json_t *steps = json_object_get(root, "steps"), *worst = json_object_get(steps, "worst");
	json_t *agents = json_object_get(root, "agents");
	double length_s = cell_sec(steps, "length_s");

	if (!json_is_object(steps))
		return;
	fprintf(out, "\nstep of %.1f ms: computing %.1f %%, exposed %.1f %%", 1e3 * length_s,
		length_s > 0 ? 100 * cell_sec(steps, "computing_s") / length_s : 0,
		length_s > 0 ? 100 * cell_sec(steps, "exposed_s") / length_s : 0);
	if (cell_num(steps, "machines") > 1)
		fprintf(out, "; %.24s computes longest, %.1f ms",
			cell_machine(agents, worst, "agent").s,
			1e3 * cell_sec(steps, "worst_computing_s"));
	print_step_heading(out);
	if (print_step_rows(out, agents) > 1)
		print_step_row(out, "mean", steps, agents);
}

/* Print a line about n things of the job, unless there are none. noun: one of them. verb: its
 * plural form, such as "wait". */
static void print_job_count(FILE *out, const char *mark, uint64_t n, const char *noun,
	const char *verb, const char *rest)
{
	if (n)
		fprintf(out, "%s %" PRIu64 " %s%s %s%s %s\n", mark, n, noun, plural_suffix_of(n),
			verb, verb_suffix_of(n), rest);
}

/* Show the machines that have left, the workers that wait to join, the workers that wait at a
 * barrier, and the backup machines. */
static void print_job_changes(FILE *out, json_t *job)
{
	char barrier[64];
	json_t *m;
	size_t i;

	json_array_foreach (json_object_get(job, "lost"), i, m)
		fprintf(out,
			"! the job goes on without host %.40s (%" PRIu64 " worker%s): %.200s\n",
			cell_str(m, "host").s, cell_num(m, "workers"),
			plural_suffix_of(cell_num(m, "workers")), cell_str(m, "why").s);
	print_job_count(out, " ", cell_num(job, "newcomers"), "worker", "wait",
		"for admission at the job's next barrier");
	snprintf(barrier, sizeof(barrier), "at barrier %" PRIu64, cell_num(job, "barrier") + 1);
	print_job_count(out, " ", cell_num(job, "at_barrier"), "worker", "wait", barrier);
	if (cell_num(job, "backup"))
		fprintf(out, "  rounds do not wait for %" PRIu64 " late machine%s\n",
			cell_num(job, "backup"), plural_suffix_of(cell_num(job, "backup")));
}

/* Show how far workers may be ahead of others. The round and the steps of the pace are those of the
 * slowest machine. */
static void print_job_staleness(FILE *out, json_t *job)
{
	json_t *stale = json_object_get(json_object_get(job, "values"), "stale");

	if (!cell_is_asynchronous(job))
		return;
	if (json_is_integer(stale))
		fprintf(out,
			"  asynchronous: a worker may be %" JSON_INTEGER_FORMAT
			" round%s ahead of another one\n",
			json_integer_value(stale),
			plural_suffix_of((uint64_t)json_integer_value(stale)));
	else
		fprintf(out, "  asynchronous: no worker waits for another one\n");
}

/* Print the element types in which the tensors are sent, with the bytes of each. */
static void print_job_types(FILE *out, json_t *types)
{
	const char *type;
	unsigned n = 0;
	json_t *value;

	json_object_foreach (types, type, value) {
		if (n == TYPES_SHOWN)
			break;
		fprintf(out, "%s %.8s %s", n++ ? "," : "  types", cell_text(type).s,
			cell_size(cell_num(types, type)).s);
	}
	if (n)
		fprintf(out, "%s\n", json_object_size(types) > n ? ", ..." : "");
}

static void print_job_header(FILE *out, json_t *job)
{
	fprintf(out, "job %.40s (%" PRIu64 ")   user %" PRIu64 "   %s for %s\n",
		cell_str(job, "name").s, cell_num(job, "id"), cell_num(job, "uid"),
		cell_str(job, "state").s, cell_time_span(cell_sec(job, "state_s")).s);
	fprintf(out,
		"  workers %" PRIu64 "/%" PRIu64 ", %" PRIu64
		" done   agents %zu   tensors %" PRIu64 " (%s)   partitions %" PRIu64 "\n",
		cell_num(job, "joined"), cell_num(job, "size"), cell_num(job, "done"),
		json_array_size(json_object_get(job, "agents")), cell_num(job, "tensors"),
		cell_size(cell_num(job, "bytes")).s, cell_num(job, "partitions"));
	print_job_types(out, json_object_get(job, "bytes_by_type"));
	print_job_staleness(out, job);
	print_job_pace(out, json_object_get(job, "pace"));
	print_job_changes(out, job);
	print_job_count(out, "!", cell_num(job, "undeclared"), "tensor", "wait",
		"for the declaration of all workers");
	print_job_count(
		out, "!", cell_num(job, "waiting_partitions"), "partition", "wait", "for a server");
	cell_wrapped_key(out, cell_num(job, "code") ? "X failed: " : "  ended: ", job, "text");
}

static void print_missing_ranks(FILE *out, json_t *job)
{
	json_t *list = json_object_get(job, "missing_ranks"), *r;
	uint64_t more = cell_num(job, "size") - cell_num(job, "joined") - json_array_size(list);
	size_t i;

	/* an elastic job may have enough workers, and wait for the others of a machine */
	if (!cell_is(job, "state", "forming") || !json_array_size(list))
		return;
	fprintf(out, "! missing rank");
	json_array_foreach (list, i, r)
		fprintf(out, "%s %" JSON_INTEGER_FORMAT, i ? "," : "", json_integer_value(r));
	if (more)
		fprintf(out, " and %" PRIu64 " more", more);
	putc('\n', out);
}

static void print_left_or_behind_workers(FILE *out, json_t *job, json_t *workers)
{
	char text[320];
	size_t i, n = 0;
	json_t *w;

	json_array_foreach (workers, i, w) {
		if (!is_worker_left_or_behind(job, w) || n++ >= 8)
			continue;
		if (json_is_false(json_object_get(w, "attached")))
			snprintf(text, sizeof(text), "%s has left", cell_worker(w).s);
		else
			snprintf(text, sizeof(text),
				"%s is %" PRIu64
				" push_pull%s behind, and has submitted nothing for %s",
				cell_worker(w).s, cell_num(w, "behind"),
				plural_suffix_of(cell_num(w, "behind")),
				cell_time_span(cell_sec(w, "quiet_s")).s);
		cell_wrapped(out, "! ", text);
	}
	if (n > 8)
		fprintf(out, "! and %zu more\n", n - 8);
}

static void print_worker_row(FILE *out, json_t *w)
{
	json_t *oldest = json_object_get(w, "oldest");

	fprintf(out,
		"%6" PRIu64 " %-16.16s %8" PRIu64 " %10" PRIu64 " %10" PRIu64 " %6" PRIu64 " %8s",
		cell_num(w, "rank"), cell_str(w, "host").s, cell_num(w, "pid"),
		cell_num(w, "submitted"), cell_num(w, "completed"), cell_num(w, "behind"),
		cell_time_span(cell_sec(w, "quiet_s")).s);
	if (json_is_object(oldest))
		fprintf(out, "  %.22s %" PRIu64 ", %s", cell_tensor(oldest, "tensor").s,
			cell_num(oldest, "round"), cell_time_span(cell_sec(oldest, "s")).s);
	putc('\n', out);
}

static void print_worker_table(FILE *out, json_t *workers)
{
	size_t i, n = json_array_size(workers);
	json_t *w;

	if (!n)
		return;
	fprintf(out, "\n%6s %-16s %8s %10s %10s %6s %8s  %s\n", "RANK", "HOST", "PID", "SUBMITTED",
		"COMPLETED", "BEHIND", "QUIET", "OLDEST WAIT");
	json_array_foreach (workers, i, w) {
		if (i >= WORKER_ROWS_MAX)
			break;
		print_worker_row(out, w);
	}
	if (n > WORKER_ROWS_MAX)
		fprintf(out, "(and %zu more worker%s ahead of these; --json shows all)\n",
			n - WORKER_ROWS_MAX, plural_suffix_of(n - WORKER_ROWS_MAX));
}

static void print_agent_answers(FILE *out, json_t *root)
{
	json_t *a;
	size_t i;

	json_array_foreach (json_object_get(root, "agents"), i, a) {
		char head[64];

		snprintf(head, sizeof(head), "  %.32s: ", cell_str(a, "host").s);
		cell_wrapped_key(out, head, a, "text");
	}
	json_array_foreach (json_object_get(root, "missing"), i, a) {
		const char *name = json_string_value(a);

		cell_wrapped(out, "! no answer from agent ", name ? name : "-");
	}
}

int screen_job(FILE *out, json_t *root)
{
	json_t *job = json_object_get(root, "job"), *workers = json_object_get(root, "workers");

	print_job_header(out, job);
	cell_print_problems(out, root);
	print_missing_ranks(out, job);
	print_left_or_behind_workers(out, job, workers);
	print_agent_answers(out, root);
	print_steps(out, root);
	print_worker_table(out, workers);
	return screen_job_exit_code(root);
}

int screen_advice(FILE *out, json_t *root)
{
	json_t *job = json_object_get(root, "job"), *steps = json_object_get(root, "steps"), *f;
	double length_s = cell_sec(steps, "length_s"), exposed_s = cell_sec(steps, "exposed_s");
	size_t i;

	fprintf(out, "job %.40s", cell_str(job, "name").s);
	if (length_s > 0)
		fprintf(out, ": step %.1f ms, exposed %.1f ms (%.1f %%)", 1e3 * length_s,
			1e3 * exposed_s, 100 * exposed_s / length_s);
	if (cell_num(steps, "machines") > 1)
		fprintf(out, " on average, %.1f to %.1f ms by machine",
			1e3 * cell_sec(root, "exposed_min_s"),
			1e3 * cell_sec(root, "exposed_max_s"));
	putc('\n', out);
	json_array_foreach (json_object_get(root, "findings"), i, f) {
		double gain_s = cell_sec(f, "gain_s");
		char head[64];

		snprintf(head, sizeof(head), "%zu. %.24s: ", i + 1, cell_str(f, "code").s);
		cell_wrapped_key(out, head, f, "text");
		cell_wrapped_key(out, "   -> ", f, "next");
		if (gain_s > 0 && length_s > 0)
			fprintf(out, "   gain: up to %.1f ms a step (%.0f %%)\n", 1e3 * gain_s,
				100 * gain_s / length_s);
	}
	return length_s > 0 ? 0 : 1;
}
