/* bps-server: the process that sums the contributions that agents send. The main thread runs the
 * control loop (scheduler, HTTP, signals). Each data thread sums its own partitions (thread.h). The
 * transport manages connections in a thread of its own. */
#include <event2/buffer.h>
#include <stdio.h>
#include <sysexits.h>

#include "bps-server/leave.h"
#include "bps-server/thread.h"
#include "bps-server/thread_count.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/daemon/jsontext.h"
#include "common/daemon/metrics.h"
#include "common/daemon/node.h"
#include "common/local/local.h"
#include "common/os/cgroup.h"

#define MAX_THREADS  64
#define MORE_THREADS 2 /* besides the data threads: the connection thread and the resolver */

struct srv_opts {
	struct node_opts node;
	int64_t threads;
	uint64_t sums_bytes, staging_bytes, window_bytes, leave_us;
	const char *agent_socket;
};

static const struct setting rows[] = {
	NODE_SETTINGS("127.0.0.1:7303", "127.0.0.1:7302",
		"numeric address in the network over which agents send contributions"),
	{"threads", SET_INT, SETTING_AT(struct srv_opts, threads), .def = "0", .max = MAX_THREADS,
		.help = "number of data threads; 0: half of the processors of the machine or its "
			"control group, at most 8, and a "
			"quarter of this number with an agent on the host"},
	{"agent-socket", SET_STRING, SETTING_AT(struct srv_opts, agent_socket), .def = LOCAL_SOCKET,
		.max = 107, .help = "a socket at this path means that an agent is on this host"},
	{"sums-memory", SET_SIZE, SETTING_AT(struct srv_opts, sums_bytes), .def = "0",
		.help = "memory for sums; 0: half of the memory of the machine or its control "
			"group"},
	{"staging-memory", SET_SIZE, SETTING_AT(struct srv_opts, staging_bytes), .def = "256MiB",
		.min = 32 * SETTING_MIB, .max = 1024 * SETTING_GIB,
		.help = "memory for contributions that are not added to a sum yet"},
	{"peer-window", SET_SIZE, SETTING_AT(struct srv_opts, window_bytes), .def = "8MiB",
		.min = SETTING_MIB, .max = SETTING_GIB, .is_live = true,
		.help = "limit of bytes being read from one agent at a time, per data thread"},
	{"leave-time", SET_DURATION, SETTING_AT(struct srv_opts, leave_us), .def = "20s",
		.max = 3600 * SETTING_S, .is_live = true,
		.help = "longest time for moving partitions to other servers at a stop; 0: end "
			"at once"},
};
static const struct settings_spec spec = {.program = "bps-server",
	.about = "sums the tensors that bps-agents push",
	.config_path = "/etc/bps/server.conf",
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0]),
	.failpoints = FP_SERVER};

struct srv_app {
	/* node must be the first field, because on_member_refused and node_auth_changed cast a
	 * pointer to this struct to a pointer to struct node */
	struct node node;
	struct srv_opts opts;
	struct data_thread *threads[MAX_THREADS];
	unsigned n_threads, n_started;
	struct leave leave;
	char threads_why[128];
	/* Arrival figures of all data threads, and the lists for the next heartbeat. */
	struct arrivals_figures arrivals;
	struct ctl_beat_job beat_jobs[ARRIVALS_JOBS_MAX];
	struct ctl_beat_late beat_late[ARRIVALS_JOBS_MAX * ARRIVALS_LATE_MAX];
};

/* ---- scheduler ---- */

static int start_data_threads(struct srv_app *app, struct err_text *err)
{
	const struct srv_opts *o = &app->opts;
	struct thread_config cfg = {.spin_us = (uint32_t)o->node.spin_us,
		.same_host = node_same_host(&app->node),
		.core = {.server_id = app->node.id,
			.instance = app->node.instance,
			.sums_bytes = o->sums_bytes / app->n_threads,
			.staging_bytes = o->staging_bytes / app->n_threads,
			.segment_bytes = POOL_SEGMENT_BYTES,
			.peer_window_bytes = o->window_bytes,
			.retry_ns = NODE_RETRY_NS}};
	int rc;

	if (cfg.core.staging_bytes < cfg.core.segment_bytes)
		cfg.core.staging_bytes = cfg.core.segment_bytes;
	for (unsigned i = 0; i < app->n_threads; i++) {
		cfg.core.thread = (uint16_t)i;
		rc = thread_new(
			node_net(&app->node), app->node.member, &cfg, &app->threads[i], err);
		if (rc < 0)
			return rc;
		app->n_started++;
	}
	return 0;
}

