/* The connection thread of the TCP transport. The thread listens, accepts connections, and reads
 * and checks their tickets. The thread refuses connections without a valid ticket, and passes the
 * sockets of the other connections to the data threads. It also answers path probes. It receives
 * nothing else. */
#include "common/transport/sockets/tcp_impl.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/addr.h"
#include "common/base/log.h"
#include "common/os/limits.h"
#include "common/wire/path_probe.h"

#define LISTEN_BACKLOG 1024
/* Time in seconds for which the kernel does not report a new connection that has sent no byte
 * yet. */
#define DEFER_ACCEPT_S 3
/* An accepted connection that sends no ticket within this time is closed. */
#define TICKET_TIMEOUT_NS UINT64_C(2000000000)
#define LOOK_MS           500
#define NO_FD_US          5000
#define USER_TIMEOUT_MS   10000
#define ACCEPT_BATCH      64

static int tcp_set_socket_option(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value)) ? -errno : 0;
}

int tcp_tune_socket(const struct tcp_net *net, int fd)
{
	int rc = tcp_set_socket_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);

	congestion_set_or_warn(fd, net->congestion);
	/* Pings detect a dead peer long before this timeout. The timeout only ends the kernel's
	 * attempts to deliver bytes to a dead peer. */
	return rc ? rc : tcp_set_socket_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
}

