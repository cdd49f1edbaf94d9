/* TCP transport: the object of the process, the object of a data thread, the poll loop of a data
 * thread, and the segments. Connections and their sockets are in tcp_conn.c, tcp_msg.c, tcp_in.c
 * and tcp_out.c. Thread: the data thread. The connection thread runs tcp_listener.c. */
#include "common/transport/sockets/tcp_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/addr.h"
#include "common/base/failpoint.h"

#define EVENTS_MAX 64
#define WAKE_UP    UINT64_MAX /* epoll data of the wake-up descriptor */

/* ---- the poll loop ---- */

static void tcp_record_event(struct tcp_xport *x, const struct epoll_event *ev)
{
	struct tcp_conn *c = x->conns[ev->data.u64 >> 8];
	struct tcp_lane *l;

	/* c is NULL if the connection went down after this event. The event cannot belong to a
	 * later connection in the slot, because tcp_record_events records all events before it
	 * accepts new connections. */
	if (!c)
		return;
	l = &c->lanes[ev->data.u64 & 0xff];
	l->can_recv |= !!(ev->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR));
	l->can_send |= !!(ev->events & (EPOLLOUT | EPOLLHUP | EPOLLERR));
	l->is_ended |= !!(ev->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
	tcp_conn_mark_busy(c);
}

static void tcp_take_accepted(struct tcp_xport *x)
{
	struct tcp_accepted g;

	handover_queue_clear_wake(&x->shared.queue);
	while (handover_queue_pop(&x->shared.queue, &g))
		tcp_accept(x, &g);
	OPENSSL_cleanse(&g, sizeof(g));
}

/* Record the events of all sockets. Returns the number of events. */
static int tcp_record_events(struct tcp_xport *x)
{
	struct epoll_event ev[EVENTS_MAX];
	bool has_accepted = false;
	int n = epoll_wait(x->base.epoll_fd, ev, EVENTS_MAX, 0);

	for (int i = 0; i < n; i++) {
		if (ev[i].data.u64 == WAKE_UP)
			has_accepted = true;
		else
			tcp_record_event(x, &ev[i]);
	}
	if (has_accepted)
		tcp_take_accepted(x);
	return n > 0 ? n : 0;
}

static void tcp_conn_receive(struct tcp_conn *c)
{
	for (unsigned i = 0; i < N_LANES; i++)
		if (c->lanes[i].hs != HS_DONE && c->lanes[i].fd >= 0 &&
			c->base.state == CONN_CONNECTING)
			tcp_handshake(c, (enum tcp_lane_kind)i);
	if (c->lanes[LANE_MESSAGES].can_recv && c->lanes[LANE_MESSAGES].hs == HS_DONE &&
		(c->base.state == CONN_UP || c->base.state == CONN_ACCEPTING))
		tcp_take_messages(c);
	if (c->is_held && c->lanes[LANE_BULK].is_ended && !c->lanes[LANE_MESSAGES].can_recv &&
		c->base.state == CONN_UP)
		/* Eager bytes wait on LANE_BULK for the message that offers them. The peer has
		 * closed the connection, so this message can no longer arrive */
		tcp_doom_lost_conn(c, 0);
	if (c->lanes[LANE_BULK].can_recv && !c->is_held && c->base.state == CONN_UP)
		tcp_take_bulk(c);
}

/* Return whether there is room now for a send that returned -EAGAIN before. */
static bool tcp_conn_is_writable(const struct tcp_conn *c)
{
	return (c->has_want && tcp_tx_room(c) >= TCP_FRAME_MAX + TCP_TX_RESERVE) ||
	       (c->wants_eager && tcp_takes_eager(c, true));
}

static void tcp_conn_transmit(struct tcp_conn *c)
{
	const struct wire_msg ping = {.type = WIRE_PING}, pong = {.type = WIRE_PONG};

	if (tcp_tx_room(c) < TCP_TX_RESERVE)
		/* Without this flush, the pings and requests below would find no room in the
		 * buffer, and no event would report when there is room again. */
		tcp_flush(c);
	if (c->has_pong && !tcp_put_message(c, &pong, TCP_READS_RESERVE))
		c->has_pong = false;
	if (c->has_ping && !tcp_put_message(c, &ping, TCP_READS_RESERVE))
		c->has_ping = false;
	if (c->reads.n_queued)
		tcp_issue_reads(c);
	tcp_flush(c);
	if (c->base.state == CONN_UP && c->n_answers && c->lanes[LANE_BULK].can_send)
		tcp_send_bulk(c);
	if (c->base.state == CONN_UP && tcp_conn_is_writable(c)) {
		c->has_want = c->wants_eager = false;
		c->base.pub.x->ev->writable(c->base.pub.x->ctx, &c->base.pub);
	}
}

