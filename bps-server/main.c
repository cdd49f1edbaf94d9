/* bps-server: sums what agents push. The main thread runs the control loop (scheduler, HTTP, signals), each data thread
 * its own partitions (thread.h), and the transport's connection management a thread of its own. */
#include <errno.h>
#include <event2/buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "bps-server/thread.h"
#include "common/daemon.h"
#include "common/dataloop.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/notify.h"

#define MAX_THREADS 64
/* A data thread that has not turned for so long hangs. */
#define STUCK_NS UINT64_C(1500000000)

struct opts {
	struct daemon_opts daemon;
	struct addr listen, scheduler;
	const char *name, *host, *provider;
	int64_t threads, nic_mbps;
	uint64_t sums_bytes, staging_bytes, window_bytes, spin_us, ping_us, ping_dead_us;
};

static const struct setting rows[] = {
	DAEMON_SETTINGS("127.0.0.1:7303"),
	{"listen", SET_ADDR, SETTING_AT(struct opts, listen), .def = "127.0.0.1:7302", .port = 7302,
		.help = "numeric address of the network that agents push over"},
	{"scheduler", SET_ADDR, SETTING_AT(struct opts, scheduler), .def = "127.0.0.1:7300",
		.port = 7300, .help = "where bps-scheduler listens"},
	{"name", SET_STRING, SETTING_AT(struct opts, name), .def = "", .max = CTL_NAME_MAX,
		.help = "unique among servers; empty: the host's name"},
	{"host", SET_STRING, SETTING_AT(struct opts, host), .def = "", .max = CTL_NAME_MAX,
		.help = "this machine, as the agent beside it calls it; empty: the host's name"},
	{"provider", SET_STRING, SETTING_AT(struct opts, provider), .def = "tcp", .max = 31,
		.help = "libfabric provider: tcp or verbs"},
	{"threads", SET_INT, SETTING_AT(struct opts, threads), .def = "0", .max = MAX_THREADS,
		.help = "data threads; 0: half of the processors, at most 8"},
	{"nic-speed", SET_INT, SETTING_AT(struct opts, nic_mbps), .def = "0", .max = 10000000,
		.help = "Mbit/s of the network card; 0: as the others"},
	{"sums-memory", SET_SIZE, SETTING_AT(struct opts, sums_bytes), .def = "0",
		.help = "memory for sums; 0: half of the machine's"},
	{"staging-memory", SET_SIZE, SETTING_AT(struct opts, staging_bytes), .def = "256MiB",
		.min = 32 * SETTING_MIB, .max = 1024 * SETTING_GIB,
		.help = "memory for contributions on their way into a sum"},
	{"peer-window", SET_SIZE, SETTING_AT(struct opts, window_bytes), .def = "8MiB",
		.min = SETTING_MIB, .max = SETTING_GIB,
		.help = "bytes being read from one agent at a time, per data thread"},
	{"spin", SET_DURATION, SETTING_AT(struct opts, spin_us), .def = "50us",
		.max = 10 * SETTING_MS,
		.help = "how long an idle data thread looks for work before it sleeps"},
	{"ping", SET_DURATION, SETTING_AT(struct opts, ping_us), .def = "500ms",
		.min = 10 * SETTING_MS, .max = 60 * SETTING_S,
		.help = "quiet data connections are pinged this often"},
	{"ping-dead", SET_DURATION, SETTING_AT(struct opts, ping_dead_us), .def = "2s",
		.min = 20 * SETTING_MS, .max = 600 * SETTING_S,
		.help = "a data connection is dropped after this much silence"},
};
static const struct settings_spec spec = {.program = "bps-server",
	.about = "sums the tensors that bps-agents push",
	.config_path = "/etc/bps/server.conf",
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0])};

struct app {
	struct opts opts;
	struct daemon daemon;
	struct fabric *fabric;
	struct member *_Atomic member; /* read by the transport's connection-management thread */
	struct thread *threads[MAX_THREADS];
	unsigned n_threads, n_started;
	uint64_t instance;
	uint32_t id;
	char name[CTL_NAME_MAX + 1], host[CTL_NAME_MAX + 1];
};

/* ---- scheduler ---- */

