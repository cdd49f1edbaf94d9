#ifndef BPS_COMMON_DAEMON_HTTPD_H
#define BPS_COMMON_DAEMON_HTTPD_H
/* The HTTP side of every daemon, which only reads: GET and HEAD of
 *   /metrics                    Prometheus text
 *   /healthz /livez /readyz     200 "ok" or what to know, or 503 with the reason
 *   /status                     JSON; may be answered later, within a deadline
 *   /config                     the settings in force, as text
 * All else is 404, other methods are 405, and requests to a host that is not this daemon
 * (http_host.h) are 421. No authentication: loopback unless told otherwise.
 *
 * Bounded: 8 KiB of headers, 4 KiB of body, 5 s of silence, 64 connections, of which the oldest
 * gives way to a new one (a full house of silent connections must not keep a scrape out).
 *
 * Thread: that of the event loop. SIGPIPE is ignored in the process from the first server on. */
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
	HTTPD_HEALTH, /* /healthz: all is well */
	HTTPD_LIVE,   /* /livez: a restart would not help */
	HTTPD_READY,  /* /readyz: it serves */
};

/* Each may be NULL: then its paths are 404. */
struct httpd_ops {
	void (*metrics)(void *arg, struct evbuffer *out);
	/* False with the reason in err; true, and err empty or what to know all the same. */
	bool (*probe)(void *arg, enum httpd_probe probe, struct err_text *err);
	/* Answer with httpd_answer exactly once, now or later. Past the deadline the client has got
	 * a 503, and the answer is dropped; it must be given all the same. */
	void (*status)(void *arg, struct httpd_request *req);
};

/* status_timeout_ms: 0 means 1500 (bpsctl promises an answer in 2 s). ops must outlive the server.
 * Errors: -errno with a sentence. */
int httpd_new(struct httpd **ret_httpd, struct event_base *base, const struct addr *addr,
	uint32_t status_timeout_ms, const struct httpd_ops *ops, void *arg, struct err_text *err);

/* Add the page /config. */
void httpd_set_config(struct httpd *h, void (*config)(void *arg, struct evbuffer *out), void *arg);

/* Answer requests to these hosts, too: names separated by blanks or commas, lent for the server's
 * life. Before the loop runs. */
void httpd_set_names(struct httpd *h, const char *names);

/* The bound port, also when 0 was asked for. */
uint16_t httpd_port(const struct httpd *h);

/* Answer a status request and free it. Owns: takes root (a json_t reference); NULL answers 500.
 * code: the HTTP status, 200 as a rule. */
void httpd_answer(struct httpd_request *req, int code, json_t *root);

/* A query parameter of a status request ("verbose" in /status?verbose=1) into buf.
 * Returns false when it is not there or too long, or when the client has gone. */
bool httpd_query(const struct httpd_request *req, const char *name, char *buf, size_t n_buf);

/* Close all connections. Requests that wait for their answer are freed: no httpd_answer afterwards.
 * Not from inside a callback. NULL is allowed. */
void httpd_free(struct httpd *h);
#endif
