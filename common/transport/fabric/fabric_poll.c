/* The poll loop of the libfabric transport: completions, events of the connection-management
 * thread, and the connections with something to send. Thread: the data thread. */
#include "common/transport/fabric/fabric_impl.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/transport/fabric/fabric_eager.h"
#include "common/transport/fabric/fabric_socket.h"

#define CQ_BATCH    32
#define POLL_ROUNDS 8
/* A thread that has no time to sleep reads its event queue at this interval: often enough for
 * connections, and rarely enough that the two system calls of each reading cost nothing. A thread
 * that may sleep first asks libfabric for events (fabric_may_sleep). */
#define EVENTS_NS UINT64_C(5000000)

void fabric_protocol_error(struct fabric_conn *c, const char *what)
{
	net_counter_add(&fabric_xport_of(c)->shared.count.protocol_errors, 1);
	peer_conn_broke_protocol(&c->base, what);
}

/* Return whether the owner or the transport has a message that had no room so far. */
static bool waits_for_room(const struct fabric_conn *c)
{
	return c->has_want || c->wants_eager || c->has_pong || c->n_discarded || c->n_dirty;
}

static void fabric_dispatch_message(struct fabric_conn *c, const struct wire_msg *m)
{
	struct fabric_xport *x = fabric_xport_of(c);

	net_counter_add(&x->shared.count.messages_in, 1);
	if (m->credits) {
		c->credits += m->credits;
		if (c->credits > UINT16_MAX) {
			fabric_protocol_error(c, "the peer granted too many credits");
			return;
		}
		if (waits_for_room(c))
			fabric_io_touch(c);
	}
	switch (m->type) {
	case WIRE_CREDIT:
	case WIRE_PONG:
		return;
	case WIRE_PING:
		c->has_pong = true;
		fabric_io_touch(c);
		return;
	case WIRE_SEG_ADD:
	case WIRE_SEG_DEL:
		fabric_seg_note(c, m);
		return;
	case WIRE_DISCARDED:
		eager_policy_asked(&c->policy, m->segment, m->offset);
		return;
	default:
		c->n_messages++;
		x->base.pub.ev->message(x->base.pub.ctx, &c->base.pub, m);
	}
}

/* Return whether this message is allowed only if both sides can receive eager bytes. */
static bool wire_message_is_eager_only(const struct wire_msg *m)
{
	return m->flags & WIRE_EAGER || m->type == WIRE_DISCARDED;
}

/* Handle all messages of one receive. Stop when a callback has closed the connection. */
static void fabric_receive_messages(struct fabric_conn *c, const uint8_t *data, size_t n_bytes)
{
	uint64_t cookie = c->rx_cookie;
	struct wire_msg m;
	struct err_text err;

	while (n_bytes && c->rx_cookie == cookie && c->base.state == CONN_UP) {
		int n = wire_decode(data, n_bytes, &m, &err);

		if (n < 0) {
			fabric_protocol_error(c, err.s);
			return;
		}
		if (m.cookie != cookie) {
			fabric_protocol_error(c, "a message with the cookie of another connection");
			return;
		}
		data += n;
		n_bytes -= (size_t)n;
		if (wire_message_is_eager_only(&m) && !c->is_eager) {
			fabric_protocol_error(c, "bytes that were not requested");
			return;
		}
		if (!fabric_eager_record(c, &m)) {
			fabric_protocol_error(c, "an offer whose bytes cannot be sent with it");
			return;
		}
		m.flags &= (uint16_t)~WIRE_EAGER;
		fabric_dispatch_message(c, &m);
	}
}

/* Find the connection to which received data belongs, by the cookie of the first message. Returns
 * NULL when no connection has this cookie. */
static struct fabric_conn *fabric_find_conn_of_data(
	struct fabric_xport *x, const uint8_t *data, size_t n_bytes)
{
	struct fabric_conn *c;
	uint64_t cookie;
	unsigned slot;

