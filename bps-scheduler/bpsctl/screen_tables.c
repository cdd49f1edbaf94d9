/* Prints bpsctl's full tables (screen.h): servers, agents, jobs, events, and the figures of one
 * daemon. This file fetches nothing. One thread. */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "bps-scheduler/bpsctl/fetch.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"

#define ENDED_MAX 10 /* jobs that have ended */

/* ---- footers ---- */

/* Write the names in the list `missing` as "s2, node7 and 3 more". */
static void format_missing_names(json_t *missing, char *ret, size_t room)
{
	size_t n = json_array_size(missing), at = 0;

	ret[0] = '\0';
	for (size_t i = 0; i < n && i < SCREEN_MISSING_MAX && at < room; i++) {
		const char *name = json_string_value(json_array_get(missing, i));

		at += (size_t)snprintf(ret + at, room - at, "%s%.64s", i ? ", " : "",
			name ? cell_text(name).s : "-");
	}
	if (n > SCREEN_MISSING_MAX && at < room)
		snprintf(ret + at, room - at, " and %zu more", n - SCREEN_MISSING_MAX);
}

void screen_missing(FILE *out, json_t *root)
{
	json_t *c = json_object_get(root, "collected"), *missing = json_object_get(root, "missing");
	char names[SCREEN_MISSING_MAX * 70], text[sizeof(names) + 128];

	format_missing_names(missing, names, sizeof(names));
	if (cell_num(c, "not_asked"))
		fprintf(out,
			"! %" PRIu64 " more job%s without figures; `bpsctl job NAME` shows one\n",
			cell_num(c, "not_asked"), plural_suffix_of(cell_num(c, "not_asked")));
	if (cell_num(c, "daemons")) {
		snprintf(text, sizeof(text),
			"collected from %" PRIu64 " of %" PRIu64 " daemons in %.2f s%s%s",
			cell_num(c, "heard"), cell_num(c, "daemons"), cell_sec(c, "s"),
			*names ? "; missing: " : "", names);
		cell_wrapped(out, "", text);
	} else if (*names) {
		cell_wrapped(out, "! no answer from ", names);
	}
}

/* ---- members ---- */

/* Return the speed of the member's network card in Gbit/s, and how this speed was found. */
static struct table_cell cell_nic_speed(json_t *m)
{
	double gbps = (double)cell_num(m, "nic_mbps") / 1e3;
	const char *from = cell_is(m, "nic_source", "measured") ? "meas."
			   : cell_is(m, "nic_source", "driver") ? "drv."
								: "set";
	struct table_cell c = {"-"};

	if (gbps > 0)
		snprintf(c.s, sizeof(c.s), gbps < 9.995 ? "%.2f %s" : "%.0f %s", gbps, from);
	return c;
}

static bool is_member_drained(json_t *m)
{
	return json_is_true(json_object_get(m, "is_drained"));
}

/* Print a note about the bytes exchanged through shared memory, because no column contains them. */
static void same_host_note(FILE *out, json_t *m)
{
	json_t *s = json_object_get(m, "same_host");

	if (!s || !cell_is(m, "state", "up"))
		return;
	if (cell_is(s, "state", "off"))
		fprintf(out, "    same-host=off\n");
	else if (cell_num(s, "connections") > 0)
		fprintf(out,
			"    shares memory within its host: %" PRIu64
			" connections, %s received through them\n",
			cell_num(s, "connections"), cell_size(cell_num(s, "received_bytes")).s);
}

/* Print, below the member's row, the values that only some members have. */
static void print_member_notes(FILE *out, json_t *m)
{
	char text[600];
	bool has_reason;

	cell_wrapped_key(out, "    down: ", m, "why");
	same_host_note(out, m);
	if (!is_member_drained(m))
		return;
	has_reason = json_string_length(json_object_get(m, "drain_reason")) > 0;
	snprintf(text, sizeof(text), "%s%sby %s", has_reason ? cell_str(m, "drain_reason").s : "",
		has_reason ? ", " : "", cell_str(m, "drain_who").s);
	cell_wrapped(out, "    drained: ", text);
}

