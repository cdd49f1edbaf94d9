/* Connections of the TCP transport: open and accept connections, do the handshake, send pings, and
 * close connections. tcp_msg.c handles the frames; tcp_in.c and tcp_out.c handle the bytes of
 * segments. Thread: the data thread. */
#include "common/transport/sockets/tcp_impl.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/addr.h"
#include "common/base/log.h"

void tcp_conn_mark_busy(struct tcp_conn *c)
{
	if (c->is_busy || c->base.state == CONN_GONE)
		return;
	c->is_busy = true;
	TAILQ_INSERT_TAIL(&tcp_xport_of_conn(c)->busy, c, link);
}

/* ---- start ---- */

/* Adapt the receive windows to the number of connections of all data threads. */
static void tcp_share_window(struct tcp_xport *x)
{
	uint32_t n = atomic_load_explicit(&x->net->base.n_conns, memory_order_relaxed);

	if (recv_window_shared(&x->window, n))
		tcp_set_windows(x);
}

static void tcp_set_conn_count(struct tcp_xport *x, uint32_t n)
{
	x->base.n_conns = n;
	net_set_conn_count(&x->net->base, &x->shared, n);
	tcp_share_window(x);
}

/* Allocate the struct of a connection in a free slot. Returns NULL if slots or memory run out. */
static struct tcp_conn *tcp_conn_create(struct tcp_xport *x, enum conn_state state)
{
	struct tcp_conn *c = NULL;
	uint16_t slot = 0;

	while (slot < TCP_CONNS_MAX && x->conns[slot])
		slot++;
	if (slot < TCP_CONNS_MAX)
		c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->rx = malloc(TCP_RX_BYTES);
	c->tx = malloc(TCP_TX_BYTES);
	if (!c->rx || !c->tx) {
		free(c->rx);
		free(c->tx);
		free(c);
		return NULL;
	}
	c->base.pub.x = &x->base.pub;
	c->base.slot = slot;
	for (unsigned i = 0; i < N_LANES; i++)
		c->lanes[i] = (struct tcp_lane){.fd = -1, .lowat = 1};
	peer_reads_init(&c->reads, READ_WINDOW_MIN);
	peer_conn_begin(&c->base, state, "handshake begins");
	x->conns[slot] = c;
	tcp_set_conn_count(x, x->base.n_conns + 1);
	return c;
}

/* Make fd the socket of a lane and watch it. The connection now owns fd, also after an error.
 * Errors: -errno. */
static int tcp_lane_open_socket(
	struct tcp_conn *c, enum tcp_lane_kind lane, int fd, enum tcp_handshake_step hs)
{
	struct tcp_xport *x = tcp_xport_of_conn(c);
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		.data.u64 = (uint64_t)c->base.slot << 8 | lane};
	int rc = 0;

	c->lanes[lane].fd = fd;
	c->lanes[lane].hs = hs;
	if (lane == LANE_BULK)
		rc = tcp_begin_window(x, fd);
	if (rc)
		return rc;
	return epoll_ctl(x->base.epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* Let the socket use this network interface. Before Linux 5.7, this needs a capability that the
 * daemons do not have; then the routes choose the interface. Errors: -errno. */
static int tcp_bind_to_device(int fd, const char *device)
{
	if (!setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device)))
		return 0;
	if (errno != EPERM)
		return -errno;
	log_rated(LOG_WARN,
		"the kernel (before 5.7) does not let this user choose network card %s, so the "
		"routes must choose it by the source address",
		device);
	return 0;
}

/* Connect from the address in net->bind_addr, so that routing by source address works. Use the
 * network interface of this address, if the process has several: the route to a peer of another
 * subnet need not depend on the source. Errors: -errno. */
