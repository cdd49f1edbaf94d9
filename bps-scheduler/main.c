/* bps-scheduler: who is there, which jobs run, and which server holds what. One thread: the control
 * loop with the members' connections and HTTP around the core (core.h). Writing the state blocks
 * the loop for the time of a sync, on purpose: nothing may be said before it is durable. */
#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sysexits.h>
#include <time.h>

#include "bps-scheduler/core.h"
#include "bps-scheduler/events.h"
#include "bps-scheduler/statelog.h"
#include "bps-scheduler/status.h"
#include "bps-scheduler/steer.h"
#include "common/clock.h"
#include "common/ctlchan.h"
#include "common/daemon.h"
#include "common/log.h"

#define STATUS_WAIT_MAX 64 /* HTTP requests that wait for agents */
#define CONNS_MAX       65536
#define DEAD_BEATS      3 /* a lost or late beat or two are no death */

struct opts {
	struct daemon_opts daemon;
	struct addr listen;
	const char *state_dir, *name;
	uint64_t server_dead_us, agent_dead_us, server_window_us, agent_window_us, beat_us;
	int64_t user_jobs, job_tensors, user_share, job_share;
};

static const struct setting rows[] = {
	DAEMON_SETTINGS("127.0.0.1:7301"),
	{"listen", SET_ADDR, SETTING_AT(struct opts, listen), .def = "127.0.0.1:7300", .port = 7300,
		.help = "where servers and agents connect; needs a key unless it is loopback"},
	{"state-dir", SET_STRING, SETTING_AT(struct opts, state_dir), .def = "",
		.help = "folder of the durable state; empty: the service manager's, and without "
			"one in memory, where a restart ends all jobs"},
	{"name", SET_STRING, SETTING_AT(struct opts, name), .def = "bps", .max = CTL_NAME_MAX,
		.help = "name of the cluster, for people"},
	{"server-dead", SET_DURATION, SETTING_AT(struct opts, server_dead_us), .is_live = true,
		.def = "3s", .min = 100 * SETTING_MS, .max = 3600 * SETTING_S,
		.help = "silence after which a server is dead and its partitions move"},
	{"agent-dead", SET_DURATION, SETTING_AT(struct opts, agent_dead_us), .is_live = true,
		.def = "5s", .min = 100 * SETTING_MS, .max = 3600 * SETTING_S,
		.help = "silence after which an agent is dead and its jobs end"},
	{"server-window", SET_DURATION, SETTING_AT(struct opts, server_window_us), .is_live = true,
		.def = "1s", .min = 0, .max = 3600 * SETTING_S,
		.help = "time for a server to come back after its connection closed"},
	{"agent-window", SET_DURATION, SETTING_AT(struct opts, agent_window_us), .is_live = true,
		.def = "5s", .min = 0, .max = 3600 * SETTING_S,
		.help = "time for an agent to come back after its connection closed"},
	{"beat", SET_DURATION, SETTING_AT(struct opts, beat_us), .def = "500ms",
		.min = 10 * SETTING_MS, .max = 60 * SETTING_S,
		.help = "time between two heartbeats, both ways"},
	{"user-jobs", SET_INT, SETTING_AT(struct opts, user_jobs), .is_live = true, .def = "64",
		.min = 1, .max = SCHED_JOBS_MAX, .help = "jobs of one user at a time"},
	{"job-tensors", SET_INT, SETTING_AT(struct opts, job_tensors), .is_live = true,
		.def = "100000", .min = 16, .max = SCHED_TENSORS_MAX, .help = "tensors of one job"},
	{"user-share", SET_INT, SETTING_AT(struct opts, user_share), .is_live = true, .def = "0",
		.min = 0, .max = 1000,
		.help = "percent of the servers' memory that tensors of one user may take; 0: any"},
	{"job-share", SET_INT, SETTING_AT(struct opts, job_share), .is_live = true, .def = "0",
		.min = 0, .max = 1000,
		.help = "percent of the servers' memory that tensors of one job may take; 0: any"},
};
static int check_times(const void *values, struct err_text *err)
{
	const struct opts *o = values;
	uint64_t least =
		o->server_dead_us < o->agent_dead_us ? o->server_dead_us : o->agent_dead_us;

	if (least >= DEAD_BEATS * o->beat_us)
		return 0;
	return err_set(err, -EINVAL,
		"server-dead and agent-dead must be at least %d beats (%llu ms): lower beat or "
		"raise them",
		DEAD_BEATS, (unsigned long long)(DEAD_BEATS * o->beat_us / 1000));
}

