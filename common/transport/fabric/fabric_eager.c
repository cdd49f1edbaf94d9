/* Eager bytes of the libfabric transport: bytes that are sent with their offer, without a request.
 *
 * This needs provider tcp of libfabric 1.19 or later at both ends (has_eager in fabric_gates.h).
 * The sender posts the bytes with fi_send on the second channel. The message with the offer has the
 * flag WIRE_EAGER, and goes over the first channel. So the receiver knows the order of the bytes
 * that will arrive on the second channel. It posts a receive for each of them in this order: into
 * the place of the read that takes the bytes, or into the sink for discarded bytes. Without a
 * posted receive, the bytes wait in the socket, and the reads of the accepting side (requests and
 * answers) wait behind them. So the receiver decides in the next poll at the latest, or as soon as
 * its owner has handled the message (decides_late of struct xport).
 *
 * Thread: the data thread. */
#include "common/transport/fabric/fabric_eager.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/failpoint.h"
#include "common/transport/fabric/fabric_socket.h"

static struct fabric_eager *fabric_eager_offer_at(struct fabric_conn *c, unsigned i)
{
	return &c->eager[(c->eager_first + i) % EAGER_IN_MAX];
}

/* ---- sending ---- */

/* Send only the message that offers bytes, not the bytes. */
static int fabric_send_offer_only(struct fabric_conn *c, const struct wire_msg *m)
{
	int rc = fabric_io_send(&c->base.pub, m);

	if (!rc && c->is_eager)
		eager_policy_held_back(&c->policy, m->segment, m->offset);
	return rc;
}

bool fabric_eager_has_room(const struct fabric_conn *c, bool is_patient)
{
	return eager_policy_has_room(
		c->n_eager_out, c->eager_bytes, c->base.pub.x->ahead_bytes, is_patient);
}

/* Post the bytes that m offers.
 * Errors: -EAGAIN: the endpoint is full; -ENOTCONN: the connection has failed (DOOMED). */
static int fabric_post_eager_bytes(struct fabric_conn *c, const struct wire_msg *m)
{
	struct fabric_xport *x = fabric_xport_of(c);
	const struct fabric_seg *s = &x->segs[m->segment];
	struct fabric_rop *rop = fabric_io_get_rop(x, OP_EAGER_OUT);
	ssize_t rc;

	if (!rop)
		return -EAGAIN;
	rc = fi_send(c->eps[CHANNEL_SECOND], s->mem + m->offset, m->len, s->desc, 0, &rop->op.ctx);
	if (rc) {
		TAILQ_INSERT_HEAD(&x->rop_free, &rop->op, link);
		if (rc == -FI_EAGAIN)
			return -EAGAIN;
		peer_conn_doom(&c->base, "cannot send: %s", fi_strerror((int)-rc));
		return -ENOTCONN;
	}
	rop->len = m->len;
	rop->segment = m->segment;
	rop->op.conn = c;
	TAILQ_INSERT_TAIL(&c->ops, &rop->op, link);
	c->n_eager_out++;
	c->eager_bytes += m->len;
	return 0;
}

static bool lies_in_a_segment(const struct fabric_xport *x, const struct wire_msg *m)
{
	const struct fabric_seg *s = &x->segs[m->segment];

	return s->mem && m->offset <= s->bytes && m->len <= s->bytes - m->offset;
}

/* Send the message m with its bytes. There is room for them.
 * Errors: -EAGAIN: there is no room for the message, or the endpoint is full (*ret_is_full);
 * -ENOTCONN. */
static int send_with_bytes(struct fabric_conn *c, const struct wire_msg *m, bool *ret_is_full)
{
	struct wire_msg out = *m;
	int rc = c->n_dirty ? fabric_seg_announce(c) : 0;

	/* Make room for the message first: bytes without their message would be received in the
	 * place of other bytes. */
	if (!rc)
		rc = fabric_io_make_room(c, wire_size(m), 1);
	if (rc)
		return rc;
	rc = fabric_post_eager_bytes(c, m);
	*ret_is_full = rc == -EAGAIN;
	if (rc)
		return rc;
	eager_policy_sent(&c->policy, m->segment, m->offset, m->len);
	out.flags |= WIRE_EAGER;
	rc = fabric_io_put_message(c, &out, 1);
	assert(rc == 0);
	return rc;
}

