/* Prints the screen of `bpsctl status`, which shows the whole cluster. This file fetches nothing.
 * One thread. */
#include <inttypes.h>
#include <stdbool.h>

#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/error.h"

#define JOBS_MAX 24 /* largest number of rows for jobs; further jobs are only counted */
/* If the cluster has more servers than this number, show only the servers that have a problem or
 * are drained. */
#define SERVERS_MAX   8
#define OUTLIERS_MAX  16
#define REFUSED_MAX   4
#define FAILED_MAX    5
#define FAILED_LATE_S 600

/* ---- head ---- */

struct member_count {
	unsigned up, all;
};

static struct member_count count_role_members(json_t *root, const char *role)
{
	struct member_count n = {0, 0};
	json_t *m;
	size_t i;

	json_array_foreach (json_object_get(root, "members"), i, m) {
		if (!cell_is(m, "role", role))
			continue;
		n.all++;
		n.up += cell_is(m, "state", "up");
	}
	return n;
}

static unsigned count_jobs_in_state(json_t *root, const char *state)
{
	unsigned n = 0;
	json_t *j;
	size_t i;

	json_array_foreach (json_object_get(root, "jobs"), i, j)
		if (cell_is(j, "state", state))
			n++;
	return n;
}

/* Return the provider of the data connections, which is the same for all connected members; "" if
 * there is none. */
static struct table_cell cluster_provider_cell(json_t *root)
{
	json_t *m;
	size_t i;

	json_array_foreach (json_object_get(root, "members"), i, m)
		if (cell_is(m, "state", "up") && json_string_length(json_object_get(m, "provider")))
			return cell_str(m, "provider");
	return (struct table_cell){""};
}

static void print_cluster_header(FILE *out, json_t *root)
{
	struct table_cell provider = cluster_provider_cell(root);
	struct member_count servers = count_role_members(root, "server");
	struct member_count agents = count_role_members(root, "agent");
	char text[512];

	snprintf(text, sizeof(text),
		"%.40s  HEALTH_%.8s  view %.20s  up %s  servers %u/%u  agents %u/%u  jobs %u "
		"running, %u waiting",
		cell_str(root, "cluster").s, cell_str(root, "health").s,
		cell_str(root, "view_text").s, cell_time_span(cell_sec(root, "up_s")).s, servers.up,
		servers.all, agents.up, agents.all, count_jobs_in_state(root, "running"),
		count_jobs_in_state(root, "forming"));
	cell_wrapped(out, "cluster ", text);
	if (!json_is_true(json_object_get(root, "verbose")))
		return;
	snprintf(text, sizeof(text), "view number %" PRIu64 "   version %.16s   commit %.16s%s%.8s",
		cell_num(root, "view"), cell_str(root, "version").s, cell_str(root, "commit").s,
		*provider.s ? "   provider " : "", provider.s);
	cell_wrapped(out, "  ", text);
}

static void print_tolerated_losses(FILE *out, json_t *root)
{
	json_t *t = json_object_get(root, "tolerates"), *state = json_object_get(root, "state");
	uint64_t n = cell_num(t, "server_losses");
	char how[512], text[600];

	if (json_is_false(json_object_get(root, "is_durable")))
		snprintf(how, sizeof(how), "NO (the state cannot be written)");
	else if (cell_is(state, "kind", "file"))
		snprintf(how, sizeof(how), "yes (state durable, %s, last sync %.1f ms)",
			cell_size(cell_num(state, "bytes")).s, cell_sec(state, "sync_s") * 1e3);
	else
		snprintf(how, sizeof(how), "NO (state in memory only: set --state-dir)");
	snprintf(text, sizeof(text), "%" PRIu64 " more server loss%s%s, scheduler loss: %s", n,
		n == 1 ? "" : "es", cell_is(t, "limit", "memory") ? " (memory)" : "", how);
	cell_wrapped(out, "  tolerates: ", text);
}

/* Show the muted problems on one line, whatever their number. */
static void print_muted_problems(FILE *out, json_t *root)
{
	json_t *list = json_object_get(root, "muted"), *m;
	char text[1024];
	size_t i, at = 0;

	json_array_foreach (list, i, m) {
		if (at < sizeof(text) - 200)
			at += (size_t)snprintf(text + at, sizeof(text) - at,
				"%s%.40s (%zu now, for %s more%s%.60s)", i ? ", " : "",
				cell_str(m, "code").s, cell_count_code(root, cell_str(m, "code").s),
				cell_time_span(cell_sec(m, "left_s")).s,
				json_string_length(json_object_get(m, "reason")) ? ": " : "",
				json_string_length(json_object_get(m, "reason"))
					? cell_str(m, "reason").s
					: "");
	}
	if (at)
		cell_wrapped(out, "  muted: ", text);
}