static const struct settings_spec spec = {.program = "bps-scheduler",
	.about = "knows the members of a cluster and places jobs on its servers",
	.config_path = "/etc/bps/scheduler.conf",
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0]),
	.check = check_times};

/* A member's connection; its number in the core is its place in app.conns. */
struct conn {
	struct ctlchan *chan;
	uint32_t id;
	bool is_dropped; /* by the core, which has forgotten it */
	bool is_member;  /* its HELLO was taken */
};

struct app {
	struct opts opts;
	struct daemon daemon;
	struct ctllisten *listen;
	struct sched_core *core;
	struct statelog *log;
	struct events *events;
	struct steer steer;
	unsigned n_closed; /* connections, by the last change of keys */
	struct event *timer;
	struct timespec started;
	struct conn **conns; /* NULL: free */
	uint32_t n_conns;
	struct { /* requests that wait for a probe; the token is the index */
		struct httpd_request *req;
		uint32_t job;
	} waiting[STATUS_WAIT_MAX];
};

/* ---- what the core wants done ---- */

static void env_send(void *ctx, uint32_t id, const struct ctl_msg *msg)
{
	struct app *app = ctx;
	const struct layout *layout = ctl_layout(msg->type);
	size_t n = codec_size(layout, &msg->hello);
	void *buf = n ? malloc(n) : NULL;
	int rc = -EMSGSIZE;

	if (buf) {
		codec_encode(layout, &msg->hello, buf);
		rc = ctlchan_send(app->conns[id]->chan, msg->type, buf, n);
	}
	/* A message that is lost is learned again after a reconnect. */
	if (rc < 0 && rc != BPS_ECLOSED) {
		log_rated(LOG_WARN, "cannot send %s to %s: %s", ctl_type_name(msg->type),
			ctlchan_peer(app->conns[id]->chan), err_str(rc));
		ctlchan_close(app->conns[id]->chan, "cannot send");
	}
	free(buf);
}

static void env_drop(void *ctx, uint32_t id, const char *why)
{
	struct app *app = ctx;

	app->conns[id]->is_dropped = true;
	ctlchan_close(app->conns[id]->chan, "%s", why);
}

static int env_persist(void *ctx, const struct state_record *rec)
{
	struct app *app = ctx;

	return app->log ? statelog_append(app->log, rec) : 0;
}

static void env_random(void *ctx, void *ret, size_t n)
{
	(void)ctx;
	if (getrandom(ret, n, 0) != (ssize_t)n) { /* cannot fail for so few bytes */
		log_error("no randomness: %s", strerror(errno));
		abort();
	}
}

static void env_pair_key(
	void *ctx, const uint8_t *secret, uint64_t agent, uint64_t server, uint8_t *ret)
{
	struct cluster_key key;
	char text[64];
	int n = snprintf(text, sizeof(text), "data plane %016llx %016llx",
		(unsigned long long)agent, (unsigned long long)server);

	(void)ctx;
	memcpy(key.b, secret, sizeof(key.b));
	if (key_mac(&key, text, (size_t)n, ret) < 0) /* then the two do not connect */
		env_random(NULL, ret, CTL_KEY_BYTES);
	key_wipe(&key);
}

static void fill_info(struct app *app, struct status_info *ret)
{
	struct ctllisten_stats s;

	ctllisten_stats(app->listen, &s);
	*ret = (struct status_info){.now_ns = clock_now_ns(),
		.started_unix = (double)app->started.tv_sec,
		.has_log = app->log != NULL,
		.auth_failures = s.auth_failures,
		.protocol_errors = s.protocol_errors,
		.trust_timeouts = s.trust_timeouts};
	if (app->log) {
		ret->log_bytes = statelog_bytes(app->log);
		ret->log_sync_ns = statelog_sync_ns(app->log);
	}
}

