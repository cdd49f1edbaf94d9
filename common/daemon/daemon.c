/* The common parts of every daemon: start, signals, reload, messages to the service manager, end.
 * Every daemon's main calls these functions in the order that daemon.h shows. httpd.c serves the
 * HTTP pages. Thread: main. */
#include "common/daemon/daemon.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/data/simd.h"
#include "common/daemon/notify.h"
#include "common/os/limits.h"

/* Time that daemon_delay_exit waits, in milliseconds. systemd gives up on a unit that starts more
 * than StartLimitBurst= times within StartLimitIntervalSec=. If each start ends with this wait,
 * fewer than StartLimitBurst= starts fit into StartLimitIntervalSec=. So systemd never gives up.
 * PAUSE_MS is less than the shortest WatchdogSec= of the units. */
#define PAUSE_MS 1500

const char *const daemon_log_levels[] = {"error", "warn", "info", "debug", "trace", NULL};

static void apply_log_level(const struct daemon_opts *opts)
{
	enum log_level level = LOG_INFO;

	log_level_parse(daemon_log_levels[opts->log_level], &level);
	log_set_level(level);
}

/* Set the failpoints of the setting `faults`. Log a warning if the setting is not empty.
 * Errors: a negative code; err gets the text. */
static int daemon_arm_failpoints(const char *text, struct err_text *err)
{
	int n = failpoint_set(text, err);

	if (n > 0)
		log_warn("faults will be injected: points=%d faults='%s'", n, text);
	return n < 0 ? n : 0;
}

/* ---- reload ---- */

/* Load the credentials into *ret. Returns 1 when they differ from the credentials in force and can
 * replace them. Otherwise returns 0.
 * Errors: a negative code; err gets the text. */
static int daemon_load_changed_auth(const struct daemon *d, const struct auth_opts *o,
	struct tls_conf *ret, struct err_text *err)
{
	int rc = auth_load(ret, o, err);

	if (rc < 0)
		return rc;
	if (tls_conf_is_empty(ret) != tls_conf_is_empty(&d->auth)) {
		log_warn("a key was %s, which takes effect only after a restart: the daemon "
			 "continues %s a key",
			tls_conf_is_empty(ret) ? "removed" : "added",
			tls_conf_is_empty(ret) ? "with" : "without");
		return 0;
	}
	return !auth_is_equal(ret, &d->auth);
}

/* Put new credentials in force.
 * Errors: a negative code; err gets the text, and the old credentials stay in force. One cause is a
 * certificate that does not match the private key. */
static int daemon_apply_auth(
	struct daemon *d, const struct tls_conf *auth, const char *key_file, struct err_text *err)
{
	struct tls_conf former = d->auth;
	int rc = 0;

	d->auth = *auth;
	if (d->reload_ops && d->reload_ops->auth_changed)
		rc = d->reload_ops->auth_changed(d->reload_ctx, err);
	if (rc < 0)
		d->auth = former;
	else if (auth->cert)
		log_write(LOG_AS(LOG_INFO, KEY_CHANGED),
			"the certificates have changed: tls-cert='%s' tls-ca='%s'", auth->cert,
			auth->ca);
	else
		log_write(LOG_AS(LOG_INFO, KEY_CHANGED),
			"the key file has changed: file='%s' keys=%u revoked=%u", key_file,
			auth->keys.n_keys, auth->keys.n_revoked);
	keyring_wipe(&former.keys);
	return rc;
}

/* Read the credentials again and put them in force if they have changed. Returns 1 when they have
 * changed, else 0.
 * Errors: the errors of daemon_load_changed_auth and daemon_apply_auth. */
static int daemon_renew_auth(struct daemon *d, const struct auth_opts *o, struct err_text *err)
{
	struct tls_conf auth = {.keys.n_keys = 0};
	int rc = daemon_load_changed_auth(d, o, &auth, err), changed = rc;

	if (rc > 0)
		rc = daemon_apply_auth(d, &auth, o->key_file, err);
	keyring_wipe(&auth.keys);
	return rc < 0 ? rc : changed;
}