	if (n_bytes < WIRE_HDR_BYTES)
		goto unknown;
	memcpy(&cookie, data + FABRIC_WIRE_COOKIE_AT, sizeof(cookie));
	cookie = le64toh(cookie);
	slot = (unsigned)(cookie & 0xffff);
	c = slot < FABRIC_CONNS_MAX ? x->conns[slot] : NULL;
	if (c && c->rx_cookie == cookie)
		return c;
	if (c && c->last_cookie == cookie)
		return NULL; /* a delayed message for the previous connection in this slot */
unknown:
	net_counter_add(&x->shared.count.protocol_errors, 1);
	log_rated(
		LOG_WARN, "dropped a message of %zu bytes that belongs to no connection", n_bytes);
	return NULL;
}

static void on_fabric_receive_done(struct fabric_xport *x, struct fabric_buf *b, size_t n_bytes)
{
	struct fabric_conn *c = fabric_find_conn_of_data(x, b->data, n_bytes);
	uint64_t cookie = 0;
	int rc;

	net_counter_add(&x->shared.count.rx_bytes, n_bytes);
	if (c && c->base.state == CONN_CONNECTING)
		fabric_protocol_error(c, "a message before the end of the handshake");
	if (c && c->base.state == CONN_ACCEPTING && !c->ep)
		fabric_protocol_error(c, "a message before the second channel");
	if (c && c->base.state == CONN_ACCEPTING)
		fabric_conn_up(c);
	if (c && c->base.state == CONN_UP) {
		cookie = c->rx_cookie;
		peer_conn_heard(&c->base);
		if (c->rx_allow-- == 0)
			fabric_protocol_error(c, "more messages than its credits allow");
		fabric_receive_messages(c, b->data, n_bytes);
	}
	rc = fabric_io_post_rx(x, b);
	if (rc) {
		x->rx_posted--;
		log_rated(LOG_ERROR, "cannot give libfabric a buffer for receiving: %s",
			fi_strerror(-rc));
	}
	if (!cookie || c->rx_cookie != cookie || c->base.state != CONN_UP)
		return;
	fabric_eager_post(c);
	if (++c->owed >= c->granted / 2)
		fabric_io_touch(c);
}

void fabric_read_finish(struct fabric_conn *c, struct peer_read *rd)
{
	net_counter_add(&fabric_xport_of(c)->shared.count.reads, 1);
	peer_reads_finish(&c->reads, rd, c->base.pub.x, 0);
}

static void on_fabric_read_piece_done(struct fabric_conn *c, const struct fabric_rop *rop)
{
	struct fabric_xport *x = fabric_xport_of(c);
	bool is_whole =
		peer_reads_arrived(&c->reads, rop->rd, rop->len, x->base.now_ns - rop->asked_ns);

	c->n_rops--;
	if (c->reads.n_queued)
		fabric_io_touch(c);
	net_counter_add(&x->shared.count.rx_bytes, rop->len);
	fabric_socket_measure(c, fabric_read_channel(c), rop->len);
	/* On verbs a completed read does not show that the peer is alive. The peer's network
	 * adapter serves reads even when the peer's process hangs. */
	if (!x->is_verbs)
		peer_conn_heard(&c->base);
	if (is_whole)
		fabric_read_finish(c, rop->rd);
}

/* Handle the completion of a send, a read, or eager bytes. n_bytes: bytes that were received. */
static void on_fabric_op_done(struct fabric_xport *x, struct fabric_op *op, size_t n_bytes)
{
	struct fabric_conn *c = op->conn;
	enum fabric_op_kind kind = op->kind;
	struct fabric_rop rop = {0};

	if (kind != OP_SEND)
		rop = *(struct fabric_rop *)op;
	fabric_io_done(x, op);
	if (!c)
		return;
	switch (kind) {
	case OP_RECV:
		return;
	case OP_SEND:
		c->tx_inflight--;
		if (waits_for_room(c))
			fabric_io_touch(c);
		return;
	case OP_READ:
		on_fabric_read_piece_done(c, &rop);
		return;
	case OP_EAGER_OUT:
		fabric_eager_sent(c, rop.len);
		return;
	case OP_EAGER_IN:
		fabric_eager_received(c, rop.rd, rop.len, n_bytes);
		return;
	}
}

/* A receive of a message failed: its endpoint failed, and further events of the endpoint will end
 * the connection; or the message was longer than its buffer. */
