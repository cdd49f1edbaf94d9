#include "common/transport/sockets/tcp_impl.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/addr.h"
#include "common/base/log.h"

static const struct {
	const char *name;
	unsigned next;
} states[] = {
	[TCP_CONNECTING] = {"connecting", 1u << TCP_UP | 1u << TCP_DOOMED | 1u << TCP_GONE},
	[TCP_ACCEPTING] = {"accepting", 1u << TCP_UP | 1u << TCP_DOOMED | 1u << TCP_GONE},
	[TCP_UP] = {"up", 1u << TCP_DOOMED | 1u << TCP_GONE},
	[TCP_DOOMED] = {"doomed", 1u << TCP_GONE},
	[TCP_GONE] = {"gone", 0},
};

static void set_state(struct tcp_conn *c, enum tcp_state to, const char *why)
{
	assert(states[c->state].next >> to & 1);
	log_debug("connection peer=%u slot=%u %s -> %s: %s", c->pub.peer_id, c->slot,
		states[c->state].name, states[to].name, why);
	c->state = to;
}

void tcp_touch(struct tcp_conn *c)
{
	if (c->is_busy || c->state == TCP_GONE)
		return;
	c->is_busy = true;
	TAILQ_INSERT_TAIL(&tcp_of(c)->busy, c, link);
}

/* Mark as failed; this poll, or the next, takes it down. Keeps the first reason. */
__attribute__((format(printf, 2, 3))) static void doom(struct tcp_conn *c, const char *fmt, ...)
{
	va_list ap;

	if (c->state == TCP_DOOMED || c->state == TCP_GONE)
		return;
	va_start(ap, fmt);
	vsnprintf(c->why, sizeof(c->why), fmt, ap);
	va_end(ap);
	set_state(c, TCP_DOOMED, c->why);
	tcp_touch(c);
}

static void due_at(struct tcp_xport *x, uint64_t at_ns)
{
	if (at_ns < x->next_deadline_ns)
		x->next_deadline_ns = at_ns;
}

void tcp_heard(struct tcp_conn *c)
{
	struct tcp_xport *x = tcp_of(c);

	if (net_silence_end(&c->silence, x->now_ns))
		due_at(x, x->now_ns + x->net->cfg.ping_ms * NS_PER_MS);
}

/* ---- up ---- */

static void set_count(struct tcp_xport *x, uint32_t n)
{
	x->n_conns = n;
	atomic_store_explicit(&x->count.connections, n, memory_order_relaxed);
	if (recv_window_shared(&x->window, n))
		tcp_set_windows(x);
}

/* NULL: no slot or no memory is left. */
static struct tcp_conn *conn_new(struct tcp_xport *x, enum tcp_state state)
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
	c->pub.x = &x->pub;
	c->state = state;
	c->slot = slot;
	for (unsigned i = 0; i < N_LANES; i++)
		c->lanes[i] = (struct tcp_lane){.fd = -1, .lowat = 1};
	TAILQ_INIT(&c->queue);
	c->read_window.limit = READ_WINDOW_FIRST;
	c->silence.rx_ns = clock_now_ns();
	c->deadline_ns = c->silence.rx_ns + x->net->cfg.connect_timeout_ms * NS_PER_MS;
	due_at(x, c->deadline_ns);
	x->conns[slot] = c;
	set_count(x, x->n_conns + 1);
	return c;
}

/* Watch a lane's socket, which is the connection's from here. Errors: -errno. */
static int lane_open(struct tcp_conn *c, enum lane lane, int fd, enum handshake hs)
{
	struct tcp_xport *x = tcp_of(c);
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		.data.u64 = (uint64_t)c->slot << 8 | lane};
	int rc = 0;

	c->lanes[lane].fd = fd;
	c->lanes[lane].hs = hs;
	if (lane == LANE_BULK)
		rc = tcp_begin_window(x, fd);
	if (rc)
		return rc;
	return epoll_ctl(x->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* From our own address, so that routing by source works. Errors: -errno. */
static int dial(const struct tcp_net *net, const struct tcp_conn *c, int *ret_fd)
{
	struct sockaddr_storage from = net->bind_addr;
	int one = 1, rc = 0;
	int fd = socket(c->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	((struct sockaddr_in *)&from)->sin_port = 0; /* in both families at one place */
	if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)))
		rc = -errno;
	if (!rc)
		rc = tcp_tune(net, fd);
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

