/* Commands of bpsctl that show one document, once or repeatedly with --watch. fetch.c fetches the
 * documents and screen_*.c format them. One thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/checks.h"
#include "bps-scheduler/bpsctl/explain.h"
#include "bps-scheduler/bpsctl/fetch.h"
#include "bps-scheduler/bpsctl/live_screen.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/version.h"
#include "common/os/file_save.h"
#include "common/wire/ctlmsg.h"

/* Fetch and show one screen. If the daemon is unreachable, show the error instead; --watch goes
 * on. */
static int watch_show_once(const struct document_view *v, const struct bpsctl_opts *o,
	const char *arg, struct live_screen *w)
{
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);
	struct err_text err = {""};
	json_t *root = NULL;
	int rc, status = EXIT_UNREACHABLE;

	if (!out)
		return print_error_line("out of memory", EXIT_ERR);
	query_time_limit_set(true);
	rc = v->fetch(o, arg, &root, &err);
	query_time_limit_set(false);
	if (rc == 0 && o->verbose && !o->json)
		json_object_set_new(root, "verbose", json_true());
	if (rc == 0)
		status = v->screen(out, root);
	else
		cell_wrapped(out, "! ", err.s);
	if (fclose(out) != 0)
		status = print_error_line("out of memory", EXIT_ERR);
	else if (!o->json)
		live_screen_show(w, text);
	else
		print_json_line(
			root ? root
			     : (root = json_pack("{s:i, s:s}", "schema", 1, "error", err.s)));
	json_decref(root);
	free(text);
	return status;
}

static int watch_document_view(
	const struct document_view *v, const struct bpsctl_opts *o, const char *arg)
{
	struct live_screen w;
	int status;

	if (live_screen_begin(&w) < 0)
		return print_error_line("cannot wait for signals", EXIT_ERR);
	do
		status = watch_show_once(v, o, arg, &w);
	while (live_screen_wait(&w, opts_interval_ms(o)));
	live_screen_end(&w);
	return status;
}

int cmd_show_document(const struct document_view *v, const struct bpsctl_opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc;

	if (o->watch)
		return watch_document_view(v, o, arg);
	rc = v->fetch(o, arg, &root, &err);
	if (rc == 0)
		return print_document(o, root, v->screen);
	return print_failure(rc, &err);
}

/* ---- the commands ---- */

const struct document_view view_status = {fetch_status, screen_status};
const struct document_view view_servers = {fetch_servers, screen_servers};
const struct document_view view_agents = {fetch_agents, screen_agents};
const struct document_view view_jobs = {fetch_jobs, screen_jobs};
const struct document_view view_job = {fetch_job, screen_job};
const struct document_view view_advice = {fetch_advice, screen_advice};
const struct document_view view_why_stuck = {fetch_stuck, screen_stuck};

int cmd_top(const struct bpsctl_opts *o, const char *arg)
{
	return watch_document_view(&view_status, o, arg);
}

int cmd_agent(const struct bpsctl_opts *o, const char *arg)
{
	struct err_text err = {""};
	struct addr a;

	if (addr_parse(&a, arg, AGENT_HTTP, &err) < 0)
		return print_error_line(err.s, EX_USAGE);
	return cmd_show_document(
		&(struct document_view){fetch_agent, o->topology ? screen_topology : screen_daemon},
		o, arg);
}

int cmd_trace(const struct bpsctl_opts *o, const char *arg)
{
	char by_default[CTL_JOB_NAME_MAX + CTL_NAME_MAX + sizeof("..trace.json")], text[512];
	const char *path = *o->more ? o->more : by_default;
	struct err_text err = {""};
	json_t *head = NULL, *bps;
	char *trace = NULL;
	size_t n = 0;
	int rc;

	query_time_limit_set(false);
	rc = fetch_trace(o, arg, &trace, &n, &head, &err);
	if (rc < 0)
		return print_failure(rc, &err);
	bps = json_object_get(head, "bps");
	snprintf(by_default, sizeof(by_default), "%s.%.63s.trace.json", arg,
		cell_str(bps, "agent").s);
	rc = file_save(path, -1, trace, n);
	free(trace);
	if (rc < 0) {
		json_decref(head);
		snprintf(text, sizeof(text), "cannot write the file '%.300s': %s", path,
			strerror(-rc));
		return print_error_line(text, EXIT_ERR);
	}
	snprintf(text, sizeof(text),
		"wrote %" PRIu64 " round%s to %.300s (%" PRIu64
		" earlier ones are not kept): open it in https://ui.perfetto.dev",
		cell_num(bps, "records"), plural_suffix_of(cell_num(bps, "records")), path,
		cell_num(bps, "lost"));
	rc = print_answer(o, text,
		json_pack("{s:i, s:s, s:I, s:I}", "schema", 1, "file", path, "records",
			(json_int_t)cell_num(bps, "records"), "lost",
			(json_int_t)cell_num(bps, "lost")));
	json_decref(head);
	return rc;
}

static int view_fetch_checks(
	const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	*ret = checks_run_all_json(
		o->config_dir, o->is_scheduler_given ? &o->scheduler_http : NULL);
	return *ret ? 0 : err_set(err, -ENOMEM, "out of memory");
}
const struct document_view view_check = {view_fetch_checks, screen_check};

int cmd_version(const struct bpsctl_opts *o, const char *arg)
{
	char text[128];

	(void)arg;
	snprintf(text, sizeof(text), "bpsctl %s%s%s%s", BPS_VERSION, o->verbose ? " (commit " : "",
		o->verbose ? bps_commit() : "", o->verbose ? ")" : "");
	return print_answer(o, text,
		json_pack("{s:i, s:s, s:s, s:i}", "schema", 1, "version", BPS_VERSION, "commit",
			bps_commit(), "protocol", CTL_PROTO));
}

int cmd_explain(const struct bpsctl_opts *o, const char *arg)
{
	json_t *root = explain_json(arg);
	char hint[NEAREST_HINT_BYTES];
	struct err_text text;

	if (!root) {
		err_set(&text, 0, "no such code: %.64s%s; `bpsctl explain` lists the codes", arg,
			explain_nearest(arg, hint));
		return print_error_line(text.s, EX_USAGE);
	}
	return print_document(o, root, screen_explain);
}