static void on_fabric_receive_failed(struct fabric_xport *x, struct fabric_buf *b, int err)
{
	struct fabric_conn *c =
		err == FI_ETRUNC ? fabric_find_conn_of_data(x, b->data, FABRIC_BUF_BYTES) : NULL;

	if (c)
		fabric_protocol_error(c, "a message that is longer than a buffer");
	if (fabric_io_post_rx(x, b))
		x->rx_posted--;
}

static void on_fabric_cq_error(struct fabric_xport *x)
{
	struct fi_cq_err_entry e = {0};
	struct fabric_op *op;

	if (fi_cq_readerr(x->cq, &e, 0) < 0)
		return;
	op = e.op_context;
	if (!op || op->kind == OP_READ)
		fabric_mark_spoiled(x);
	if (!op)
		return;
	if (op->kind == OP_RECV) {
		on_fabric_receive_failed(x, (struct fabric_buf *)op, e.err);
		return;
	}
	if (op->conn && e.err == FI_ETRUNC && op->kind == OP_EAGER_IN)
		fabric_protocol_error(
			op->conn, "eager bytes whose length differs from their offer");
	if (op->conn) {
		if (op->kind == OP_SEND)
			op->conn->tx_inflight--;
		else if (op->kind == OP_READ)
			op->conn->n_rops--;
		peer_conn_doom(&op->conn->base, "connection lost: %s", fi_strerror(e.err));
	}
	fabric_io_done(x, op);
}

/* Handle a batch of completions. Return the number of those that are not of sent messages.
 * *ret_more: whether to read again. libfabric receives only when the queue is empty, so read again
 * after completions of sent messages alone. */
static int fabric_drain_cq(struct fabric_xport *x, bool *ret_more)
{
	struct fi_cq_msg_entry e[CQ_BATCH];
	ssize_t n = fi_cq_read(x->cq, e, CQ_BATCH);
	int n_arrived = 0;

	*ret_more = n == CQ_BATCH || n == -FI_EAVAIL;
	if (n == -FI_EAVAIL) {
		on_fabric_cq_error(x);
		return 1;
	}
	if (n == -FI_EAGAIN)
		x->n_drained++;
	if (n < 0) {
		if (n != -FI_EAGAIN)
			log_rated(LOG_ERROR, "cannot read libfabric's completions: %s",
				fi_strerror((int)-n));
		return 0;
	}
	for (ssize_t i = 0; i < n; i++) {
		struct fabric_op *op = e[i].op_context;

		if (!op)
			/* Completion for remote CQ data, which no peer of this program sends */
			continue;
		n_arrived += op->kind != OP_SEND;
		if (op->kind == OP_RECV)
			on_fabric_receive_done(x, (struct fabric_buf *)op, e[i].len);
		else
			on_fabric_op_done(x, op, e[i].len);
	}
	*ret_more |= n_arrived == 0;
	return n_arrived;
}

static void fabric_serve_up_conn(struct fabric_conn *c)
{
	struct wire_msg m = {.type = WIRE_PONG};

	if (c->has_pong && !fabric_io_put_message(c, &m, 1))
		c->has_pong = false;
	if (c->n_dirty)
		fabric_seg_announce(c);
	if (c->n_discarded)
		fabric_eager_send_discarded(c);
	m.type = WIRE_CREDIT;
	if (c->owed >= c->granted / 2)
		fabric_io_put_message(c, &m, 0);
	fabric_io_issue_reads(c);
	fabric_eager_post(c);
	fabric_socket_set_lowat(c);
}

/* Return whether the owner waits for room, and there may be room now. */
static bool fabric_conn_is_writable(const struct fabric_conn *c)
{
	bool has_room = c->credits > 1 && c->tx_inflight < fabric_xport_of(c)->f->tx_max;

	return has_room && (c->has_want || (c->wants_eager && fabric_eager_has_room(c, true)));
}

/* Send everything that waits to be sent on one connection. Returns whether the owner was called. */
static bool fabric_serve_conn(struct fabric_conn *c)
{
	struct fabric_xport *x = fabric_xport_of(c);

	if (c->base.state == CONN_UP)
		fabric_serve_up_conn(c);
	if (c->base.state == CONN_UP && fabric_io_flush(c) == -EAGAIN) {
		fabric_io_serve_next_poll(c);
		return false;
	}
	if (c->base.state != CONN_UP || !fabric_conn_is_writable(c))
		return false;
	c->has_want = c->wants_eager = false;
	x->base.pub.ev->writable(x->base.pub.ctx, &c->base.pub);
	return true;
}

