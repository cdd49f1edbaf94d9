/* Measures paths for `bpsctl check` (paths.h). Each path has one TCP connection. Its first
 * messages are small. Then comes a large message, in several full packets. If the path drops them,
 * the kernel's send queue keeps the bytes, because the other end does not acknowledge them. One
 * thread. */
#include "bps-scheduler/bpsctl/paths/paths.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/sockios.h>
#include <openssl/ssl.h>

#include "common/base/clock.h"
#include "common/control/tls.h"
#include "common/wire/path_probe.h"

/* Zeros in the extension that makes the TLS message large. A listener ends the handshake of an
 * unknown peer after TLS_STRANGER_BYTES. Without the extension, the message has about 250 bytes. */
#define HELLO_PAD_BYTES 3500
/* Number of the extension, from the range for private use (RFC 8446, section 11). The listener
 * ignores it. */
#define HELLO_PAD_TYPE 65282

enum path_step {
	STEP_CONNECT,
	STEP_SMALL, /* data: the head was sent, and its echo has not arrived */
	STEP_LARGE, /* the large message is being sent, or its answer has not arrived completely */
	STEP_UNSUPPORTED, /* data: the other end does not know path probes */
	STEP_OK,
	STEP_FAILED, /* error is set */
	STEP_SKIPPED /* control: there is no message to send */
};

/* Measurement of a path. The connection is closed when the step is STEP_UNSUPPORTED or later. */
struct path_probe {
	struct checked_path *path;
	int fd, error;
	enum path_step step;
	size_t sent, received; /* bytes of the present step */
	uint8_t echo[PATH_PROBE_HEAD_BYTES];
};

static const uint8_t zeros[PATH_PROBE_BYTES];

/* A TLS ClientHello with HELLO_PAD_BYTES more bytes than usual. */
struct padded_hello {
	uint8_t bytes[TLS_STRANGER_BYTES];
	size_t n;
};

static int on_hello_add_padding(SSL *ssl, unsigned type, unsigned context,
	const unsigned char **ret, size_t *ret_n, X509 *x, size_t chain_idx, int *alert, void *arg)
{
	(void)ssl, (void)type, (void)context, (void)x, (void)chain_idx, (void)alert, (void)arg;
	*ret = zeros;
	*ret_n = HELLO_PAD_BYTES;
	return 1;
}

/* Let OpenSSL write the first message of a handshake. Leaves ret->n 0 if the settings of OpenSSL
 * forbid the message, or when out of memory. */
static void padded_hello_make(struct padded_hello *ret)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	SSL *ssl = NULL;
	BIO *in = NULL, *out = NULL;
	int n = 0;

	/* one short key share, so that the message has the expected length with every OpenSSL */
	if (ctx && SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) &&
		SSL_CTX_set1_groups_list(ctx, "P-256") &&
		SSL_CTX_add_custom_ext(ctx, HELLO_PAD_TYPE, SSL_EXT_CLIENT_HELLO,
			on_hello_add_padding, NULL, NULL, NULL, NULL))
		ssl = SSL_new(ctx);
	if (ssl) {
		in = BIO_new(BIO_s_mem());
		out = BIO_new(BIO_s_mem());
	}
	if (in && out) {
		SSL_set_bio(ssl, in, out); /* ssl owns in and out now */
		SSL_connect(ssl);
		n = BIO_read(out, ret->bytes, sizeof(ret->bytes));
	} else {
		BIO_free(in);
		BIO_free(out);
	}
	SSL_free(ssl);
	SSL_CTX_free(ctx);
	ret->n = n > HELLO_PAD_BYTES ? (size_t)n : 0;
}

/* ---- one path ---- */

static void path_probe_set_step(struct path_probe *p, enum path_step step, int error)
{
	p->step = step;
	p->error = error;
	p->sent = p->received = 0;
	if (step >= STEP_UNSUPPORTED && p->fd >= 0) {
		close(p->fd);
		p->fd = -1;
	}
}

