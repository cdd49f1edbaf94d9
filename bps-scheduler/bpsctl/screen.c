#include "bps-scheduler/bpsctl/screen.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "bps-scheduler/bpsctl/cells.h"

#define ROWS_MAX        40  /* of a table; the rest is counted */
#define QUIET_LONG_S    5.0 /* of a worker that is behind */
#define WORKER_ROWS_MAX 32

/* ---- cluster ---- */

static void count_members(json_t *root, const char *role, unsigned *ret_up, unsigned *ret_all)
{
	json_t *m;
	size_t i;

	*ret_up = *ret_all = 0;
	json_array_foreach(json_object_get(root, "members"), i, m)
	{
		if (!cell_is(m, "role", role))
			continue;
		++*ret_all;
		if (cell_is(m, "state", "up"))
			++*ret_up;
	}
}

static unsigned count_jobs(json_t *root, const char *state)
{
	unsigned n = 0;
	json_t *j;
	size_t i;

	json_array_foreach(json_object_get(root, "jobs"), i, j) if (cell_is(j, "state", state)) n++;
	return n;
}

static void headline(FILE *out, json_t *root)
{
	unsigned up, all, agents_up, agents;
	json_t *state = json_object_get(root, "state");

	count_members(root, "server", &up, &all);
	count_members(root, "agent", &agents_up, &agents);
	fprintf(out,
		"cluster %-16.24s HEALTH_%s   view %.20s   up %s   servers %u/%u   agents %u/%u\n",
		cell_str(root, "cluster").s, cell_str(root, "health").s,
		cell_str(root, "view_text").s, cell_span(cell_sec(root, "up_s")).s, up, all,
		agents_up, agents);
	fprintf(out, "  jobs %u running, %u forming   state %s", count_jobs(root, "running"),
		count_jobs(root, "forming"),
		cell_is(state, "kind", "file") ? "in a file" : "in memory only");
	if (cell_is(state, "kind", "file"))
		fprintf(out, " (%s, last sync %.1f ms)", cell_size(cell_num(state, "bytes")).s,
			cell_sec(state, "sync_s") * 1e3);
	fprintf(out, "%s\n\n",
		json_is_false(json_object_get(root, "is_durable")) ? ", NOT DURABLE" : "");
}

static void job_rows(FILE *out, json_t *jobs)
{
	json_t *j;
	size_t i;

	if (!json_array_size(jobs))
		return;
	fprintf(out, "%-24s %6s %7s %9s %8s %10s %7s  %s\n", "JOB", "UID", "AGENTS", "WORKERS",
		"TENSORS", "SIZE", "WAITING", "STATE");
	json_array_foreach(jobs, i, j)
	{
		char workers[48];

		if (i >= ROWS_MAX)
			break;
		snprintf(workers, sizeof(workers), "%" PRIu64 "/%" PRIu64, cell_num(j, "joined"),
			cell_num(j, "size"));
		fprintf(out,
			"%-24.24s %6" PRIu64 " %7zu %9s %8" PRIu64 " %10s %7" PRIu64 "  %.8s %s\n",
			cell_str(j, "name").s, cell_num(j, "uid"),
			json_array_size(json_object_get(j, "agents")), workers,
			cell_num(j, "tensors"), cell_size(cell_num(j, "bytes")).s,
			cell_num(j, "waiting_partitions"), cell_str(j, "state").s,
			cell_span(cell_sec(j, "state_s")).s);
	}
	if (json_array_size(jobs) > ROWS_MAX)
		fprintf(out, "(and %zu more)\n", json_array_size(jobs) - ROWS_MAX);
	putc('\n', out);
}

static void ended_rows(FILE *out, json_t *ended)
{
	json_t *j;
	size_t i, shown = 0;

	json_array_foreach(ended, i, j)
	{
		char head[64];

		if (!cell_num(j, "code") || cell_sec(j, "state_s") > 600 || shown == 5)
			continue;
		if (!shown++)
			fprintf(out, "FAILED IN THE LAST 10 MINUTES\n");
		snprintf(head, sizeof(head), "%-24.24s %8.16s ago  ", cell_str(j, "name").s,
			cell_span(cell_sec(j, "state_s")).s);
		cell_wrapped_key(out, head, j, "text");
	}
	if (shown)
		putc('\n', out);
}