/* Serve every connection that has something to send. Return the number of times that the owner was
 * called. fabric_serve_conn() may put a connection back on the list, for example when libfabric
 * cannot take another read yet. So the counter n limits the number of iterations. */
static int fabric_serve_busy_conns(struct fabric_xport *x)
{
	struct fabric_conn *c;
	unsigned n = 4 * FABRIC_CONNS_MAX;
	int n_called = 0;

	while (n-- && (c = TAILQ_FIRST(&x->busy))) {
		TAILQ_REMOVE(&x->busy, c, link);
		c->is_busy = false;
		n_called += fabric_serve_conn(c);
	}
	return n_called;
}

/* Try again to send on the connections whose endpoint was full. */
static void fabric_requeue_stuck_conns(struct fabric_xport *x)
{
	struct fabric_conn *c;

	while ((c = TAILQ_FIRST(&x->stuck))) {
		TAILQ_REMOVE(&x->stuck, c, link);
		c->is_stuck = false;
		TAILQ_INSERT_TAIL(&x->busy, c, link);
	}
}

static unsigned fabric_count_cm_events(const struct fabric_xport *x)
{
	return atomic_load_explicit(&x->shared.queue.n, memory_order_relaxed);
}

static void fabric_run_cm_events(struct fabric_xport *x, unsigned n)
{
	struct fabric_cm_event ev;

	handover_queue_clear_wake(&x->shared.queue);
	while (n-- && handover_queue_pop(&x->shared.queue, &ev)) {
		if (ev.kind == CM_REQUEST)
			fabric_conn_accept(x, &ev);
		else
			fabric_conn_cm_event(x, &ev);
	}
	explicit_bzero(&ev, sizeof(ev));
}

static void fabric_read_due_events(struct fabric_xport *x, uint64_t now_ns)
{
	if (!x->f->gates.has_own_events || (!x->is_event_due && now_ns - x->events_ns < EVENTS_NS))
		return;
	x->is_event_due = false;
	x->events_ns = now_ns;
	fabric_read_events(x);
}

int fabric_poll(struct xport *xp, uint64_t now_ns)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	bool has_more = true;
	unsigned n_events;
	int n = 0;

	/* Read and count the pending events, then read the completions, then handle only the
	 * counted events. Because of this order, the messages that a peer sent before it closed the
	 * connection are handled before the event that reports the close. */
	fabric_read_due_events(x, now_ns);
	n_events = fabric_count_cm_events(x);
	x->base.now_ns = now_ns;
	x->turn++;
	fabric_requeue_stuck_conns(x);
	/* Send what the owner has queued since the last poll, before a system call looks for
	 * completions. */
	n += fabric_serve_busy_conns(x);
	for (int i = 0; i < POLL_ROUNDS && has_more; i++) {
		n += fabric_drain_cq(x, &has_more);
		n += fabric_serve_busy_conns(x);
	}
	if (n_events)
		fabric_run_cm_events(x, n_events);
	if (now_ns >= x->base.next_deadline_ns)
		fabric_conn_tick(x);
	n += fabric_serve_busy_conns(x);
	n += (int)n_events + peer_close_doomed(&x->base);
	if (x->is_spoiled) {
		fabric_reset_connections(x);
		n++;
	}
	return n;
}

int fabric_may_sleep(struct xport *xp)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	struct fid *cq = &x->cq->fid, *eq = &x->eq->fid;

	if (fabric_serve_busy_conns(x) || x->is_spoiled || !TAILQ_EMPTY(&x->busy) ||
		!TAILQ_EMPTY(&x->stuck) || !TAILQ_EMPTY(&x->base.doomed) ||
		fabric_count_cm_events(x))
		return 0;
	if (x->f->gates.has_own_events && fi_trywait(x->f->fabric, &eq, 1) != 0)
		x->is_event_due = true;
	return !x->is_event_due && fi_trywait(x->f->fabric, &cq, 1) == 0;
}
