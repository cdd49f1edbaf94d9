/* Gets JSON documents from several daemons at once over HTTP (http.h). Redirects, TLS and several
 * requests on one connection are not supported. The functions block for a limited time and limit
 * the size of the answers. They all run on one thread. */
#include "bps-scheduler/bpsctl/http.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

#define ANSWER_MAX   ((size_t)64 << 20)
#define ANSWER_START 65536

/* An HTTP request and its connection. fd is -1 once the result is known. */
struct http_exchange {
	int fd;
	bool is_asked;
	const char *where;
	char *text;
	size_t room, used;
	struct http_get *get;
};

static void exchange_close_socket(struct http_exchange *x)
{
	if (x->fd >= 0)
		close(x->fd);
	x->fd = -1;
}

static void exchange_fail_with(struct http_exchange *x, int rc, const char *why)
{
	x->get->rc = err_set(&x->get->err, rc, "%s %s", x->where, why);
	exchange_close_socket(x);
}

static void exchange_fail_unreachable(struct http_exchange *x, int code)
{
	x->get->rc = err_set(&x->get->err, BPS_ENOSCHED,
		"cannot connect to the HTTP port of a daemon at %s: %s (is the daemon running "
		"there? --scheduler-http sets another address)",
		x->where, strerror(code));
	exchange_close_socket(x);
}

static void exchange_start_connect(
	struct http_exchange *x, const struct sockaddr_storage *sa, socklen_t len)
{
	x->fd = socket(sa->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (x->fd < 0 ||
		(connect(x->fd, (const struct sockaddr *)sa, len) < 0 && errno != EINPROGRESS))
		exchange_fail_unreachable(x, errno);
}

static void exchange_send_request(struct http_exchange *x)
{
	char text[HTTP_PATH_BYTES + 256];
	int error = 0;
	socklen_t len = sizeof(error);
	/* The request has no Host header, because the daemon would compare the header with the
	 * daemon's own names (common/daemon/http_host.h). */
	int n = snprintf(text, sizeof(text), "GET %s HTTP/1.0\r\n\r\n", x->get->path);

	getsockopt(x->fd, SOL_SOCKET, SO_ERROR, &error, &len);
	if (error)
		exchange_fail_unreachable(x, error);
	else if (n < 0 || n >= (int)sizeof(text))
		exchange_fail_with(x, -EINVAL, "cannot be queried: the request is too long");
	/* A single send is enough, because the request fits in an empty socket buffer. */
	else if (send(x->fd, text, (size_t)n, MSG_NOSIGNAL) != n)
		exchange_fail_unreachable(x, errno);
	x->is_asked = true;
}

static void exchange_parse_answer(struct http_exchange *x)
{
	const char *body = strstr(x->text, "\r\n\r\n");
	json_error_t je;

	if (!body || sscanf(x->text, "HTTP/1.%*d %d", &x->get->status) != 1) {
		exchange_fail_with(x, BPS_EPROTO, "is not an HTTP server (is the port right?)");
		return;
	}
	body += 4;
	if (x->get->is_text && x->get->status == 200) {
		x->get->n_text = x->used - (size_t)(body - x->text);
		memmove(x->text, body, x->get->n_text + 1);
		x->get->text = x->text;
		x->text = NULL;
		x->get->rc = 0;
		exchange_close_socket(x);
		return;
	}
	x->get->root =
		json_loadb(body, x->used - (size_t)(body - x->text), JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(x->get->root)) {
		json_decref(x->get->root);
		x->get->root = NULL;
		exchange_fail_with(
			x, BPS_EPROTO, "does not answer with JSON (is it a bps daemon?)");
		return;
	}
	x->get->rc = 0;
	exchange_close_socket(x);
}

/* Enlarge the buffer so that at least one more byte and the terminating zero fit. */
static bool exchange_grow_buffer(struct http_exchange *x)
{
	size_t room = x->room ? 2 * x->room : ANSWER_START;
	char *text;

	if (x->room - x->used > 1)
		return true;
	text = room <= ANSWER_MAX ? realloc(x->text, room) : NULL;
	if (!text) {
		exchange_fail_with(x, -E2BIG, "sent an answer that is too long");
		return false;
	}
	x->text = text;
	x->room = room;
	return true;
}

static void exchange_receive(struct http_exchange *x)
{
	ssize_t n;

	if (!exchange_grow_buffer(x))
		return;
	n = recv(x->fd, x->text + x->used, x->room - x->used - 1, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		exchange_fail_unreachable(x, errno);
		return;
	}
	x->used += (size_t)n;
	x->text[x->used] = '\0';
	if (n == 0)
		exchange_parse_answer(x);
}

/* Poll once and process the ready connections. Returns false if no connection is open, or the
 * deadline has passed. */
static bool exchanges_poll_once(
	struct http_exchange *x, struct pollfd *p, size_t n, uint64_t deadline_ms)
{
	uint64_t now = clock_now_ms();
	size_t n_open = 0;
	int ready;