int daemon_reload_auth(struct daemon *d, struct err_text *err)
{
	return daemon_renew_auth(d, &d->opts.auth, err);
}

static int daemon_reload_settings(struct daemon *d, struct err_text *err)
{
	struct settings *fresh = NULL;
	const struct daemon_opts *opts;
	struct auth_opts auth_opts = d->opts.auth;
	unsigned n;
	int changed, rc = settings_reread(d->settings, &fresh, err);

	if (rc < 0)
		return rc;
	opts = settings_values(fresh);
	/* All fields of opts->auth other than key_file change only with a restart */
	auth_opts.key_file = opts->auth.key_file;
	changed = daemon_renew_auth(d, &auth_opts, err);
	if (changed < 0) {
		settings_free(fresh);
		return changed;
	}
	n = settings_adopt(d->settings, fresh);
	opts = settings_values(d->settings);
	d->opts.log_level = opts->log_level;
	d->opts.auth.key_file = opts->auth.key_file;
	apply_log_level(&d->opts);
	if (strcmp(d->opts.faults, opts->faults) != 0)
		/* daemon_arm_failpoints cannot fail here, because settings_reread has checked the
		 * text */
		daemon_arm_failpoints(opts->faults, NULL);
	d->opts.faults = opts->faults;
	if (n && d->reload_ops->changed)
		d->reload_ops->changed(d->reload_ctx);
	log_write(LOG_AS(LOG_INFO, RELOADED), "reloaded: settings_changed=%u key=%s", n,
		changed ? "changed" : "unchanged");
	return 0;
}

static void on_hangup_signal(struct daemon *d)
{
	struct err_text err;

	if (!d->settings) {
		log_warn("received signal HUP during the start, reloaded nothing: send the signal "
			 "again");
		return;
	}
	if (d->is_ready)
		notify_reloading();
	if (daemon_reload_settings(d, &err) < 0)
		log_write(LOG_AS(LOG_ERROR, RELOAD_REFUSED),
			"cannot reload, keeping all settings as they are: %s", err.s);
	if (d->is_ready)
		notify_ready(NULL);
}

void daemon_on_reload(
	struct daemon *d, struct settings *s, const struct daemon_reload_ops *ops, void *ctx)
{
	d->settings = s;
	d->reload_ops = ops;
	d->reload_ctx = ctx;
}

/* ---- signals ---- */

static void daemon_fill_signal_set(sigset_t *ret)
{
	sigemptyset(ret);
	sigaddset(ret, SIGTERM);
	sigaddset(ret, SIGINT);
	sigaddset(ret, SIGHUP);
}

static void daemon_request_stop(struct daemon *d)
{
	void (*fn)(void *ctx) = d->stop;

	d->stop = NULL;
	if (fn)
		fn(d->stop_ctx);
	else
		daemon_quit(d, EX_OK);
}

void daemon_on_stop(struct daemon *d, void (*fn)(void *ctx), void *ctx)
{
	d->stop = fn;
	d->stop_ctx = ctx;
}

static void on_daemon_signal(evutil_socket_t fd, short what, void *arg)
{
	struct daemon *d = arg;
	struct signalfd_siginfo si;

	(void)what;
	while (read(fd, &si, sizeof(si)) == sizeof(si)) {
		if (si.ssi_signo == SIGHUP) {
			on_hangup_signal(d);
			continue;
		}
		log_write(LOG_AS(LOG_INFO, STOPPING), "stopping: signal=%s",
			si.ssi_signo == SIGTERM ? "TERM" : "INT");
		daemon_request_stop(d);
	}
}

