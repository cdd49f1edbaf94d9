/* The daemons' HTTP server: read-only pages over libevent, with limits for connections and for
 * waiting status requests. The functions of httpd_ops write the pages. Thread: the loop's. */
#include "common/daemon/httpd.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/daemon/http_host.h"

#define MAX_HEADER_BYTES  8192
#define MAX_BODY_BYTES    4096
#define SILENCE_S         5
#define STATUS_TIMEOUT_MS 1500
#define ACCEPT_PAUSE_S    1
#define LISTEN_BACKLOG    64

#define HTTP_MISDIRECTED 421

#define TEXT_TYPE    "text/plain; charset=utf-8"
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define JSON_TYPE    "application/json"

#define ALL_METHODS                                                                                \
	(EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | \
		EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH)

/* Status request that waits for its answer. req is NULL after the client has closed the connection
 * or has received a 503. */
struct httpd_request {
	LIST_ENTRY(httpd_request) link;
	struct httpd *httpd;
	struct evhttp_request *req;
	struct event *deadline;
};

LIST_HEAD(request_list, httpd_request);

/* Connection, identified by its descriptor and the socket's SO_COOKIE. evhttp does not report the
 * end of a connection. After the end of a connection, another socket may get the same descriptor.
 * The cookie shows whether the descriptor still belongs to the same socket. */
struct http_connection {
	/* Bufferevent of the connection. learn_descriptor sets fd, drops the reference to bev, and
	 * sets bev to NULL. */
	struct bufferevent *bev;
	struct event *learn;
	evutil_socket_t fd;
	uint64_t cookie;
};

struct httpd {
	struct event_base *base;
	struct evhttp *http;
	struct evconnlistener *listener; /* listening socket, owned by http */
	/* Timer that fires each second, and starts the listener again after a failed accept */
	struct event *resume;
	const struct httpd_ops *ops;
	void *arg;
	void (*config)(void *arg, struct evbuffer *out);
	void *config_arg;
	struct addr addr;  /* listening address */
	const char *names; /* allowed host names, set by httpd_set_names */
	uint32_t status_timeout_ms;
	struct request_list waiting;
	/* Ring of the most recent connections. The element at next_seen is the oldest */
	struct http_connection seen[HTTPD_MAX_CONNECTIONS];
	size_t next_seen;
};

/* --- number of connections -------------------------------------------------------------------- */

static int socket_read_cookie(evutil_socket_t fd, uint64_t *ret_cookie)
{
	socklen_t len = sizeof(*ret_cookie);

	return getsockopt(fd, SOL_SOCKET, SO_COOKIE, ret_cookie, &len) ? -errno : 0;
}

static void learn_descriptor(evutil_socket_t fd, short what, void *arg)
{
	struct http_connection *s = arg;

	(void)fd;
	(void)what;
	s->fd = bufferevent_getfd(s->bev);
	if (s->fd >= 0 && socket_read_cookie(s->fd, &s->cookie))
		s->fd = -1;
	bufferevent_decref(s->bev);
	s->bev = NULL;
}

/* Shut down a connection's socket if it is still open. evhttp then reads the end of the stream and
 * frees the connection. */
static void http_connection_shutdown(struct http_connection *s)
{
	uint64_t cookie;

	if (s->bev) {
		event_del(s->learn);
		learn_descriptor(-1, 0, s);
	}
	if (s->fd >= 0 && socket_read_cookie(s->fd, &cookie) == 0 && cookie == s->cookie)
		shutdown(s->fd, SHUT_RDWR);
	s->fd = -1;
}

/* Callback of evhttp for a new connection. evhttp sets the descriptor in the bufferevent only after
 * this callback. So learn_descriptor reads the descriptor in the next iteration of the event
 * loop. */
static struct bufferevent *on_http_connection(struct event_base *base, void *arg)
{
	struct httpd *h = arg;
	struct http_connection *s = &h->seen[h->next_seen];
	struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);

	if (!bev)
		return NULL;
	h->next_seen = (h->next_seen + 1) % HTTPD_MAX_CONNECTIONS;
	http_connection_shutdown(s);
	s->bev = bev;
	bufferevent_incref(bev);
	event_active(s->learn, EV_TIMEOUT, 0);
	return bev;
}

/* Stop the listener after a failed accept. `arg` belongs to evhttp, and this function cannot get
 * the struct httpd from it. So the function cannot start a timer of that struct. Instead, the
 * periodic timer `resume` starts the listener again. */
static void on_http_accept_error(struct evconnlistener *listener, void *arg)
{
	(void)arg;
	log_rated(LOG_WARN, "HTTP server: cannot accept connections, pausing for a second: %s",
		strerror(EVUTIL_SOCKET_ERROR()));
	evconnlistener_disable(listener);
}