static int dial_lane(struct tcp_conn *c, enum lane lane)
{
	int fd = -1, rc = dial(tcp_of(c)->net, c, &fd);

	return rc ? rc : lane_open(c, lane, fd, HS_CONNECT);
}

static void take_nonces(struct tcp_conn *c)
{
	struct tcp_net *net = tcp_of(c)->net;
	uint64_t n = atomic_fetch_add(&net->nonces, N_CHANNELS) + 1;

	c->nonce = n << 32 | (uint64_t)net->tag << 16 | c->slot;
}

/* Off the table, closed; the memory lives until nobody up the stack has a pointer to it. */
static void conn_put(struct tcp_conn *c)
{
	struct tcp_xport *x = tcp_of(c);

	for (unsigned i = 0; i < N_LANES; i++)
		if (c->lanes[i].fd >= 0)
			close(c->lanes[i].fd);
	OPENSSL_cleanse(c->key, sizeof(c->key));
	x->conns[c->slot] = NULL;
	set_count(x, x->n_conns - 1);
	TAILQ_INSERT_TAIL(&x->gone, c, gone);
}

/* Give up one whose connection did not begin. */
static void conn_discard(struct tcp_conn *c)
{
	set_state(c, TCP_GONE, "did not begin");
	conn_put(c);
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
	rc = addr_number(&a, &ss, &len);
	if (rc)
		return rc;
	c = conn_new(x, TCP_CONNECTING);
	if (!c) {
		log_rated(LOG_WARN, "data thread %u has no room for a connection to %s; it has %u",
			x->thread, addr, x->n_conns);
		return -EMFILE;
	}
	c->addr = ss;
	c->addr_len = len;
	c->pub.user = user;
	c->pub.peer_id = peer_id;
	c->pub.peer_instance = peer_instance;
	c->is_told = true;
	c->peer_thread = thread;
	memcpy(c->key, key, sizeof(c->key));
	take_nonces(c);
	rc = dial_lane(c, LANE_MESSAGES);
	if (rc) {
		conn_discard(c);
		return rc;
	}
	*ret_conn = &c->pub;
	return 0;
}

static int send_proof(struct tcp_conn *c, enum lane lane, const struct tcp_guest *g)
{
	struct tcp_net *net = tcp_of(c)->net;
	struct proof p = {.instance = net->cfg.my_instance,
		.peer_id = atomic_load(&net->my_id),
		.credits = TICKET_NO_CREDITS};
	uint8_t sealed[PROOF_BYTES];

	proof_seal(&p, g->ticket.nonce, g->key, sealed);
	/* The first bytes on this socket: there is room. */
	return send(c->lanes[lane].fd, sealed, sizeof(sealed), MSG_DONTWAIT | MSG_NOSIGNAL) ==
			       sizeof(sealed)
		       ? 0
		       : -EIO;
}

static void accept_lane(struct tcp_conn *c, enum lane lane, const struct tcp_guest *g)
{
	int rc = lane_open(c, lane, g->fd, HS_DONE);

	if (!rc)
		rc = send_proof(c, lane, g);
	if (rc)
		doom(c, "cannot accept: %s", strerror(-rc));
}

/* The connection whose second channel this is. */
static struct tcp_conn *find_first(struct tcp_xport *x, const struct ticket *t)
{
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++) {
		struct tcp_conn *c = x->conns[i];

		if (c && c->state == TCP_ACCEPTING && c->lanes[LANE_BULK].fd < 0 &&
			c->pub.peer_id == t->peer_id && c->pub.peer_instance == t->instance &&
			ticket_channel_nonce(c->nonce, CHANNEL_OF_ACCEPTING) == t->nonce)
			return c;
	}
	return NULL;
}