int screen_servers(FILE *out, json_t *root)
{
	json_t *m;
	size_t i;
	int status = 0;

	fprintf(out, "%-12s %-12s %-8s %7s %9s %17s %8s %10s %8s\n", "SERVER", "HOST", "STATE",
		"THREADS", "PLACED", "MEMORY/LIMIT", "RECEIVED", "NIC GBIT/S", "LAST");
	json_array_foreach (json_object_get(root, "members"), i, m) {
		char memory[48];

		snprintf(memory, sizeof(memory), "%.12s/%.12s",
			cell_size(cell_num(m, "mem_bytes")).s,
			cell_size(cell_num(m, "quota_bytes")).s);
		fprintf(out, "%-12.12s %-12.12s %-8.8s %7.7s %9.9s %17.17s %8.8s %10.10s %8.8s\n",
			cell_str(m, "name").s, cell_str(m, "host").s, cell_state(m).s,
			cell_digits(m, "threads").s, cell_size(cell_num(m, "partitions_bytes")).s,
			memory, cell_size(cell_num(m, "rx_bytes")).s, cell_nic_speed(m).s,
			cell_last_heard(m).s);
		print_member_notes(out, m);
		status |= !cell_is(m, "state", "up") && !is_member_drained(m);
	}
	if (!i)
		fprintf(out, "(no server has ever joined)\n");
	return status;
}

/* Return the port of the agent's HTTP server, with a star if the server answers only on its own
 * machine; "-": not known. */
static struct table_cell cell_http_port(json_t *m)
{
	const char *text = json_string_value(json_object_get(m, "http"));
	struct table_cell c = cell_text("-");
	struct sockaddr_storage sa;
	struct addr a;
	socklen_t len;
	bool is_local;

	if (!text || addr_parse(&a, text, AGENT_HTTP, NULL) < 0 || a.port == 0)
		return c;
	is_local = addr_resolve_numeric(&a, &sa, &len) == 0 &&
		   sockaddr_is_loopback((const struct sockaddr *)&sa);
	snprintf(c.s, sizeof(c.s), "%u%s", a.port, is_local ? "*" : "");
	return c;
}

int screen_agents(FILE *out, json_t *root)
{
	json_t *m;
	size_t i;
	int status = 0;

	fprintf(out, "%-12s %-13s %-8s %7s %8s %8s %6s %8s %10s %8s\n", "AGENT", "HOST", "STATE",
		"PID", "TRAINERS", "RESTARTS", "HTTP", "SENT", "NIC GBIT/S", "LAST");
	json_array_foreach (json_object_get(root, "members"), i, m) {
		fprintf(out,
			"%-12.12s %-13.13s %-8.8s %7.7s %8.8s %8.8s %6.6s %8.8s %10.10s %8.8s\n",
			cell_str(m, "name").s, cell_str(m, "host").s, cell_state(m).s,
			cell_digits(m, "pid").s, cell_digits(m, "trainers").s,
			cell_digits(m, "restarts").s, cell_http_port(m).s,
			cell_size(cell_num(m, "tx_bytes")).s, cell_nic_speed(m).s,
			cell_last_heard(m).s);
		print_member_notes(out, m);
		status |= !cell_is(m, "state", "up") && !is_member_drained(m);
	}
	if (!i)
		fprintf(out, "(no agent has ever joined)\n");
	else
		fprintf(out, "(bpsctl agent HOST:HTTP shows one; *: only on the agent's host, as "
			     "127.0.0.1:HTTP)\n");
	return status;
}

/* ---- jobs ---- */

static void print_job_table_row(FILE *out, json_t *j)
{
	bool is_asked = json_object_get(j, "rounds") != NULL;
	char workers[48], rounds[128] = "-", waiting[64] = "-";

	snprintf(workers, sizeof(workers), "%" PRIu64 "/%" PRIu64, cell_num(j, "joined"),
		cell_num(j, "size"));
	if (is_asked) {
		snprintf(rounds, sizeof(rounds), "%s", cell_count(cell_num(j, "rounds")).s);
		snprintf(waiting, sizeof(waiting), "%" PRIu64 " %.12s",
			cell_num(j, "calls_waiting"), cell_time_span(cell_sec(j, "longest_s")).s);
	}
	fprintf(out, "%-18.18s %-10.10s %6zu %11.11s %7.7s %10.10s %12.12s  %.8s %s\n",
		cell_str(j, "name").s, cell_user_name(cell_num(j, "uid")).s,
		json_array_size(json_object_get(j, "agents")), workers,
		cell_count(cell_num(j, "tensors")).s, rounds, waiting, cell_str(j, "state").s,
		cell_time_span(cell_sec(j, "state_s")).s);
}

