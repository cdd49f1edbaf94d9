/* Handles the frames on LANE_MESSAGES of a connection. Queues and sends messages and read requests.
 * Receives and dispatches the frames of the peer. The bytes of tensors go over LANE_BULK (tcp_in.c,
 * tcp_out.c). Thread: the data thread. */
#include "common/transport/sockets/tcp_impl.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "common/base/failpoint.h"

/* ---- sending ---- */

static bool tcp_tx_has_room(struct tcp_conn *c, size_t n)
{
	if (TCP_TX_BYTES - c->tx_tail >= n)
		return true;
	if (tcp_tx_room(c) < n)
		return false;
	memmove(c->tx, c->tx + c->tx_head, c->tx_tail - c->tx_head);
	c->tx_tail -= c->tx_head;
	c->tx_head = 0;
	return true;
}

int tcp_put_message(struct tcp_conn *c, const struct wire_msg *m, size_t reserve)
{
	size_t size = wire_size(m);
	struct tcp_frame f = {.type = FRAME_MESSAGE, .len = htole32((uint32_t)size)};
	struct wire_msg out;

	if (!tcp_tx_has_room(c, sizeof(f) + size + reserve))
		return -EAGAIN;
	out = *m;
	out.cookie = 0;
	out.credits = 0;
	memcpy(c->tx + c->tx_tail, &f, sizeof(f));
	wire_encode(&out, c->tx + c->tx_tail + sizeof(f));
	c->tx_tail += (uint32_t)(sizeof(f) + size);
	net_counter_add(&tcp_xport_of_conn(c)->shared.count.messages_out, 1);
	tcp_conn_mark_busy(c);
	return 0;
}

int tcp_put_read_request(struct tcp_conn *c, uint16_t segment, uint64_t offset, uint32_t len)
{
	struct tcp_frame f = {.type = FRAME_READ,
		.segment = htole16(segment),
		.len = htole32(len),
		.offset = htole64(offset)};

	/* TCP_READS_RESERVE keeps room for TCP_PIECES requests. This side never has more unanswered
	 * requests. So the buffer is full only if the peer has broken the protocol by answering
	 * requests that are still in the buffer. Such requests count as answered, but still take
	 * room. */
	if (!tcp_tx_has_room(c, sizeof(f)))
		return -EAGAIN;
	memcpy(c->tx + c->tx_tail, &f, sizeof(f));
	c->tx_tail += sizeof(f);
	tcp_conn_mark_busy(c);
	return 0;
}

int tcp_send(struct xconn *xc, const struct wire_msg *m)
{
	struct tcp_conn *c = (struct tcp_conn *)xc;
	int rc;

	FAILPOINT(NET_SEND);
	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	rc = tcp_put_message(c, m, TCP_TX_RESERVE);
	if (rc == -EAGAIN)
		c->has_want = true;
	/* The message offers bytes without sending them, so the peer will request them. */
	else if (m->len && !(m->flags & WIRE_INLINE))
		eager_policy_forget(&c->policy, m->segment, m->offset);
	return rc;
}

/* Send only the message that offers bytes, not the bytes. */
static int tcp_send_offer_only(struct tcp_conn *c, const struct wire_msg *m)
{
	int rc = tcp_send(&c->base.pub, m);

	if (!rc)
		eager_policy_held_back(&c->policy, m->segment, m->offset);
	return rc;
}

int tcp_send_eager(struct xconn *xc, const struct wire_msg *m, bool is_patient)
{
	struct tcp_conn *c = (struct tcp_conn *)xc;
	struct tcp_frame f = {.type = FRAME_EAGER,
		.segment = htole16(m->segment),
		.len = htole32(m->len),
		.offset = htole64(m->offset)};

	assert(m->segment < TCP_SEGS_MAX && m->len && !(m->flags & WIRE_INLINE));
	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	if (!eager_policy_may_go(&c->policy))
		return tcp_send_offer_only(c, m);
	if (!tcp_takes_eager(c, is_patient)) {
		c->wants_eager |= is_patient;
		return is_patient ? -EAGAIN : tcp_send_offer_only(c, m);
	}
	FAILPOINT(NET_SEND);
	if (!tcp_tx_has_room(c, 2 * sizeof(f) + wire_size(m) + TCP_TX_RESERVE)) {
		c->has_want = true;
		return -EAGAIN;
	}
	memcpy(c->tx + c->tx_tail, &f, sizeof(f));
	c->tx_tail += sizeof(f);
	tcp_push_eager(c, m);
	eager_policy_sent(&c->policy, m->segment, m->offset, m->len);
	return tcp_put_message(c, m, TCP_TX_RESERVE);
}

