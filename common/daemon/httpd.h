#ifndef BPS_COMMON_DAEMON_HTTPD_H
#define BPS_COMMON_DAEMON_HTTPD_H
/* The HTTP server of every daemon. A request cannot change the daemon. The server answers GET and
 * HEAD of
 *   /metrics                    Prometheus text
 *   /healthz /livez /readyz     200 with "ok" or a notice, or 503 with the reason
 *   /status                     JSON; may be answered later, within a deadline
 *   /config                     the settings in force, as text
 * Other paths get 404 with the list of these paths, and other methods get 405. Requests whose Host
 * field does not name this daemon (http_host.h) get 421. There is no authentication. So the server
 * listens on a loopback address unless the setting http names another address.
 *
 * Limits: 8 KiB of headers, 4 KiB of body, 5 s without a byte from the client, 64 connections. At
 * the limit of connections, a new connection replaces the oldest connection. So silent connections
 * cannot exclude a monitoring system.
 *
 * Thread: the event loop's. httpd_new makes the process ignore SIGPIPE. */
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "common/base/addr.h"
#include "common/base/error.h"

struct event_base;
struct evbuffer;
struct httpd;
struct httpd_request;

#define HTTPD_MAX_CONNECTIONS 64

enum httpd_probe {
	HTTPD_HEALTH, /* /healthz: whether the daemon has no problem */
	HTTPD_LIVE,   /* /livez: whether all loops make progress; if not, a restart is needed */
	HTTPD_READY,  /* /readyz: whether the daemon can do its work */
};

/* Functions that write the pages. If a function is NULL, the server answers requests for the pages
 * of that function with 404. */
struct httpd_ops {
	void (*metrics)(void *arg, struct evbuffer *out);
	/* Return whether the probe succeeds. If the probe fails, err gets the reason. If the probe
	 * succeeds, err stays empty or gets a notice for the answer. */
	bool (*probe)(void *arg, enum httpd_probe probe, struct err_text *err);
	/* Call httpd_reply_and_free exactly once, inside this callback or later. At the deadline
	 * the server answers the client with 503. After the deadline httpd_reply_and_free must
	 * still be called, but the answer is discarded. */
	void (*status)(void *arg, struct httpd_request *req);
};

/* Start a server on addr. status_timeout_ms: time for the answer of ops->status. The value 0 stands
 * for 1500 ms, which is less than the 2 s that bpsctl waits. ops must outlive the server.
 * Returns 0, or -errno with a text in err. */
int httpd_new(struct httpd **ret_httpd, struct event_base *base, const struct addr *addr,
	uint32_t status_timeout_ms, const struct httpd_ops *ops, void *arg, struct err_text *err);

/* Add the page /config. `config` writes the content of the page. */
void httpd_set_config(struct httpd *h, void (*config)(void *arg, struct evbuffer *out), void *arg);

/* Also accept requests whose Host field is one of the names in the list `names`. Blanks or commas
 * separate the names. The string must live as long as the server. Call this function before the
 * loop runs. */
void httpd_set_names(struct httpd *h, const char *names);

/* Return the bound port, also when port 0 was requested. */
uint16_t httpd_port(const struct httpd *h);

/* Answer a status request and free the request. code: HTTP status, usually 200. root: JSON document
 * of the answer; NULL: the answer has status 500.
 * Owns: takes the reference to root. */
void httpd_reply_and_free(struct httpd_request *req, int code, json_t *root);

/* Answer a status request with a file that holds a JSON document, and free the request. fd: the
 * file, which the function closes. */
void httpd_reply_file_and_free(struct httpd_request *req, int fd);

/* Return the argument of the server's functions, as in httpd_new. */
void *httpd_request_arg(const struct httpd_request *req);

/* Copy the value of a query parameter of a status request to buf. name: the name of the parameter.
 * For example, in /status?verbose=1 the parameter "verbose" has the value "1". Returns false if the
 * parameter is missing or its value does not fit into buf. Also returns false if the client has
 * closed the connection or has received a 503. */
bool httpd_read_query_parameter(
	const struct httpd_request *req, const char *name, char *buf, size_t n_buf);

/* Close all connections and free the server. Status requests without an answer are freed as well,
 * so do not call httpd_reply_and_free for them afterwards. Do not call this function from inside a
 * callback. NULL is allowed. */
void httpd_free(struct httpd *h);
#endif