void tcp_accept(struct tcp_xport *x, const struct tcp_guest *g)
{
	bool is_first = g->ticket.channel == CHANNEL_OF_CONNECTING;
	struct tcp_conn *c = is_first ? conn_new(x, TCP_ACCEPTING) : find_first(x, &g->ticket);

	if (!c) {
		log_rated(LOG_WARN, "refused a connection of peer=%u: %s", g->ticket.peer_id,
			is_first ? "no room" : "its first channel is gone");
		tcp_turn_away(g->fd, is_first ? REFUSED_FULL : REFUSED_TICKET);
		return;
	}
	if (is_first) {
		c->pub.peer_id = g->ticket.peer_id;
		c->pub.peer_instance = g->ticket.instance;
		c->nonce = g->ticket.nonce;
	}
	accept_lane(c, is_first ? LANE_MESSAGES : LANE_BULK, g);
}

static void go_up(struct tcp_conn *c)
{
	struct tcp_xport *x = tcp_of(c);

	set_state(c, TCP_UP, "handshake done");
	c->is_told = true;
	c->silence.rx_ns = x->now_ns;
	if (x->net->cfg.ping_ms)
		due_at(x, x->now_ns + x->net->cfg.ping_ms * NS_PER_MS);
	x->pub.ev->up(x->pub.ctx, &c->pub, c->pub.peer_id, c->pub.peer_instance);
}

void tcp_come_up(struct tcp_conn *c)
{
	if (c->lanes[LANE_BULK].fd < 0)
		tcp_protocol_error(c, "a message before the second channel");
	else
		go_up(c);
}

/* ---- the connecting side's handshake ---- */

static void send_ticket(struct tcp_conn *c, enum lane lane)
{
	struct tcp_net *net = tcp_of(c)->net;
	enum channel channel = (enum channel)lane;
	struct ticket t = {.thread = c->peer_thread,
		.channel = (uint16_t)channel,
		.peer_id = atomic_load(&net->my_id),
		.credits = TICKET_NO_CREDITS,
		.instance = net->cfg.my_instance,
		.nonce = ticket_channel_nonce(c->nonce, channel)};
	uint8_t sealed[TICKET_BYTES];

	ticket_seal(&t, c->key, sealed);
	if (send(c->lanes[lane].fd, sealed, sizeof(sealed), MSG_DONTWAIT | MSG_NOSIGNAL) !=
		sizeof(sealed))
		doom(c, "cannot send the ticket: %s", strerror(errno));
	c->lanes[lane].hs = HS_PROOF;
}

static void on_connected(struct tcp_conn *c, enum lane lane)
{
	socklen_t len = sizeof(int);
	int err = 0;

	if (getsockopt(c->lanes[lane].fd, SOL_SOCKET, SO_ERROR, &err, &len))
		err = errno;
	if (err)
		doom(c, "cannot connect: %s", strerror(err));
	else
		send_ticket(c, lane);
}

/* The peer hung up instead of proving who it is; it may have left a word. */
static void on_refused(struct tcp_conn *c, const struct tcp_lane *l, int err)
{
	const char *why = ticket_refusal(l->hs_buf, l->n_hs);

	if (why)
		doom(c, "%s", why);
	else
		doom(c, "no proof from the peer: %s",
			err ? strerror(err) : "it closed the connection");
}

static void on_proof(struct tcp_conn *c, enum lane lane)
{
	const struct wire_msg hello = {.type = WIRE_PING};
	struct tcp_lane *l = &c->lanes[lane];
	uint64_t nonce = ticket_channel_nonce(c->nonce, (enum channel)lane);
	struct proof p;
	int rc = proof_open(l->hs_buf, sizeof(l->hs_buf), nonce, c->key, &p);

	if (!rc && (p.instance != c->pub.peer_instance || p.peer_id != c->pub.peer_id))
		rc = BPS_EAUTH;
	if (rc) {
		net_count(&tcp_of(c)->count.protocol_errors, 1);
		doom(c, "the peer could not prove who it is: %s", err_str(rc));
		return;
	}
	l->hs = HS_DONE;
	if (lane == LANE_MESSAGES) {
		rc = dial_lane(c, LANE_BULK);
		if (rc)
			doom(c, "cannot open the second channel: %s", strerror(-rc));
		return;
	}
	OPENSSL_cleanse(c->key, sizeof(c->key));
	/* Before anything of the owner's: it is what makes the accepting side come up. */
	tcp_put(c, &hello, 0);
	go_up(c);
}