static void job_failed(void *ctx, uint32_t job, int code, const char *text)
{
	struct app *app = ctx;
	struct ctl_msg m = {
		.type = CTL_FAIL, .fail = {.job = job, .code = (uint32_t)-code, .text = text}};

	log_warn("job cannot go on: job=%u err=%s: %s", job, err_str(code), text);
	if (member_send(app->member, &m) < 0)
		log_warn("the scheduler could not be told: job=%u", job);
}

static int start_threads(struct app *app, struct err_text *err)
{
	const struct opts *o = &app->opts;
	struct thread_config cfg = {.spin_us = (uint32_t)o->spin_us,
		.fail = job_failed,
		.ctx = app,
		.core = {.server_id = app->id,
			.instance = app->instance,
			.sums_bytes = o->sums_bytes / app->n_threads,
			.staging_bytes = o->staging_bytes / app->n_threads,
			.segment_bytes = 16u << 20,
			.peer_window_bytes = o->window_bytes,
			.retry_ns = UINT64_C(2000000000)}};
	int rc;

	if (cfg.core.staging_bytes < cfg.core.segment_bytes)
		cfg.core.staging_bytes = cfg.core.segment_bytes;
	for (unsigned i = 0; i < app->n_threads; i++) {
		cfg.core.thread = (uint16_t)i;
		rc = thread_new(app->fabric, &cfg, &app->threads[i], err);
		if (rc < 0)
			return rc;
		app->n_started++;
	}
	return 0;
}

static void post_all(struct app *app, enum thread_event event, struct member_msg *m)
{
	for (unsigned i = 0; i < app->n_started; i++) {
		if (thread_post(app->threads[i], event, m) == 0)
			continue;
		/* A lost plan would leave agents waiting; a new process is told everything again. */
		log_error("a data thread does not take messages any more, starting anew: thread=%u",
			i);
		daemon_quit(&app->daemon, EX_TEMPFAIL);
	}
}

static void member_up(void *ctx, uint32_t id)
{
	struct app *app = ctx;
	struct err_text err;

	if (app->n_started && id != app->id) {
		log_error("the scheduler calls us by another id, starting anew: id=%u was=%u", id,
			app->id);
		daemon_quit(&app->daemon, EX_TEMPFAIL);
		return;
	}
	if (app->n_started) {
		post_all(app, THREAD_RESYNC_BEGIN, NULL);
		return;
	}
	app->id = id;
	fabric_set_id(app->fabric, id);
	if (start_threads(app, &err) < 0) {
		log_error("%s", err.s);
		daemon_quit(&app->daemon, EX_TEMPFAIL);
		return;
	}
	daemon_ready(&app->daemon, fabric_port(app->fabric), "summing");
}

static void member_down(void *ctx, const char *why)
{
	(void)ctx;
	notify_status("running jobs go on; the scheduler cannot be reached: %s", why);
}

static void member_message(void *ctx, struct member_msg *m)
{
	if (m->msg.type != CTL_PEERS)
		post_all(ctx, THREAD_MESSAGE, m);
}

static void member_told(void *ctx)
{
	post_all(ctx, THREAD_RESYNC_END, NULL);
}

static void sum_stats(struct app *app, struct srv_stats *ret, uint64_t *ret_oldest_beat)
{
	*ret = (struct srv_stats){0};
	*ret_oldest_beat = UINT64_MAX;
	for (unsigned i = 0; i < app->n_started; i++) {
		struct srv_stats s;
		uint64_t beat;

		thread_stats(app->threads[i], &s, &beat);
		ret->rounds += s.rounds;
		ret->contributions += s.contributions;
		ret->duplicates += s.duplicates;
		ret->fenced_old += s.fenced_old;
		ret->fenced_new += s.fenced_new;
		ret->donations += s.donations;
		ret->crc_errors += s.crc_errors;
		ret->protocol_errors += s.protocol_errors;
		ret->bytes_summed += s.bytes_summed;
		ret->sums_used += s.sums_used;
		ret->sums_high += s.sums_high;
		ret->staging_used += s.staging_used;
		ret->staging_high += s.staging_high;
		ret->parts += s.parts;
		ret->limbo += s.limbo;
		if (beat < *ret_oldest_beat)
			*ret_oldest_beat = beat;
	}
}

static void member_beat(void *ctx, struct ctl_beat *b)
{
	struct app *app = ctx;
	struct fabric_stats f;
	struct srv_stats s;
	uint64_t beat;

	sum_stats(app, &s, &beat);
	fabric_stats(app->fabric, &f);
	b->progress = beat;
	b->rounds = s.rounds;
	b->rx_bytes = f.rx_bytes;
	b->tx_bytes = f.tx_bytes;
	b->mem_bytes = s.sums_used + s.staging_used;
	b->connections = f.connections;
}

