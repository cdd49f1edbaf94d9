#ifndef BPS_COMMON_DAEMON_DAEMON_H
#define BPS_COMMON_DAEMON_DAEMON_H
/* The common parts of every daemon's main function: log level, cluster key, the control loop on the
 * main thread, signals, the HTTP server, messages to the service manager, and the report that the
 * daemon is ready.
 *
 * SIGTERM and SIGINT end daemon_run, or call the program's stop function (daemon_on_stop). SIGHUP
 * makes the daemon read the settings files and the key again. If a file or the key has an error,
 * the daemon logs the error and changes nothing. Otherwise the settings that can change at run time
 * take their new values. The three signals are blocked before main (daemon_begin.c), and the
 * control loop reads them from a signalfd. So no signal is lost, no signal interrupts the start,
 * and no signal handler of a library runs.
 *
 * When the daemon is ready, it writes "PORT=<port>\nHTTP=<port>\n" to the descriptor of --ready-fd.
 *
 *   daemon_begin ──> settings_load ──> daemon_init ──> daemon_on_reload, daemon_start_http_server
 *      ──> daemon_start_status_reports ──> daemon_announce_ready, daemon_run ──> daemon_fini
 *      ──> daemon_delay_exit */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/daemon/auth.h"
#include "common/daemon/httpd.h"
#include "common/daemon/settings.h"
#include "common/loop/loop.h"

/* Settings that all daemons have. Each program's struct of options has this struct as its first
 * member. */
struct daemon_opts {
	struct auth_opts auth;
	struct addr http;
	const char *http_names; /* argument of httpd_set_names */
	unsigned log_level;     /* index into daemon_log_levels */
	int64_t ready_fd;       /* descriptor for the PORT= and HTTP= lines, or -1 */
	const char *faults;     /* argument of failpoint_set */
};
extern const char *const daemon_log_levels[];
/* Rows of the settings table for a struct whose first member is struct daemon_opts. */
#define DAEMON_SETTINGS(http_default)                                                              \
	AUTH_SETTINGS(struct daemon_opts, auth,                                                    \
		"file with the cluster key; without a key only loopback addresses are used"),      \
		{"http", SET_ADDR, SETTING_AT(struct daemon_opts, http), .def = http_default,      \
			.help = "address of /metrics, /healthz and /status"},                      \
		{"http-names", SET_STRING, SETTING_AT(struct daemon_opts, http_names), .def = "",  \
			.max = 4096,                                                               \
			.help = "more host names that HTTP clients may use for this daemon"},      \
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
	/* Called when settings that may change at run time have new values. The struct that
	 * settings_load filled has the new values, and the callback must apply them. */
	void (*changed)(void *ctx);
	/* Called when the key file or a certificate has changed. daemon.auth has the new
	 * credentials. The callback must apply them. A reload cannot add the first key or remove
	 * the last key.
	 * Errors: a negative code; err gets the text, and the old credentials stay in force. */
	int (*auth_changed)(void *ctx, struct err_text *err);
};

/* Write one human-readable line that describes what the program does now ("summing: 3 connections,
 * ..."). */
typedef void (*daemon_line_fn)(void *ctx, char *ret, size_t room);
#define DAEMON_LINE_BYTES 256

struct daemon {
	struct daemon_opts opts;
	struct loop *loop; /* the control loop, on the main thread */
	struct httpd *http;
	struct tls_conf auth; /* credentials; without them only loopback addresses work */
	int signal_fd;
	struct event *signals, *watchdog, *teller;
	bool is_ready; /* true after READY=1 was sent to the service manager */
	daemon_line_fn line;
	void *line_ctx;
	char told[DAEMON_LINE_BYTES];
	struct settings *settings; /* set by daemon_on_reload */
	const struct daemon_reload_ops *reload_ops;
	void *reload_ctx;
	void (*stop)(void *ctx); /* set by daemon_on_stop; set to NULL after the call of stop() */
	void *stop_ctx;
	const struct httpd_ops *http_ops;
	void *http_arg;
	int exit_status;
	double started_unix; /* start time, in seconds since 1970 */
};

/* Call this function first in main. The function ignores SIGPIPE, and restores the default action
 * of the signals that a crash raises, such as SIGSEGV. In a program that links daemon_begin.c,
 * SIGTERM, SIGINT and SIGHUP are blocked before the constructor of any library runs. */
void daemon_begin(void);
/* Initialize d, which must be zeroed.
 * Errors: a negative code; err gets the text. After an error the caller has nothing to undo. */
int daemon_init(struct daemon *d, const char *program, const struct daemon_opts *opts,
	struct err_text *err);
/* Make SIGHUP reload the settings s. settings_load has made s and filled the program's struct of
 * options. That struct of options must begin with a struct daemon_opts. s must outlive d. */
void daemon_on_reload(
	struct daemon *d, struct settings *s, const struct daemon_reload_ops *ops, void *ctx);
/* Make daemon_run call fn, instead of ending, at the first SIGTERM or SIGINT. fn must clean up and
 * call daemon_quit within a limited time. A second signal ends daemon_run at once. */
void daemon_on_stop(struct daemon *d, void (*fn)(void *ctx), void *ctx);
/* Read the credentials again and apply them, as SIGHUP does, but do not reload the other settings.
 * Returns 1 when the credentials have changed, else 0.
 * Errors: a negative code; err gets the text, and the old credentials stay. */
int daemon_reload_auth(struct daemon *d, struct err_text *err);
/* Start the HTTP server. Also send WATCHDOG=1 to the service manager while ops->probe returns true
 * for HTTPD_LIVE. The result true means that every loop of the process makes progress. */
int daemon_start_http_server(
	struct daemon *d, const struct httpd_ops *ops, void *arg, struct err_text *err);
/* Write the address of the HTTP server, such as "127.0.0.1:7304". */
void daemon_http_address(const struct daemon *d, char ret[static ADDR_TEXT_BYTES]);
/* Report to the service manager that the program is ready (READY=1). From then on call `line` each
 * second, and send the line when it has changed. `systemctl status` shows the line. */
int daemon_start_status_reports(
	struct daemon *d, daemon_line_fn line, void *ctx, struct err_text *err);
/* Send the line of daemon_start_status_reports now, if it has changed. */
void daemon_report_status_line(struct daemon *d);
/* Log that the program is ready to serve, and write its ports to the descriptor of --ready-fd.
 * port: the program's main port, or 0 if the program has none.
 * status: text for the end of the log line. */
void daemon_announce_ready(struct daemon *d, uint16_t port, const char *status);
/* Return the exit status for a start that failed with rc. EX_TEMPFAIL (75): a later start may
 * succeed without a change of the configuration. Examples are an address that is in use or does not
 * exist yet, a full disk, and a lack of memory. EX_CONFIG (78): every start fails until the
 * configuration changes. */
int daemon_exit_status(int rc);
/* Run the control loop until a signal or daemon_quit. Returns the exit status. */
int daemon_run(struct daemon *d);
/* Make daemon_run return this exit status. Thread: the loop's. */
void daemon_quit(struct daemon *d, int exit_status);
/* Free d. All objects on its loop must already have been freed. */
void daemon_fini(struct daemon *d);
/* Call this function last in main, and return its result. A service manager restarts a daemon at
 * once, but only StartLimitBurst= times in StartLimitIntervalSec=. Starts that end with exit status
 * 75 must not reach this limit. So for status 75 the function waits before it returns. SIGTERM and
 * SIGINT end the wait. */
int daemon_delay_exit(int exit_status);

/* Make a random instance number for this process, never 0. */
uint64_t daemon_instance(void);
#endif
