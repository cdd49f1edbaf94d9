#include "bps-scheduler/bpsctl/http.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX ((size_t)64 << 20)

struct get {
	int fd;
	uint64_t deadline_ms;
	const char *where;
	struct err_text *err;
};

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static int wait_for(const struct get *g, short events)
{
	uint64_t now = now_ms();
	struct pollfd p = {g->fd, events, 0};
	int n;

	if (now < g->deadline_ms) {
		n = poll(&p, 1, (int)(g->deadline_ms - now));
		if (n > 0)
			return 0;
		if (n < 0 && errno == EINTR)
			return wait_for(g, events);
	}
	return err_set(
		g->err, BPS_ETIMEDOUT, "the scheduler at %s does not answer in time", g->where);
}

static int unreachable(const struct get *g, int code)
{
	return err_set(g->err, BPS_ENOSCHED,
		"cannot reach the scheduler's HTTP at %s: %s (is bps-scheduler running there? else "
		"set"
		" --scheduler-http)",
		g->where, strerror(code));
}

static int dial(struct get *g, const struct addr *addr)
{
	struct sockaddr_storage sa;
	socklen_t len;
	int error = 0, r = addr_lookup(addr, &sa, &len, g->err);
	socklen_t n = sizeof(error);

	if (r < 0)
		return r;
	g->fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (g->fd < 0)
		return unreachable(g, errno);
	if (connect(g->fd, (struct sockaddr *)&sa, len) == 0)
		return 0;
	if (errno != EINPROGRESS)
		return unreachable(g, errno);
	r = wait_for(g, POLLOUT);
	if (r < 0)
		return r;
	getsockopt(g->fd, SOL_SOCKET, SO_ERROR, &error, &n);
	return error ? unreachable(g, error) : 0;
}

static int ask(struct get *g, const char *path)
{
	char text[1024];
	int n = snprintf(text, sizeof(text), "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n", path, g->where);

	if (n < 0 || n >= (int)sizeof(text))
		return err_set(g->err, -EINVAL, "the question is too long");
	/* It fits in an empty socket buffer. */
	if (send(g->fd, text, (size_t)n, MSG_NOSIGNAL) != n)
		return unreachable(g, errno);
	return 0;
}

/* All of the answer, NUL-terminated. */
static int hear(struct get *g, char **ret_text, size_t *ret_bytes)
{
	size_t room = 65536, used = 0;
	char *text = malloc(room), *more;
	int r = text ? 0 : -ENOMEM;

	while (r == 0) {
		ssize_t n;

		r = wait_for(g, POLLIN);
		if (r < 0)
			break;
		n = recv(g->fd, text + used, room - used - 1, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			r = unreachable(g, errno);
		if (n <= 0)
			break;
		used += (size_t)n;
		if (room - used > 1)
			continue;
		more = room < ANSWER_MAX ? realloc(text, 2 * room) : NULL;
		if (!more)
			r = err_set(g->err, -E2BIG, "the answer of %s is too long", g->where);
		else
			text = more;
		room *= 2;
	}
	if (r < 0) {
		free(text);
		return r;
	}
	text[used] = '\0';
	*ret_text = text;
	*ret_bytes = used;
	return 0;
}

static int parse(
	const struct get *g, const char *text, size_t n, int *ret_status, json_t **ret_root)
{
	const char *body = strstr(text, "\r\n\r\n");
	json_error_t je;

	if (!body || sscanf(text, "HTTP/1.%*d %d", ret_status) != 1)
		return err_set(
			g->err, BPS_EPROTO, "%s does not speak HTTP: is the port right?", g->where);
	body += 4;
	*ret_root = json_loadb(body, n - (size_t)(body - text), JSON_REJECT_DUPLICATES, &je);
	if (!*ret_root || !json_is_object(*ret_root)) {
		json_decref(*ret_root);
		return err_set(g->err, BPS_EPROTO,
			"%s answers %d and no JSON: is it a bps-scheduler?", g->where, *ret_status);
	}
	return 0;
}

int http_get(const struct addr *addr, const char *path, uint32_t timeout_ms, int *ret_status,
	json_t **ret_root, struct err_text *err)
{
	char where[ADDR_TEXT_BYTES], *text = NULL;
	struct get g = {-1, now_ms() + timeout_ms, addr_format(addr, where), err};
	size_t n = 0;
	int r = dial(&g, addr);

	if (r == 0)
		r = ask(&g, path);
	if (r == 0)
		r = hear(&g, &text, &n);
	if (r == 0)
		r = parse(&g, text, n, ret_status, ret_root);
	free(text);
	if (g.fd >= 0)
		close(g.fd);
	return r;
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
