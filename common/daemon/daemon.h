#ifndef BPS_COMMON_DAEMON_DAEMON_H
#define BPS_COMMON_DAEMON_DAEMON_H
/* What every daemon's main does alike: log level, cluster key, the control loop on the main thread
 * with its signals, the HTTP server, the service manager, the word "ready".
 *
 * SIGTERM and SIGINT end daemon_run, or ask the program to (daemon_on_stop). SIGHUP reads the
 * settings' files and the key again: whatever is wrong there is logged and nothing changes; else
 * what can change at run time does. The three are blocked from before main on (daemon_begin.c) and
 * read from a descriptor, so that none is lost, none ends a start half-way, and no library's
 * handler runs.
 *
 * --ready-fd N gets "PORT=<port>\nHTTP=<port>\n" once the daemon serves.
 *
 *   daemon_begin ──> settings_load ──> daemon_init ──> daemon_on_reload, daemon_http ──> daemon_tell
 *      ──> daemon_ready, daemon_run ──> daemon_fini ──> daemon_end */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/daemon/auth.h"
#include "common/daemon/httpd.h"
#include "common/daemon/settings.h"
#include "common/loop/loop.h"

/* Settings that all have; the program's options start with this. */
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

/* What a reload changes in the program; on the control loop's thread. Any of them may be NULL. */
struct daemon_reload_ops {
	/* Live settings have new values in the struct that settings_load filled: take them over. */
	void (*changed)(void *ctx);
	/* The key file is another one; what it says is in daemon.auth now. A daemon does not get or
	 * lose its key by a reload. Errors: with a sentence; the former one stays in force. */
	int (*auth_changed)(void *ctx, struct err_text *err);
};

/* What the program does now, in a line for people ("summing: 3 connections, ..."). */
typedef void (*daemon_line_fn)(void *ctx, char *ret, size_t room);
#define DAEMON_LINE_BYTES 256

struct daemon {
	struct daemon_opts opts;
	struct loop *loop; /* the control loop, on the main thread */
	struct httpd *http;
	struct tls_conf auth; /* empty: loopback only */
	int signal_fd;
	struct event *signals, *watchdog, *teller;
	bool is_ready; /* the service manager has been told */
	daemon_line_fn line;
	void *line_ctx;
	char told[DAEMON_LINE_BYTES];
	struct settings *settings; /* of daemon_on_reload */
	const struct daemon_reload_ops *reload_ops;
	void *reload_ctx;
	void (*stop)(void *ctx); /* of daemon_on_stop; NULL once it was called */
	void *stop_ctx;
	const struct httpd_ops *http_ops;
	void *http_arg;
	int exit_status;
	double started_unix; /* seconds */
};

/* First thing in main. Whoever calls it has SIGTERM, SIGINT and SIGHUP blocked from the program's
 * start on, before any library's constructor; crashes have their default action. */
void daemon_begin(void);
/* d: zeroed. Errors: with a sentence; nothing to undo. */
int daemon_init(struct daemon *d, const char *program, const struct daemon_opts *opts,
	struct err_text *err);
/* From now on SIGHUP reloads: s and the struct that it filled, whose first member is the struct
 * daemon_opts of daemon_init. s must outlive d. */
void daemon_on_reload(
	struct daemon *d, struct settings *s, const struct daemon_reload_ops *ops, void *ctx);
/* The first SIGTERM or SIGINT calls fn instead of ending daemon_run: the program has something to
 * put in order, and calls daemon_quit in bounded time. The second one ends it at once. */
void daemon_on_stop(struct daemon *d, void (*fn)(void *ctx), void *ctx);
/* Read the key file again, as SIGHUP does with all. Returns 1 when it has changed, else 0.
 * Errors: with a sentence, nothing has changed. */
int daemon_reload_auth(struct daemon *d, struct err_text *err);
/* Serve HTTP, and feed the service manager's watchdog while ops->probe says HTTPD_LIVE: while every
 * loop of the process makes progress. */
int daemon_http(struct daemon *d, const struct httpd_ops *ops, void *arg, struct err_text *err);
/* The program can be found and does what it can: READY=1 for the service manager, and from now on,
 * each second that it has changed, the line, which `systemctl status` shows. */
int daemon_tell(struct daemon *d, daemon_line_fn line, void *ctx, struct err_text *err);
/* Something has changed: no need to wait for the second. */
void daemon_tell_now(struct daemon *d);
/* It serves: tell whoever reads --ready-fd. port: its main port, 0 when it has none. */
void daemon_ready(struct daemon *d, uint16_t port, const char *status);
/* The exit status for a start that failed with rc: EX_TEMPFAIL (75) for what may pass by itself or
 * is not this daemon's doing (an address in use or not there yet, a full disk, no memory), else
 * EX_CONFIG (78): it fails again until somebody changes something here. */
int daemon_exit_status(int rc);
/* Until a signal or daemon_quit; returns the exit status. */
int daemon_run(struct daemon *d);
/* End daemon_run with this exit status. On the loop's thread. */
void daemon_quit(struct daemon *d, int exit_status);
/* Whatever was built on the loop must be freed before. */
void daemon_fini(struct daemon *d);
/* Last thing in main: what it returns. A service manager starts a daemon again at once, and gives
 * up after so many times (StartLimitBurst=); what may pass by itself (75) must not use these up, so
 * it takes a pause, which SIGTERM and SIGINT end. */
int daemon_end(int exit_status);

/* Random, never 0: the identity of this process. */
uint64_t daemon_instance(void);
/* This machine's name without its domain. */
void daemon_host(char *ret, size_t room);
#endif