static void member_refused(void *ctx, int code, const char *text)
{
	struct app *app = ctx;

	(void)text;
	daemon_quit(&app->daemon, code == BPS_EVERSION ? EX_CONFIG : EX_TEMPFAIL);
}

static const struct member_ops member_ops = {.up = member_up,
	.told = member_told,
	.down = member_down,
	.message = member_message,
	.beat = member_beat,
	.refused = member_refused};

/* ---- HTTP ---- */

static bool http_probe(void *arg, enum httpd_probe probe, struct err_text *err)
{
	struct app *app = arg;
	struct srv_stats s;
	uint64_t beat, now = dataloop_now_ns();

	sum_stats(app, &s, &beat);
	if (app->n_started && now > beat && now - beat > STUCK_NS) {
		err_set(err, -EIO, "a data thread hangs for %.1f s", (double)(now - beat) / 1e9);
		return false;
	}
	if (probe != HTTPD_LIVE && !app->n_started) {
		err_set(err, -EIO, "not yet known to the scheduler");
		return false;
	}
	if (probe == HTTPD_HEALTH && !member_is_up(app->member)) {
		err_set(err, -EIO, "the scheduler cannot be reached");
		return false;
	}
	return true;
}

static void counter(struct evbuffer *out, const char *name, const char *help, uint64_t v)
{
	metric_begin(out, name, "counter", help);
	metric_value(out, name, (double)v, NULL);
}

static void http_metrics(void *arg, struct evbuffer *out)
{
	struct app *app = arg;
	struct fabric_stats f;
	struct srv_stats s;
	uint64_t beat;

	sum_stats(app, &s, &beat);
	fabric_stats(app->fabric, &f);
	metric_begin(out, "bps_build_info", "gauge", "version of this program");
	metric_value(out, "bps_build_info", 1, "version", BPS_VERSION, NULL);
	counter(out, "bps_server_received_bytes_total", "bytes received from agents", f.rx_bytes);
	counter(out, "bps_server_sent_bytes_total", "bytes sent to agents", f.tx_bytes);
	counter(out, "bps_server_rounds_total", "partition rounds completed", s.rounds);
	counter(out, "bps_server_contributions_total", "contributions taken", s.contributions);
	counter(out, "bps_server_duplicates_total", "messages that said nothing new", s.duplicates);
	metric_begin(out, "bps_server_fenced_total", "counter", "messages of another placement");
	metric_value(out, "bps_server_fenced_total", (double)s.fenced_old, "dir", "old", NULL);
	metric_value(out, "bps_server_fenced_total", (double)s.fenced_new, "dir", "new", NULL);
	counter(out, "bps_server_donations_total", "results donated by agents", s.donations);
	counter(out, "bps_server_crc_errors_total", "payloads with a wrong crc", s.crc_errors);
	counter(out, "bps_server_protocol_errors_total", "connections closed for nonsense",
		s.protocol_errors + f.protocol_errors);
	counter(out, "bps_server_refused_tickets_total", "strangers refused", f.refused_tickets);
	metric_begin(out, "bps_server_memory_bytes", "gauge", "memory in use by kind");
	metric_value(out, "bps_server_memory_bytes", (double)s.sums_used, "kind", "sums", NULL);
	metric_value(
		out, "bps_server_memory_bytes", (double)s.staging_used, "kind", "staging", NULL);
	metric_begin(out, "bps_server_connections", "gauge", "data connections");
	metric_value(out, "bps_server_connections", f.connections, NULL);
}

static void http_status(void *arg, struct httpd_request *req)
{
	struct app *app = arg;
	struct fabric_stats f;
	struct srv_stats s;
	uint64_t beat;

	sum_stats(app, &s, &beat);
	fabric_stats(app->fabric, &f);
	httpd_answer(req, 200,
		json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:b, s:i, s:I, s:I, s:I, s:I, s:I, s:I, "
			  "s:I, s:I, s:I}",
			"schema", 1, "role", "server", "name", app->name, "host", app->host,
			"version", BPS_VERSION, "id", (json_int_t)app->id, "scheduler_up",
			member_is_up(app->member), "threads", (int)app->n_started, "partitions",
			(json_int_t)s.parts, "rounds", (json_int_t)s.rounds, "received_bytes",
			(json_int_t)f.rx_bytes, "sent_bytes", (json_int_t)f.tx_bytes, "sums_bytes",
			(json_int_t)s.sums_used, "sums_quota_bytes",
			(json_int_t)app->opts.sums_bytes, "staging_bytes",
			(json_int_t)s.staging_used, "donations", (json_int_t)s.donations,
			"connections", (json_int_t)f.connections));
}

