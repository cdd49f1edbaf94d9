/* Prints the screen of `bpsctl why-stuck`: what each waiting call waits for. This file fetches
 * nothing. One thread. */
#include <inttypes.h>
#include <stdbool.h>

#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/error.h"
#include "common/wire/tensor_title.h"

#define NAMED_MAX 8

static bool is_wait_delayed(json_t *wait)
{
	return cell_is(wait, "why", "join") || cell_sec(wait, "s") >= SCREEN_STUCK_S;
}

static void print_omitted_count(FILE *out, uint64_t all, size_t shown)
{
	if (all > shown)
		fprintf(out, "      and %" PRIu64 " more\n", all - shown);
}

static const char *wait_reason_text(json_t *wait)
{
	if (cell_is(wait, "why", "submit"))
		return "these have not submitted it:";
	if (cell_is(wait, "why", "sum"))
		return "all workers have submitted it; these servers sum it:";
	if (cell_is(wait, "why", "elsewhere"))
		return "all workers of this host have submitted it";
	return "the missing worker is unknown, because some agents do not answer";
}

static void print_wait_header(FILE *out, json_t *wait)
{
	const char *tensor = json_string_value(json_object_get(wait, "tensor"));
	char title[TENSOR_TITLE_BYTES];
	uint64_t n = cell_num(wait, "n_waiting");
	char text[512];

	if (cell_is(wait, "why", "join"))
		snprintf(text, sizeof(text), "bps_open: %" PRIu64 " worker%s waiting for %s%s", n,
			plural_suffix_of(n), cell_time_span(cell_sec(wait, "s")).s,
			cell_num(wait, "n_missing") ? "; these have not joined:" : "");
	else if (cell_is(wait, "why", "gpu_open"))
		snprintf(text, sizeof(text),
			"bps_gpu_open: %" PRIu64 " worker%s waiting for %s; %s", n,
			plural_suffix_of(n), cell_time_span(cell_sec(wait, "s")).s,
			cell_num(wait, "n_missing")
				? "these workers of the machine have not called it:"
				: "the executor of their GPUs is not ready");
	else if (cell_is(wait, "why", "declare"))
		snprintf(text, sizeof(text),
			"%s not ready for %s; workers of these agents have not declared it:",
			tensor_title(tensor ? tensor : "-", title),
			cell_time_span(cell_sec(wait, "s")).s);
	else
		snprintf(text, sizeof(text),
			"%s round %" PRIu64 ": %" PRIu64 " worker%s waiting for %s; %s",
			tensor_title(tensor ? tensor : "-", title), cell_num(wait, "round"), n,
			plural_suffix_of(n), cell_time_span(cell_sec(wait, "s")).s,
			wait_reason_text(wait));
	cell_wrapped(out, "  ! ", text);
}

static void print_missing_worker(FILE *out, json_t *w, bool is_round)
{
	char text[320];

	if (is_round && json_is_false(json_object_get(w, "attached")))
		snprintf(text, sizeof(text), "%s has left", cell_worker(w).s);
	else if (is_round)
		snprintf(text, sizeof(text),
			"%s is at round %" PRIu64 ", and has submitted nothing for %s",
			cell_worker(w).s, cell_num(w, "submitted"),
			cell_time_span(cell_sec(w, "quiet_s")).s);
	else
		snprintf(text, sizeof(text), "%s", cell_worker(w).s);
	cell_wrapped(out, "      ", text);
}

static void print_missing_workers(FILE *out, json_t *wait)
{
	json_t *w;
	size_t i;

	json_array_foreach (json_object_get(wait, "missing"), i, w) {
		if (i == NAMED_MAX)
			break;
		print_missing_worker(out, w, cell_is(wait, "why", "submit"));
	}
	print_omitted_count(out, cell_num(wait, "n_missing"), i);
}