static void post_to_data_threads(struct srv_app *app, enum thread_event event, struct member_msg *m)
{
	for (unsigned i = 0; i < app->n_started; i++) {
		if (thread_post_event(app->threads[i], event, m) == 0)
			continue;
		/* A lost plan would leave agents waiting. Therefore restart: a new process receives
		 * the complete state. */
		log_error("restarting the server, because a data thread accepts no messages: "
			  "thread=%u",
			i);
		daemon_quit(&app->node.daemon, EX_TEMPFAIL);
	}
}

static void on_server_member_up(void *ctx, uint32_t id)
{
	struct srv_app *app = ctx;
	struct err_text err;
	int rc = node_accept_member_id(&app->node, id);

	if (rc == 0)
		post_to_data_threads(app, THREAD_RESYNC_BEGIN, NULL);
	leave_welcomed(&app->leave);
	if (rc <= 0)
		return;
	if (start_data_threads(app, &err) < 0) {
		log_error("%s", err.s);
		daemon_quit(&app->node.daemon, EX_TEMPFAIL);
		return;
	}
	log_info("started %u data threads: why=%s", app->n_threads, app->threads_why);
	daemon_announce_ready(&app->node.daemon, net_port(node_net(&app->node)), "summing");
	daemon_report_status_line(&app->node.daemon);
}

static void on_server_member_down(void *ctx, const char *why)
{
	struct srv_app *app = ctx;

	(void)why;
	daemon_report_status_line(&app->node.daemon);
}

static void on_server_member_message(void *ctx, struct member_msg *m)
{
	struct srv_app *app = ctx;

	if (m->msg.type == CTL_LEFT)
		leave_answered(&app->leave, &m->msg.left);
	else
		post_to_data_threads(app, THREAD_MESSAGE, m);
}

static void on_server_member_resynced(void *ctx)
{
	post_to_data_threads(ctx, THREAD_RESYNC_END, NULL);
}

/* Figures of all data threads and of the network. */
struct srv_figures {
	struct srv_stats core;
	struct net_stats net;
	/* Each data thread stores the time of the last iteration of its loop. oldest_beat is the
	 * oldest of these times; 0: no data thread runs yet. */
	uint64_t oldest_beat;
};

static void collect_server_figures(struct srv_app *app, struct srv_figures *ret)
{
	*ret = (struct srv_figures){0};
	cards_net_stats(&app->node.cards, &ret->net);
	for (unsigned i = 0; i < app->n_started; i++) {
		struct srv_stats s, *sum = &ret->core;
		uint64_t beat;

		thread_read_stats(app->threads[i], &s, &beat);
#define X(field, metric, help) sum->field += s.field;
		SRV_COUNTERS(X)
#undef X
		sum->rounds += s.rounds;
		sum->fenced_old += s.fenced_old;
		sum->fenced_new += s.fenced_new;
		sum->protocol_errors += s.protocol_errors;
		sum->offered_bytes += s.offered_bytes;
		sum->sums_used += s.sums_used;
		sum->staging_used += s.staging_used;
		sum->parts += s.parts;
		sum->retired += s.retired;
		if (s.sum_ns > sum->sum_ns)
			sum->sum_ns = s.sum_ns;
		histogram_merge(&sum->wait, &s.wait);
		if (i == 0 || beat < ret->oldest_beat)
			ret->oldest_beat = beat;
	}
}

static void collect_thread_arrivals(struct srv_app *app)
{
	app->arrivals.n_jobs = 0;
	for (unsigned i = 0; i < app->n_started; i++)
		thread_arrivals(app->threads[i], &app->arrivals);
}

static void server_fill_heartbeat(void *ctx, struct ctl_beat *b)
{
	struct srv_app *app = ctx;
	struct srv_figures f;

	collect_server_figures(app, &f);
	node_fill_beat_report(&app->node, b);
	b->progress = f.oldest_beat;
	b->rounds = f.core.rounds;
	b->rx_bytes = f.net.rx_bytes;
	b->tx_bytes = f.net.tx_bytes + f.core.offered_bytes;
	b->mem_bytes = f.core.sums_used + f.core.staging_used;
	b->connections = f.net.connections;
	b->sum_us =
		(uint32_t)(f.core.sum_ns / 1000 < UINT32_MAX ? f.core.sum_ns / 1000 : UINT32_MAX);
	collect_thread_arrivals(app);
	b->jobs = app->beat_jobs;
	b->n_jobs = arrivals_fill_beat(&app->arrivals, app->beat_jobs, app->beat_late);
}