static int daemon_watch_signals(struct daemon *d, struct err_text *err)
{
	sigset_t set;

	daemon_fill_signal_set(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	d->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (d->signal_fd < 0)
		return err_set(err, -errno, "cannot watch signals: %s", strerror(errno));
	d->signals = event_new(
		loop_base(d->loop), d->signal_fd, EV_READ | EV_PERSIST, on_daemon_signal, d);
	if (!d->signals || event_add(d->signals, NULL) < 0)
		return err_set(err, -ENOMEM, "cannot watch signals: out of memory");
	return 0;
}

/* ---- start and end ---- */

static int daemon_raise_limits(struct err_text *err)
{
	struct err_text text;
	uint64_t files;

	limits_raise();
	files = limits_open_files();
	/* open(2) would fail with EMFILE, too, when the descriptors are used up */
	if (files < LIMIT_FILES_MIN)
		return limits_explain(-EMFILE, "cannot start", err);
	if (files < LIMIT_FILES_WARN) {
		limits_explain(-EMFILE, "few connections and trainers will be accepted", &text);
		log_warn("%s", text.s);
	}
	return 0;
}

static void daemon_check_simd_choice(void)
{
	const char *refused = simd_refused_choice();

	if (refused)
		log_warn("BPS_SIMD='%s' is unknown or not supported on this machine (set BPS_SIMD "
			 "to portable, avx2 or avx512); using '%s' instead",
			refused, simd_name());
}

int daemon_init(
	struct daemon *d, const char *program, const struct daemon_opts *opts, struct err_text *err)
{
	int rc;

	d->started_unix = clock_unix_seconds();
	d->opts = *opts;
	d->signal_fd = -1;
	apply_log_level(opts);
	daemon_check_simd_choice();
	rc = daemon_raise_limits(err);
	if (rc == 0)
		rc = daemon_arm_failpoints(opts->faults, err);
	if (rc < 0)
		return rc;
	rc = auth_load(&d->auth, &opts->auth, err);
	if (rc < 0)
		return rc;
	rc = loop_new(&d->loop, program, 4096, err);
	if (rc < 0)
		return rc;
	rc = daemon_watch_signals(d, err);
	if (rc < 0) {
		daemon_fini(d);
		return rc;
	}
	log_write(LOG_AS(LOG_INFO, START), "starting: program=%s version=%s pid=%d key=%s", program,
		BPS_VERSION, (int)getpid(),
		tls_conf_is_empty(&d->auth) ? "no, loopback only" : "yes");
	return 0;
}

static void on_watchdog_due(evutil_socket_t fd, short what, void *arg)
{
	struct daemon *d = arg;
	struct err_text err;

	(void)fd;
	(void)what;
	if (d->http_ops->probe(d->http_arg, HTTPD_LIVE, &err))
		notify_watchdog();
	else
		log_rated(LOG_AS(LOG_ERROR, STUCK),
			"this process does not report to the service manager's watchdog, so the "
			"service "
			"manager will restart it: %s",
			err.s);
}

static void daemon_write_config_page(void *arg, struct evbuffer *out)
{
	struct daemon *d = arg;
	char *text = NULL;
	size_t n = 0;
	FILE *f = d->settings ? open_memstream(&text, &n) : NULL;

	if (!f)
		return;
	settings_print(d->settings, f);
	if (fclose(f) == 0)
		evbuffer_add(out, text, n);
	free(text);
}

int daemon_start_http_server(
	struct daemon *d, const struct httpd_ops *ops, void *arg, struct err_text *err)
{
	uint64_t us = notify_watchdog_us() / 4;
	struct timeval tv = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
	int rc = httpd_new(&d->http, loop_base(d->loop), &d->opts.http, 0, ops, arg, err);

	if (rc < 0)
		return rc;
	httpd_set_config(d->http, daemon_write_config_page, d);
	httpd_set_names(d->http, d->opts.http_names);
	if (!us)
		return 0;
	d->http_ops = ops;
	d->http_arg = arg;
	d->watchdog = event_new(loop_base(d->loop), -1, EV_PERSIST, on_watchdog_due, d);
	if (!d->watchdog || event_add(d->watchdog, &tv) < 0)
		return err_set(err, -ENOMEM,
			"cannot report to the service manager's watchdog: out of memory");
	return 0;
}

void daemon_http_address(const struct daemon *d, char ret[static ADDR_TEXT_BYTES])
{
	struct addr a = d->opts.http;

	a.port = httpd_port(d->http);
	addr_format(&a, ret);
}

void daemon_report_status_line(struct daemon *d)
{
	char line[DAEMON_LINE_BYTES] = "";

	if (!d->teller)
		return;
	d->line(d->line_ctx, line, sizeof(line));
	if (strcmp(line, d->told) == 0)
		return;
	/* If the manager's socket is full, try again with the next report. */
	if (notify_status(line) == 0)
		memcpy(d->told, line, sizeof(line));
}

static void on_status_report_due(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	daemon_report_status_line(arg);
}

int daemon_start_status_reports(
	struct daemon *d, daemon_line_fn line, void *ctx, struct err_text *err)
{
	const struct timeval tv = {.tv_sec = 1};

	if (!notify_has_manager())
		return 0;
	d->line = line;
	d->line_ctx = ctx;
	line(ctx, d->told, sizeof(d->told));
	notify_ready(d->told);
	d->is_ready = true;
	d->teller = event_new(loop_base(d->loop), -1, EV_PERSIST, on_status_report_due, d);
	if (!d->teller || event_add(d->teller, &tv) < 0)
		return err_set(err, -ENOMEM, "cannot report to the service manager: out of memory");
	return 0;
}

void daemon_announce_ready(struct daemon *d, uint16_t port, const char *status)
{
	int fd = (int)d->opts.ready_fd;

	FAILPOINT(DAEMON_READY);
	log_write(LOG_AS(LOG_INFO, SERVING), "serving: port=%u http=%u %s", port,
		d->http ? httpd_port(d->http) : 0, status);
	if (fd < 0)
		return;
	if (dprintf(fd, "PORT=%u\nHTTP=%u\n", port, d->http ? httpd_port(d->http) : 0) < 0)
		log_warn("cannot write to --ready-fd %d: %s", fd, strerror(errno));
	close(fd);
	d->opts.ready_fd = -1;
}

int daemon_exit_status(int rc)
{
	static const int passing[] = {-EADDRINUSE, -EADDRNOTAVAIL, -EAGAIN, -EBUSY, -ENOSPC,
		-EDQUOT, -EROFS, -EIO, -ENOMEM, -EMFILE, -ENFILE, -ENOBUFS};

	for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
		if (rc == passing[i])
			return EX_TEMPFAIL;
	return EX_CONFIG;
}

int daemon_run(struct daemon *d)
{
	loop_run(d->loop);
	FAILPOINT(DAEMON_STOP);
	notify_stopping();
	return d->exit_status;
}

void daemon_quit(struct daemon *d, int exit_status)
{
	d->exit_status = exit_status;
	loop_quit(d->loop);
}

void daemon_fini(struct daemon *d)
{
	if (d->watchdog)
		event_free(d->watchdog);
	if (d->teller)
		event_free(d->teller);
	httpd_free(d->http);
	if (d->signals)
		event_free(d->signals);
	if (d->loop && d->signal_fd >= 0)
		close(d->signal_fd);
	loop_free(d->loop);
	keyring_wipe(&d->auth.keys);
	d->http = NULL;
	d->signals = d->watchdog = d->teller = NULL;
	d->loop = NULL;
}

int daemon_delay_exit(int exit_status)
{
	const struct timespec pause = {
		.tv_sec = PAUSE_MS / 1000, .tv_nsec = PAUSE_MS % 1000 * 1000000L};
	sigset_t set;

	if (exit_status != EX_TEMPFAIL || !notify_has_manager())
		return exit_status;
	log_info("waiting %d ms before the exit, because the service manager gives up on a "
		 "program that restarts too often",
		PAUSE_MS);
	daemon_fill_signal_set(&set);
	sigdelset(&set, SIGHUP);
	sigtimedwait(&set, NULL, &pause);
	return exit_status;
}

uint64_t daemon_instance(void)
{
	uint64_t v = 0;

	while (v == 0)
		if (getrandom(&v, sizeof(v), 0) != sizeof(v))
			v = 0;
	return v;
}