static void print_ended_jobs(FILE *out, json_t *root)
{
	json_t *ended = json_object_get(root, "ended"), *j;
	size_t i;

	json_array_foreach (ended, i, j) {
		char head[64];

		if (i == ENDED_MAX) {
			fprintf(out, "(%zu more: bpsctl --json jobs)\n",
				json_array_size(ended) - i);
			break;
		}
		if (!i)
			fprintf(out, "(ended; the last one first)\n");
		snprintf(head, sizeof(head), "  %-18.18s %-10.10s %8.16s ago  ",
			cell_str(j, "name").s, cell_user_name(cell_num(j, "uid")).s,
			cell_time_span(cell_sec(j, "state_s")).s);
		if (json_string_length(json_object_get(j, "text")))
			cell_wrapped_key(out, head, j, "text");
		else
			fprintf(out, "%sended without an error\n", head);
	}
}

int screen_jobs(FILE *out, json_t *root)
{
	json_t *j;
	size_t i;
	int status = json_array_size(json_object_get(root, "missing")) > 0;

	fprintf(out, "%-18s %-10s %6s %11s %7s %10s %12s  %s\n", "JOB", "USER", "AGENTS", "WORKERS",
		"TENSORS", "PUSH_PULLS", "WAITING", "STATE");
	json_array_foreach (json_object_get(root, "jobs"), i, j) {
		print_job_table_row(out, j);
		status |= !cell_is(j, "state", "running") ||
			  cell_num(j, "waiting_partitions") > 0 ||
			  cell_sec(j, "longest_s") > SCREEN_STUCK_S;
	}
	if (!i)
		fprintf(out, "(no job forms or runs)\n");
	print_ended_jobs(out, root);
	screen_missing(out, root);
	return status;
}

/* ---- one server or agent ---- */

int screen_daemon(FILE *out, json_t *root)
{
	const char *key;
	char text[256];
	json_t *v;

	snprintf(text, sizeof(text), "%.10s %.63s (id %.20s) on %.63s   version %.20s",
		cell_str(root, "role").s, cell_str(root, "name").s, cell_digits(root, "id").s,
		cell_str(root, "host").s, cell_str(root, "version").s);
	cell_wrapped(out, "bps-", text);
	cell_print_problems(out, root);
	json_object_foreach (root, key, v) {
		size_t n = strlen(key);

		if (!json_is_integer(v) || strcmp(key, "schema") == 0 || strcmp(key, "id") == 0)
			continue;
		if (n > 6 && strcmp(key + n - 6, "_bytes") == 0)
			fprintf(out, "  %-20.*s %12s\n", n < 66 ? (int)(n - 6) : 60,
				cell_text(key).s, cell_size(cell_num(root, key)).s);
		else
			fprintf(out, "  %-20.60s %12.20s\n", cell_text(key).s,
				cell_digits(root, key).s);
	}
	return cell_count_problems(root) > 0;
}

/* ---- events ---- */

int screen_events(FILE *out, json_t *root)
{
	json_t *e;
	size_t i;

	if (cell_num(root, "lost"))
		fprintf(out, "(%" PRIu64 " older events are not kept any more)\n",
			cell_num(root, "lost"));
	json_array_foreach (json_object_get(root, "events"), i, e) {
		time_t t = (time_t)cell_sec(e, "time");
		char when[32] = "-", head[96];
		struct tm tm;

		if (localtime_r(&t, &tm))
			strftime(when, sizeof(when), "%F %T", &tm);
		snprintf(head, sizeof(head), "%6" PRIu64 "  %s  %-10.10s  ", cell_num(e, "seq"),
			when, cell_str(e, "kind").s);
		cell_wrapped(out, head, cell_str(e, "text").s);
	}
	return 0;
}
