#include "common/daemon.h"

#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/log.h"
#include "common/notify.h"

const char *const daemon_log_levels[] = {"error", "warn", "info", "debug", "trace", NULL};

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
	struct daemon *d = arg;

	(void)what;
	log_info("stopping: signal=%s", sig == SIGTERM ? "TERM" : "INT");
	daemon_quit(d, EX_OK);
}

static struct event *watch_signal(struct daemon *d, int sig)
{
	struct event *ev = evsignal_new(loop_base(d->loop), sig, on_signal, d);

	if (ev)
		event_add(ev, NULL);
	return ev;
}

int daemon_init(
	struct daemon *d, const char *program, const struct daemon_opts *opts, struct err_text *err)
{
	enum log_level level = LOG_INFO;
	int rc;

	d->opts = *opts;
	log_level_parse(daemon_log_levels[opts->log_level], &level);
	log_set_level(level);
	signal(SIGPIPE, SIG_IGN);
	rc = key_load(&d->key, opts->key_file, err);
	if (rc < 0)
		return rc;
	d->has_key = rc > 0;
	rc = loop_new(&d->loop, program, 4096, err);
	if (rc < 0)
		return rc;
	d->term = watch_signal(d, SIGTERM);
	d->intr = watch_signal(d, SIGINT);
	if (!d->term || !d->intr) {
		daemon_fini(d);
		return err_set(err, -ENOMEM, "cannot watch signals: out of memory");
	}
	log_info("starting: program=%s version=%s pid=%d key=%s", program, BPS_VERSION,
		(int)getpid(), d->has_key ? "yes" : "no, loopback only");
	return 0;
}

static void on_watchdog(evutil_socket_t fd, short what, void *arg)
{
	struct daemon *d = arg;
	struct err_text err;

	(void)fd;
	(void)what;
	if (d->http_ops->probe(d->http_arg, HTTPD_LIVE, &err))
		notify_watchdog();
	else
		log_rated(LOG_ERROR, "not feeding the watchdog: %s", err.s);
}

int daemon_http(struct daemon *d, const struct httpd_ops *ops, void *arg, struct err_text *err)
{
	uint64_t us = notify_watchdog_us() / 4;
	struct timeval tv = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
	int rc = httpd_new(&d->http, loop_base(d->loop), &d->opts.http, 0, ops, arg, err);

	if (rc < 0 || !us)
		return rc;
	d->http_ops = ops;
	d->http_arg = arg;
	d->watchdog = event_new(loop_base(d->loop), -1, EV_PERSIST, on_watchdog, d);
	if (!d->watchdog || event_add(d->watchdog, &tv) < 0)
		return err_set(err, -ENOMEM, "cannot feed the watchdog: out of memory");
	return 0;
}

void daemon_ready(struct daemon *d, uint16_t port, const char *status)
{
	int fd = (int)d->opts.ready_fd;

	notify_ready(status);
	log_info("serving: port=%u http=%u %s", port, d->http ? httpd_port(d->http) : 0, status);
	if (fd < 0)
		return;
	if (dprintf(fd, "PORT=%u\nHTTP=%u\n", port, d->http ? httpd_port(d->http) : 0) < 0)
		log_warn("cannot write to --ready-fd %d: %s", fd, strerror(errno));
	close(fd);
	d->opts.ready_fd = -1;
}

int daemon_run(struct daemon *d)
{
	loop_run(d->loop);
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
	httpd_free(d->http);
	if (d->term)
		event_free(d->term);
	if (d->intr)
		event_free(d->intr);
	loop_free(d->loop);
	key_wipe(&d->key);
	d->http = NULL;
	d->term = d->intr = d->watchdog = NULL;
	d->loop = NULL;
}

uint64_t daemon_instance(void)
{
	uint64_t v = 0;

	while (v == 0)
		if (getrandom(&v, sizeof(v), 0) != sizeof(v))
			v = 0;
	return v;
}

void daemon_host(char *ret, size_t room)
{
	if (gethostname(ret, room) < 0)
		snprintf(ret, room, "localhost");
	ret[room - 1] = '\0';
	ret[strcspn(ret, ".")] = '\0';
}
