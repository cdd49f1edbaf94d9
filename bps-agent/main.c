/* bps-agent: one per machine; trainers hand it tensors, it pushes and pulls. The main thread runs the control loop, the data
 * thread the trainers and the network (agent.h), the transport's connection management a thread of its own. */
#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sysexits.h>
#include <unistd.h>

#include "bps-agent/agent.h"
#include "common/daemon.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/notify.h"

#define STUCK_NS UINT64_C(1500000000)
/* First descriptor of systemd's socket activation (sd_listen_fds(3)). */
#define LISTEN_FD_FIRST 3

struct opts {
	struct daemon_opts daemon;
	struct addr listen, scheduler;
	const char *socket, *group, *name, *host, *provider;
	int64_t nic_mbps, max_trainers, max_tensors;
	uint64_t window_bytes, max_bytes, spin_us, ping_us, ping_dead_us;
};

static const struct setting rows[] = {
	DAEMON_SETTINGS("127.0.0.1:7304"),
	{"listen", SET_ADDR, SETTING_AT(struct opts, listen), .def = "127.0.0.1:0", .port = 1,
		.help = "numeric address of the network to push over (the port is not used)"},
	{"scheduler", SET_ADDR, SETTING_AT(struct opts, scheduler), .def = "127.0.0.1:7300",
		.port = 7300, .help = "where bps-scheduler listens"},
	{"socket", SET_STRING, SETTING_AT(struct opts, socket), .def = LOCAL_SOCKET,
		.max = (int64_t)sizeof(((struct sockaddr_un *)0)->sun_path) - 1,
		.help = "UNIX socket that trainers connect to"},
	{"socket-group", SET_STRING, SETTING_AT(struct opts, group), .def = "", .max = 63,
		.help = "group that may connect (mode 0660); empty: the agent's own"},
	{"name", SET_STRING, SETTING_AT(struct opts, name), .def = "", .max = CTL_NAME_MAX,
		.help = "unique among agents; empty: the host's name"},
	{"host", SET_STRING, SETTING_AT(struct opts, host), .def = "", .max = CTL_NAME_MAX,
		.help = "this machine, as a server beside it calls it; empty: the host's name"},
	{"provider", SET_STRING, SETTING_AT(struct opts, provider), .def = "tcp", .max = 31,
		.help = "libfabric provider: tcp or verbs"},
	{"nic-speed", SET_INT, SETTING_AT(struct opts, nic_mbps), .def = "0", .max = 10000000,
		.help = "Mbit/s of the network card; 0: as the others"},
	{"window", SET_SIZE, SETTING_AT(struct opts, window_bytes), .def = "8MiB", .min = 4096,
		.max = SETTING_GIB, .help = "bytes under way to one data thread of a server"},
	{"memory", SET_SIZE, SETTING_AT(struct opts, max_bytes), .def = "0",
		.help = "shared memory for tensors in all; 0: half of the machine's"},
	{"max-trainers", SET_INT, SETTING_AT(struct opts, max_trainers), .def = "64", .min = 1,
		.max = 4096, .help = "trainers connected at a time"},
	{"max-tensors", SET_INT, SETTING_AT(struct opts, max_tensors), .def = "16384", .min = 16,
		.max = 1 << 20, .help = "tensors that one trainer may declare"},
	{"spin", SET_DURATION, SETTING_AT(struct opts, spin_us), .def = "50us",
		.max = 10 * SETTING_MS,
		.help = "how long the idle data thread looks for work before it sleeps"},
	{"ping", SET_DURATION, SETTING_AT(struct opts, ping_us), .def = "500ms",
		.min = 10 * SETTING_MS, .max = 60 * SETTING_S,
		.help = "quiet data connections are pinged this often"},
	{"ping-dead", SET_DURATION, SETTING_AT(struct opts, ping_dead_us), .def = "2s",
		.min = 20 * SETTING_MS, .max = 600 * SETTING_S,
		.help = "a data connection is dropped after this much silence"},
};
static const struct settings_spec spec = {.program = "bps-agent",
	.about = "takes tensors from the trainers of this machine and has them summed",
	.config_path = "/etc/bps/agent.conf",
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0])};

