#include "bps-scheduler/bpsctl/screen.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#define ROWS_MAX        40 /* of a table; the rest is counted */
#define QUIET_LONG_S    5.0
#define WORKER_ROWS_MAX 32

/* ---- reading ---- */

/* A string of the document; its control characters would reach the terminal. */
struct cell {
	char s[128];
};

static struct cell cell(json_t *o, const char *key)
{
	const char *v = json_string_value(json_object_get(o, key));
	struct cell c;

	snprintf(c.s, sizeof(c.s), "%s", v && *v ? v : "-");
	for (char *p = c.s; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	return c;
}

static uint64_t num(json_t *o, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(o, key));

	return v > 0 ? (uint64_t)v : 0;
}

static double sec(json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

static bool is(json_t *o, const char *key, const char *value)
{
	const char *v = json_string_value(json_object_get(o, key));

	return v && strcmp(v, value) == 0;
}

static struct cell span(double s)
{
	struct cell c;
	unsigned long t = s > 0 ? (unsigned long)s : 0;

	if (s < 100)
		snprintf(c.s, sizeof(c.s), "%.1f s", s);
	else if (t < 86400)
		snprintf(c.s, sizeof(c.s), "%02lu:%02lu:%02lu", t / 3600, t / 60 % 60, t % 60);
	else
		snprintf(c.s, sizeof(c.s), "%lud %luh", t / 86400, t / 3600 % 24);
	return c;
}

static struct cell size(uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = (double)bytes;
	unsigned u = 0;
	struct cell c;

	while (v >= 1024 && u < 6) {
		v /= 1024;
		u++;
	}
	snprintf(c.s, sizeof(c.s), u && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
	return c;
}

/* ---- problems ---- */

/* Print s behind a head, wrapped at words under itself. */
static void wrapped(FILE *out, const char *head, const char *s)
{
	size_t indent = strlen(head), room = SCREEN_COLUMNS - indent;
	const char *lead = head;

	do {
		size_t n = strlen(s), cut;

		if (n > room) {
			for (cut = room; cut > room / 2 && s[cut] != ' '; cut--)
				;
			n = s[cut] == ' ' ? cut : room;
		}
		fprintf(out, "%*s", (int)indent, lead);
		for (size_t i = 0; i < n; i++)
			putc((unsigned char)s[i] < ' ' || s[i] == 0x7f ? '?' : s[i], out);
		putc('\n', out);
		s += n;
		s += *s == ' ';
		lead = "";
	} while (*s);
}

static void wrapped_key(FILE *out, const char *head, json_t *o, const char *key)
{
	const char *v = json_string_value(json_object_get(o, key));

	if (v && *v)
		wrapped(out, head, v);
}

static void problems(FILE *out, json_t *root)
{
	json_t *p;
	size_t i;

	json_array_foreach(json_object_get(root, "problems"), i, p)
	{
		char head[64];

		snprintf(head, sizeof(head), "%c %-13.40s ", is(p, "severity", "ERR") ? 'X' : '!',
			cell(p, "code").s);
		wrapped_key(out, head, p, "what");
		wrapped_key(out, "    effect:  ", p, "effect");
		wrapped_key(out, "    action:  ", p, "action");
	}
	if (i)
		putc('\n', out);
}

/* ---- cluster ---- */

static void count_members(json_t *root, const char *role, unsigned *ret_up, unsigned *ret_all)
{
	json_t *m;
	size_t i;

	*ret_up = *ret_all = 0;
	json_array_foreach(json_object_get(root, "members"), i, m)
	{
		if (!is(m, "role", role))
			continue;
		++*ret_all;
		if (is(m, "state", "up"))
			++*ret_up;
	}
}

static unsigned count_jobs(json_t *root, const char *state)
{
	unsigned n = 0;
	json_t *j;
	size_t i;

	json_array_foreach(json_object_get(root, "jobs"), i, j) if (is(j, "state", state)) n++;
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
		cell(root, "cluster").s, cell(root, "health").s, cell(root, "view_text").s,
		span(sec(root, "up_s")).s, up, all, agents_up, agents);
	fprintf(out, "  jobs %u running, %u forming   state %s", count_jobs(root, "running"),
		count_jobs(root, "forming"),
		is(state, "kind", "file") ? "in a file" : "in memory only");
	if (is(state, "kind", "file"))
		fprintf(out, " (%s, last sync %.1f ms)", size(num(state, "bytes")).s,
			sec(state, "sync_s") * 1e3);
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
		snprintf(workers, sizeof(workers), "%" PRIu64 "/%" PRIu64, num(j, "joined"),
			num(j, "size"));
		fprintf(out,
			"%-24.24s %6" PRIu64 " %7zu %9s %8" PRIu64 " %10s %7" PRIu64 "  %.8s %s\n",
			cell(j, "name").s, num(j, "uid"),
			json_array_size(json_object_get(j, "agents")), workers, num(j, "tensors"),
			size(num(j, "bytes")).s, num(j, "waiting_partitions"), cell(j, "state").s,
			span(sec(j, "state_s")).s);
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

		if (!num(j, "code") || sec(j, "state_s") > 600 || shown == 5)
			continue;
		if (!shown++)
			fprintf(out, "FAILED IN THE LAST 10 MINUTES\n");
		snprintf(head, sizeof(head), "%-24.24s %8.16s ago  ", cell(j, "name").s,
			span(sec(j, "state_s")).s);
		wrapped_key(out, head, j, "text");
	}
	if (shown)
		putc('\n', out);
}