void tcp_handshake(struct tcp_conn *c, enum lane lane)
{
	struct tcp_lane *l = &c->lanes[lane];
	ssize_t n;

	if (l->hs == HS_CONNECT && l->can_send)
		on_connected(c, lane);
	if (l->hs != HS_PROOF || !l->can_recv || c->state != TCP_CONNECTING)
		return;
	/* A word, and the end right behind it, are one event. */
	while (l->n_hs < sizeof(l->hs_buf)) {
		n = recv(l->fd, l->hs_buf + l->n_hs, sizeof(l->hs_buf) - l->n_hs, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			l->can_recv = false;
			return;
		}
		if (n <= 0) {
			on_refused(c, l, n < 0 ? errno : 0);
			return;
		}
		tcp_heard(c);
		l->n_hs += (unsigned)n;
	}
	on_proof(c, lane);
}

/* ---- down ---- */

void tcp_protocol_error(struct tcp_conn *c, const char *what)
{
	net_count(&tcp_of(c)->count.protocol_errors, 1);
	log_rated(LOG_AS(LOG_WARN, PEER_BROKEN),
		"peer %u broke the protocol, closing its connection: %s", c->pub.peer_id, what);
	doom(c, "protocol: %s", what);
}

void tcp_lost(struct tcp_conn *c, int err)
{
	if (err)
		doom(c, "connection lost: %s", strerror(err));
	else
		doom(c, "closed by the peer");
}

void tcp_down(struct tcp_conn *c, const char *why)
{
	struct tcp_xport *x = tcp_of(c);
	char text[sizeof(c->why)];

	if (c->state == TCP_GONE)
		return; /* closed again from a callback of its close */
	/* It may be c's own. */
	snprintf(text, sizeof(text), "%s", why);
	if (c->is_busy)
		TAILQ_REMOVE(&x->busy, c, link);
	c->is_busy = false;
	set_state(c, TCP_GONE, text);
	conn_put(c); /* its sockets are closed: nothing is received any more */
	tcp_cancel_reads(c);
	if (c->is_told)
		x->pub.ev->down(x->pub.ctx, &c->pub, text);
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

static uint64_t tick_up(struct tcp_conn *c, const struct net_config *cfg, uint64_t now_ns)
{
	uint64_t at_ns;

	switch (net_silence_due(&c->silence, cfg->ping_ms, cfg->dead_ms, now_ns, &at_ns)) {
	case NET_DUE_NOTHING:
		break;
	case NET_DUE_PING:
		c->has_ping = true;
		tcp_touch(c);
		break;
	case NET_DUE_END:
		doom(c, "no sign of life for %lu ms",
			(unsigned long)((now_ns - c->silence.rx_ns) / NS_PER_MS));
		break;
	}
	return at_ns;
}

static uint64_t tick_one(struct tcp_conn *c, const struct net_config *cfg, uint64_t now_ns)
{
	if (c->state == TCP_UP)
		return tick_up(c, cfg, now_ns);
	if (c->state == TCP_DOOMED)
		return UINT64_MAX;
	if (now_ns < c->deadline_ns)
		return c->deadline_ns;
	doom(c, "no connection within %u ms", cfg->connect_timeout_ms);
	return UINT64_MAX;
}

void tcp_tick(struct tcp_xport *x)
{
	x->next_deadline_ns = UINT64_MAX;
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++)
		if (x->conns[i])
			due_at(x, tick_one(x->conns[i], &x->net->cfg, x->now_ns));
}