static void bind_source_address(int fd, const char *from, sa_family_t family)
{
	struct addr own = {.host = ""};
	struct sockaddr_storage sa;
	socklen_t len;

	memcpy(own.host, from, sizeof(own.host));
	if (*from && addr_resolve_numeric(&own, &sa, &len) == 0 && sa.ss_family == family)
		(void)bind(fd, (struct sockaddr *)&sa, len); /* else the kernel chooses one */
}

static void path_probe_connect(struct path_probe *p, const char *from)
{
	const struct checked_path *path = p->path;
	int on = 1;

	p->fd = socket(path->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p->fd >= 0 && !path->is_control)
		bind_source_address(p->fd, from, path->sa.ss_family);
	if (p->fd >= 0)
		setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (p->fd < 0 || (connect(p->fd, (const struct sockaddr *)&path->sa, path->sa_len) < 0 &&
				 errno != EINPROGRESS))
		path_probe_set_step(p, STEP_FAILED, errno);
}

/* Send more of n_all bytes. Returns false when the connection has failed. */
static bool path_probe_send_more(struct path_probe *p, const void *bytes, size_t n_all)
{
	ssize_t n;

	if (p->sent == n_all)
		return true;
	n = send(p->fd, (const uint8_t *)bytes + p->sent, n_all - p->sent, MSG_NOSIGNAL);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		path_probe_set_step(p, STEP_FAILED, errno);
		return false;
	}
	p->sent += n > 0 ? (size_t)n : 0;
	return true;
}

/* Send what is due in the present step. */
static void path_probe_send_step(struct path_probe *p, const struct padded_hello *hello)
{
	uint8_t head[PATH_PROBE_HEAD_BYTES];
	socklen_t len = sizeof(p->error);

	if (p->step == STEP_CONNECT) {
		getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &p->error, &len);
		if (p->error)
			path_probe_set_step(p, STEP_FAILED, p->error);
		else
			path_probe_set_step(p, p->path->is_control ? STEP_LARGE : STEP_SMALL, 0);
	}
	path_probe_head(head);
	if (p->step == STEP_SMALL)
		path_probe_send_more(p, head, sizeof(head));
	else if (p->step == STEP_LARGE && p->path->is_control)
		path_probe_send_more(p, hello->bytes, hello->n);
	else if (p->step == STEP_LARGE)
		path_probe_send_more(p, zeros, sizeof(zeros));
}

static void path_probe_check_echo(struct path_probe *p, ssize_t n)
{
	p->received += (size_t)n;
	if (n > 0 && p->received < sizeof(p->echo))
		return;
	path_probe_set_step(
		p, n > 0 && path_probe_is_head(p->echo) ? STEP_LARGE : STEP_UNSUPPORTED, 0);
}

static void path_probe_receive(struct path_probe *p)
{
	uint8_t buf[16384];
	ssize_t n;

	if (p->step == STEP_SMALL)
		n = recv(p->fd, p->echo + p->received, sizeof(p->echo) - p->received, 0);
	else
		n = recv(p->fd, buf, sizeof(buf), 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (p->step == STEP_SMALL) {
		/* A server of an earlier release refuses the head, and may reset the connection. */
		path_probe_check_echo(p, n > 0 ? n : 0);
	} else if (p->path->is_control) {
		/* Any answer to the TLS message shows that the message has arrived, also a refusal
		 * or a reset. */
		path_probe_set_step(p, STEP_OK, 0);
	} else if (n < 0) {
		path_probe_set_step(p, STEP_FAILED, errno);
	} else {
		p->received += (size_t)n;
		if (p->received >= PATH_PROBE_BYTES)
			path_probe_set_step(p, STEP_OK, 0);
		else if (n == 0)
			path_probe_set_step(p, STEP_FAILED, ECONNRESET);
	}
}

/* ---- all paths ---- */

/* Poll once. Returns false if no connection is open, or the deadline has passed. */
static bool path_probes_poll_once(
	struct path_probe *probes, size_t n, const struct padded_hello *hello, uint64_t deadline_ms)
{
	struct pollfd fds[PATHS_MAX];
	uint64_t now = clock_now_ms();
	size_t n_open = 0;

	for (size_t i = 0; i < n; i++) {
		struct path_probe *p = &probes[i];
		bool must_send =
			p->step == STEP_CONNECT || (p->step == STEP_LARGE && !p->path->is_control &&
							   p->sent < PATH_PROBE_BYTES);

		fds[i] = (struct pollfd){p->fd, (short)(must_send ? POLLIN | POLLOUT : POLLIN), 0};
		n_open += p->fd >= 0;
	}
	if (!n_open || now >= deadline_ms)
		return false;
	if (poll(fds, n, (int)(deadline_ms - now)) < 0 && errno != EINTR)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (probes[i].step != STEP_CONNECT && fds[i].revents & (POLLIN | POLLERR | POLLHUP))
			path_probe_receive(&probes[i]);
		else if (fds[i].revents)
			path_probe_send_step(&probes[i], hello);
	}
	return true;
}