static int tcp_start_connect(const struct tcp_net *net, const struct tcp_conn *c, int *ret_fd)
{
	struct sockaddr_storage from = net->bind_addr;
	int one = 1, rc = 0;
	int fd = socket(c->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	/* The port lies at the same offset in sockaddr_in and sockaddr_in6 */
	((struct sockaddr_in *)&from)->sin_port = 0;
	if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)))
		rc = -errno;
	if (!rc)
		rc = tcp_tune_socket(net, fd);
	if (!rc && net->base.cfg.device)
		rc = tcp_bind_to_device(fd, net->base.cfg.device);
	if (!rc && from.ss_family == c->addr.ss_family &&
		!sockaddr_is_any((struct sockaddr *)&from) &&
		bind(fd, (struct sockaddr *)&from, net->bind_len))
		rc = -errno;
	if (!rc && connect(fd, (const struct sockaddr *)&c->addr, c->addr_len) &&
		errno != EINPROGRESS)
		rc = -errno;
	if (rc)
		close(fd);
	else
		*ret_fd = fd;
	return rc;
}

static int tcp_lane_connect(struct tcp_conn *c, enum tcp_lane_kind lane)
{
	int fd = -1, rc = tcp_start_connect(tcp_xport_of_conn(c)->net, c, &fd);

	return rc ? rc : tcp_lane_open_socket(c, lane, fd, HS_CONNECT);
}

/* Remove c from the table and close its sockets. The memory of c stays until the next poll, because
 * callers still have a pointer to it. */
static void tcp_conn_remove(struct tcp_conn *c)
{
	struct tcp_xport *x = tcp_xport_of_conn(c);

	for (unsigned i = 0; i < N_LANES; i++)
		if (c->lanes[i].fd >= 0)
			close(c->lanes[i].fd);
	OPENSSL_cleanse(c->base.key, sizeof(c->base.key));
	x->conns[c->base.slot] = NULL;
	tcp_set_conn_count(x, x->base.n_conns - 1);
	TAILQ_INSERT_TAIL(&x->gone, c, gone);
}

/* Discard a connection that tcp_connect could not begin. No callback runs. */
static void tcp_conn_discard(struct tcp_conn *c)
{
	peer_conn_set_state(&c->base, CONN_GONE, "did not begin");
	tcp_conn_remove(c);
}

int tcp_connect(struct xport *xp, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn)
{
	struct tcp_xport *x = (struct tcp_xport *)xp;
	struct sockaddr_storage ss;
	struct tcp_conn *c;
	struct addr a = {.port = port};
	socklen_t len;
	int rc;

	snprintf(a.host, sizeof(a.host), "%s", addr);
	rc = addr_resolve_numeric(&a, &ss, &len);
	if (rc)
		return rc;
	c = tcp_conn_create(x, CONN_CONNECTING);
	if (!c) {
		log_rated(LOG_WARN,
			"data thread %u cannot connect to %s: this host is out of memory, or the "
			"thread has reached its limit of connections: it has %u",
			x->base.thread, addr, x->base.n_conns);
		return -EMFILE;
	}
	c->addr = ss;
	c->addr_len = len;
	peer_conn_set_peer(&c->base, thread, peer_id, peer_instance, key, user);
	c->base.nonce = net_new_nonce(&x->net->base, c->base.slot);
	rc = tcp_lane_connect(c, LANE_MESSAGES);
	if (rc) {
		tcp_conn_discard(c);
		return rc;
	}
	*ret_conn = &c->base.pub;
	return 0;
}

static int tcp_send_proof(struct tcp_conn *c, enum tcp_lane_kind lane, const struct tcp_accepted *g)
{
	uint8_t sealed[PROOF_BYTES];

	net_seal_proof(
		&tcp_xport_of_conn(c)->net->base, &g->ticket, g->key, TICKET_NO_CREDITS, 0, sealed);
	/* The socket has room, because these are the first bytes on it. */
	return send(c->lanes[lane].fd, sealed, sizeof(sealed), MSG_DONTWAIT | MSG_NOSIGNAL) ==
			       sizeof(sealed)
		       ? 0
		       : -EIO;
}

static void tcp_lane_accept(
	struct tcp_conn *c, enum tcp_lane_kind lane, const struct tcp_accepted *g)
{
	int rc = tcp_lane_open_socket(c, lane, g->fd, HS_DONE);