static void print_refused_identities(FILE *out, json_t *root)
{
	json_t *r;
	char text[256];
	size_t i;

	json_array_foreach (json_object_get(root, "refused"), i, r) {
		if (i == REFUSED_MAX) {
			fprintf(out, "  refused: (more: --json)\n");
			break;
		}
		snprintf(text, sizeof(text),
			"%" PRIu64
			" connection%s as %.120s in the last minute (wrong or revoked key?)",
			cell_num(r, "count"), cell_num(r, "count") == 1 ? "" : "s",
			cell_str(r, "identity").s);
		cell_wrapped(out, "  refused: ", text);
	}
}

/* Print a blank line before a section, unless the previous output already ended with a blank line
 * (*has_gap). */
static void print_section_gap(FILE *out, bool *has_gap)
{
	if (!*has_gap)
		putc('\n', out);
	*has_gap = false;
}

/* ---- jobs ---- */

static void job_slowest_cell(json_t *j, char ret[32])
{
	json_t *slowest = json_object_get(json_object_get(j, "pace"), "slowest");

	if (cell_is(j, "state", "forming"))
		snprintf(ret, 32, "%" PRIu64 " of %" PRIu64 " joined", cell_num(j, "joined"),
			cell_num(j, "size"));
	else if (cell_is_asynchronous(j))
		snprintf(ret, 32, "asynchronous");
	else if (cell_sec(slowest, "lag_s") >= 0.0005)
		snprintf(ret, 32, "%.10s %.9s", cell_str(slowest, "host").s,
			cell_slowest_lag(slowest).s);
	else
		snprintf(ret, 32, "-");
}

static struct table_cell name_cell_with_id(json_t *root, json_t *o)
{
	struct table_cell c = cell_str(o, "name");

	if (json_is_true(json_object_get(root, "verbose")))
		snprintf(c.s, sizeof(c.s), "#%" PRIu64 " %.63s", cell_num(o, "id"),
			cell_str(o, "name").s);
	return c;
}

static void print_status_job_row(FILE *out, json_t *root, json_t *j)
{
	json_t *pace = json_object_get(j, "pace");
	bool is_known = json_is_object(pace);
	char agents[48] = "-", slowest[32];

	job_slowest_cell(j, slowest);
	if (cell_is(j, "state", "running"))
		snprintf(agents, sizeof(agents), "%" PRIu64 "/%zu", cell_num(j, "agents_up"),
			json_array_size(json_object_get(j, "agents")));
	fprintf(out, "%-12.12s %-7.7s %7.7s %7.7s %7.7s %9.9s %15.15s  %-19.19s %.7s\n",
		name_cell_with_id(root, j).s, cell_user_name(cell_num(j, "uid")).s, agents,
		is_known ? cell_count(cell_num(pace, "round")).s
			 : (json_object_get(j, "rounds") ? cell_count(cell_num(j, "rounds")).s
							 : "-"),
		is_known ? cell_rate(cell_sec(pace, "steps_s")).s : "-",
		is_known ? cell_rate(cell_sec(pace, "push_bytes_s") / 1e9).s : "-",
		is_known && cell_num(pace, "rounds") ? cell_wait_percentiles(pace).s : "-", slowest,
		cell_str(j, "state").s);
	if (cell_num(j, "waiting_partitions"))
		fprintf(out, "    ! %" PRIu64 " of its partitions wait%s for a server\n",
			cell_num(j, "waiting_partitions"),
			verb_suffix_of(cell_num(j, "waiting_partitions")));
}

static void print_status_job_table(FILE *out, json_t *root, bool *has_gap)
{
	json_t *jobs = json_object_get(root, "jobs"), *j;
	size_t i;

	if (!json_array_size(jobs))
		return;
	print_section_gap(out, has_gap);
	fprintf(out, "%-12s %-7s %7s %7s %7s %9s %15s  %-19s %s\n", "JOB", "USER", "AGENTS",
		"ROUNDS", "STEPS/s", "PUSH GB/s", "WAIT p50/p99 ms", "SLOWEST", "STATE");
	json_array_foreach (jobs, i, j)
		if (i < JOBS_MAX)
			print_status_job_row(out, root, j);
	if (i > JOBS_MAX)
		fprintf(out, "(%zu more: bpsctl jobs)\n", i - JOBS_MAX);
}

static void print_failed_jobs(FILE *out, json_t *root, bool *has_gap)
{
	json_t *j;
	size_t i, shown = 0;

	json_array_foreach (json_object_get(root, "ended"), i, j) {
		char head[64];

		if (!cell_num(j, "code") || cell_sec(j, "state_s") > FAILED_LATE_S ||
			shown == FAILED_MAX)
			continue;
		if (!shown++) {
			print_section_gap(out, has_gap);
			fprintf(out, "FAILED IN THE LAST 10 MINUTES\n");
		}
		snprintf(head, sizeof(head), "%-24.24s %8.16s ago  ", cell_str(j, "name").s,
			cell_time_span(cell_sec(j, "state_s")).s);
		cell_wrapped_key(out, head, j, "text");
	}
}