/* Return whether work is left that can be done at once, without waiting for an event. */
static bool tcp_conn_has_work(const struct tcp_conn *c)
{
	const struct tcp_lane *msg = &c->lanes[LANE_MESSAGES], *bulk = &c->lanes[LANE_BULK];

	if (c->base.state == CONN_UP)
		return msg->can_recv || (bulk->can_recv && !c->is_held) ||
		       (msg->can_send && c->tx_head < c->tx_tail) ||
		       (bulk->can_send && c->n_answers);
	return c->base.state == CONN_ACCEPTING && msg->can_recv;
}

/* Receive and send once on every connection that has work. Returns 0 when there was nothing to do,
 * else a positive number. */
static int tcp_serve_busy_conns(struct tcp_xport *x)
{
	struct tcp_conn *c;
	int n = peer_close_doomed(&x->base);

	for (unsigned left = x->base.n_conns; left && (c = TAILQ_FIRST(&x->busy)); left--) {
		TAILQ_REMOVE(&x->busy, c, link);
		c->is_busy = false;
		n++;
		if (c->base.state != CONN_DOOMED)
			tcp_conn_receive(c);
		if (c->base.state == CONN_UP)
			tcp_conn_transmit(c);
		if (tcp_conn_has_work(c))
			tcp_conn_mark_busy(c);
		peer_close_doomed(&x->base);
	}
	return n;
}

/* Receive from every connection before tcp_tick_all_conns looks for silent peers. After this
 * process was stopped for a while, a socket may hold unread bytes. The peer that sent them is not
 * silent. */
static void tcp_receive_all_conns(struct tcp_xport *x)
{
	for (unsigned i = 0; i < N_LANES * TCP_CONNS_MAX / EVENTS_MAX; i++)
		if (tcp_record_events(x) < EVENTS_MAX)
			break;
	tcp_serve_busy_conns(x);
}

static int tcp_poll(struct xport *xp, uint64_t now_ns)
{
	struct tcp_xport *x = (struct tcp_xport *)xp;
	int n;

	x->base.now_ns = now_ns;
	x->turn++;
	tcp_free_gone(x);
	n = tcp_record_events(x);
	n += tcp_serve_busy_conns(x);
	if (now_ns >= x->base.next_deadline_ns) {
		tcp_receive_all_conns(x);
		tcp_tick_all_conns(x);
		n += tcp_serve_busy_conns(x);
	}
	return n;
}

static int tcp_may_sleep(struct xport *xp)
{
	struct tcp_xport *x = (struct tcp_xport *)xp;

	/* Send the messages queued since the poll. If serve has run a callback, the owner may have
	 * new work, so the thread must not sleep now. */
	return !tcp_serve_busy_conns(x) && TAILQ_EMPTY(&x->busy);
}

/* ---- segments ---- */

static int tcp_seg_add(struct xport *xp, void *mem, size_t bytes, uint16_t *ret_segment)
{
	struct tcp_xport *x = (struct tcp_xport *)xp;
	int rc = FAILPOINT(NET_REGISTER);

	if (rc < 0)
		return rc;
	if (!mem || !bytes)
		return -EINVAL;
	/* Assign the segment numbers in turn, so that a freed number is reused for other memory as
	 * late as possible. */
	for (unsigned i = 0; i < TCP_SEGS_MAX; i++) {
		uint16_t id = (uint16_t)((x->seg_next + i) % TCP_SEGS_MAX);

		if (x->segs[id].mem)
			continue;
		x->segs[id] = (struct tcp_seg){mem, bytes};
		x->seg_next = (uint16_t)((id + 1) % TCP_SEGS_MAX);
		*ret_segment = id;
		return 0;
	}
	return -ENOSPC;
}

static int tcp_seg_set(struct xport *xp, uint16_t id, void *mem, size_t bytes)
{
	struct tcp_xport *x = (struct tcp_xport *)xp;

	if (!mem || !bytes || id >= TCP_SEGS_MAX)
		return -EINVAL;
	if (x->segs[id].mem)
		return -EEXIST;
	x->segs[id] = (struct tcp_seg){mem, bytes};
	return 0;
}

static void tcp_seg_del(struct xport *xp, uint16_t id)
{
	struct tcp_xport *x = (struct tcp_xport *)xp;

	if (id >= TCP_SEGS_MAX || !x->segs[id].mem)
		return;
	x->segs[id] = (struct tcp_seg){0};
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++)
		if (x->conns[i])
			tcp_refuse_segment(x->conns[i], id);
}

/* ---- struct tcp_xport, which the data thread uses ---- */

