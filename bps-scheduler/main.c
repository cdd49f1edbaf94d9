/* bps-scheduler: registers members, forms jobs, and places their partitions on servers. This file
 * contains the settings, and the start and the end of the process. One thread runs the control
 * loop, which serves the members' connections and HTTP, and calls the core (core.h). Writing the
 * state blocks the loop until the disk has synced it. The loop blocks on purpose, because no
 * message about a change may be sent before the change is durable. */
#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "bps-scheduler/app.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/os/machine.h"

#define LOOK_S 1 /* seconds between two checks of the cluster's health */
/* Smallest allowed value of each of the settings server-dead and agent-dead, in heartbeat
 * intervals. One or two late heartbeats must not make a member dead. */
#define DEAD_BEATS 3

static const struct setting rows[] = {
	DAEMON_SETTINGS("127.0.0.1:7301"),
	{"listen", SET_ADDR, SETTING_AT(struct sched_opts, listen), .def = "127.0.0.1:7300",
		.port = 7300,
		.help = "address to which servers and agents connect; needs a key unless it is "
			"loopback"},
	{"state-dir", SET_STRING, SETTING_AT(struct sched_opts, state_dir), .def = "",
		.help = "folder for the durable state; empty: the folder of the service manager, "
			"or memory only, so that a restart ends all jobs"},
	{"name", SET_STRING, SETTING_AT(struct sched_opts, name), .def = "bps", .max = CTL_NAME_MAX,
		.help = "name of the cluster, shown to users"},
	{"server-dead", SET_DURATION, SETTING_AT(struct sched_opts, server_dead_us),
		.is_live = true, .def = "2400ms", .min = 100 * SETTING_MS, .max = 3600 * SETTING_S,
		.help = "silence after which a server is dead and its partitions move"},
	{"agent-dead", SET_DURATION, SETTING_AT(struct sched_opts, agent_dead_us), .is_live = true,
		.def = "4400ms", .min = 100 * SETTING_MS, .max = 3600 * SETTING_S,
		.help = "silence after which an agent is dead and its jobs end"},
	{"server-window", SET_DURATION, SETTING_AT(struct sched_opts, server_window_us),
		.is_live = true, .def = "1s", .min = 0, .max = 3600 * SETTING_S,
		.help = "time for a server to return after its connection closed"},
	{"agent-window", SET_DURATION, SETTING_AT(struct sched_opts, agent_window_us),
		.is_live = true, .def = "5s", .min = 0, .max = 3600 * SETTING_S,
		.help = "time for an agent to return after its connection closed"},
	{"beat", SET_DURATION, SETTING_AT(struct sched_opts, beat_us), .def = "500ms",
		.min = 10 * SETTING_MS, .max = 60 * SETTING_S,
		.help = "time between two heartbeats, in both directions"},
	{"server-slow", SET_DURATION, SETTING_AT(struct sched_opts, server_slow_us),
		.is_live = true, .def = "500ms", .min = 0, .max = 3600 * SETTING_S,
		.help = "report a server that takes longer than this from the last contribution to "
			"the sum; 0: never"},
	{"stalled-after", SET_DURATION, SETTING_AT(struct sched_opts, stalled_after_us),
		.is_live = true, .def = "10s", .min = 1 * SETTING_S, .max = 3600 * SETTING_S,
		.help = "report a worker when others have waited for it this long; probe a job "
			"when its round has made no progress for half of this time"},
	{"forming-after", SET_DURATION, SETTING_AT(struct sched_opts, forming_after_us),
		.is_live = true, .def = "60s", .min = 1 * SETTING_S, .max = 86400 * SETTING_S,
		.help = "report a job when it has waited this long for its workers to join"},
	{"user-jobs", SET_INT, SETTING_AT(struct sched_opts, user_jobs), .is_live = true,
		.def = "64", .min = 1, .max = SCHED_JOBS_MAX,
		.help = "largest number of jobs of one user"},
	{"job-tensors", SET_INT, SETTING_AT(struct sched_opts, job_tensors), .is_live = true,
		.def = "100000", .min = 16, .max = SCHED_TENSORS_MAX,
		.help = "largest number of tensors of one job"},
	{"user-share", SET_INT, SETTING_AT(struct sched_opts, user_share), .is_live = true,
		.def = "0", .min = 0, .max = 1000,
		.help = "percent of the servers' memory that tensors of one user may take; 0: no "
			"limit"},
	{"job-share", SET_INT, SETTING_AT(struct sched_opts, job_share), .is_live = true,
		.def = "0", .min = 0, .max = 1000,
		.help = "percent of the servers' memory that tensors of one job may take; 0: no "
			"limit"},
	{"small-user-reserve", SET_INT, SETTING_AT(struct sched_opts, small_reserve),
		.is_live = true, .def = "10", .min = 0, .max = 90,
		.help = "percent of the servers' memory that is reserved for users who need at "
			"most an eighth of this reserve; 0: no reserve"},
};