int fabric_eager_send(struct xconn *xc, const struct wire_msg *m, bool is_patient)
{
	struct fabric_conn *c = (struct fabric_conn *)xc;
	bool is_full = false;
	int rc;

	assert(m->segment < FABRIC_SEGS_MAX && m->len && !(m->flags & WIRE_INLINE));
	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	if (!c->is_eager || m->len > FABRIC_EAGER_BYTES || !eager_policy_may_go(&c->policy) ||
		!lies_in_a_segment(fabric_xport_of(c), m))
		return fabric_send_offer_only(c, m);
	if (!fabric_eager_has_room(c, is_patient)) {
		c->wants_eager |= is_patient;
		return is_patient ? -EAGAIN : fabric_send_offer_only(c, m);
	}
	FAILPOINT(NET_SEND);
	rc = send_with_bytes(c, m, &is_full);
	if (is_full && (!is_patient || !c->n_eager_out))
		return fabric_send_offer_only(c, m);
	if (is_full)
		c->wants_eager = true;
	else if (rc == -EAGAIN)
		c->has_want = true;
	return rc;
}

void fabric_eager_sent(struct fabric_conn *c, uint32_t len)
{
	c->n_eager_out--;
	c->eager_bytes -= len;
	if (c->wants_eager)
		fabric_io_touch(c);
}

/* Return whether a connection sends eager bytes of this segment. */
static bool fabric_segment_is_being_sent(const struct fabric_conn *c, uint16_t segment)
{
	const struct fabric_op *op;

	TAILQ_FOREACH (op, &c->ops, link)
		if (op->kind == OP_EAGER_OUT && ((const struct fabric_rop *)op)->segment == segment)
			return true;
	return false;
}

void fabric_eager_end_segment(struct fabric_xport *x, uint16_t segment)
{
	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++) {
		struct fabric_conn *c = x->conns[i];

		if (!c || !c->n_eager_out || !fabric_segment_is_being_sent(c, segment))
			continue;
		peer_conn_doom(&c->base, "memory was withdrawn while its bytes were sent");
		fabric_conn_close_endpoints(c);
	}
}

/* ---- receiving ---- */

static bool fabric_eager_is_same_memory(
	const struct fabric_eager *e, uint16_t segment, uint64_t offset, uint32_t len)
{
	return e->segment == segment && e->offset == offset && e->len == len;
}

bool fabric_eager_record(struct fabric_conn *c, const struct wire_msg *m)
{
	bool is_eager = m->flags & WIRE_EAGER;
	const struct fabric_peer_seg *s;

	if (!m->len || m->flags & WIRE_INLINE)
		return !is_eager;
	for (unsigned i = c->n_eager_posted; i < c->n_eager; i++) {
		struct fabric_eager *e = fabric_eager_offer_at(c, i);

		e->is_offered_again |=
			fabric_eager_is_same_memory(e, m->segment, m->offset, m->len);
	}
	if (!is_eager)
		return true;
	s = fabric_seg_find(c, m->segment);
	if (!s || m->offset > s->bytes || m->len > s->bytes - m->offset ||
		m->len > FABRIC_EAGER_BYTES)
		return false;
	if (c->n_eager == EAGER_IN_MAX || c->n_eager_lost) {
		c->n_eager_lost++;
		return true;
	}
	*fabric_eager_offer_at(c, c->n_eager++) = (struct fabric_eager){.segment = m->segment,
		.len = m->len,
		.offset = m->offset,
		.turn = fabric_xport_of(c)->turn,
		.message = c->n_messages + 1};
	return true;
}

struct fabric_eager *fabric_eager_find(struct fabric_conn *c, const struct xport_read *r)
{
	for (unsigned i = c->n_eager_posted; i < c->n_eager; i++) {
		struct fabric_eager *e = fabric_eager_offer_at(c, i);

		if (!e->rd && !e->is_offered_again &&
			fabric_eager_is_same_memory(e, r->segment, r->offset, r->len))
			return e;
	}
	return NULL;
}

/* Allocate the buffer for discarded bytes, if it is not allocated yet. Returns false when out of
 * memory. Its content is never read, so all discarded bytes may go to it. */
static bool fabric_has_discard_sink(struct fabric_xport *x)
{
	if (!x->sink)
		x->sink = malloc(FABRIC_EAGER_BYTES);
	return x->sink;
}

/* Post the receive of an offer's bytes. Returns false when the receive cannot be posted now, or
 * when the connection has failed. */
