/* Words of bpsctl that show one document, once or again and again. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/cells.h"
#include "bps-scheduler/bpsctl/checks.h"
#include "bps-scheduler/bpsctl/explain.h"
#include "bps-scheduler/bpsctl/gather.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/watch.h"
#include "common/wire/ctlmsg.h"
#include "common/base/version.h"

/* A word: how its document is made and how it is shown. */
struct view {
	int (*gather)(const struct opts *o, const char *arg, json_t **ret, struct err_text *err);
	int (*screen)(FILE *out, json_t *root);
};

/* One screen; daemons that are away for a while are part of the show. */
static int watch_once(const struct view *v, const struct opts *o, const char *arg, struct watch *w)
{
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);
	struct err_text err = {""};
	json_t *root = NULL;
	int rc, status = EXIT_UNREACHABLE;

	if (!out)
		return complain("out of memory", EXIT_ERR);
	bound_time(true);
	rc = v->gather(o, arg, &root, &err);
	bound_time(false);
	if (rc == 0 && o->verbose && !o->json)
		json_object_set_new(root, "verbose", json_true());
	if (rc == 0)
		status = v->screen(out, root);
	else
		cell_wrapped(out, "! ", err.s);
	if (fclose(out) != 0)
		status = complain("out of memory", EXIT_ERR);
	else if (!o->json)
		watch_show(w, text);
	else
		print_line(root ? root
				: (root = json_pack("{s:i, s:s}", "schema", 1, "error", err.s)));
	json_decref(root);
	free(text);
	return status;
}

static int watch_view(const struct view *v, const struct opts *o, const char *arg)
{
	struct watch w;
	int status;

	if (watch_begin(&w) < 0)
		return complain("cannot wait for signals", EXIT_ERR);
	do
		status = watch_once(v, o, arg, &w);
	while (watch_wait(&w, interval_ms(o)));
	watch_end(&w);
	return status;
}

static int run_view(const struct view *v, const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc;

	if (o->watch)
		return watch_view(v, o, arg);
	rc = v->gather(o, arg, &root, &err);
	if (rc == 0)
		return show(o, root, v->screen);
	if (o->json) {
		root = json_pack("{s:i, s:s}", "schema", 1, "error", err.s);
		print_line(root);
		json_decref(root);
	}
	return complain_failed(rc, &err);
}

/* ---- the words ---- */

static int get_status(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	return gather_status(&o->scheduler_http, ret, err);
}

static int get_servers(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	return gather_members(&o->scheduler_http, "server", ret, err);
}

static int get_agents(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	return gather_members(&o->scheduler_http, "agent", ret, err);
}

static int get_agent(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	return gather_agent(arg, o->topology, ret, err);
}

static int get_jobs(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	return gather_jobs(&o->scheduler_http, ret, err);
}

static int get_job(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	return gather_job(&o->scheduler_http, arg, ret, err);
}

static int get_stuck(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	return gather_stuck(&o->scheduler_http, arg, ret, err);
}

int run_status(const struct opts *o, const char *arg)
{
	return run_view(&(struct view){get_status, screen_status}, o, arg);
}

int run_top(const struct opts *o, const char *arg)
{
	return watch_view(&(struct view){get_status, screen_status}, o, arg);
}

int run_servers(const struct opts *o, const char *arg)
{
	return run_view(&(struct view){get_servers, screen_servers}, o, arg);
}

int run_agents(const struct opts *o, const char *arg)
{
	return run_view(&(struct view){get_agents, screen_agents}, o, arg);
}

int run_agent(const struct opts *o, const char *arg)
{
	return run_view(
		&(struct view){get_agent, o->topology ? screen_topology : screen_daemon}, o, arg);
}

int run_jobs(const struct opts *o, const char *arg)
{
	return run_view(&(struct view){get_jobs, screen_jobs}, o, arg);
}

int run_job(const struct opts *o, const char *arg)
{
	return run_view(&(struct view){get_job, screen_job}, o, arg);
}

int run_why_stuck(const struct opts *o, const char *arg)
{
	return run_view(&(struct view){get_stuck, screen_stuck}, o, arg);
}

static int get_checks(const struct opts *o, const char *arg, json_t **ret, struct err_text *err)
{
	(void)arg;
	*ret = checks_json(o->config_dir, &o->scheduler_http);
	return *ret ? 0 : err_set(err, -ENOMEM, "out of memory");
}

int run_check(const struct opts *o, const char *arg)
{
	return run_view(&(struct view){get_checks, screen_check}, o, arg);
}

int run_version(const struct opts *o, const char *arg)
{
	char text[128];

	(void)arg;
	snprintf(text, sizeof(text), "bpsctl %s%s%s%s", BPS_VERSION, o->verbose ? " (commit " : "",
		o->verbose ? bps_commit() : "", o->verbose ? ")" : "");
	return answer(o, text,
		json_pack("{s:i, s:s, s:s, s:i}", "schema", 1, "version", BPS_VERSION, "commit",
			bps_commit(), "protocol", CTL_PROTO));
}

int run_explain(const struct opts *o, const char *arg)
{
	json_t *root = explain_json(arg);

	if (!root)
		return complain("no such code; `bpsctl explain` lists them", EX_USAGE);
	return show(o, root, screen_explain);
}