static void env_probe_done(void *ctx, uint64_t token, const struct sched_probe *p)
{
	struct app *app = ctx;
	struct status_info info;
	json_t *root;

	fill_info(app, &info);
	root = status_job(app->core, &info, app->waiting[token].job, p);
	httpd_answer(app->waiting[token].req, root ? 200 : 404,
		root ? root : json_pack("{s:s}", "error", "the job has ended"));
	app->waiting[token].req = NULL;
}

static double unix_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void env_event(void *ctx, const struct sched_event *e)
{
	struct app *app = ctx;

	events_add(app->events, e, unix_now());
}

/* ---- after every event ---- */

static int compact(void *ctx, const struct state_record *rec)
{
	struct app *app = ctx;
	int rc = statelog_compact(app->log, rec);

	if (rc < 0)
		log_rated(LOG_WARN, "cannot shorten the state log: %s", err_str(rc));
	return rc;
}

/* What is due is done here and not left to the timer: setting an expired one anew takes it behind all
 * that has come meanwhile, so that under a steady stream of messages it would never run. */
static void after_event(struct app *app)
{
	uint64_t due, now = clock_now_ns();
	struct timeval tv;

	if (now >= sched_next_deadline(app->core))
		sched_tick(app->core, now);
	due = sched_next_deadline(app->core);
	if (app->log && statelog_is_long(app->log) && sched_is_durable(app->core))
		sched_snapshot(app->core, compact, app);
	if (due == UINT64_MAX) {
		event_del(app->timer);
		return;
	}
	due = due > now ? (due - now + 999) / 1000 : 0;
	tv = (struct timeval){(time_t)(due / 1000000), (suseconds_t)(due % 1000000)};
	event_add(app->timer, &tv);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	after_event(arg);
}

/* ---- connections ---- */

static uint32_t free_conn(struct app *app)
{
	uint32_t id = 0;

	while (id < app->n_conns && app->conns[id])
		id++;
	if (id == app->n_conns && id < CONNS_MAX) {
		uint32_t room = id ? 2 * id : 64;
		struct conn **v = realloc(app->conns, room * sizeof(struct conn *));

		if (!v)
			return CONNS_MAX;
		memset(v + id, 0, (room - id) * sizeof(struct conn *));
		app->conns = v;
		app->n_conns = room;
	}
	return id;
}

static void chan_opened(void *arg, struct ctlchan *chan)
{
	struct app *app = arg;
	uint32_t id = free_conn(app);
	struct conn *conn = id < CONNS_MAX ? calloc(1, sizeof(*conn)) : NULL;

	if (!conn) {
		ctlchan_close(chan, "too many connections");
		return;
	}
	conn->chan = chan;
	conn->id = id;
	app->conns[id] = conn;
	ctlchan_set_data(chan, conn);
	sched_conn_open(app->core, id, clock_now_ns());
	after_event(app);
}

/* identity: "server:node3"; operators are no members. */
static void expel(struct app *app, const char *identity)
{
	static const struct {
		const char *prefix;
		enum role role;
	} roles[] = {{"server:", ROLE_SERVER}, {"agent:", ROLE_AGENT}};

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
		size_t n = strlen(roles[i].prefix);

		if (strncmp(identity, roles[i].prefix, n) == 0)
			sched_expel(app->core, roles[i].role, identity + n, clock_now_ns());
	}
}

/* Members that are away just now must not live on by what servers hear of them. */
static void expel_revoked(struct app *app)
{
	const struct keyring *keys = &app->daemon.auth.keys;
	char identity[KEYRING_ID_BYTES];

	for (unsigned i = 0; i < keys->n_revoked; i++) {
		snprintf(identity, sizeof(identity), "%s", keys->revoked[i]);
		identity[strcspn(identity, "#")] = '\0';
		if (keyring_is_out(keys, identity))
			expel(app, identity);
	}
	after_event(app);
}