static int check_dead_times(const void *values, struct err_text *err)
{
	const struct sched_opts *o = values;
	uint64_t least =
		o->server_dead_us < o->agent_dead_us ? o->server_dead_us : o->agent_dead_us;

	if (least >= DEAD_BEATS * o->beat_us)
		return 0;
	return err_set(err, -EINVAL,
		"server-dead and agent-dead must be at least %d times the setting beat, so at "
		"least %llu ms: raise them, or set a shorter beat",
		DEAD_BEATS, (unsigned long long)(DEAD_BEATS * o->beat_us / 1000));
}

static const struct settings_spec spec = {.program = "bps-scheduler",
	.about = "registers the members of a cluster and places jobs on its servers",
	.config_path = "/etc/bps/scheduler.conf",
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0]),
	.failpoints = FP_SCHED,
	.check = check_dead_times};

/* ---- callbacks of the core ---- */

static int env_persist_record(void *ctx, const struct state_record *rec)
{
	struct sched_app *app = ctx;

	return app->log ? statelog_append(app->log, rec) : 0;
}

static void env_random_bytes(void *ctx, void *ret, size_t n)
{
	(void)ctx;
	if (getrandom(ret, n, 0) != (ssize_t)n) { /* getrandom does not fail for up to 256 bytes */
		log_error("cannot get random bytes: %s", strerror(errno));
		abort();
	}
}

static void env_derive_pair_key(
	void *ctx, const uint8_t *secret, uint64_t agent, uint64_t server, uint8_t *ret)
{
	struct cluster_key key;
	char text[64];
	int n = snprintf(text, sizeof(text), "data plane %016llx %016llx",
		(unsigned long long)agent, (unsigned long long)server);

	(void)ctx;
	memcpy(key.b, secret, sizeof(key.b));
	/* if the key cannot be derived, return a random key, with which the agent and the server
	 * cannot connect */
	if (key_compute_mac(&key, text, (size_t)n, ret) < 0)
		env_random_bytes(NULL, ret, CTL_KEY_BYTES);
	key_wipe(&key);
}

static void env_record_event(void *ctx, const struct sched_event *e)
{
	struct sched_app *app = ctx;

	events_add(app->events, e, clock_unix_seconds());
}

/* ---- after every event ---- */

static int compact_state_log(void *ctx, const struct state_record *rec)
{
	struct sched_app *app = ctx;
	int rc = statelog_compact(app->log, rec);

	if (rc < 0)
		log_rated(LOG_WARN, "cannot shorten the state log: %s", err_str(rc));
	return rc;
}

/* Handle expired deadlines here instead of waiting for the timer. libevent runs an expired timer
 * only after all messages that have arrived, and each message sets the timer again. So under a
 * steady stream of messages the timer would never run. */
void app_after_event(struct sched_app *app)
{
	uint64_t due, now = clock_now_ns();
	struct timeval tv;

	if (now >= sched_next_deadline(app->core))
		sched_tick(app->core, now);
	due = sched_next_deadline(app->core);
	if (app->log && statelog_is_long(app->log) && sched_is_durable(app->core))
		sched_snapshot(app->core, compact_state_log, app);
	if (due == UINT64_MAX) {
		event_del(app->timer);
		return;
	}
	due = due > now ? (due - now + 999) / 1000 : 0;
	tv = (struct timeval){(time_t)(due / 1000000), (suseconds_t)(due % 1000000)};
	event_add(app->timer, &tv);
}