static void print_summing_servers(FILE *out, json_t *wait)
{
	char text[320];
	json_t *s;
	size_t i;

	json_array_foreach (json_object_get(wait, "servers"), i, s) {
		if (i == NAMED_MAX)
			break;
		snprintf(text, sizeof(text),
			"server %.64s (host %.64s), %.10s, last message %s ago",
			cell_str(s, "name").s, cell_str(s, "host").s, cell_str(s, "state").s,
			cell_time_span(cell_sec(s, "quiet_s")).s);
		cell_wrapped(out, "      ", text);
	}
	print_omitted_count(out, cell_num(wait, "n_servers"), i);
}

static void print_waiting_workers(FILE *out, json_t *wait)
{
	json_t *first = json_array_get(json_object_get(wait, "waiting"), 0);
	uint64_t n = cell_num(wait, "n_waiting");
	char text[320];

	if (!first)
		return;
	if (n > 1)
		snprintf(
			text, sizeof(text), "%s and %" PRIu64 " more", cell_worker(first).s, n - 1);
	else
		snprintf(text, sizeof(text), "%s", cell_worker(first).s);
	cell_wrapped(out, "    waiting: ", text);
}

static void print_agent_networks(FILE *out, json_t *job)
{
	json_t *a;
	size_t i;

	json_array_foreach (json_object_get(job, "agents"), i, a) {
		char head[64];

		snprintf(head, sizeof(head), "    agent %.16s on %.16s: ", cell_str(a, "name").s,
			cell_str(a, "host").s);
		cell_wrapped_key(out, head, a, "text");
	}
}

/* Show a job. Returns whether any of its calls is delayed, or any of its agents did not answer. */
static bool print_job_waits(FILE *out, json_t *doc)
{
	json_t *job = json_object_get(doc, "job"), *wait;
	size_t i, n_stuck = 0, n_quick = 0;
	bool is_summing = false, is_mute = json_array_size(json_object_get(doc, "missing")) > 0;

	json_array_foreach (json_object_get(doc, "waits"), i, wait) {
		if (is_wait_delayed(wait))
			n_stuck++;
		else
			n_quick++;
	}
	fprintf(out, "job %.40s (%" PRIu64 "), %.8s", cell_str(job, "name").s, cell_num(job, "id"),
		cell_str(job, "state").s);
	if (json_object_get(job, "state_s"))
		fprintf(out, " for %s", cell_time_span(cell_sec(job, "state_s")).s);
	fprintf(out, ": ");
	if (n_stuck)
		fprintf(out, "%zu wait%s\n", n_stuck, plural_suffix_of(n_stuck));
	else if (n_quick)
		fprintf(out, "calls are in flight, but none has waited for long\n");
	else
		fprintf(out, "%s\n", is_mute ? "no waiting call is known" : "nothing waits");
	json_array_foreach (json_object_get(doc, "waits"), i, wait) {
		if (!is_wait_delayed(wait))
			continue;
		print_wait_header(out, wait);
		print_missing_workers(out, wait);
		print_summing_servers(out, wait);
		print_waiting_workers(out, wait);
		is_summing |= cell_is(wait, "why", "sum");
	}
	if (is_summing || is_mute)
		print_agent_networks(out, doc);
	if (n_stuck || is_mute)
		cell_wrapped_key(out, "  ! ", doc, "condition");
	return n_stuck || is_mute;
}

/* Show that the answer comes from an agent, because the scheduler does not answer. */
static void print_agent_header(FILE *out, json_t *root)
{
	char text[600];

	cell_wrapped_key(out, "! ", root, "scheduler_error");
	snprintf(text, sizeof(text), "agent %.63s on %.63s reports what its own workers wait for:",
		cell_str(root, "name").s, cell_str(root, "host").s);
	cell_wrapped(out, "  ", text);
}

int screen_stuck(FILE *out, json_t *root)
{
	json_t *jobs = json_object_get(root, "jobs"), *doc;
	bool is_agent = cell_is(root, "role", "agent");
	bool is_any = is_agent || json_array_size(json_object_get(root, "missing")) > 0;
	size_t i;

	if (is_agent)
		print_agent_header(out, root);

	json_array_foreach (jobs, i, doc)
		is_any |= print_job_waits(out, doc);
	if (!i)
		fprintf(out, "nothing waits: no job forms or runs\n");
	screen_missing(out, root);
	return is_any;
}