static void member_row(FILE *out, json_t *m, bool is_server)
{
	struct cell last = span(is(m, "state", "up") ? sec(m, "quiet_s") : sec(m, "state_s"));

	fprintf(out, "%-16.16s %-16.16s %-8.8s", cell(m, "name").s, cell(m, "host").s,
		cell(m, "state").s);
	if (is_server)
		fprintf(out, " %10s %10s/%-10s", size(num(m, "partitions_bytes")).s,
			size(num(m, "mem_bytes")).s, size(num(m, "quota_bytes")).s);
	else
		fprintf(out, " %8" PRIu64 " %11" PRIu64 "           ", num(m, "trainers"),
			num(m, "restarts"));
	fprintf(out, " %10s %s\n", size(num(m, "rx_bytes")).s, last.s);
}

static void member_rows(FILE *out, json_t *members, const char *role)
{
	bool is_server = strcmp(role, "server") == 0;
	size_t i, shown = 0, rows = 0;
	json_t *m;

	json_array_foreach(members, i, m)
	{
		if (!is(m, "role", role))
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
		if (shown >= ROWS_MAX && is(m, "state", "up"))
			continue;
		member_row(out, m, is_server);
		shown++;
	}
	if (rows > shown)
		fprintf(out, "(and %zu more that are up)\n", rows - shown);
	if (rows)
		putc('\n', out);
}

int screen_status_code(json_t *root)
{
	if (is(root, "health", "OK"))
		return 0;
	return is(root, "health", "WARN") ? 1 : 2;
}

int screen_status(FILE *out, json_t *root)
{
	json_t *members = json_object_get(root, "members");

	headline(out, root);
	problems(out, root);
	job_rows(out, json_object_get(root, "jobs"));
	ended_rows(out, json_object_get(root, "ended"));
	member_rows(out, members, "server");
	member_rows(out, members, "agent");
	return screen_status_code(root);
}

/* ---- one job ---- */

static bool is_culprit(json_t *w)
{
	return json_is_false(json_object_get(w, "attached")) || num(w, "behind") > 0;
}