/* Return whether bytes of the large message were never acknowledged. */
static bool has_unacknowledged(const struct path_probe *p)
{
	int n = 0;

	return ioctl(p->fd, SIOCOUTQ, &n) == 0 && n > 0;
}

static void path_probe_set_result(struct path_probe *p, const struct padded_hello *hello)
{
	struct checked_path *path = p->path;

	path->error = p->error;
	path->n_bytes = path->is_control ? hello->n : PATH_PROBE_BYTES;
	switch (p->step) {
	case STEP_OK:
		path->result = PATH_PASSES;
		break;
	case STEP_UNSUPPORTED:
		path->result = PATH_UNSUPPORTED;
		break;
	case STEP_LARGE:
		path->result = has_unacknowledged(p) ? PATH_DROPS_SENT : PATH_DROPS_ANSWER;
		break;
	case STEP_CONNECT:
	case STEP_SMALL:
		path->result = PATH_SILENT;
		break;
	case STEP_FAILED:
		path->result = PATH_UNREACHABLE;
		break;
	case STEP_SKIPPED:
		path->result = PATH_NOT_MEASURED;
		break;
	}
	if (p->fd >= 0)
		close(p->fd);
}

void path_list_measure(struct path_list *l)
{
	uint64_t deadline_ms = clock_now_ms() + PATHS_LIMIT_MS;
	struct path_probe probes[PATHS_MAX];
	struct padded_hello hello = {.n = 0};

	padded_hello_make(&hello);
	for (size_t i = 0; i < l->n; i++) {
		probes[i] = (struct path_probe){.path = &l->paths[i], .fd = -1};
		if (l->paths[i].is_control && !hello.n)
			path_probe_set_step(&probes[i], STEP_SKIPPED, 0);
		else
			path_probe_connect(&probes[i], l->from);
	}
	while (path_probes_poll_once(probes, l->n, &hello, deadline_ms))
		;
	for (size_t i = 0; i < l->n; i++)
		path_probe_set_result(&probes[i], &hello);
}

void path_list_add(struct path_list *l, const char *name, const struct addr *a,
	const struct sockaddr_storage *sa, socklen_t sa_len, bool is_control)
{
	struct checked_path *p;

	if (!l->has_loopback && sockaddr_is_loopback((const struct sockaddr *)sa))
		return;
	for (size_t i = 0; i < l->n; i++)
		if (l->paths[i].addr.port == a->port && !strcmp(l->paths[i].addr.host, a->host))
			return;
	/* servers leave the last place to the scheduler */
	if (l->n >= (is_control ? PATHS_MAX : PATHS_MAX - 1)) {
		l->n_left_out++;
		return;
	}
	p = &l->paths[l->n++];
	*p = (struct checked_path){
		.addr = *a, .sa = *sa, .sa_len = sa_len, .is_control = is_control};
	snprintf(p->name, sizeof(p->name), "%s", name);
}