	if (!rc)
		rc = tcp_send_proof(c, lane, g);
	if (rc)
		peer_conn_doom(&c->base, "cannot accept the connection: %s", strerror(-rc));
}

/* Find the connection that has only its first socket and whose second socket is announced by the
 * ticket t. Returns NULL if there is no such connection. */
static struct tcp_conn *tcp_find_first_channel(struct tcp_xport *x, const struct ticket *t)
{
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++) {
		struct tcp_conn *c = x->conns[i];

		if (c && c->lanes[LANE_BULK].fd < 0 && peer_conn_is_second(&c->base, t))
			return c;
	}
	return NULL;
}

void tcp_accept(struct tcp_xport *x, const struct tcp_accepted *g)
{
	bool is_first = g->ticket.channel == CHANNEL_FIRST;
	struct tcp_conn *c = is_first ? tcp_conn_create(x, CONN_ACCEPTING)
				      : tcp_find_first_channel(x, &g->ticket);

	if (!c) {
		log_rated(LOG_WARN, "refused a data connection from peer=%u: %s", g->ticket.peer_id,
			is_first ? "no room for a connection"
				 : "the first channel of this connection is closed");
		tcp_refuse_socket(g->fd, is_first ? REFUSED_FULL : REFUSED_TICKET);
		return;
	}
	if (is_first) {
		c->base.pub.peer_id = g->ticket.peer_id;
		c->base.pub.peer_instance = g->ticket.instance;
		c->base.nonce = g->ticket.nonce;
	}
	tcp_lane_accept(c, is_first ? LANE_MESSAGES : LANE_BULK, g);
}

static void tcp_conn_enter_up(struct tcp_conn *c)
{
	struct tcp_xport *x = tcp_xport_of_conn(c);

	peer_conn_come_up(&c->base);
	x->base.pub.ev->up(
		x->base.pub.ctx, &c->base.pub, c->base.pub.peer_id, c->base.pub.peer_instance);
}

void tcp_come_up(struct tcp_conn *c)
{
	if (c->lanes[LANE_BULK].fd < 0)
		tcp_protocol_error(c, "a message before the second channel was open");
	else
		tcp_conn_enter_up(c);
}

/* ---- the connecting side's handshake ---- */

static void tcp_send_ticket(struct tcp_conn *c, enum tcp_lane_kind lane)
{
	uint8_t sealed[TICKET_BYTES];

	net_seal_ticket(&tcp_xport_of_conn(c)->net->base, &c->base, (enum channel)lane,
		TICKET_NO_CREDITS, sealed);
	if (send(c->lanes[lane].fd, sealed, sizeof(sealed), MSG_DONTWAIT | MSG_NOSIGNAL) !=
		sizeof(sealed))
		peer_conn_doom(&c->base, "cannot send the ticket: %s", strerror(errno));
	c->lanes[lane].hs = HS_PROOF;
}

static void on_tcp_lane_connected(struct tcp_conn *c, enum tcp_lane_kind lane)
{
	socklen_t len = sizeof(int);
	int err = 0;

	if (getsockopt(c->lanes[lane].fd, SOL_SOCKET, SO_ERROR, &err, &len))
		err = errno;
	if (err)
		peer_conn_doom(&c->base, "cannot connect: %s", strerror(err));
	else
		tcp_send_ticket(c, lane);
}

/* Handle a peer that closed the connection instead of sending its proof. l->hs_buf may contain the
 * reason that the peer sent. */
static void on_tcp_lane_refused(struct tcp_conn *c, const struct tcp_lane *l, int err)
{
	struct err_text why;

	if (ticket_refusal(l->hs_buf, l->n_hs, &why))
		peer_conn_doom(&c->base, "%s", why.s);
	else
		peer_conn_doom(&c->base, "the peer sent no proof of its identity: %s",
			err ? strerror(err) : "it closed the connection");
}