void tcp_refuse_socket(int fd, const char *word)
{
	uint8_t out[REFUSED_BYTES];

	ticket_format_refusal(word, out);
	if (send(fd, out, sizeof(out), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		log_debug("cannot send the reason for refusing a data connection: %s",
			strerror(errno));
	close(fd);
}

/* Pass the socket to the data thread that its ticket names. The lock keeps the data thread from
 * ending meanwhile. Returns NULL, or the word (REFUSED_...) that states why the socket is
 * refused. */
static const char *tcp_hand_over_socket(struct tcp_net *net, const struct tcp_accepted *g)
{
	struct net_thread *t;
	bool ok;

	pthread_mutex_lock(&net->base.lock);
	t = net_find_thread(&net->base, g->ticket.thread);
	ok = t && !handover_queue_push(&t->queue, g, TCP_QUEUE_MAX);
	pthread_mutex_unlock(&net->base.lock);
	return ok ? NULL : t ? REFUSED_BUSY : REFUSED_TICKET;
}

static void tcp_hand_over_or_refuse(struct tcp_net *net, const struct tcp_pending *s)
{
	struct tcp_accepted g = {.fd = s->fd};
	const char *why = net_check_ticket(&net->base, s->ticket, TICKET_BYTES, &g.ticket, g.key);
	const char *word = why ? net_record_refusal(&net->base, &g.ticket, why)
			       : tcp_hand_over_socket(net, &g);

	if (word && !why)
		net_record_refusal(
			&net->base, &g.ticket, "its data thread does not exist or is overloaded");
	if (word)
		tcp_refuse_socket(s->fd, word);
	OPENSSL_cleanse(&g, sizeof(g));
}

static void tcp_pending_free(struct tcp_pending *s)
{
	s->fd = -1;
}

static void tcp_pending_close_silent(struct tcp_net *net, struct tcp_pending *s)
{
	close(s->fd);
	tcp_pending_free(s);
	if (s->is_probe)
		return;
	atomic_fetch_add_explicit(&net->base.silent, 1, memory_order_relaxed);
	log_rated(LOG_WARN, "closed data connections, because they sent no ticket: count=%lu",
		(unsigned long)atomic_load_explicit(&net->base.silent, memory_order_relaxed));
}

static void tcp_pending_close(struct tcp_pending *s)
{
	close(s->fd);
	tcp_pending_free(s);
}

/* Add the bytes that recv or send has returned. If the peer has closed the socket, close it on this
 * side as well. Returns whether there were bytes. */
static bool tcp_pending_add_bytes(struct tcp_pending *s, ssize_t n)
{
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return false;
	if (n <= 0)
		tcp_pending_close(s);
	else
		s->n += (size_t)n;
	return n > 0;
}

/* ---- path probes ---- */

_Static_assert(PATH_PROBE_HEAD_BYTES <= TICKET_BYTES, "the listener reads a head as a ticket");

/* Values of tcp_pending.n when the message has arrived, and when the answer is sent. */
#define PROBE_RECEIVED (PATH_PROBE_HEAD_BYTES + PATH_PROBE_BYTES)
#define PROBE_ANSWERED (PROBE_RECEIVED + PATH_PROBE_BYTES)

/* Send the head back. It fits into the empty send buffer. When the socket is closed, the kernel
 * resets the connection and drops bytes that the peer has not acknowledged. So probes occupy no
 * more memory than the entries allow, and no peer takes a part of the answer for all of it. */
static void tcp_pending_begin_probe(struct tcp_pending *s)
{
	const struct linger drop = {.l_onoff = 1};

	s->is_probe = true;
	setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &drop, sizeof(drop));
	if (send(s->fd, s->ticket, PATH_PROBE_HEAD_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL) !=
		PATH_PROBE_HEAD_BYTES)
		tcp_pending_close(s);
}

static void tcp_probe_set_events(
	const struct tcp_net *net, const struct tcp_pending *s, uint32_t events)
{
	struct epoll_event ev = {
		.events = events, .data.u32 = (uint32_t)(s - net->listener.pending)};

	epoll_ctl(net->listener.epoll_fd, EPOLL_CTL_MOD, s->fd, &ev);
}

/* Discard the bytes of a probe. When all have arrived, send as many back. Then wait until the peer
 * closes the connection. */
static void tcp_pending_serve_probe(const struct tcp_net *net, struct tcp_pending *s)
{
	static const uint8_t zeros[16384];
	size_t left = PROBE_ANSWERED - s->n;
	ssize_t n = 0;

	if (s->n < PROBE_RECEIVED)
		n = recv(s->fd, NULL, PROBE_RECEIVED - s->n, MSG_DONTWAIT | MSG_TRUNC);
	else if (left)
		n = send(s->fd, zeros, left < sizeof(zeros) ? left : sizeof(zeros),
			MSG_DONTWAIT | MSG_NOSIGNAL);
	if (!tcp_pending_add_bytes(s, n))
		return;
	if (s->n == PROBE_RECEIVED)
		tcp_probe_set_events(net, s, EPOLLOUT);
	else if (s->n == PROBE_ANSWERED)
		tcp_probe_set_events(net, s, EPOLLIN);
}

/* ---- tickets ---- */

/* Read the bytes of the ticket or probe that have arrived. */
static void tcp_pending_receive(struct tcp_net *net, struct tcp_pending *s)
{
	ssize_t n;

	if (s->is_probe) {
		tcp_pending_serve_probe(net, s);
		return;
	}
	n = recv(s->fd, s->ticket + s->n, TICKET_BYTES - s->n, MSG_DONTWAIT);
	if (!tcp_pending_add_bytes(s, n))
		return;
	if (s->n == PATH_PROBE_HEAD_BYTES && path_probe_is_head(s->ticket)) {
		tcp_pending_begin_probe(s);
		return;
	}
	if (s->n < TICKET_BYTES)
		return;
	epoll_ctl(net->listener.epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
	tcp_hand_over_or_refuse(net, s);
	tcp_pending_free(s);
}

/* Return a free entry for one more connection. When there is none, close the connection that has
 * waited longest. */
static struct tcp_pending *tcp_pending_make_room(struct tcp_net *net)
{
	struct tcp_pending *oldest = &net->listener.pending[0];

	for (unsigned i = 0; i < TCP_PENDING_MAX; i++) {
		struct tcp_pending *s = &net->listener.pending[i];

		if (s->fd < 0)
			return s;
		if (s->since_ns < oldest->since_ns)
			oldest = s;
	}
	tcp_pending_close_silent(net, oldest);
	return oldest;
}

static void tcp_pending_add_socket(struct tcp_net *net, int fd)
{
	struct tcp_pending *s = tcp_pending_make_room(net);
	struct epoll_event ev = {
		.events = EPOLLIN, .data.u32 = (uint32_t)(s - net->listener.pending)};

	*s = (struct tcp_pending){.fd = fd, .since_ns = clock_now_ns()};
	if (tcp_tune_socket(net, fd) || epoll_ctl(net->listener.epoll_fd, EPOLL_CTL_ADD, fd, &ev)) {
		close(fd);
		tcp_pending_free(s);
		return;
	}
	/* The ticket has usually arrived already, because of TCP_DEFER_ACCEPT */
	tcp_pending_receive(net, s);
}

static void accept_waiting(struct tcp_net *net)
{
	for (unsigned i = 0; i < ACCEPT_BATCH; i++) {
		int fd = accept4(net->listener.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			tcp_pending_add_socket(net, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			log_rated(LOG_ERROR,
				"cannot accept data connections: %s; raise LimitNOFILE",
				strerror(errno));
			/* Wait a little, because the listening socket stays readable, and without a
			 * wait the loop would spin */
			usleep(NO_FD_US);
		}
		return;
	}
}

static void tcp_close_expired_pending(struct tcp_net *net)
{
	uint64_t now = clock_now_ns();

	for (unsigned i = 0; i < TCP_PENDING_MAX; i++) {
		struct tcp_pending *s = &net->listener.pending[i];

		if (s->fd >= 0 && now - s->since_ns > TICKET_TIMEOUT_NS)
			tcp_pending_close_silent(net, s);
	}
}

/* Values of epoll data that are not indexes into `pending`. */
enum { EVENT_LISTENER = TCP_PENDING_MAX, EVENT_STOP };

static void *listener_thread_main(void *arg)
{
	struct tcp_net *net = arg;
	struct epoll_event ev[16];
	bool must_stop = false;

	pthread_setname_np(pthread_self(), "bps-connect");
	while (!must_stop) {
		int n = epoll_wait(net->listener.epoll_fd, ev, 16, LOOK_MS);

		for (int i = 0; i < n; i++) {
			uint32_t who = ev[i].data.u32;

			if (who == EVENT_STOP)
				must_stop = true;
			else if (who == EVENT_LISTENER)
				accept_waiting(net);
			else if (net->listener.pending[who].fd >= 0)
				tcp_pending_receive(net, &net->listener.pending[who]);
		}
		tcp_close_expired_pending(net);
	}
	return NULL;
}

static int tcp_listener_watch_fd(struct tcp_listener *d, int fd, uint32_t who)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u32 = who};

	return epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static int tcp_listener_bind_socket(struct tcp_net *net)
{
	socklen_t len = sizeof(struct sockaddr_storage);
	struct sockaddr_storage ss;
	int fd = socket(
		net->bind_addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	int rc;

	if (fd < 0)
		return -errno;
	net->listener.listen_fd = fd;
	rc = tcp_set_socket_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (!rc)
		rc = tcp_set_socket_option(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, DEFER_ACCEPT_S);
	/* Set the congestion control on the listening socket, because accepted sockets inherit it.
	 * If the system's default is BBR, a change on an accepted socket is too late: BBR has
	 * already turned on pacing for that socket. */
	congestion_set(fd, net->congestion);
	if (!rc && bind(fd, (struct sockaddr *)&net->bind_addr, net->bind_len))
		rc = -errno;
	if (!rc && listen(fd, LISTEN_BACKLOG))
		rc = -errno;
	if (!rc && getsockname(fd, (struct sockaddr *)&ss, &len))
		rc = -errno;
	if (!rc)
		net->base.port = sockaddr_port((struct sockaddr *)&ss);
	return rc;
}

int tcp_listener_open(struct tcp_net *net, struct err_text *err)
{
	struct tcp_listener *d = &net->listener;
	int rc = tcp_listener_bind_socket(net);

	if (rc)
		return err_set(err, rc, "cannot listen for data connections on %s port %u: %s%s",
			net->base.cfg.bind_addr, net->base.cfg.port, strerror(-rc),
			addr_bind_hint(rc));
	d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	d->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = d->epoll_fd < 0 || d->stop_fd < 0
		     ? -errno
		     : tcp_listener_watch_fd(d, d->listen_fd, EVENT_LISTENER);
	if (!rc)
		rc = tcp_listener_watch_fd(d, d->stop_fd, EVENT_STOP);
	if (!rc)
		rc = -pthread_create(&d->thread, NULL, listener_thread_main, net);
	d->has_thread = !rc;
	if (rc)
		return limits_explain(rc, "cannot start the connection thread", err);
	return 0;
}

void tcp_listener_close(struct tcp_net *net)
{
	struct tcp_listener *d = &net->listener;
	uint64_t one = 1;

	if (d->has_thread) {
		if (write(d->stop_fd, &one, sizeof(one)) != sizeof(one))
			log_error("cannot stop the connection thread: %s", strerror(errno));
		pthread_join(d->thread, NULL);
	}
	for (unsigned i = 0; i < TCP_PENDING_MAX; i++)
		if (d->pending[i].fd >= 0)
			close(d->pending[i].fd);
	if (d->listen_fd >= 0)
		close(d->listen_fd);
	if (d->epoll_fd >= 0)
		close(d->epoll_fd);
	if (d->stop_fd >= 0)
		close(d->stop_fd);
}