static const struct member_ops member_ops = {.up = on_server_member_up,
	.told = on_server_member_resynced,
	.down = on_server_member_down,
	.message = on_server_member_message,
	.beat = server_fill_heartbeat,
	.refused = on_member_refused};

/* ---- the end ---- */

static uint64_t count_parts_and_results(void *ctx)
{
	struct srv_figures f;

	collect_server_figures(ctx, &f);
	return f.core.parts + f.core.retired;
}

static void quit_server_process(void *ctx)
{
	struct srv_app *app = ctx;

	daemon_quit(&app->node.daemon, EX_OK);
}

static const struct leave_ops leave_ops = {
	.busy = count_parts_and_results, .over = quit_server_process};

static void server_begin_stop(void *ctx)
{
	struct srv_app *app = ctx;

	if (!app->opts.leave_us) {
		quit_server_process(app);
		return;
	}
	leave_begin(&app->leave, app->opts.leave_us / 1000);
	daemon_report_status_line(&app->node.daemon);
}

/* ---- service manager ---- */

static void write_status_line(void *ctx, char *ret, size_t room)
{
	struct srv_app *app = ctx;
	struct srv_figures f;

	if (!node_is_up_else_write_status(&app->node, ret, room))
		return;
	collect_server_figures(app, &f);
	if (leave_is_begun(&app->leave)) {
		snprintf(ret, room, "about to end: %llu partition%s move%s to other servers",
			(unsigned long long)f.core.parts, plural_suffix_of(f.core.parts),
			verb_suffix_of(f.core.parts));
		return;
	}
	snprintf(ret, room,
		"summing: %llu connections, %llu partitions, %llu MiB of sums, %llu rounds",
		(unsigned long long)f.net.connections, (unsigned long long)f.core.parts,
		(unsigned long long)f.core.sums_used >> 20, (unsigned long long)f.core.rounds);
}

/* ---- HTTP ---- */

static bool on_server_http_probe(void *arg, enum httpd_probe probe, struct err_text *err)
{
	struct srv_app *app = arg;
	struct srv_figures f;

	collect_server_figures(app, &f);
	return node_probe_has_passed(
		&app->node, probe, &(struct node_health){.beat_ns = f.oldest_beat}, err);
}

static void agent_name_or_id(struct srv_app *app, uint32_t id, char *ret, size_t room)
{
	struct member_peer peer;

	if (member_find_peer(app->node.member, id, &peer) == 0)
		snprintf(ret, room, "%s", peer.name);
	else
		snprintf(ret, room, "#%u", id);
}

/* The label with the job number distinguishes two jobs of the same name. */
static void write_job_metric_sample(
	struct evbuffer *out, const char *name, uint64_t value, const struct arrivals_job *j)
{
	char id[16];

	snprintf(id, sizeof(id), "%u", j->job);
	metric_append_value(out, name, (double)value, "bps_job", j->name, "id", id, NULL);
}

/* Write metrics of the ARRIVALS_JOBS_MAX oldest jobs. For each job, list only the ARRIVALS_LATE_MAX
 * agents that most often contribute last. These limits keep the number of labels small. */
static void write_job_metrics(struct srv_app *app, struct evbuffer *out)
{
	const struct arrivals_figures *f = &app->arrivals;
	char name[CTL_NAME_MAX + 1], id[16];

	collect_thread_arrivals(app);
	metric_append_header(out, "bps_server_rounds_total", "partition rounds completed");
	for (unsigned i = 0; i < f->n_jobs; i++)
		write_job_metric_sample(
			out, "bps_server_rounds_total", f->jobs[i].rounds, &f->jobs[i]);
	metric_append_header(
		out, "bps_server_contribution_bytes_total", "bytes of contributions summed");
	for (unsigned i = 0; i < f->n_jobs; i++)
		write_job_metric_sample(
			out, "bps_server_contribution_bytes_total", f->jobs[i].bytes, &f->jobs[i]);
	metric_append_header(out, "bps_server_last_arrival_total",
		"partition rounds in which this agent was the last to arrive");
	for (unsigned i = 0; i < f->n_jobs; i++)
		for (unsigned k = 0; k < f->jobs[i].n_late; k++) {
			const struct arrivals_late *late = &f->jobs[i].late[k];

			agent_name_or_id(app, late->agent, name, sizeof(name));
			snprintf(id, sizeof(id), "%u", f->jobs[i].job);
			metric_append_value(out, "bps_server_last_arrival_total",
				(double)late->last, "bps_job", f->jobs[i].name, "id", id, "agent",
				name, NULL);
		}
}