struct app {
	struct opts opts;
	struct daemon daemon;
	struct fabric *fabric;
	struct member *_Atomic member; /* read by the transport's connection-management thread */
	struct agent *agent;           /* once the scheduler has told our id */
	int listen_fd;
	bool owns_socket_file;
	uint64_t instance;
	uint32_t id;
	char name[CTL_NAME_MAX + 1], host[CTL_NAME_MAX + 1], scheduler[ADDR_TEXT_BYTES];
};

/* ---- scheduler ---- */

static void post(struct app *app, enum agent_event event, struct member_msg *m)
{
	if (app->agent && agent_post(app->agent, event, m) == 0)
		return;
	log_error("the data thread does not take messages any more, starting anew");
	daemon_quit(&app->daemon, EX_TEMPFAIL);
}

static void member_up(void *ctx, uint32_t id)
{
	struct app *app = ctx;
	const struct opts *o = &app->opts;
	struct agent_config cfg = {.id = id,
		.instance = app->instance,
		.listen_fd = app->listen_fd,
		.spin_us = (uint32_t)o->spin_us,
		.max_trainers = (uint32_t)o->max_trainers,
		.max_tensors = (uint32_t)o->max_tensors,
		.max_bytes = o->max_bytes,
		.scheduler = app->scheduler,
		.core = {.window_bytes = o->window_bytes,
			.retry_ns = UINT64_C(2000000000),
			.again_ns = UINT64_C(2000000)}};
	struct err_text err;

	if (app->agent && id != app->id) {
		log_error("the scheduler calls us by another id, starting anew: id=%u was=%u", id,
			app->id);
		daemon_quit(&app->daemon, EX_TEMPFAIL);
		return;
	}
	if (app->agent) {
		post(app, AGENT_RESYNC_BEGIN, NULL);
		return;
	}
	app->id = id;
	fabric_set_id(app->fabric, id);
	if (agent_new(app->fabric, app->member, &cfg, &app->agent, &err) < 0) {
		log_error("%s", err.s);
		daemon_quit(&app->daemon, EX_TEMPFAIL);
		return;
	}
	daemon_ready(&app->daemon, 0, "taking trainers");
}

static void member_down(void *ctx, const char *why)
{
	(void)ctx;
	notify_status("running jobs go on; the scheduler cannot be reached: %s", why);
}

static void member_message(void *ctx, struct member_msg *m)
{
	post(ctx, AGENT_MESSAGE, m);
}

static void member_told(void *ctx)
{
	post(ctx, AGENT_RESYNC_END, NULL);
}

static void member_beat(void *ctx, struct ctl_beat *b)
{
	struct app *app = ctx;
	struct agent_figures f;
	struct fabric_stats net;

	if (!app->agent)
		return;
	agent_figures(app->agent, &f);
	fabric_stats(app->fabric, &net);
	b->progress = f.beat_ns;
	b->rounds = f.core.rounds;
	b->rx_bytes = net.rx_bytes;
	b->tx_bytes = net.tx_bytes;
	b->mem_bytes = f.shared_bytes;
	b->connections = net.connections;
	b->trainers = f.trainers;
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
	struct agent_figures f = {0};
	uint64_t now = dataloop_now_ns();

	if (app->agent)
		agent_figures(app->agent, &f);
	if (app->agent && now > f.beat_ns && now - f.beat_ns > STUCK_NS) {
		err_set(err, -EIO, "the data thread hangs for %.1f s",
			(double)(now - f.beat_ns) / 1e9);
		return false;
	}
	if (probe != HTTPD_LIVE && !app->agent) {
		err_set(err, -EIO, "not yet known to the scheduler");
		return false;
	}
	if (probe == HTTPD_HEALTH && !member_is_up(app->member)) {
		err_set(err, -EIO, "the scheduler cannot be reached");
		return false;
	}
	return true;
}