static void on_http_resume_due(evutil_socket_t fd, short what, void *arg)
{
	struct httpd *h = arg;

	(void)fd;
	(void)what;
	evconnlistener_enable(h->listener);
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Send the content of `out` as the answer. out: NULL when the caller could not allocate the
 * buffer. */
static void http_reply_buffer(
	struct evhttp_request *req, int code, const char *type, struct evbuffer *out)
{
	struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
	char length[24];

	evhttp_add_header(headers, "Content-Type", type);
	evhttp_add_header(headers, "Cache-Control", "no-store");
	if (out && evhttp_request_get_command(req) == EVHTTP_REQ_HEAD) {
		snprintf(length, sizeof(length), "%zu", evbuffer_get_length(out));
		evhttp_add_header(headers, "Content-Length", length);
		evbuffer_drain(out, evbuffer_get_length(out));
	}
	evhttp_send_reply(req, code, NULL, out);
}

static void http_reply_text(struct evhttp_request *req, int code, const char *text)
{
	struct evbuffer *out = evbuffer_new();

	if (out)
		evbuffer_add_printf(out, "%s\n", text);
	http_reply_buffer(req, code, TEXT_TYPE, out);
	if (out)
		evbuffer_free(out);
}

static void http_reply_json(struct evhttp_request *req, int code, const json_t *root)
{
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	struct evbuffer *out = text ? evbuffer_new() : NULL;

	if (out) {
		evbuffer_add_printf(out, "%s\n", text);
		http_reply_buffer(req, code, JSON_TYPE, out);
		evbuffer_free(out);
	} else {
		http_reply_text(req, HTTP_INTERNAL, "cannot create the answer");
	}
	free(text);
}

static void http_reply_page(struct evhttp_request *req, const char *type,
	void (*page)(void *arg, struct evbuffer *out), void *arg)
{
	struct evbuffer *out = evbuffer_new();

	if (!out) {
		http_reply_text(req, HTTP_INTERNAL, "out of memory");
		return;
	}
	page(arg, out);
	http_reply_buffer(req, HTTP_OK, type, out);
	evbuffer_free(out);
}

static void http_reply_probe(struct httpd *h, struct evhttp_request *req, enum httpd_probe probe)
{
	struct err_text err = {""};

	if (h->ops->probe(h->arg, probe, &err))
		http_reply_text(req, HTTP_OK, *err.s ? err.s : "ok");
	else
		http_reply_text(req, HTTP_SERVUNAVAIL, err.s);
}

/* --- status ----------------------------------------------------------------------------------- */

/* Separate r from evhttp's request. evhttp frees its request after the answer, or when the
 * connection closes. Returns evhttp's request, or NULL when r was already separated. */
static struct evhttp_request *http_request_detach(struct httpd_request *r)
{
	struct evhttp_request *req = r->req;

	r->req = NULL;
	evtimer_del(r->deadline);
	if (req)
		evhttp_connection_set_closecb(evhttp_request_get_connection(req), NULL, NULL);
	return req;
}

static void on_client_gone(struct evhttp_connection *conn, void *arg)
{
	struct httpd_request *r = arg;

	(void)conn;
	r->req = NULL;
	evtimer_del(r->deadline);
}

static void on_http_request_deadline(evutil_socket_t fd, short what, void *arg)
{
	struct httpd_request *r = arg;
	json_t *root = json_pack("{s:s, s:i}", "error", "no answer in time", "timeout_ms",
		(int)r->httpd->status_timeout_ms);

	(void)fd;
	(void)what;
	http_reply_json(http_request_detach(r), HTTP_SERVUNAVAIL, root);
	json_decref(root);
}

static void http_request_free(struct httpd_request *r)
{
	LIST_REMOVE(r, link);
	event_free(r->deadline);
	free(r);
}

static void http_start_status_request(struct httpd *h, struct evhttp_request *req)
{
	struct timeval tv = {.tv_sec = h->status_timeout_ms / 1000,
		.tv_usec = (h->status_timeout_ms % 1000) * 1000};
	struct httpd_request *r = calloc(1, sizeof(*r));

	if (r)
		r->deadline = evtimer_new(h->base, on_http_request_deadline, r);
	if (!r || !r->deadline) {
		free(r);
		http_reply_text(req, HTTP_INTERNAL, "out of memory");
		return;
	}
	r->httpd = h;
	r->req = req;
	LIST_INSERT_HEAD(&h->waiting, r, link);
	evtimer_add(r->deadline, &tv);
	evhttp_connection_set_closecb(evhttp_request_get_connection(req), on_client_gone, r);
	h->ops->status(h->arg, r);
}

void httpd_reply_and_free(struct httpd_request *r, int code, json_t *root)
{
	struct evhttp_request *req = http_request_detach(r);

	if (req)
		http_reply_json(req, code, root);
	json_decref(root);
	http_request_free(r);
}

void *httpd_request_arg(const struct httpd_request *r)
{
	return r->httpd->arg;
}

void httpd_reply_file_and_free(struct httpd_request *r, int fd)
{
	struct evhttp_request *req = http_request_detach(r);
	struct evbuffer *body = req ? evbuffer_new() : NULL;
	struct stat st;

	/* evbuffer_add_file closes the descriptor when the body has been sent */
	if (body && fstat(fd, &st) == 0 && evbuffer_add_file(body, fd, 0, st.st_size) == 0) {
		fd = -1;
		evhttp_add_header(
			evhttp_request_get_output_headers(req), "Content-Type", JSON_TYPE);
		evhttp_send_reply(req, HTTP_OK, NULL, body);
	} else if (req) {
		http_reply_json(req, HTTP_INTERNAL, NULL);
	}
	if (fd >= 0)
		close(fd);
	if (body)
		evbuffer_free(body);
	http_request_free(r);
}

bool httpd_read_query_parameter(
	const struct httpd_request *r, const char *name, char *buf, size_t n_buf)
{
	struct evkeyvalq params;
	const char *query, *value;
	bool fits;

	query = r->req ? evhttp_uri_get_query(evhttp_request_get_evhttp_uri(r->req)) : NULL;
	if (!query || evhttp_parse_query_str(query, &params))
		return false;
	value = evhttp_find_header(&params, name);
	fits = value && strlen(value) < n_buf;
	if (fits)
		memcpy(buf, value, strlen(value) + 1);
	evhttp_clear_headers(&params);
	return fits;
}

/* --- routes ----------------------------------------------------------------------------------- */

/* Return whether the Host of the request names this daemon. Also return true for a request without
 * a Host: it cannot be an attack by DNS rebinding (http_host.h), because browsers always send a
 * Host. */
static bool http_request_has_own_host(const struct httpd *h, struct evhttp_request *req)
{
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
	const char *hosts[] = {evhttp_find_header(evhttp_request_get_input_headers(req), "Host"),
		uri ? evhttp_uri_get_host(uri) : NULL};
	struct bufferevent *bev =
		evhttp_connection_get_bufferevent(evhttp_request_get_connection(req));
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	bool has_local = getsockname(bufferevent_getfd(bev), (struct sockaddr *)&sa, &len) == 0;

	for (unsigned i = 0; i < 2; i++)
		if (hosts[i] && !http_host_is_ours(hosts[i], &h->addr,
					has_local ? (struct sockaddr *)&sa : NULL, h->names))
			return false;
	return true;
}

static const char *const probe_paths[] = {
	[HTTPD_HEALTH] = "/healthz", [HTTPD_LIVE] = "/livez", [HTTPD_READY] = "/readyz"};

/* Answer a request for an unknown path with the paths that exist. */
static void http_reply_unknown_path(const struct httpd *h, struct evhttp_request *req)
{
	char text[160];
	int n = snprintf(text, sizeof(text), "no such page; this daemon has%s%s%s",
		h->ops->metrics ? " /metrics" : "", h->ops->status ? " /status" : "",
		h->config ? " /config" : "");

	for (unsigned i = 0; h->ops->probe && i < 3; i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", probe_paths[i]);
	http_reply_text(req, HTTP_NOTFOUND, text);
}

static void on_http_request(struct evhttp_request *req, void *arg)
{
	struct httpd *h = arg;
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
	enum evhttp_cmd_type method = evhttp_request_get_command(req);

	FAILPOINT(DAEMON_HTTP);
	if (!http_request_has_own_host(h, req)) {
		http_reply_text(req, HTTP_MISDIRECTED,
			"the Host header of this request does not name this daemon: use its "
			"address, or add the name to its setting http-names");
		return;
	}
	if (method != EVHTTP_REQ_GET && method != EVHTTP_REQ_HEAD) {
		evhttp_add_header(evhttp_request_get_output_headers(req), "Allow", "GET, HEAD");
		http_reply_text(req, HTTP_BADMETHOD, "only GET and HEAD are allowed");
		return;
	}
	if (path && h->ops->metrics && strcmp(path, "/metrics") == 0) {
		http_reply_page(req, METRICS_TYPE, h->ops->metrics, h->arg);
		return;
	}
	if (path && h->ops->status && strcmp(path, "/status") == 0) {
		http_start_status_request(h, req);
		return;
	}
	if (path && h->config && strcmp(path, "/config") == 0) {
		http_reply_page(req, TEXT_TYPE, h->config, h->config_arg);
		return;
	}
	for (unsigned i = 0; path && h->ops->probe && i < 3; i++) {
		if (strcmp(path, probe_paths[i]) == 0) {
			http_reply_probe(h, req, (enum httpd_probe)i);
			return;
		}
	}
	http_reply_unknown_path(h, req);
}

/* --- life ------------------------------------------------------------------------------------- */

static int httpd_bind_listener(struct httpd *h, const struct addr *addr, struct err_text *err)
{
	unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
	struct sockaddr_storage sa;
	socklen_t sa_len;
	struct timeval pause = {.tv_sec = ACCEPT_PAUSE_S};
	char text[ADDR_TEXT_BYTES];
	int rc = addr_resolve_host(addr, &sa, &sa_len, err);

	if (rc)
		return rc;
	h->listener = evconnlistener_new_bind(
		h->base, NULL, NULL, flags, LISTEN_BACKLOG, (struct sockaddr *)&sa, (int)sa_len);
	if (!h->listener)
		return err_set(err, -errno, "cannot listen for HTTP on %s: %s%s",
			addr_format(addr, text), strerror(errno), addr_bind_hint(-errno));
	if (!evhttp_bind_listener(h->http, h->listener)) {
		evconnlistener_free(h->listener);
		h->listener = NULL;
		return err_set(err, -ENOMEM, "out of memory");
	}
	evconnlistener_set_error_cb(h->listener, on_http_accept_error);
	event_add(h->resume, &pause);
	return 0;
}

static int httpd_create_parts(struct httpd *h)
{
	struct timeval silence = {.tv_sec = SILENCE_S};

	h->http = evhttp_new(h->base);
	h->resume = event_new(h->base, -1, EV_PERSIST, on_http_resume_due, h);
	if (!h->http || !h->resume)
		return -ENOMEM;
	for (size_t i = 0; i < HTTPD_MAX_CONNECTIONS; i++) {
		h->seen[i].fd = -1;
		h->seen[i].learn = evtimer_new(h->base, learn_descriptor, &h->seen[i]);
		if (!h->seen[i].learn)
			return -ENOMEM;
	}
	evhttp_set_allowed_methods(h->http, ALL_METHODS);
	evhttp_set_max_headers_size(h->http, MAX_HEADER_BYTES);
	evhttp_set_max_body_size(h->http, MAX_BODY_BYTES);
	evhttp_set_timeout_tv(h->http, &silence);
	evhttp_set_bevcb(h->http, on_http_connection, h);
	evhttp_set_gencb(h->http, on_http_request, h);
	return 0;
}

int httpd_new(struct httpd **ret_httpd, struct event_base *base, const struct addr *addr,
	uint32_t status_timeout_ms, const struct httpd_ops *ops, void *arg, struct err_text *err)
{
	struct httpd *h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return err_set(err, -ENOMEM, "out of memory");
	signal(SIGPIPE, SIG_IGN);
	h->base = base;
	h->ops = ops;
	h->arg = arg;
	h->addr = *addr;
	h->names = "";
	h->status_timeout_ms = status_timeout_ms ? status_timeout_ms : STATUS_TIMEOUT_MS;
	LIST_INIT(&h->waiting);
	rc = httpd_create_parts(h);
	if (rc)
		err_set(err, rc, "out of memory");
	else
		rc = httpd_bind_listener(h, addr, err);
	if (rc) {
		httpd_free(h);
		return rc;
	}
	*ret_httpd = h;
	return 0;
}

void httpd_set_config(struct httpd *h, void (*config)(void *arg, struct evbuffer *out), void *arg)
{
	h->config = config;
	h->config_arg = arg;
}

void httpd_set_names(struct httpd *h, const char *names)
{
	h->names = names;
}

uint16_t httpd_port(const struct httpd *h)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);

	if (getsockname(evconnlistener_get_fd(h->listener), (struct sockaddr *)&sa, &len))
		return 0;
	return sockaddr_port((struct sockaddr *)&sa);
}

void httpd_free(struct httpd *h)
{
	struct httpd_request *r;

	if (!h)
		return;
	while ((r = LIST_FIRST(&h->waiting))) {
		/* the analyzer does not see that http_request_free removes r from the list */
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
		http_request_detach(r);
		http_request_free(r);
	}
	for (size_t i = 0; i < HTTPD_MAX_CONNECTIONS && h->seen[i].learn; i++) {
		if (h->seen[i].bev)
			bufferevent_decref(h->seen[i].bev);
		event_free(h->seen[i].learn);
	}
	if (h->resume)
		event_free(h->resume);
	if (h->http)
		evhttp_free(h->http);
	free(h);
}