static const struct httpd_ops http_ops = {
	.metrics = http_metrics, .probe = http_probe, .status = http_status};

/* ---- start ---- */

static void fill_defaults(struct app *app)
{
	struct opts *o = &app->opts;
	long n = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES);

	daemon_host(app->host, sizeof(app->host));
	snprintf(app->name, sizeof(app->name), "%s", app->host);
	if (*o->host)
		snprintf(app->host, sizeof(app->host), "%s", o->host);
	if (*o->name)
		snprintf(app->name, sizeof(app->name), "%s", o->name);
	app->n_threads = o->threads ? (unsigned)o->threads : (unsigned)(n / 2);
	if (!o->threads && app->n_threads > 8)
		app->n_threads = 8;
	if (!app->n_threads)
		app->n_threads = 1;
	if (!o->sums_bytes)
		o->sums_bytes = (uint64_t)pages / 2 * (uint64_t)sysconf(_SC_PAGESIZE);
	app->instance = daemon_instance();
}

static int start(struct app *app, struct err_text *err)
{
	const struct opts *o = &app->opts;
	struct fabric_config fc = {.provider = o->provider,
		.bind_addr = o->listen.host,
		.port = o->listen.port,
		.is_listener = 1,
		.my_instance = app->instance,
		.n_threads = app->n_threads,
		.connect_timeout_ms = 3000,
		.ping_ms = (uint32_t)(o->ping_us / 1000),
		.dead_ms = (uint32_t)(o->ping_dead_us / 1000)};
	struct member_config mc = {.role = ROLE_SERVER,
		.name = app->name,
		.host = app->host,
		.scheduler = o->scheduler,
		.data_addr = o->listen.host,
		.instance = app->instance,
		.threads = (uint16_t)app->n_threads,
		.nic_mbps = (uint64_t)o->nic_mbps,
		.quota_bytes = o->sums_bytes};
	struct sockaddr_storage sa;
	struct member *member;
	socklen_t len;
	int rc;

	rc = daemon_init(&app->daemon, "bps-server", &o->daemon, err);
	if (rc < 0)
		return rc;
	if (addr_number(&o->listen, &sa, &len) < 0)
		return err_set(
			err, -EINVAL, "--listen wants a numeric address, not '%s'", o->listen.host);
	if (!app->daemon.has_key && !sockaddr_is_loopback((struct sockaddr *)&sa))
		return err_set(err, -EPERM,
			"without a cluster key the server listens on loopback only, not on '%s'; "
			"set --key-file",
			o->listen.host);
	mc.has_key = app->daemon.has_key;
	mc.key = app->daemon.key;
	/* The listener asks the member for peers' keys; nobody has a key before that exists. */
	rc = fabric_open(&fc, member_peer_key, &app->member, &app->fabric, err);
	if (rc < 0)
		return rc;
	mc.data_port = fabric_port(app->fabric);
	rc = member_new(&member, app->daemon.loop, &mc, &member_ops, app, err);
	key_wipe(&mc.key);
	if (rc < 0)
		return rc;
	app->member = member;
	return daemon_http(&app->daemon, &http_ops, app, err);
}

int main(int argc, char **argv)
{
	struct app app = {0};
	struct err_text err = {0};
	struct settings *settings = NULL;
	enum settings_verdict v = settings_load(&settings, &spec, argc, argv, &app.opts, &err);
	int status = EX_TEMPFAIL;

	if (v != SETTINGS_RUN)
		return settings_exit_status(v, &err);
	fill_defaults(&app);
	if (start(&app, &err) < 0) {
		log_error("%s", err.s);
		status = EX_CONFIG;
	} else {
		status = daemon_run(&app.daemon);
	}
	for (unsigned i = 0; i < app.n_started; i++)
		thread_free(app.threads[i]);
	fabric_close(app.fabric); /* its thread asks the member for keys */
	member_free(app.member);
	daemon_fini(&app.daemon);
	settings_free(settings);
	return status;
}