static void member_row(FILE *out, json_t *m, bool is_server)
{
	struct cell last = cell_span(
		cell_is(m, "state", "up") ? cell_sec(m, "quiet_s") : cell_sec(m, "state_s"));

	fprintf(out, "%-16.16s %-16.16s %-8.8s", cell_str(m, "name").s, cell_str(m, "host").s,
		cell_str(m, "state").s);
	if (is_server)
		fprintf(out, " %10s %10s/%-10s", cell_size(cell_num(m, "partitions_bytes")).s,
			cell_size(cell_num(m, "mem_bytes")).s,
			cell_size(cell_num(m, "quota_bytes")).s);
	else
		fprintf(out, " %8" PRIu64 " %11" PRIu64 "           ", cell_num(m, "trainers"),
			cell_num(m, "restarts"));
	fprintf(out, " %10s %s\n", cell_size(cell_num(m, "rx_bytes")).s, last.s);
}

static void member_rows(FILE *out, json_t *members, const char *role)
{
	bool is_server = strcmp(role, "server") == 0;
	size_t i, shown = 0, rows = 0;
	json_t *m;

	json_array_foreach(members, i, m)
	{
		if (!cell_is(m, "role", role))
			continue;
		if (!rows++)
			fprintf(out,
				is_server ? "%-16s %-16s %-8s %10s %10s/%-10s %10s %s\n"
					  : "%-16s %-16s %-8s %8s %11s%-11s %10s %s\n",
				is_server ? "SERVER" : "AGENT", "HOST", "STATE",
				is_server ? "PLACED" : "TRAINERS",
				is_server ? "MEMORY" : "RESTARTS", is_server ? "LIMIT" : "",
				"RECEIVED", "LAST");
		/* Of many only the outliers matter. */
		if (shown >= ROWS_MAX && cell_is(m, "state", "up"))
			continue;
		member_row(out, m, is_server);
		shown++;
	}
	if (rows > shown)
		fprintf(out, "(and %zu more that are up)\n", rows - shown);
	if (rows)
		putc('\n', out);
}

static int status_code(json_t *root)
{
	if (cell_is(root, "health", "OK"))
		return 0;
	return cell_is(root, "health", "WARN") ? 1 : 2;
}

int screen_status(FILE *out, json_t *root)
{
	json_t *members = json_object_get(root, "members");

	if (!cell_is(root, "role", "scheduler"))
		return screen_daemon(out, root);
	headline(out, root);
	cell_problems(out, root);
	job_rows(out, json_object_get(root, "jobs"));
	ended_rows(out, json_object_get(root, "ended"));
	member_rows(out, members, "server");
	member_rows(out, members, "agent");
	screen_missing(out, root);
	return status_code(root);
}

/* ---- one job ---- */

static bool is_culprit(json_t *w)
{
	return json_is_false(json_object_get(w, "attached")) || cell_num(w, "behind") > 0;
}

static int job_code(json_t *root)
{
	json_t *job = json_object_get(root, "job"), *w;
	size_t i;

	if (cell_is(job, "state", "ended"))
		return cell_num(job, "code") ? 2 : 0;
	if (cell_is(job, "state", "forming") || cell_num(job, "waiting_partitions") ||
		json_array_size(json_object_get(root, "missing")) ||
		json_array_size(json_object_get(root, "problems")))
		return 1;
	json_array_foreach(json_object_get(root, "workers"), i,
		w) if (is_culprit(w) && cell_sec(w, "quiet_s") > QUIET_LONG_S) return 1;
	return 0;
}

static void job_head(FILE *out, json_t *job)
{
	fprintf(out, "job %.40s (%" PRIu64 ")   user %" PRIu64 "   %s for %s\n",
		cell_str(job, "name").s, cell_num(job, "id"), cell_num(job, "uid"),
		cell_str(job, "state").s, cell_span(cell_sec(job, "state_s")).s);
	fprintf(out,
		"  workers %" PRIu64 "/%" PRIu64 ", %" PRIu64
		" done   agents %zu   tensors %" PRIu64 " (%s)   partitions %" PRIu64 "\n",
		cell_num(job, "joined"), cell_num(job, "size"), cell_num(job, "done"),
		json_array_size(json_object_get(job, "agents")), cell_num(job, "tensors"),
		cell_size(cell_num(job, "bytes")).s, cell_num(job, "partitions"));
	if (cell_num(job, "undeclared"))
		fprintf(out, "! %" PRIu64 " tensors are not declared by all workers yet\n",
			cell_num(job, "undeclared"));
	if (cell_num(job, "waiting_partitions"))
		fprintf(out, "! %" PRIu64 " partitions wait for a server\n",
			cell_num(job, "waiting_partitions"));
	cell_wrapped_key(out, cell_num(job, "code") ? "X failed: " : "  ended: ", job, "text");
}