static void one_metric(
	struct evbuffer *out, const char *name, const char *type, const char *help, double v)
{
	metric_begin(out, name, type, help);
	metric_value(out, name, v, NULL);
}

static void http_metrics(void *arg, struct evbuffer *out)
{
	struct app *app = arg;
	struct agent_figures f = {0};
	struct fabric_stats net;

	if (app->agent)
		agent_figures(app->agent, &f);
	fabric_stats(app->fabric, &net);
	metric_begin(out, "bps_build_info", "gauge", "version of this program");
	metric_value(out, "bps_build_info", 1, "version", BPS_VERSION, NULL);
	one_metric(out, "bps_agent_received_bytes_total", "counter", "bytes received from servers",
		(double)net.rx_bytes);
	one_metric(out, "bps_agent_sent_bytes_total", "counter", "bytes sent to servers",
		(double)net.tx_bytes);
	one_metric(out, "bps_agent_inflight_bytes", "gauge", "bytes pushed whose sum is not in yet",
		(double)f.core.inflight_bytes);
	one_metric(out, "bps_agent_repush_total", "counter", "contributions sent again",
		(double)f.core.repushes);
	one_metric(out, "bps_agent_reconnects_total", "counter", "data connections lost",
		(double)f.core.reconnects);
	one_metric(out, "bps_agent_crc_errors_total", "counter", "payloads with a wrong crc",
		(double)f.core.crc_errors);
	one_metric(out, "bps_agent_rounds_total", "counter", "tensor rounds completed",
		(double)f.core.rounds);
	one_metric(out, "bps_agent_trainers", "gauge", "trainers connected", f.trainers);
	one_metric(out, "bps_agent_shared_bytes", "gauge", "memory shared with trainers",
		(double)f.shared_bytes);
}

static void http_status(void *arg, struct httpd_request *req)
{
	struct app *app = arg;
	struct agent_figures f = {0};
	struct fabric_stats net;

	if (app->agent)
		agent_figures(app->agent, &f);
	fabric_stats(app->fabric, &net);
	httpd_answer(req, 200,
		json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
			  "s:I, s:I}",
			"schema", 1, "role", "agent", "name", app->name, "host", app->host,
			"version", BPS_VERSION, "id", (json_int_t)app->id, "scheduler_up",
			member_is_up(app->member), "trainers", (json_int_t)f.trainers, "jobs",
			(json_int_t)f.jobs, "rounds", (json_int_t)f.core.rounds, "received_bytes",
			(json_int_t)net.rx_bytes, "sent_bytes", (json_int_t)net.tx_bytes,
			"inflight_bytes", (json_int_t)f.core.inflight_bytes, "repushes",
			(json_int_t)f.core.repushes, "shared_bytes", (json_int_t)f.shared_bytes,
			"connections", (json_int_t)net.connections));
}

static const struct httpd_ops http_ops = {
	.metrics = http_metrics, .probe = http_probe, .status = http_status};

/* ---- start ---- */

/* Is somebody listening on that socket file? */
static bool is_answered(const struct sockaddr_un *sun)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool yes = fd >= 0 && connect(fd, (const struct sockaddr *)sun, sizeof(*sun)) == 0;

	if (fd >= 0)
		close(fd);
	return yes;
}

static int give_to_group(const char *path, const char *group, struct err_text *err)
{
	struct group *gr = *group ? getgrnam(group) : NULL;

	if (*group && !gr)
		return err_set(err, -EINVAL, "no such group '%s' (--socket-group)", group);
	if (gr && chown(path, (uid_t)-1, gr->gr_gid) < 0)
		return err_set(err, -errno, "cannot give '%s' to group %s: %s", path, group,
			strerror(errno));
	if (chmod(path, 0660) < 0)
		return err_set(err, -errno, "cannot chmod '%s': %s", path, strerror(errno));
	return 0;
}

