/* Serves the agent's HTTP pages: metrics, probes, status, what calls wait for, and traces (app.h).
 * Thread: the control thread. */
#include "bps-agent/app.h"

#include <errno.h>
#include <event2/buffer.h>
#include <stdlib.h>

#include "bps-agent/figures.h"
#include "bps-agent/gpu/gpu_probe.h"
#include "bps-agent/gpu/topology_report.h"
#include "bps-agent/quota/quota_report.h"
#include "common/daemon/metrics.h"

#define NOT_JOINED "this agent has not joined a cluster yet"

static struct node_health app_read_health(struct agent_app *app, struct agent_figures *ret)
{
	agent_read_figures(app->agent, ret);
	return (struct node_health){.beat_ns = ret->beat_ns,
		.is_agent = true,
		.is_isolated = ret->stranded == BPS_EISOLATED};
}

static bool agent_http_probe(void *arg, enum httpd_probe probe, struct err_text *err)
{
	struct agent_app *app = arg;
	struct agent_figures f;
	struct node_health health = app_read_health(app, &f);

	return node_probe_has_passed(&app->node, probe, &health, err);
}

static void agent_http_metrics(void *arg, struct evbuffer *out)
{
	struct agent_app *app = arg;
	struct agent_figures f;
	struct quota_view quotas;
	struct net_stats net;
	struct node_health health = app_read_health(app, &f);

	cards_net_stats(&app->node.cards, &net);
	node_write_metrics(&app->node, &health, out);
	metric_append_single(out, "bps_agent_restarts_total",
		"restarts of the agent of this name that the scheduler has counted",
		member_restarts(app->node.member));
	agent_figures_write_metrics(&f, &net, out);
	agent_read_quotas(app->agent, &quotas);
	quota_write_metrics(&quotas, out);
}

static void on_waits_answer(void *arg, const struct agent_answer *answer)
{
	struct httpd_request *req = arg;
	const struct agent_app *app = httpd_request_arg(req);
	const struct node *n = &app->node;

	httpd_reply_and_free(req, 200,
		json_pack("{s:i, s:s, s:s, s:s, s:b, s:o}", "schema", 1, "role", "agent", "name",
			n->name, "host", n->host, "scheduler_up", member_is_up(n->member), "jobs",
			answer->jobs ? answer->jobs : json_array()));
}

/* Answer with what the workers of this machine wait for. */
static void agent_http_waits(struct agent_app *app, struct httpd_request *req)
{
	if (app->agent &&
		agent_ask(app->agent, app->node.daemon.loop, NULL, on_waits_answer, req) == 0)
		return;
	httpd_reply_and_free(req, 503,
		json_pack("{s:i, s:s}", "schema", 1, "error",
			app->agent ? "the data thread accepts no requests" : NOT_JOINED));
}

/* Return why there is no trace. */
static const char *why_no_trace(int code)
{
	switch (code) {
	case BPS_ENOTFOUND:
		return "this agent has no such job";
	case -EBUSY:
		return "a trace of this job is being written; try again";
	case -EAGAIN:
		return "the data thread accepts no requests; try again";
	default:
		return "the agent has no memory for the trace";
	}
}

static void on_trace_answer(void *arg, const struct agent_answer *answer)
{
	struct httpd_request *req = arg;

	if (answer->fd >= 0)
		httpd_reply_file_and_free(req, answer->fd);
	else
		httpd_reply_and_free(req, answer->fd == BPS_ENOTFOUND ? 404 : 503,
			json_pack("{s:i, s:s}", "schema", 1, "error", why_no_trace(answer->fd)));
}

/* Answer with the trace of a job (steps/trace_file.h). */
static void agent_http_trace(struct agent_app *app, struct httpd_request *req, const char *job)
{
	struct agent_answer none = {.fd = BPS_ENOTFOUND};

	if (app->agent)
		none.fd = agent_ask(app->agent, app->node.daemon.loop, job, on_trace_answer, req);
	if (none.fd < 0)
		on_trace_answer(req, &none);
}

static void servers_append_peer(void *ctx, const struct member_peer *p)
{
	if (p->state == PEER_UP)
		json_array_append_new(
			ctx, json_pack("{s:s, s:s, s:s, s:i}", "name", p->name, "host", p->host,
				     "addr", p->addr, "port", p->port));
}

/* Return the servers that are up, so that `bpsctl check` can measure the paths to them. */
static json_t *servers_to_json(struct member *m)
{
	json_t *list = json_array();

	member_each_peer(m, servers_append_peer, list);
	return list;
}

/* Answer with the status of the agent and, if the request asks for it, with its topology. */
static void agent_answer_status(struct agent_app *app, struct httpd_request *req)
{
	struct strategy_ask ask = {.want = (enum strategy)app->opts.gpu_strategy};
	const struct topo_report *reports;
	unsigned n_reports = gpu_probe_reports(app->gpu_probe, &reports, &ask.has_collectives);
	struct agent_figures f;
	struct node_health health = app_read_health(app, &f);
	json_t *root = node_status_to_json(&app->node, "agent", &health);
	struct quota_view quotas;
	char wanted[8];

	json_object_update_new(root,
		json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "threads", AGENT_THREADS,
			"executors", (json_int_t)f.executors, "trainers", (json_int_t)f.trainers,
			"jobs", (json_int_t)f.jobs, "rounds", (json_int_t)f.core.rounds,
			"inflight_bytes", (json_int_t)f.core.inflight_bytes, "repushes",
			(json_int_t)f.core.repushes, "shared_bytes", (json_int_t)f.shared_bytes));
	agent_read_quotas(app->agent, &quotas);
	json_object_set_new(root, "quotas", quota_view_to_json(&quotas));
	json_object_set_new(root, "servers", servers_to_json(app->node.member));
	/* while the probe has not finished, assume that collectives are possible */
	ask.has_collectives |= n_reports == 0;
	if (httpd_read_query_parameter(req, "topology", wanted, sizeof(wanted)))
		json_object_set_new(root, "topology",
			topology_report(app->opts.sysfs, &ask, reports, n_reports,
				gpu_probe_why(app->gpu_probe)));
	httpd_reply_and_free(req, 200, root);
}

static void agent_http_status(void *arg, struct httpd_request *req)
{
	char wanted[8], traced[CTL_JOB_NAME_MAX + 1];

	if (httpd_read_query_parameter(req, "trace", traced, sizeof(traced)))
		agent_http_trace(arg, req, traced);
	else if (httpd_read_query_parameter(req, "waits", wanted, sizeof(wanted)))
		agent_http_waits(arg, req);
	else
		agent_answer_status(arg, req);
}

const struct httpd_ops agent_web_ops = {
	.metrics = agent_http_metrics, .probe = agent_http_probe, .status = agent_http_status};
