#ifndef BPS_COMMON_DAEMON_DAEMON_H
#define BPS_COMMON_DAEMON_DAEMON_H
/* The common parts of every daemon's main: log level, cluster key, the control loop on the main
 * thread with its signals, the HTTP server, the service manager, and the report that it is ready.
 *
 * SIGTERM and SIGINT end daemon_run, or call the program's stop function (daemon_on_stop). SIGHUP
 * reads the settings files and the key again. An error in them is logged and nothing changes; else
 * the settings that can change at run time do. The three signals are blocked before main
 * (daemon_begin.c) and read from a descriptor. So none is lost, none interrupts a start, and no
 * library's handler runs.
 *
 * --ready-fd N receives "PORT=<port>\nHTTP=<port>\n" once the daemon serves.
 *
 *   daemon_begin ──> settings_load ──> daemon_init ──> daemon_on_reload, daemon_http ──>
 * daemon_tell
 *      ──> daemon_ready, daemon_run ──> daemon_fini ──> daemon_end */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/daemon/auth.h"
#include "common/daemon/httpd.h"
#include "common/daemon/settings.h"
#include "common/loop/loop.h"

/* Settings of all daemons; the program's options start with this. */
struct daemon_opts {
	struct auth_opts auth;
	struct addr http;
	const char *http_names; /* for httpd_set_names */
	unsigned log_level;     /* index into daemon_log_levels */
	int64_t ready_fd;       /* -1: none */
	const char *faults;     /* for failpoint_set */
};
extern const char *const daemon_log_levels[];
/* Rows of the settings table for a struct whose first member is struct daemon_opts. */
#define DAEMON_SETTINGS(http_default)                                                              \
	AUTH_SETTINGS(struct daemon_opts, auth,                                                    \
		"cluster key; without one only loopback addresses are used"),                      \
		{"http", SET_ADDR, SETTING_AT(struct daemon_opts, http), .def = http_default,      \
			.help = "address of /metrics, /healthz and /status"},                      \
		{"http-names", SET_STRING, SETTING_AT(struct daemon_opts, http_names), .def = "",  \
			.max = 4096,                                                               \
			.help = "more names by which HTTP clients may call this daemon"},          \
		{"log-level", SET_ENUM, SETTING_AT(struct daemon_opts, log_level), .def = "info",  \
			.words = daemon_log_levels, .is_live = true,                               \
			.help = "least urgent messages that are logged"},                          \
		{"ready-fd", SET_INT, SETTING_AT(struct daemon_opts, ready_fd), .def = "-1",       \
			.min = -1, .max = 1 << 20,                                                 \
			.help = "descriptor that gets PORT= and HTTP= lines once the daemon "      \
				"serves"},                                                         \
	{                                                                                          \
		"faults", SET_FAULTS, SETTING_AT(struct daemon_opts, faults),                      \
			.def = "", .is_live = true,                                                \
			.help = "faults to inject, for tests: POINT=ACTION words, see "            \
				"--failpoints"                                                     \
	}

/* Callbacks of a reload, on the control loop's thread. Each may be NULL. */
struct daemon_reload_ops {
	/* Live settings have new values in the struct that settings_load filled: apply them. */
	void (*changed)(void *ctx);
	/* The key file has changed; daemon.auth has its content. A reload cannot add a first key or
	 * remove the last.
	 * Errors: with a sentence; the old key stays in force. */
	int (*auth_changed)(void *ctx, struct err_text *err);
};

/* Write what the program does now as a line for people ("summing: 3 connections, ..."). */
typedef void (*daemon_line_fn)(void *ctx, char *ret, size_t room);
#define DAEMON_LINE_BYTES 256

struct daemon {
	struct daemon_opts opts;
	struct loop *loop; /* the control loop, on the main thread */
	struct httpd *http;
	struct tls_conf auth; /* empty: loopback only */
	int signal_fd;
	struct event *signals, *watchdog, *teller;
	bool is_ready; /* READY=1 was sent to the service manager */
	daemon_line_fn line;
	void *line_ctx;
	char told[DAEMON_LINE_BYTES];
	struct settings *settings; /* given to daemon_on_reload */
	const struct daemon_reload_ops *reload_ops;
	void *reload_ctx;
	void (*stop)(void *ctx); /* given to daemon_on_stop; NULL after its call */
	void *stop_ctx;
	const struct httpd_ops *http_ops;
	void *http_arg;
	int exit_status;
	double started_unix; /* start time, seconds */
};

/* Call this first in main. Linking it blocks SIGTERM, SIGINT and SIGHUP from program start, before
 * any library's constructor. Crashes get their default action. */
void daemon_begin(void);
/* Initialize d, which must be zeroed.
 * Errors: with a sentence; nothing to undo. */
int daemon_init(struct daemon *d, const char *program, const struct daemon_opts *opts,
	struct err_text *err);
/* Let SIGHUP reload s and the struct that it filled, which begins with the struct daemon_opts of
 * daemon_init. s must outlive d. */
void daemon_on_reload(
	struct daemon *d, struct settings *s, const struct daemon_reload_ops *ops, void *ctx);
/* Make the first SIGTERM or SIGINT call fn instead of ending daemon_run. fn cleans up and calls
 * daemon_quit in bounded time. A second signal ends daemon_run at once. */
void daemon_on_stop(struct daemon *d, void (*fn)(void *ctx), void *ctx);
/* Read only the key file again, like SIGHUP. Returns 1 when it has changed, else 0.
 * Errors: with a sentence, nothing has changed. */
int daemon_reload_auth(struct daemon *d, struct err_text *err);
/* Serve HTTP, and feed the service manager's watchdog while ops->probe returns true for HTTPD_LIVE:
 * while every loop of the process makes progress. */
int daemon_http(struct daemon *d, const struct httpd_ops *ops, void *arg, struct err_text *err);
/* Report that the program is reachable and works: READY=1 for the service manager. From then on
 * send the line once a second when it has changed; `systemctl status` shows it. */
int daemon_tell(struct daemon *d, daemon_line_fn line, void *ctx, struct err_text *err);
/* Send the line now, without waiting for the second. */
void daemon_tell_now(struct daemon *d);
/* Report to --ready-fd that the program serves. port: its main port, 0 when it has none. */
void daemon_ready(struct daemon *d, uint16_t port, const char *status);
/* Return the exit status for a start that failed with rc. EX_TEMPFAIL (75): the cause may pass by
 * itself or lies outside this daemon (an address in use or not there yet, a full disk, no memory).
 * Else EX_CONFIG (78): a start fails again until its configuration changes. */
int daemon_exit_status(int rc);
/* Run until a signal or daemon_quit; returns the exit status. */
int daemon_run(struct daemon *d);
/* End daemon_run with this exit status. On the loop's thread. */
void daemon_quit(struct daemon *d, int exit_status);
/* Free d. All objects on its loop must be freed before. */
void daemon_fini(struct daemon *d);
/* Call this last in main, which returns its result. A service manager restarts a daemon at once,
 * and gives up after StartLimitBurst= starts. A cause that may pass by itself (75) must not use
 * these up, so this pauses; SIGTERM and SIGINT end the pause. */
int daemon_end(int exit_status);

/* Return the identity of this process: random, never 0. */
uint64_t daemon_instance(void);
/* Write this machine's name without its domain. */
void daemon_host(char *ret, size_t room);
#endif