static void tcp_xport_destroy(struct tcp_xport *x)
{
	struct tcp_accepted g;

	for (unsigned i = 0; i < TCP_CONNS_MAX; i++)
		if (x->conns[i])
			tcp_conn_tear_down(&x->conns[i]->base.pub, "this process shuts down");
	tcp_free_gone(x);
	while (handover_queue_pop(&x->shared.queue, &g))
		tcp_refuse_socket(g.fd, REFUSED_TICKET);
	OPENSSL_cleanse(&g, sizeof(g));
	if (x->base.epoll_fd >= 0)
		close(x->base.epoll_fd);
	handover_queue_fini(&x->shared.queue);
	free(x);
}

static void tcp_xport_free(struct xport *xp)
{
	struct tcp_xport *x = (struct tcp_xport *)xp;

	pthread_mutex_lock(&x->net->base.lock);
	net_remove_thread(&x->net->base, &x->shared);
	pthread_mutex_unlock(&x->net->base.lock);
	tcp_xport_destroy(x);
}

static const struct xport_ops xport_ops = {
	.connect = tcp_connect,
	.send = tcp_send,
	.send_eager = tcp_send_eager,
	.read = tcp_start_read,
	.close = tcp_conn_tear_down,
	.seg_add = tcp_seg_add,
	.seg_set = tcp_seg_set,
	.decided = tcp_decided,
	.seg_del = tcp_seg_del,
	.heard_ns = peer_last_received_ns,
	.poll = tcp_poll,
	.may_sleep = tcp_may_sleep,
	.fd = peer_xport_poll_fd,
	.next_deadline = peer_next_deadline,
	.free = tcp_xport_free,
};

static int tcp_xport_new(struct net *n, unsigned thread, const struct xport_events *ev, void *ctx,
	struct xport **ret, struct err_text *err)
{
	struct epoll_event wake = {.events = EPOLLIN, .data.u64 = WAKE_UP};
	struct tcp_net *net = (struct tcp_net *)n;
	struct tcp_xport *x = calloc(1, sizeof(*x));
	int rc;

	if (!x)
		return err_set(err, -ENOMEM, "out of memory");
	peer_xport_init(&x->base, &xport_ops, ev, ctx, thread, net_peer_times(&net->base));
	x->base.pub.ahead_bytes = SOCKET_AHEAD_SLOW;
	x->net = net;
	x->shared.x = &x->base;
	recv_window_init(&x->window);
	TAILQ_INIT(&x->busy);
	TAILQ_INIT(&x->gone);
	x->base.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	rc = handover_queue_init(&x->shared.queue, TCP_QUEUE_MAX, sizeof(struct tcp_accepted));
	if (!rc && epoll_ctl(x->base.epoll_fd, EPOLL_CTL_ADD, x->shared.queue.wake_fd, &wake))
		rc = -errno;
	if (rc) {
		tcp_xport_destroy(x);
		return err_set(err, rc, "cannot set up a data thread: %s", strerror(-rc));
	}
	pthread_mutex_lock(&net->base.lock);
	LIST_INSERT_HEAD(&net->base.threads, &x->shared, link);
	pthread_mutex_unlock(&net->base.lock);
	*ret = &x->base.pub;
	return 0;
}

/* ---- the process's object ---- */

static void tcp_close(struct net *n)
{
	struct tcp_net *net = (struct tcp_net *)n;

	tcp_listener_close(net);
	net_fini(n);
	free(net);
}

static const struct net_ops net_ops = {
	.close = tcp_close,
	.xport_new = tcp_xport_new,
};

static int parse_bind_addr(struct tcp_net *net, struct err_text *err)
{
	struct addr a = {.port = net->base.cfg.is_listener ? net->base.cfg.port : 0};

	strncpy(a.host, net->base.cfg.bind_addr, sizeof(a.host) - 1);
	if (addr_resolve_numeric(&a, &net->bind_addr, &net->bind_len))
		return err_set(err, -EINVAL,
			"'%s' is not numeric; use a numeric address of this machine", a.host);
	return 0;
}

int tcp_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err)
{
	struct tcp_net *net = calloc(1, sizeof(*net));
	int rc;

	if (!net)
		return err_set(err, -ENOMEM, "out of memory");
	net->listener.listen_fd = net->listener.epoll_fd = net->listener.stop_fd = -1;
	for (unsigned i = 0; i < TCP_PENDING_MAX; i++)
		net->listener.pending[i].fd = -1;
	rc = net_init(&net->base, &net_ops, cfg, key_fn, key_ctx);
	rc = rc ? err_set(err, rc, "out of memory") : parse_bind_addr(net, err);
	if (!rc)
		rc = congestion_find(
			cfg->congestion ? cfg->congestion : "auto", net->congestion, err);
	if (!rc && cfg->is_listener)
		rc = tcp_listener_open(net, err);
	if (rc) {
		tcp_close(&net->base);
		return rc;
	}
	*ret = &net->base;
	return 0;
}