static void missing_ranks(FILE *out, json_t *job)
{
	json_t *list = json_object_get(job, "missing_ranks"), *r;
	uint64_t more = cell_num(job, "size") - cell_num(job, "joined") - json_array_size(list);
	size_t i;

	if (!cell_is(job, "state", "forming"))
		return;
	fprintf(out, "! missing rank");
	json_array_foreach(list, i, r)
		fprintf(out, "%s %" JSON_INTEGER_FORMAT, i ? "," : "", json_integer_value(r));
	if (more)
		fprintf(out, " and %" PRIu64 " more", more);
	putc('\n', out);
}

static void culprits(FILE *out, json_t *workers)
{
	char text[320];
	size_t i, n = 0;
	json_t *w;

	json_array_foreach(workers, i, w)
	{
		if (!is_culprit(w) || n++ >= 8)
			continue;
		if (json_is_false(json_object_get(w, "attached")))
			snprintf(text, sizeof(text), "%s has left", cell_worker(w).s);
		else
			snprintf(text, sizeof(text),
				"%s is %" PRIu64 " push_pulls behind, quiet for %s",
				cell_worker(w).s, cell_num(w, "behind"),
				cell_span(cell_sec(w, "quiet_s")).s);
		cell_wrapped(out, "! ", text);
	}
	if (n > 8)
		fprintf(out, "! and %zu more\n", n - 8);
}

static void worker_row(FILE *out, json_t *w)
{
	json_t *oldest = json_object_get(w, "oldest");

	fprintf(out,
		"%6" PRIu64 " %-16.16s %8" PRIu64 " %10" PRIu64 " %10" PRIu64 " %6" PRIu64 " %8s",
		cell_num(w, "rank"), cell_str(w, "host").s, cell_num(w, "pid"),
		cell_num(w, "submitted"), cell_num(w, "completed"), cell_num(w, "behind"),
		cell_span(cell_sec(w, "quiet_s")).s);
	if (json_is_object(oldest))
		fprintf(out, "  %.14s %" PRIu64 ", %s", cell_str(oldest, "tensor").s,
			cell_num(oldest, "round"), cell_span(cell_sec(oldest, "s")).s);
	putc('\n', out);
}

static void worker_rows(FILE *out, json_t *workers)
{
	size_t i, n = json_array_size(workers);
	json_t *w;

	if (!n)
		return;
	fprintf(out, "\n%6s %-16s %8s %10s %10s %6s %8s  %s\n", "RANK", "HOST", "PID", "SUBMITTED",
		"COMPLETED", "BEHIND", "QUIET", "OLDEST WAIT");
	json_array_foreach(workers, i, w)
	{
		if (i >= WORKER_ROWS_MAX)
			break;
		worker_row(out, w);
	}
	if (n > WORKER_ROWS_MAX)
		fprintf(out, "(and %zu more, ahead of these; all with --json)\n",
			n - WORKER_ROWS_MAX);
}

static void agents_say(FILE *out, json_t *root)
{
	json_t *a;
	size_t i;

	json_array_foreach(json_object_get(root, "agents"), i, a)
	{
		char head[64];

		snprintf(head, sizeof(head), "  %.32s: ", cell_str(a, "host").s);
		cell_wrapped_key(out, head, a, "text");
	}
	json_array_foreach(json_object_get(root, "missing"), i, a)
	{
		const char *name = json_string_value(a);

		cell_wrapped(out, "! no answer from agent ", name ? name : "-");
	}
}

int screen_job(FILE *out, json_t *root)
{
	json_t *job = json_object_get(root, "job"), *workers = json_object_get(root, "workers");

	job_head(out, job);
	cell_problems(out, root);
	missing_ranks(out, job);
	culprits(out, workers);
	agents_say(out, root);
	worker_rows(out, workers);
	return job_code(root);
}