	for (size_t i = 0; i < n; i++) {
		p[i] = (struct pollfd){x[i].fd, x[i].is_asked ? POLLIN : POLLOUT, 0};
		n_open += x[i].fd >= 0;
	}
	if (!n_open || now >= deadline_ms)
		return false;
	ready = poll(p, n, (int)(deadline_ms - now));
	for (size_t i = 0; ready > 0 && i < n; i++) {
		if (!p[i].revents)
			continue;
		if (x[i].is_asked)
			exchange_receive(&x[i]);
		else
			exchange_send_request(&x[i]);
	}
	return ready >= 0 || errno == EINTR;
}

void http_get_all(const struct addr *addr, struct http_get *gets, size_t n, uint32_t timeout_ms)
{
	uint64_t deadline_ms = clock_now_ms() + timeout_ms;
	struct http_exchange *x = calloc(n ? n : 1, sizeof(*x));
	struct pollfd *p = calloc(n ? n : 1, sizeof(*p));
	char where[ADDR_TEXT_BYTES];
	struct sockaddr_storage sa;
	socklen_t len = 0;
	struct err_text err = {""};
	int rc = x && p ? addr_resolve_host(addr, &sa, &len, &err) : -ENOMEM;

	addr_format(addr, where);
	for (size_t i = 0; i < n; i++) {
		gets[i].root = NULL;
		gets[i].text = NULL;
		gets[i].status = 0;
		gets[i].err = err;
		gets[i].rc = rc;
		if (rc < 0)
			continue;
		x[i] = (struct http_exchange){.fd = -1, .where = where, .get = &gets[i]};
		exchange_start_connect(&x[i], &sa, len);
	}
	if (rc == 0)
		while (exchanges_poll_once(x, p, n, deadline_ms))
			;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (x[i].fd >= 0)
			exchange_fail_with(&x[i], BPS_ETIMEDOUT,
				"does not answer in time (to query another daemon: bpsctl --daemon "
				"HOST:PORT status)");
		free(x[i].text);
	}
	free(x);
	free(p);
}

int http_can_connect(const struct addr *addr, uint32_t timeout_ms, struct sockaddr_storage *ret_sa,
	socklen_t *ret_len, struct err_text *err)
{
	char where[ADDR_TEXT_BYTES];
	struct sockaddr_storage sa;
	struct pollfd p = {.fd = -1, .events = POLLOUT};
	socklen_t len = 0, n = sizeof(int);
	int error = 0, rc = addr_resolve_host(addr, &sa, &len, err);

	if (rc < 0)
		return rc;
	addr_format(addr, where);
	p.fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p.fd < 0)
		return err_set(err, BPS_ENOSCHED, "%s: %s", where, strerror(errno));
	if (connect(p.fd, (const struct sockaddr *)&sa, len) < 0)
		error = errno;
	if (error == EINPROGRESS) {
		error = poll(&p, 1, (int)timeout_ms) > 0 ? 0 : ETIMEDOUT;
		if (!error)
			getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &error, &n);
	}
	close(p.fd);
	if (error == ETIMEDOUT)
		return err_set(
			err, BPS_ETIMEDOUT, "%s does not answer within %u ms", where, timeout_ms);
	if (error)
		return err_set(err, BPS_ENOSCHED, "%s: %s", where, strerror(error));
	*ret_sa = sa;
	*ret_len = len;
	return 0;
}

bool http_escape(const char *s, char *buf, size_t n_buf)
{
	size_t at = 0;

	for (; *s; s++) {
		bool is_plain = isalnum((unsigned char)*s) || strchr("-._~", *s);
		size_t need = is_plain ? 1 : 3;

		if (at + need >= n_buf)
			return false;
		if (is_plain)
			buf[at] = *s;
		else
			snprintf(buf + at, n_buf - at, "%%%02X", (unsigned char)*s);
		at += need;
	}
	buf[at] = '\0';
	return true;
}