void tcp_flush(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_MESSAGES];

	while (l->can_send && c->tx_head < c->tx_tail) {
		size_t want = c->tx_tail - c->tx_head;
		ssize_t n = send(l->fd, c->tx + c->tx_head, want, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
			tcp_doom_lost_conn(c, errno);
			return;
		}
		l->can_send = n == (ssize_t)want;
		if (n < 0)
			return;
		c->tx_head += (uint32_t)n;
		net_counter_add(&tcp_xport_of_conn(c)->shared.count.tx_bytes, (uint64_t)n);
	}
	if (c->tx_head == c->tx_tail)
		c->tx_head = c->tx_tail = 0;
}

/* ---- receiving ---- */

static void tcp_dispatch_message(struct tcp_conn *c, const struct wire_msg *m)
{
	struct tcp_xport *x = tcp_xport_of_conn(c);

	net_counter_add(&x->shared.count.messages_in, 1);
	switch (m->type) {
	case WIRE_PONG:
		return;
	case WIRE_PING:
		c->has_pong = true;
		tcp_conn_mark_busy(c);
		return;
	case WIRE_CREDIT:
	case WIRE_SEG_ADD:
	case WIRE_SEG_DEL:
	case WIRE_DISCARDED:
		tcp_protocol_error(c, "a message of another transport");
		return;
	default:
		c->n_messages++;
		x->base.pub.ev->message(x->base.pub.ctx, &c->base.pub, m);
	}
}

/* Handle the frame at the start of `data`. Returns the length of the frame, or 0 if the frame
 * is incomplete or the connection has failed. */
static size_t tcp_consume_frame(struct tcp_conn *c, const uint8_t *data, size_t n_bytes)
{
	struct err_text err = {"a malformed message"};
	struct wire_msg m;
	struct tcp_frame f;
	size_t len;

	if (n_bytes < sizeof(f))
		return 0;
	memcpy(&f, data, sizeof(f));
	if (f.type == FRAME_READ) {
		tcp_queue_read_answer(c, &f);
		return sizeof(f);
	}
	if (f.type == FRAME_EAGER) {
		tcp_record_eager_offer(c, &f);
		return sizeof(f);
	}
	len = le32toh(f.len);
	if (f.type != FRAME_MESSAGE || f.status || f.segment || f.offset || len % 8 ||
		len > TCP_FRAME_MAX - sizeof(f)) {
		tcp_protocol_error(c, "a malformed frame");
		return 0;
	}
	if (n_bytes < sizeof(f) + len)
		return 0;
	if (wire_decode(data + sizeof(f), len, &m, &err) != (int)len || m.flags & WIRE_EAGER) {
		tcp_protocol_error(c, err.s);
		return 0;
	}
	if (c->base.state == CONN_ACCEPTING)
		tcp_come_up(c);
	if (c->base.state == CONN_UP) {
		tcp_offer_heard(c, &m);
		tcp_dispatch_message(c, &m);
	}
	return sizeof(f) + len;
}

void tcp_take_messages(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_MESSAGES];
	size_t room = TCP_RX_BYTES - c->rx_used, at = 0, n_bytes;
	ssize_t n = recv(l->fd, c->rx + c->rx_used, room, MSG_DONTWAIT);

	if (n < 0 && errno == EINTR)
		return;
	if (n <= 0) {
		l->can_recv = false;
		if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
			tcp_doom_lost_conn(c, n == 0 ? 0 : errno);
		return;
	}
	l->can_recv = l->is_ended || (size_t)n == room;
	peer_conn_heard(&c->base);
	net_counter_add(&tcp_xport_of_conn(c)->shared.count.rx_bytes, (uint64_t)n);
	c->rx_used += (uint32_t)n;
	while ((c->base.state == CONN_UP || c->base.state == CONN_ACCEPTING) &&
		(n_bytes = tcp_consume_frame(c, c->rx + at, c->rx_used - at)))
		at += n_bytes;
	c->rx_used -= (uint32_t)at;
	memmove(c->rx, c->rx + at, c->rx_used);
}