static bool fabric_post_eager_receive(struct fabric_conn *c, struct fabric_eager *e)
{
	struct fabric_xport *x = fabric_xport_of(c);
	const struct xport_read *r = e->rd ? e->rd->r : NULL;
	/* The length of a lost offer is unknown */
	uint32_t len = e->len ? e->len : FABRIC_EAGER_BYTES;
	struct fabric_rop *rop = fabric_io_get_rop(x, OP_EAGER_IN);
	ssize_t rc = -FI_EAGAIN;

	if (rop && (r || fabric_has_discard_sink(x)))
		rc = fi_recv(c->eps[CHANNEL_SECOND], r ? r->dst : x->sink, len,
			r ? x->segs[r->own_segment].desc : NULL, 0, &rop->op.ctx);
	if (rc) {
		if (rop)
			TAILQ_INSERT_HEAD(&x->rop_free, &rop->op, link);
		if (rc != -FI_EAGAIN)
			peer_conn_doom(&c->base, "cannot receive: %s", fi_strerror((int)-rc));
		return false;
	}
	rop->rd = e->rd;
	rop->len = e->len;
	rop->op.conn = c;
	TAILQ_INSERT_TAIL(&c->ops, &rop->op, link);
	c->n_eager_posted++;
	fabric_io_expect(c, CHANNEL_SECOND, e->len);
	return true;
}

/* Return whether this side may decide now that no read takes the bytes of an offer. */
static bool fabric_offer_is_unwanted(const struct fabric_conn *c, const struct fabric_eager *e)
{
	const struct fabric_xport *x = fabric_xport_of(c);

	if (e->is_offered_again)
		return true;
	return x->base.pub.decides_late ? e->message <= c->n_decided : e->turn < x->turn;
}

void fabric_eager_post(struct fabric_conn *c)
{
	while (c->base.state == CONN_UP && c->n_eager_posted < FABRIC_EAGER_POSTED) {
		struct fabric_eager *e;

		if (c->n_eager_posted == c->n_eager && c->n_eager_lost) {
			/* The bytes of a lost offer are discarded, and its memory is not known any
			 * more. */
			*fabric_eager_offer_at(c, c->n_eager++) =
				(struct fabric_eager){.is_offered_again = true};
			c->n_eager_lost--;
		}
		if (c->n_eager_posted == c->n_eager)
			return;
		e = fabric_eager_offer_at(c, c->n_eager_posted);
		if (!e->rd && !fabric_offer_is_unwanted(c, e)) {
			/* fabric_eager_decided goes on if the owner decides late */
			if (!fabric_xport_of(c)->base.pub.decides_late)
				fabric_io_serve_next_poll(c);
			return;
		}
		if (!fabric_post_eager_receive(c, e)) {
			fabric_io_serve_next_poll(c);
			return;
		}
	}
}

void fabric_eager_decided(struct xconn *xc, uint64_t n_messages)
{
	struct fabric_conn *c = (struct fabric_conn *)xc;

	c->n_decided = n_messages;
	if (c->n_eager > c->n_eager_posted)
		fabric_io_touch(c);
}

void fabric_eager_received(
	struct fabric_conn *c, struct peer_read *rd, uint32_t offered, size_t len)
{
	struct fabric_xport *x = fabric_xport_of(c);
	const struct fabric_eager e = *fabric_eager_offer_at(c, 0);

	c->eager_first = (c->eager_first + 1) % EAGER_IN_MAX;
	c->n_eager--;
	c->n_eager_posted--;
	if (offered && len != offered) {
		fabric_protocol_error(c, "eager bytes whose length differs from their offer");
		return;
	}
	net_counter_add(&x->shared.count.rx_bytes, len);
	peer_conn_heard(&c->base);
	fabric_socket_measure(c, CHANNEL_SECOND, len);
	if (!rd) {
		net_counter_add(&x->shared.count.discarded_bytes, len);
		if (!e.is_offered_again && c->n_discarded < FABRIC_DISCARDED)
			c->discarded[c->n_discarded++] = e;
	}
	fabric_io_touch(c);
	if (rd)
		fabric_read_finish(c, rd);
}

void fabric_eager_send_discarded(struct fabric_conn *c)
{
	struct wire_msg m = {.type = WIRE_DISCARDED};

	while (c->n_discarded) {
		const struct fabric_eager *e = &c->discarded[c->n_discarded - 1];

		m.segment = e->segment;
		m.offset = e->offset;
		if (fabric_io_put_message(c, &m, 1))
			return;
		c->n_discarded--;
	}
}