/* Return the arrival figures of all jobs for /status: which agents contribute last, and how
 * late. */
static json_t *build_arrivals_json(struct srv_app *app)
{
	json_t *list = json_array();
	char name[CTL_NAME_MAX + 1];

	collect_thread_arrivals(app);
	for (unsigned i = 0; i < app->arrivals.n_jobs; i++) {
		const struct arrivals_job *j = &app->arrivals.jobs[i];
		json_t *late = json_array();

		for (unsigned k = 0; k < j->n_late; k++) {
			agent_name_or_id(app, j->late[k].agent, name, sizeof(name));
			json_array_append_new(late,
				json_pack("{s:o, s:I, s:I, s:f}", "agent",
					json_text_sanitized(name), "last",
					(json_int_t)j->late[k].last, "last_of_late",
					(json_int_t)j->late[k].window_last, "lag_s",
					(double)histogram_quantile(&j->late[k].lag, 0.5) / 1e9));
		}
		json_array_append_new(list,
			json_pack("{s:I, s:o, s:I, s:I, s:I, s:f, s:f, s:o}", "id",
				(json_int_t)j->job, "name", json_text_sanitized(j->name), "round",
				(json_int_t)j->round, "rounds", (json_int_t)j->rounds, "bytes",
				(json_int_t)j->bytes, "wait_p50_s",
				(double)histogram_quantile(&j->window_wait, 0.5) / 1e9,
				"wait_p99_s",
				(double)histogram_quantile(&j->window_wait, 0.99) / 1e9, "late",
				late));
	}
	return list;
}

static void on_server_http_metrics(void *arg, struct evbuffer *out)
{
	struct srv_app *app = arg;
	struct srv_figures f;

	collect_server_figures(app, &f);
	node_write_metrics(&app->node, &(struct node_health){.beat_ns = f.oldest_beat}, out);
	metric_append_single(out, "bps_server_received_bytes_total", "bytes received from agents",
		(double)f.net.rx_bytes);
	metric_append_single(out, "bps_server_sent_bytes_total",
		"bytes sent to agents, or offered to them for reading",
		(double)(f.net.tx_bytes + f.core.offered_bytes));
	metric_append_single(out, "bps_server_discarded_bytes_total",
		"bytes that arrived with an offer and were discarded, because no read was open",
		(double)f.net.discarded_bytes);
#define X(field, metric, help) metric_append_single(out, metric, help, (double)f.core.field);
	SRV_COUNTERS(X)
#undef X
	metric_append_header(
		out, "bps_server_fenced_total", "messages of an older or newer placement");
	metric_append_value(
		out, "bps_server_fenced_total", (double)f.core.fenced_old, "dir", "old", NULL);
	metric_append_value(
		out, "bps_server_fenced_total", (double)f.core.fenced_new, "dir", "new", NULL);
	metric_append_single(out, "bps_server_protocol_errors_total",
		"connections closed for protocol errors",
		(double)(f.core.protocol_errors + f.net.protocol_errors));
	metric_append_single(out, "bps_server_refused_tickets_total",
		"connections refused because of an invalid ticket", (double)f.net.refused_tickets);
	metric_append_single(out, "bps_server_silent_strangers_total",
		"connections closed because they sent no ticket", (double)f.net.silent_strangers);
	metric_append_header(out, "bps_server_memory_bytes", "memory in use by kind");
	metric_append_value(
		out, "bps_server_memory_bytes", (double)f.core.sums_used, "kind", "sums", NULL);
	metric_append_value(out, "bps_server_memory_bytes", (double)f.core.staging_used, "kind",
		"staging", NULL);
	metric_append_header(out, "bps_server_memory_limit_bytes", "memory that may be in use");
	metric_append_value(out, "bps_server_memory_limit_bytes", (double)app->opts.sums_bytes,
		"kind", "sums", NULL);
	metric_append_value(out, "bps_server_memory_limit_bytes", (double)app->opts.staging_bytes,
		"kind", "staging", NULL);
	metric_append_single(out, "bps_server_connections", "data connections", f.net.connections);
	metric_append_histogram(out, "bps_server_round_wait_seconds",
		"time from the first to the last arrival of a partition's round", &f.core.wait);
	metric_append_single(out, "bps_server_sum_seconds",
		"time from the last arrival of a round to its sum, mean of the last few rounds",
		(double)f.core.sum_ns / 1e9);
	metric_append_single(out, "bps_server_partitions", "partitions placed here", f.core.parts);
	write_job_metrics(app, out);
}