static void on_core_deadline_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	app_after_event(arg);
}

static void on_health_watch_timer(evutil_socket_t fd, short what, void *arg)
{
	struct sched_app *app = arg;
	struct status_info info;

	(void)fd;
	(void)what;
	web_fill_status_info(app, &info);
	health_watch_check(app->health, app->core, &info);
}

static int start_health_watch(struct sched_app *app, struct err_text *err)
{
	const struct timeval tv = {.tv_sec = LOOK_S};

	app->health = health_watch_new(env_record_event, app);
	app->look =
		event_new(loop_base(app->daemon.loop), -1, EV_PERSIST, on_health_watch_timer, app);
	if (!app->health || !app->look || event_add(app->look, &tv) < 0)
		return err_set(err, -ENOMEM, "cannot watch the cluster's health: out of memory");
	return 0;
}

static void format_status_line(void *ctx, char *ret, size_t room)
{
	struct sched_app *app = ctx;

	status_write_line(app->core, ret, room);
}

/* ---- reload ---- */

static struct sched_config make_core_config(const struct sched_opts *o)
{
	struct sched_config cfg;

	sched_config_default(&cfg);
	cfg.cluster = o->name;
	cfg.beat_ms = (uint32_t)(o->beat_us / 1000);
	cfg.server_dead_ms = (uint32_t)(o->server_dead_us / 1000);
	cfg.agent_dead_ms = (uint32_t)(o->agent_dead_us / 1000);
	cfg.server_window_ms = (uint32_t)(o->server_window_us / 1000);
	cfg.server_slow_ms = (uint32_t)(o->server_slow_us / 1000);
	cfg.agent_window_ms = (uint32_t)(o->agent_window_us / 1000);
	cfg.stall_ms = (uint32_t)(o->stalled_after_us / 1000);
	cfg.forming_ms = (uint32_t)(o->forming_after_us / 1000);
	cfg.user_jobs = (uint32_t)o->user_jobs;
	cfg.job_tensors = (uint32_t)o->job_tensors;
	cfg.user_share = (uint32_t)o->user_share;
	cfg.job_share = (uint32_t)o->job_share;
	cfg.small_reserve = (uint32_t)o->small_reserve;
	return cfg;
}

/* Set boot_id and unix_offset_s. If the machine's boot id cannot be read, boot_id is a random
 * number, which differs after each restart of the scheduler. In this case the end of each mute in
 * the state log is a time on the wall clock (mute.h). */
static void core_config_set_clock(struct sched_config *cfg)
{
	if (!machine_boot_id(cfg->boot_id))
		env_random_bytes(NULL, cfg->boot_id, sizeof(cfg->boot_id));
	cfg->unix_offset_s = (int64_t)clock_unix_seconds() - (int64_t)(clock_now_ns() / 1000000000);
}

static void on_sched_settings_changed(void *ctx)
{
	struct sched_app *app = ctx;
	struct sched_config cfg = make_core_config(&app->opts);

	sched_reconfigure(app->core, &cfg, clock_now_ns());
	app_after_event(app);
}

static int on_sched_auth_changed(void *ctx, struct err_text *err)
{
	struct sched_app *app = ctx;
	int n = ctllisten_set_auth(app->listen, &app->daemon.auth, err);

	if (n < 0)
		return n;
	app->n_closed = (unsigned)n;
	conns_expel_revoked(app);
	return 0;
}

static const struct daemon_reload_ops reload_ops = {
	.changed = on_sched_settings_changed, .auth_changed = on_sched_auth_changed};

/* ---- start ---- */

static int on_statelog_record(void *ctx, const struct state_record *rec, struct err_text *err)
{
	struct sched_app *app = ctx;

	return sched_restore(app->core, rec, err);
}

