#include "libbpsclient/tools/nodes/meeting_line.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "common/base/error.h"

int meeting_lines_read(struct meeting_lines *l, char ret_line[static MEETING_LINE_BYTES])
{
	char *end = memchr(l->buf, '\n', l->n);
	ssize_t n;

	if (!end) {
		n = recv(l->fd, l->buf + l->n, sizeof(l->buf) - l->n, MSG_DONTWAIT);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		if (n == 0)
			return -ECONNRESET;
		l->n += (size_t)n;
		end = memchr(l->buf, '\n', l->n);
	}
	if (!end)
		return l->n < sizeof(l->buf) ? 0 : -ECONNRESET;
	*end++ = 0;
	memcpy(ret_line, l->buf, (size_t)(end - l->buf));
	l->n -= (size_t)(end - l->buf);
	memmove(l->buf, end, l->n);
	return 1;
}

int meeting_text_send(int fd, const char *fmt, ...)
{
	char text[MEETING_LINE_BYTES];
	ssize_t n;

	format_arguments(text, fmt);
	n = send(fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0)
		return -errno;
	return (size_t)n == strlen(text) ? 0 : -EAGAIN;
}

int meeting_make_nonce(char ret[static MEETING_NONCE_BYTES])
{
	unsigned char bytes[MEETING_NONCE_BYTES / 2];

	if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
		return -EIO;
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
	return 0;
}

int meeting_sign_line(const struct cluster_key *key, const char *head_nonce, const char *node_nonce,
	const char *line, char ret_hex[static KEY_HEX_BYTES])
{
	char text[MEETING_LINE_BYTES + 2 * MEETING_NONCE_BYTES + 16];
	struct cluster_key mac, own;
	int rc = key_derive(&own, key, "bpsrun meeting", "");

	snprintf(text, sizeof(text), "%s %s %s", head_nonce, node_nonce, line);
	if (!rc)
		rc = key_compute_mac(&own, text, strlen(text), mac.b);
	if (!rc)
		key_format_hex(&mac, ret_hex);
	key_wipe(&own);
	return rc;
}

void meeting_watch_peer(int fd)
{
	const int yes = 1, idle_s = 5, interval_s = 2, count = 3;

	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}