static void on_server_http_status(void *arg, struct httpd_request *req)
{
	struct srv_app *app = arg;
	struct srv_figures f;
	json_t *root;

	collect_server_figures(app, &f);
	root = node_status_to_json(
		&app->node, "server", &(struct node_health){.beat_ns = f.oldest_beat});
	json_object_update_new(
		root, json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "threads",
			      (int)app->n_started, "partitions", (json_int_t)f.core.parts, "rounds",
			      (json_int_t)f.core.rounds, "sums_bytes", (json_int_t)f.core.sums_used,
			      "sums_quota_bytes", (json_int_t)app->opts.sums_bytes, "staging_bytes",
			      (json_int_t)f.core.staging_used, "donations",
			      (json_int_t)f.core.donations));
	json_object_set_new(root, "jobs", build_arrivals_json(app));
	httpd_reply_and_free(req, 200, root);
}

static const struct httpd_ops http_ops = {.metrics = on_server_http_metrics,
	.probe = on_server_http_probe,
	.status = on_server_http_status};

/* ---- reload ---- */

static void on_server_settings_changed(void *ctx)
{
	struct srv_app *app = ctx;

	for (unsigned i = 0; i < app->n_started; i++)
		if (thread_set_peer_window(app->threads[i], app->opts.window_bytes) < 0)
			log_error("data thread %u did not accept the new peer-window: reload "
				  "bps-server again",
				i);
}

static const struct daemon_reload_ops reload_ops = {
	.changed = on_server_settings_changed, .auth_changed = node_auth_changed};

/* ---- start ---- */

static void fill_default_settings(struct srv_app *app)
{
	static const char *const source_texts[] = {[CPUS_OF_MACHINE] = "of this machine",
		[CPUS_OF_AFFINITY] = "of the affinity mask",
		[CPUS_OF_QUOTA] = "by the quota of the control group"};
	struct srv_opts *o = &app->opts;
	bool is_beside = count_sees_agent(o->agent_socket);
	enum cpus_source source;
	unsigned cpus = cgroup_cpus_source(&source);

	app->n_threads = o->threads ? (unsigned)o->threads : count_default_threads(cpus, is_beside);
	if (o->threads)
		snprintf(app->threads_why, sizeof(app->threads_why), "as set by --threads");
	else
		snprintf(app->threads_why, sizeof(app->threads_why), "%s, %u processor%s %s",
			is_beside ? "with an agent on this host" : "no agent on this host", cpus,
			cpus == 1 ? "" : "s", source_texts[source]);
	if (!o->sums_bytes)
		o->sums_bytes = node_half_memory_bytes();
}

int main(int argc, char **argv)
{
	struct srv_app app = {0};
	struct err_text err = {0};
	struct settings *settings = NULL;
	enum settings_verdict v;
	int rc, status;

	daemon_begin();
	v = settings_load(&settings, &spec, argc, argv, &app.opts, &err);
	if (v != SETTINGS_RUN)
		return settings_exit_status(v, &err);
	fill_default_settings(&app);
	daemon_on_reload(&app.node.daemon, settings, &reload_ops, &app);
	rc = node_open(&app.node, "bps-server", ROLE_SERVER, &app.opts.node, app.n_threads,
		MORE_THREADS, app.opts.sums_bytes, &member_ops, &http_ops, &app, &err);
	if (rc == 0)
		rc = leave_init(
			&app.leave, app.node.daemon.loop, app.node.member, &leave_ops, &app, &err);
	if (rc == 0)
		rc = daemon_start_status_reports(&app.node.daemon, write_status_line, &app, &err);
	daemon_on_stop(&app.node.daemon, server_begin_stop, &app);
	if (rc < 0)
		log_error("%s", err.s);
	status = rc < 0 ? daemon_exit_status(rc) : daemon_run(&app.node.daemon);
	for (unsigned i = 0; i < app.n_started; i++)
		thread_free(app.threads[i]);
	leave_fini(&app.leave);
	node_close(&app.node);
	settings_free(settings);
	return daemon_delay_exit(status);
}