static void chan_closed(void *arg, struct ctlchan *chan, const char *reason)
{
	struct app *app = arg;
	struct conn *conn = ctlchan_data(chan);

	if (!conn)
		return;
	log_debug("connection of %s ended: %s", ctlchan_peer(chan), reason);
	app->conns[conn->id] = NULL;
	if (!conn->is_dropped) {
		sched_conn_closed(app->core, conn->id, clock_now_ns());
		if (ctlchan_is_expelled(chan) && conn->is_member)
			expel(app, ctlchan_identity(chan));
		after_event(app);
	}
	free(conn);
}

/* With a key, a member is who its key says. */
static bool is_who_it_says(const struct ctlchan *chan, const struct ctl_hello *h)
{
	const char *identity = ctlchan_identity(chan);
	char claimed[CTL_NAME_MAX + 16];

	if (!*identity)
		return true;
	snprintf(claimed, sizeof(claimed), "%s:%s", h->role == ROLE_SERVER ? "server" : "agent",
		h->name);
	if (strcmp(identity, claimed) == 0)
		return true;
	log_rated(LOG_WARN, "%s has the key of %s and says that it is %s", ctlchan_peer(chan),
		identity, claimed);
	return false;
}

static void chan_frame(
	void *arg, struct ctlchan *chan, uint16_t type, const uint8_t *body, size_t n_body)
{
	struct app *app = arg;
	struct conn *conn = ctlchan_data(chan);
	struct err_text err = {""};
	struct ctl_msg msg;
	void *mem = NULL;

	if (!conn || conn->is_dropped)
		return;
	if (ctl_decode(type, body, n_body, &msg, &mem, &err) < 0) {
		log_rated(LOG_WARN, "%s sent what cannot be read: %s", ctlchan_peer(chan), err.s);
		ctlchan_close(chan, "protocol error: %s", err.s);
		return;
	}
	if (type == CTL_HELLO && !is_who_it_says(chan, &msg.hello)) {
		ctlchan_close(chan, "the name is not the key's");
	} else if (type == CTL_STEER && !conn->is_member) {
		steer_handle(&app->steer, chan, &msg.steer, clock_now_ns());
		after_event(app);
	} else {
		sched_message(app->core, conn->id, &msg, clock_now_ns());
		if (type == CTL_HELLO && !conn->is_dropped) {
			conn->is_member = true;
			ctlchan_set_trusted(chan);
		}
		after_event(app);
	}
	free(mem);
}

static const struct ctlchan_ops chan_ops = {
	.opened = chan_opened, .frame = chan_frame, .closed = chan_closed};

static void say(void *ctx, char *ret, size_t room)
{
	struct app *app = ctx;

	status_line(app->core, ret, room);
}

/* ---- HTTP ---- */

static void http_metrics(void *arg, struct evbuffer *out)
{
	struct app *app = arg;
	struct status_info info;

	fill_info(app, &info);
	status_metrics(app->core, &info, out);
}

static bool http_probe(void *arg, enum httpd_probe probe, struct err_text *err)
{
	struct app *app = arg;

	if (probe == HTTPD_LIVE || sched_is_durable(app->core))
		return true;
	err_set(err, BPS_ENOTDURABLE, "the state cannot be written");
	return false;
}

static void answer_error(struct httpd_request *req, int code, const char *text)
{
	httpd_answer(req, code, json_pack("{s:i, s:s}", "schema", 1, "error", text));
}

static void http_job(struct app *app, struct httpd_request *req, const char *name)
{
	uint32_t job = status_find_job(app->core, name);
	struct status_info info;
	unsigned token = 0;
	int rc;

	if (!job) {
		answer_error(req, 404, "no such job");
		return;
	}
	while (token < STATUS_WAIT_MAX && app->waiting[token].req)
		token++;
	if (token == STATUS_WAIT_MAX) {
		answer_error(req, 503, "too many questions at once");
		return;
	}
	app->waiting[token].req = req;
	app->waiting[token].job = job;
	rc = sched_probe_start(app->core, job, token, clock_now_ns());
	after_event(app);
	if (rc == 0)
		return;
	app->waiting[token].req = NULL;
	if (rc != BPS_ENOTFOUND) {
		answer_error(req, 503, "too many questions at once");
		return;
	}
	fill_info(app, &info);
	httpd_answer(req, 200, status_job(app->core, &info, job, NULL));
}