/* The socket of the service manager, or one of our own. */
static int open_socket(struct app *app, struct err_text *err)
{
	const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS"), *path = app->opts.socket;
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int fd, rc;

	if (pid && n && atol(pid) == (long)getpid() && atoi(n) >= 1) {
		app->listen_fd = LISTEN_FD_FIRST;
		if (fcntl(app->listen_fd, F_SETFD, FD_CLOEXEC) < 0 ||
			fcntl(app->listen_fd, F_SETFL, O_NONBLOCK) < 0)
			return err_set(err, -errno, "the service manager's socket: %s", strerror(errno));
		return 0;
	}
	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s", path);
	if (is_answered(&sun))
		return err_set(err, -EADDRINUSE, "another bps-agent serves '%s' already", path);
	unlink(path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0 || listen(fd, 64) < 0) {
		rc = err_set(err, -errno, "cannot listen on '%s': %s (does its directory exist?)",
			path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return rc;
	}
	app->listen_fd = fd;
	app->owns_socket_file = true;
	return give_to_group(path, app->opts.group, err);
}

static void fill_defaults(struct app *app)
{
	struct opts *o = &app->opts;

	daemon_host(app->host, sizeof(app->host));
	snprintf(app->name, sizeof(app->name), "%s", app->host);
	if (*o->host)
		snprintf(app->host, sizeof(app->host), "%s", o->host);
	if (*o->name)
		snprintf(app->name, sizeof(app->name), "%s", o->name);
	if (!o->max_bytes)
		o->max_bytes =
			(uint64_t)sysconf(_SC_PHYS_PAGES) / 2 * (uint64_t)sysconf(_SC_PAGESIZE);
	addr_format(&o->scheduler, app->scheduler);
	app->instance = daemon_instance();
	app->listen_fd = -1;
}

static int start(struct app *app, struct err_text *err)
{
	const struct opts *o = &app->opts;
	struct fabric_config fc = {.provider = o->provider,
		.bind_addr = o->listen.host,
		.my_instance = app->instance,
		.n_threads = 1,
		.connect_timeout_ms = 3000,
		.ping_ms = (uint32_t)(o->ping_us / 1000),
		.dead_ms = (uint32_t)(o->ping_dead_us / 1000)};
	struct member_config mc = {.role = ROLE_AGENT,
		.name = app->name,
		.host = app->host,
		.scheduler = o->scheduler,
		.data_addr = "",
		.instance = app->instance,
		.threads = 1,
		.nic_mbps = (uint64_t)o->nic_mbps};
	struct sockaddr_storage sa;
	struct member *member;
	socklen_t len;
	int rc;

	rc = daemon_init(&app->daemon, "bps-agent", &o->daemon, err);
	if (rc < 0)
		return rc;
	if (addr_number(&o->listen, &sa, &len) < 0)
		return err_set(
			err, -EINVAL, "--listen wants a numeric address, not '%s'", o->listen.host);
	rc = open_socket(app, err);
	if (rc < 0)
		return rc;
	mc.has_key = app->daemon.has_key;
	mc.key = app->daemon.key;
	rc = fabric_open(&fc, member_peer_key, &app->member, &app->fabric, err);
	if (rc < 0)
		return rc;
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
	int status = EX_CONFIG;

	if (v != SETTINGS_RUN)
		return settings_exit_status(v, &err);
	fill_defaults(&app);
	if (start(&app, &err) < 0)
		log_error("%s", err.s);
	else
		status = daemon_run(&app.daemon);
	agent_free(app.agent);
	fabric_close(app.fabric); /* its thread asks the member for keys */
	member_free(app.member);
	if (app.listen_fd >= 0)
		close(app.listen_fd);
	if (app.owns_socket_file)
		unlink(app.opts.socket);
	daemon_fini(&app.daemon);
	settings_free(settings);
	return status;
}