/* ---- members ---- */

static bool is_member_healthy(json_t *m)
{
	return cell_is(m, "state", "up") && !json_is_true(json_object_get(m, "is_quiet"));
}

static bool is_worth_a_row(json_t *m)
{
	return !is_member_healthy(m) || json_is_true(json_object_get(m, "is_drained"));
}

static struct table_cell cell_state_with_mark(json_t *m)
{
	struct table_cell c;

	snprintf(c.s, sizeof(c.s), "%.10s%s", cell_state(m).s,
		is_member_healthy(m) ? "" : "*"); /* the star marks a member with a problem */
	return c;
}

static void print_server_row(FILE *out, json_t *root, json_t *m)
{
	bool is_up = cell_is(m, "state", "up");
	char memory[48];

	snprintf(memory, sizeof(memory), "%.10s/%.10s", cell_size(cell_num(m, "mem_bytes")).s,
		cell_size(cell_num(m, "quota_bytes")).s);
	fprintf(out, "%-12.12s %-13.13s %-9.9s %7.7s %7.7s %8.8s %19.19s %6.6s %9.9s\n",
		name_cell_with_id(root, m).s, cell_str(m, "host").s, cell_state_with_mark(m).s,
		cell_count(cell_num(m, "partitions")).s,
		is_up ? cell_rate(cell_sec(m, "rx_bytes_s") / 1e9).s : "-",
		is_up ? cell_rate(cell_sec(m, "tx_bytes_s") / 1e9).s : "-", is_up ? memory : "-",
		is_up ? cell_rate(cell_sec(m, "sum_s") * 1e3).s : "-", cell_last_heard(m).s);
}

static void print_server_table(FILE *out, json_t *root, bool *has_gap)
{
	bool is_few = count_role_members(root, "server").all <= SERVERS_MAX;
	size_t i, n = 0, shown = 0;
	json_t *m;

	json_array_foreach (json_object_get(root, "members"), i, m) {
		if (!cell_is(m, "role", "server"))
			continue;
		if (!n)
			print_section_gap(out, has_gap);
		if (!n++)
			fprintf(out, "%-12s %-13s %-9s %7s %7s %8s %19s %6s %9s\n", "SERVER",
				"HOST", "STATE", "PARTS", "IN GB/s", "OUT GB/s", "MEM used/limit",
				"SUM ms", "LAST");
		if (!is_few && (!is_worth_a_row(m) || shown >= OUTLIERS_MAX))
			continue;
		print_server_row(out, root, m);
		shown++;
	}
	if (n > shown)
		fprintf(out, "(%zu more: bpsctl servers)\n", n - shown);
}

/* Show at most OUTLIERS_MAX agents, and only agents that have a problem or are drained. For the
 * other agents, show only their count. The row of each job shows how many of its agents are up. */
static void print_agent_table(FILE *out, json_t *root, bool *has_gap)
{
	size_t i, n = 0, shown = 0;
	json_t *m;

	json_array_foreach (json_object_get(root, "members"), i, m) {
		if (!cell_is(m, "role", "agent"))
			continue;
		n++;
		if (!is_worth_a_row(m) || shown >= OUTLIERS_MAX)
			continue;
		if (!shown)
			print_section_gap(out, has_gap);
		if (!shown++)
			fprintf(out, "%-12s %-13s %-9s %9s\n", "AGENT", "HOST", "STATE", "LAST");
		fprintf(out, "%-12.12s %-13.13s %-9.9s %9.9s\n", name_cell_with_id(root, m).s,
			cell_str(m, "host").s, cell_state_with_mark(m).s, cell_last_heard(m).s);
	}
	if (n > shown && !shown)
		print_section_gap(out, has_gap);
	if (n > shown)
		fprintf(out, "(%zu %sagent%s: bpsctl agents)\n", n - shown, shown ? "more " : "",
			n - shown == 1 ? "" : "s");
}

static int status_exit_code(json_t *root)
{
	if (cell_is(root, "health", "OK"))
		return 0;
	return cell_is(root, "health", "WARN") ? 1 : 2;
}

int screen_status(FILE *out, json_t *root)
{
	bool has_gap;

	if (!cell_is(root, "role", "scheduler"))
		return screen_daemon(out, root);
	print_cluster_header(out, root);
	print_tolerated_losses(out, root);
	print_muted_problems(out, root);
	print_refused_identities(out, root);
	if (cell_count_problems(root))
		putc('\n', out);
	cell_print_problems(out, root);
	has_gap = cell_count_problems(root) > 0;
	print_status_job_table(out, root, &has_gap);
	print_failed_jobs(out, root, &has_gap);
	print_server_table(out, root, &has_gap);
	print_agent_table(out, root, &has_gap);
	screen_missing(out, root);
	return status_exit_code(root);
}