int screen_job_code(json_t *root)
{
	json_t *job = json_object_get(root, "job"), *w;
	size_t i;

	if (is(job, "state", "ended"))
		return num(job, "code") ? 2 : 0;
	if (is(job, "state", "forming") || num(job, "waiting_partitions") ||
		json_array_size(json_object_get(root, "missing")))
		return 1;
	json_array_foreach(json_object_get(root, "workers"), i,
		w) if (is_culprit(w) && sec(w, "quiet_s") > QUIET_LONG_S) return 1;
	return 0;
}

static void job_head(FILE *out, json_t *job)
{
	fprintf(out, "job %.64s (%" PRIu64 ")   user %" PRIu64 "   %s for %s\n",
		cell(job, "name").s, num(job, "id"), num(job, "uid"), cell(job, "state").s,
		span(sec(job, "state_s")).s);
	fprintf(out,
		"  workers %" PRIu64 "/%" PRIu64 ", %" PRIu64
		" done   agents %zu   tensors %" PRIu64 " (%s)   partitions %" PRIu64 "\n",
		num(job, "joined"), num(job, "size"), num(job, "done"),
		json_array_size(json_object_get(job, "agents")), num(job, "tensors"),
		size(num(job, "bytes")).s, num(job, "partitions"));
	if (num(job, "undeclared"))
		fprintf(out, "! %" PRIu64 " tensors are not declared by all workers yet\n",
			num(job, "undeclared"));
	if (num(job, "waiting_partitions"))
		fprintf(out, "! %" PRIu64 " partitions wait for a server\n",
			num(job, "waiting_partitions"));
	wrapped_key(out, num(job, "code") ? "X failed: " : "  ended: ", job, "text");
}

static void missing_ranks(FILE *out, json_t *job)
{
	json_t *list = json_object_get(job, "missing_ranks"), *r;
	uint64_t more = num(job, "size") - num(job, "joined") - json_array_size(list);
	size_t i;

	if (!is(job, "state", "forming"))
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
	size_t i, n = 0;
	json_t *w;

	json_array_foreach(workers, i, w)
	{
		if (!is_culprit(w) || n++ >= 8)
			continue;
		fprintf(out, "! rank %" PRIu64 " (host %.40s, pid %" PRIu64 ") ", num(w, "rank"),
			cell(w, "host").s, num(w, "pid"));
		if (json_is_false(json_object_get(w, "attached")))
			fprintf(out, "has left\n");
		else
			fprintf(out, "is %" PRIu64 " push_pulls behind, quiet for %s\n",
				num(w, "behind"), span(sec(w, "quiet_s")).s);
	}
	if (n > 8)
		fprintf(out, "! and %zu more\n", n - 8);
}

static void worker_row(FILE *out, json_t *w)
{
	json_t *oldest = json_object_get(w, "oldest");

	fprintf(out,
		"%6" PRIu64 " %-16.16s %8" PRIu64 " %10" PRIu64 " %10" PRIu64 " %6" PRIu64 " %8s",
		num(w, "rank"), cell(w, "host").s, num(w, "pid"), num(w, "submitted"),
		num(w, "completed"), num(w, "behind"), span(sec(w, "quiet_s")).s);
	if (json_is_object(oldest))
		fprintf(out, "  %.14s %" PRIu64 ", %s", cell(oldest, "tensor").s,
			num(oldest, "round"), span(sec(oldest, "s")).s);
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

		snprintf(head, sizeof(head), "  %.32s: ", cell(a, "host").s);
		wrapped_key(out, head, a, "text");
	}
	json_array_foreach(json_object_get(root, "missing"), i, a)
	{
		const char *name = json_string_value(a);

		wrapped(out, "! no answer from agent ", name ? name : "-");
	}
}

int screen_job(FILE *out, json_t *root)
{
	json_t *job = json_object_get(root, "job"), *workers = json_object_get(root, "workers");

	job_head(out, job);
	missing_ranks(out, job);
	culprits(out, workers);
	agents_say(out, root);
	worker_rows(out, workers);
	return screen_job_code(root);
}
