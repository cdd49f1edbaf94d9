/* Serves the scheduler's status and metrics over HTTP. Requests change nothing. A request about one
 * job is answered when the job's agents have answered a probe, or when the time limit of the probe
 * has passed. All functions run on the control loop's thread. */
#include "bps-scheduler/app.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

#define REFUSED_SPAN_MS 60000

void web_fill_status_info(struct sched_app *app, struct status_info *ret)
{
	struct ctllisten_stats s;

	ctllisten_stats(app->listen, &s);
	*ret = (struct status_info){.now_ns = clock_now_ns(),
		.started_unix = app->daemon.started_unix,
		.has_log = app->log != NULL,
		.auth_failures = s.auth_failures,
		.protocol_errors = s.protocol_errors,
		.trust_timeouts = s.trust_timeouts};
	if (app->log) {
		ret->log_bytes = statelog_bytes(app->log);
		ret->log_sync_ns = statelog_sync_ns(app->log);
	}
}

/* Return the address on which the scheduler accepts members and bpsctl. If the scheduler listens on
 * "*", return loopback, because bpsctl reads this value to find the scheduler of its own host. */
static json_t *listen_address_json(const struct sched_app *app)
{
	struct addr a = app->opts.listen;
	char text[ADDR_TEXT_BYTES];

	if (strcmp(a.host, "*") == 0)
		snprintf(a.host, sizeof(a.host), "127.0.0.1");
	a.port = ctllisten_port(app->listen);
	return json_string(addr_format(&a, text));
}

/* Return the failed handshakes of the last minute, counted by the identity that the peer
 * claimed. */
static json_t *refused_peers_json(const struct sched_app *app)
{
	struct ctllisten_refusal list[CTLLISTEN_REFUSALS_KEPT];
	unsigned n = ctllisten_refusals(app->listen, REFUSED_SPAN_MS, list);
	json_t *o = json_array();

	for (unsigned i = 0; i < n; i++) {
		unsigned count = 0;
		bool is_counted = false;

		for (unsigned k = 0; k < n; k++) {
			bool is_same = strcmp(list[k].identity, list[i].identity) == 0;

			count += is_same;
			is_counted |= is_same && k < i;
		}
		if (!is_counted)
			json_array_append_new(o, json_pack("{s:s, s:i}", "identity",
							 list[i].identity, "count", (int)count));
	}
	return o;
}

static void http_answer_error(struct httpd_request *req, int code, const char *text)
{
	httpd_reply_and_free(req, code, json_pack("{s:i, s:s}", "schema", 1, "error", text));
}

void web_probe_done(void *ctx, uint64_t token, const struct sched_probe *p)
{
	struct sched_app *app = ctx;
	struct httpd_request *req = app->waiting[token].req;
	struct status_info info;
	json_t *root;

	web_fill_status_info(app, &info);
	root = status_job_json(app->core, &info, app->waiting[token].job, p);
	if (root)
		httpd_reply_and_free(req, 200, root);
	else
		http_answer_error(req, 404, "the job has ended");
	app->waiting[token].req = NULL;
}

static void on_sched_http_metrics(void *arg, struct evbuffer *out)
{
	struct sched_app *app = arg;
	struct status_info info;

	web_fill_status_info(app, &info);
	status_metrics(app->core, &info, out);
}

static bool on_sched_http_probe(void *arg, enum httpd_probe probe, struct err_text *err)
{
	struct sched_app *app = arg;
	struct status_info info;

	if (probe == HTTPD_HEALTH) {
		web_fill_status_info(app, &info);
		return status_health(app->core, &info, err);
	}
	if (probe == HTTPD_LIVE || sched_is_durable(app->core))
		return true;
	err_set(err, BPS_ENOTDURABLE, "the scheduler cannot write its state");
	return false;
}

static void http_answer_job(struct sched_app *app, struct httpd_request *req, const char *name)
{
	uint32_t job = status_find_job(app->core, name);
	struct status_info info;
	unsigned token = 0;
	int rc;

	if (!job) {
		http_answer_error(req, 404, "there is no such job; `bpsctl jobs` lists all jobs");
		return;
	}
	while (token < STATUS_WAIT_MAX && app->waiting[token].req)
		token++;
	if (token == STATUS_WAIT_MAX) {
		http_answer_error(req, 503, "too many requests at once; try again");
		return;
	}
	app->waiting[token].req = req;
	app->waiting[token].job = job;
	rc = sched_probe_start(app->core, job, token, clock_now_ns());
	app_after_event(app);
	if (rc == 0)
		return;
	app->waiting[token].req = NULL;
	if (rc != BPS_ENOTFOUND) {
		http_answer_error(req, 503, "too many requests at once; try again");
		return;
	}
	web_fill_status_info(app, &info);
	httpd_reply_and_free(req, 200, status_job_json(app->core, &info, job, NULL));
}

static void http_answer_events(struct sched_app *app, struct httpd_request *req, uint64_t since)
{
	json_t *root = events_json(app->events, sched_current_term(app->core), since);

	json_object_set_new(root, "now", json_real(clock_unix_seconds()));
	httpd_reply_and_free(req, 200, root);
}

static void on_sched_http_status(void *arg, struct httpd_request *req)
{
	struct sched_app *app = arg;
	struct status_info info;
	json_t *root;
	char name[CTL_JOB_NAME_MAX + 1];

	if (httpd_read_query_parameter(req, "job", name, sizeof(name))) {
		http_answer_job(app, req, name);
		return;
	}
	if (httpd_read_query_parameter(req, "events", name, sizeof(name))) {
		http_answer_events(app, req, strtoull(name, NULL, 10));
		return;
	}
	web_fill_status_info(app, &info);
	root = status_cluster(app->core, &info);
	json_object_set_new(root, "listen", listen_address_json(app));
	json_object_set_new(root, "refused", refused_peers_json(app));
	httpd_reply_and_free(req, 200, root);
}

const struct httpd_ops web_ops = {.metrics = on_sched_http_metrics,
	.probe = on_sched_http_probe,
	.status = on_sched_http_status};