static void http_events(struct app *app, struct httpd_request *req, uint64_t since)
{
	json_t *root = events_json(app->events, sched_term(app->core), since);

	json_object_set_new(root, "now", json_real(unix_now()));
	httpd_answer(req, 200, root);
}

static void http_status(void *arg, struct httpd_request *req)
{
	struct app *app = arg;
	struct status_info info;
	char name[CTL_JOB_NAME_MAX + 1];

	if (httpd_query(req, "job", name, sizeof(name))) {
		http_job(app, req, name);
		return;
	}
	if (httpd_query(req, "events", name, sizeof(name))) {
		http_events(app, req, strtoull(name, NULL, 10));
		return;
	}
	fill_info(app, &info);
	httpd_answer(req, 200, status_cluster(app->core, &info));
}

static const struct httpd_ops http_ops = {
	.metrics = http_metrics, .probe = http_probe, .status = http_status};

/* ---- reload ---- */

static struct sched_config core_config(const struct opts *o)
{
	struct sched_config cfg;

	sched_config_default(&cfg);
	cfg.cluster = o->name;
	cfg.beat_ms = (uint32_t)(o->beat_us / 1000);
	cfg.server_dead_ms = (uint32_t)(o->server_dead_us / 1000);
	cfg.agent_dead_ms = (uint32_t)(o->agent_dead_us / 1000);
	cfg.server_window_ms = (uint32_t)(o->server_window_us / 1000);
	cfg.agent_window_ms = (uint32_t)(o->agent_window_us / 1000);
	cfg.user_jobs = (uint32_t)o->user_jobs;
	cfg.job_tensors = (uint32_t)o->job_tensors;
	cfg.user_share = (uint32_t)o->user_share;
	cfg.job_share = (uint32_t)o->job_share;
	return cfg;
}

/* What this machine's clock counts from. Where nobody may see it, a random number: then ends are
 * taken from the wall clock after each restart. */
static void fill_clock(struct sched_config *cfg)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	unsigned v, n = 0;
	struct timespec wall;

	env_random(NULL, cfg->boot_id, sizeof(cfg->boot_id));
	while (f && n < sizeof(cfg->boot_id) && fscanf(f, "%*[-]") != EOF &&
		fscanf(f, "%2x", &v) == 1)
		cfg->boot_id[n++] = (uint8_t)v;
	if (f)
		fclose(f);
	clock_gettime(CLOCK_REALTIME, &wall);
	cfg->unix_offset_s = (int64_t)wall.tv_sec - (int64_t)(clock_now_ns() / 1000000000);
}

static void settings_changed(void *ctx)
{
	struct app *app = ctx;
	struct sched_config cfg = core_config(&app->opts);

	sched_set_times(app->core, &cfg, clock_now_ns());
	sched_set_quotas(app->core, &cfg);
	after_event(app);
}

static void auth_changed(void *ctx)
{
	struct app *app = ctx;
	struct err_text err;
	int n = ctllisten_set_auth(app->listen, &app->daemon.auth, &err);

	if (n < 0)
		log_error("the new key is not used: %s", err.s);
	else
		app->n_closed = (unsigned)n;
	expel_revoked(app);
}

static const struct daemon_reload_ops reload_ops = {
	.changed = settings_changed, .auth_changed = auth_changed};

/* ---- start ---- */

static int on_record(void *ctx, const struct state_record *rec, struct err_text *err)
{
	struct app *app = ctx;

	return sched_restore(app->core, rec, err);
}