static void on_tcp_lane_proof(struct tcp_conn *c, enum tcp_lane_kind lane)
{
	const struct wire_msg hello = {.type = WIRE_PING};
	struct tcp_lane *l = &c->lanes[lane];
	struct proof p;
	int rc = peer_conn_check_proof(
		&c->base, (enum channel)lane, l->hs_buf, sizeof(l->hs_buf), &p);

	if (rc) {
		net_counter_add(&tcp_xport_of_conn(c)->shared.count.protocol_errors, 1);
		peer_conn_doom(&c->base, "the peer could not prove its identity: %s", err_str(rc));
		return;
	}
	l->hs = HS_DONE;
	if (lane == LANE_MESSAGES) {
		rc = tcp_lane_connect(c, LANE_BULK);
		if (rc)
			peer_conn_doom(
				&c->base, "cannot open the second channel: %s", strerror(-rc));
		return;
	}
	OPENSSL_cleanse(c->base.key, sizeof(c->base.key));
	/* Send this ping before any message of the owner. The accepting side goes UP when it
	 * receives the first message. */
	tcp_put_message(c, &hello, 0);
	tcp_conn_enter_up(c);
}

void tcp_handshake(struct tcp_conn *c, enum tcp_lane_kind lane)
{
	struct tcp_lane *l = &c->lanes[lane];
	ssize_t n;

	if (l->hs == HS_CONNECT && l->can_send)
		on_tcp_lane_connected(c, lane);
	if (l->hs != HS_PROOF || !l->can_recv || c->base.state != CONN_CONNECTING)
		return;
	/* Read until EAGAIN, because the reason for a refusal and the end of the stream may arrive
	 * with one event. */
	while (l->n_hs < sizeof(l->hs_buf)) {
		n = recv(l->fd, l->hs_buf + l->n_hs, sizeof(l->hs_buf) - l->n_hs, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			l->can_recv = false;
			return;
		}
		if (n <= 0) {
			on_tcp_lane_refused(c, l, n < 0 ? errno : 0);
			return;
		}
		peer_conn_heard(&c->base);
		l->n_hs += (unsigned)n;
	}
	on_tcp_lane_proof(c, lane);
}

/* ---- down ---- */

void tcp_protocol_error(struct tcp_conn *c, const char *what)
{
	net_counter_add(&tcp_xport_of_conn(c)->shared.count.protocol_errors, 1);
	peer_conn_broke_protocol(&c->base, what);
}

void tcp_doom_lost_conn(struct tcp_conn *c, int err)
{
	if (err)
		peer_conn_doom(&c->base, "connection lost: %s", strerror(err));
	else
		peer_conn_doom(&c->base, "closed by the peer");
}

void tcp_conn_tear_down(struct xconn *conn, const char *why)
{
	struct tcp_conn *c = (struct tcp_conn *)conn;
	struct tcp_xport *x = tcp_xport_of_conn(c);

	if (c->base.state == CONN_GONE)
		/* tcp_conn_tear_down for c is running already, and one of its callbacks closes c */
		return;
	if (c->is_busy)
		TAILQ_REMOVE(&x->busy, c, link);
	c->is_busy = false;
	peer_conn_set_state(&c->base, CONN_GONE, why);
	/* tcp_conn_remove closes the sockets, so that no more bytes are received into the
	 * destination of a read */
	tcp_conn_remove(c);
	peer_reads_cancel(&c->reads, &x->base.pub);
	if (c->base.is_told)
		x->base.pub.ev->down(x->base.pub.ctx, &c->base.pub, why);
}

void tcp_free_gone(struct tcp_xport *x)
{
	struct tcp_conn *c;

	while ((c = TAILQ_FIRST(&x->gone))) {
		TAILQ_REMOVE(&x->gone, c, gone);
		free(c->rx);
		free(c->tx);
		free(c);
	}
}

/* ---- time ---- */

void tcp_tick_all_conns(struct tcp_xport *x)
{
	x->base.next_deadline_ns = UINT64_MAX;
	tcp_share_window(x); /* another data thread may have more connections now */
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++) {
		if (!x->conns[i] || !peer_conn_tick(&x->conns[i]->base))
			continue;
		x->conns[i]->has_ping = true;
		tcp_conn_mark_busy(x->conns[i]);
	}
}