static int start_sched_core(struct sched_app *app, struct err_text *err)
{
	const struct sched_opts *o = &app->opts;
	struct sched_env env = {.ctx = app,
		.send = conns_send_message,
		.drop = conns_drop,
		.persist = env_persist_record,
		.random = env_random_bytes,
		.pair_key = env_derive_pair_key,
		.probe_done = web_probe_done,
		.event = env_record_event};
	struct sched_config cfg = make_core_config(o);
	int rc;

	core_config_set_clock(&cfg);
	app->core = sched_new(&cfg, &env);
	if (*o->state_dir) {
		rc = statelog_open(&app->log, o->state_dir, on_statelog_record, app, err);
		if (rc < 0)
			return rc;
		events_open(app->events, o->state_dir);
	} else {
		log_warn("no --state-dir is set: the state is only in memory, so a restart ends "
			 "all running jobs");
	}
	rc = sched_start(app->core, clock_now_ns());
	if (rc < 0)
		return err_set(
			err, rc, "cannot write the state in '%s': %s", o->state_dir, err_str(rc));
	if (app->log)
		sched_snapshot(app->core, compact_state_log, app);
	return 0;
}

static int steer_reload_keys(void *ctx, unsigned *ret_closed, struct err_text *err)
{
	struct sched_app *app = ctx;
	int rc;

	app->n_closed = 0;
	rc = daemon_reload_auth(&app->daemon, err);
	*ret_closed = app->n_closed;
	return rc;
}

static void init_steer_service(struct sched_app *app)
{
	app->steer = (struct steer){.ctx = app,
		.core = app->core,
		.events = app->events,
		.chan = conns_get_channel,
		.auth = &app->daemon.auth,
		.reload_keys = steer_reload_keys};
}

static int start_sched_daemon(struct sched_app *app, struct err_text *err)
{
	const struct sched_opts *o = &app->opts;
	struct ctllisten_conf conf = {.addr = o->listen};
	int rc = daemon_init(&app->daemon, "bps-scheduler", &o->daemon, err);

	if (rc < 0)
		return rc;
	app->timer = evtimer_new(loop_base(app->daemon.loop), on_core_deadline_timer, app);
	app->events = events_new();
	if (!app->timer || !app->events)
		return err_set(err, -ENOMEM, "out of memory");
	rc = start_sched_core(app, err);
	if (rc < 0)
		return rc;
	conns_expel_revoked(app);
	init_steer_service(app);
	conf.auth = app->daemon.auth;
	rc = ctllisten_new(&app->listen, loop_base(app->daemon.loop), &conf, &conns_ops, app, err);
	keyring_wipe(&conf.auth.keys);
	if (rc == 0)
		rc = daemon_start_http_server(&app->daemon, &web_ops, app, err);
	if (rc == 0)
		rc = start_health_watch(app, err);
	if (rc < 0)
		return rc;
	app_after_event(app);
	rc = daemon_start_status_reports(&app->daemon, format_status_line, app, err);
	if (rc < 0)
		return rc;
	daemon_announce_ready(&app->daemon, ctllisten_port(app->listen), "managing the cluster");
	return 0;
}

static void stop_sched_daemon(struct sched_app *app)
{
	/* Send nothing and write nothing, so that the members keep running. They connect to the
	 * next scheduler process. */
	ctllisten_free(app->listen);
	if (app->timer)
		event_free(app->timer);
	if (app->look)
		event_free(app->look);
	daemon_fini(&app->daemon);
	sched_free(app->core);
	statelog_close(app->log);
	health_watch_free(app->health);
	events_free(app->events);
	free(app->conns);
}

int main(int argc, char **argv)
{
	struct sched_app app = {0};
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
	rc = start_sched_daemon(&app, &err);
	if (rc < 0)
		log_error("%s", err.s);
	status = rc < 0 ? daemon_exit_status(rc) : daemon_run(&app.daemon);
	stop_sched_daemon(&app);
	settings_free(settings);
	return daemon_delay_exit(status);
}