static int start_core(struct app *app, struct err_text *err)
{
	const struct opts *o = &app->opts;
	struct sched_env env = {.ctx = app,
		.send = env_send,
		.drop = env_drop,
		.persist = env_persist,
		.random = env_random,
		.pair_key = env_pair_key,
		.probe_done = env_probe_done,
		.event = env_event};
	struct sched_config cfg = core_config(o);
	int rc;

	fill_clock(&cfg);
	app->core = sched_new(&cfg, &env);
	if (*o->state_dir) {
		rc = statelog_open(&app->log, o->state_dir, on_record, app, err);
		if (rc < 0)
			return rc;
	} else {
		log_warn("no --state-dir: the state is in memory, a restart ends all running jobs");
	}
	rc = sched_start(app->core, clock_now_ns());
	if (rc < 0)
		return err_set(
			err, rc, "cannot write the state in '%s': %s", o->state_dir, err_str(rc));
	if (app->log)
		sched_snapshot(app->core, compact, app);
	return 0;
}

static struct ctlchan *steer_chan(void *ctx, uint32_t conn)
{
	struct app *app = ctx;

	return app->conns[conn]->chan;
}

static int steer_reload_keys(void *ctx, unsigned *ret_closed, struct err_text *err)
{
	struct app *app = ctx;
	int rc;

	app->n_closed = 0;
	rc = daemon_reload_auth(&app->daemon, err);
	*ret_closed = app->n_closed;
	return rc;
}

static void start_steer(struct app *app)
{
	app->steer = (struct steer){.ctx = app,
		.core = app->core,
		.events = app->events,
		.chan = steer_chan,
		.auth = &app->daemon.auth,
		.reload_keys = steer_reload_keys};
}

static int start(struct app *app, struct err_text *err)
{
	const struct opts *o = &app->opts;
	struct ctllisten_conf conf = {.addr = o->listen};
	int rc = daemon_init(&app->daemon, "bps-scheduler", &o->daemon, err);

	if (rc < 0)
		return rc;
	clock_gettime(CLOCK_REALTIME, &app->started);
	app->timer = evtimer_new(loop_base(app->daemon.loop), on_timer, app);
	app->events = events_new();
	if (!app->timer || !app->events)
		return err_set(err, -ENOMEM, "out of memory");
	rc = start_core(app, err);
	if (rc < 0)
		return rc;
	expel_revoked(app);
	start_steer(app);
	conf.auth = app->daemon.auth;
	rc = ctllisten_new(&app->listen, loop_base(app->daemon.loop), &conf, &chan_ops, app, err);
	keyring_wipe(&conf.auth.keys);
	if (rc == 0)
		rc = daemon_http(&app->daemon, &http_ops, app, err);
	if (rc < 0)
		return rc;
	after_event(app);
	rc = daemon_tell(&app->daemon, say, app, err);
	if (rc < 0)
		return rc;
	daemon_ready(&app->daemon, ctllisten_port(app->listen), "keeping the cluster");
	return 0;
}

static void stop(struct app *app)
{
	/* Members keep running and come back to the next scheduler: nothing is said or written. */
	ctllisten_free(app->listen);
	if (app->timer)
		event_free(app->timer);
	daemon_fini(&app->daemon);
	sched_free(app->core);
	statelog_close(app->log);
	events_free(app->events);
	free(app->conns);
}

int main(int argc, char **argv)
{
	struct app app = {0};
	struct err_text err = {""};
	struct settings *settings = NULL;
	enum settings_verdict v;
	int rc, status;

	daemon_begin();
	v = settings_load(&settings, &spec, argc, argv, &app.opts, &err);
	if (v != SETTINGS_RUN)
		return settings_exit_status(v, &err);
	if (!*app.opts.state_dir && getenv("STATE_DIRECTORY"))
		app.opts.state_dir = getenv("STATE_DIRECTORY");
	daemon_on_reload(&app.daemon, settings, &reload_ops, &app);
	rc = start(&app, &err);
	if (rc < 0)
		log_error("%s", err.s);
	status = rc < 0 ? daemon_exit_status(rc) : daemon_run(&app.daemon);
	stop(&app);
	settings_free(settings);
	return daemon_end(status);
}
