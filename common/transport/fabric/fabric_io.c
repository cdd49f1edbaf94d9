/* Sends messages and posts reads for the libfabric transport. Manages the pools of buffers, limits
 * the sends by the peer's credits, and splits reads into pieces. fabric_poll.c handles completions.
 * Thread: the data thread. */
#include "common/transport/fabric/fabric_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/base/failpoint.h"
#include "common/transport/fabric/fabric_eager.h"
#include "common/transport/fabric/fabric_socket.h"

#define TX_SLAB 32

/* ---- pools ---- */

/* Allocate and register n buffers. fabric_io_free frees them. */
static int fabric_slab_create(
	struct fabric_xport *x, uint32_t n, uint64_t access, struct fabric_slab **ret)
{
	struct fabric_slab *s = calloc(1, sizeof(*s));
	void *desc = NULL;
	int rc = -ENOMEM;

	if (!s)
		return rc;
	s->bytes = n * FABRIC_BUF_BYTES;
	s->bufs = calloc(n, sizeof(*s->bufs));
	s->mem = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s->mem == MAP_FAILED || !s->bufs)
		goto fail;
	if (x->f->mr_mode & FI_MR_LOCAL) {
		rc = fabric_register_memory(x, s->mem, s->bytes, access, &s->mr);
		if (rc)
			goto fail;
		desc = fi_mr_desc(s->mr);
	}
	for (uint32_t i = 0; i < n; i++) {
		s->bufs[i].data = (uint8_t *)s->mem + i * FABRIC_BUF_BYTES;
		s->bufs[i].desc = desc;
		s->bufs[i].op.kind = access & FI_SEND ? OP_SEND : OP_RECV;
	}
	s->next = x->slabs;
	x->slabs = s;
	*ret = s;
	return 0;
fail:
	if (s->mem != MAP_FAILED)
		munmap(s->mem, s->bytes);
	free(s->bufs);
	free(s);
	return rc;
}

void fabric_io_free(struct fabric_xport *x)
{
	while (x->slabs) {
		struct fabric_slab *s = x->slabs;

		x->slabs = s->next;
		if (s->mr)
			fi_close(&s->mr->fid);
		munmap(s->mem, s->bytes);
		free(s->bufs);
		free(s);
	}
	while (x->rop_slabs) {
		struct fabric_rop_slab *s = x->rop_slabs;

		x->rop_slabs = s->next;
		free(s);
	}
}

/* Serve the connection before the thread sleeps, so that fabric_socket_set_lowat takes account of
 * the expected bytes. */
static void fabric_update_lowat(struct fabric_conn *c)
{
	if (c->fds[fabric_arrival_channel(c)] >= 0)
		fabric_io_touch(c);
}

void fabric_io_expect(struct fabric_conn *c, enum channel channel, uint32_t len)
{
	struct fabric_arrivals *a = &c->arrivals[channel];

	/* libfabric shows only that a whole operation is complete. While one is posted, its bytes
	 * arrive, so only a time without a posted operation may be a pause of the peer. */
	if (!a->expected)
		recv_rtt_heard(&a->meter.rtt, fabric_xport_of(c)->base.now_ns);
	a->longest = a->expected && a->longest > len ? a->longest : len;
	a->expected += len;
	fabric_update_lowat(c);
}

/* The len bytes of an operation have arrived on a channel, or will not arrive. */
static void fabric_finish_arrival(struct fabric_conn *c, enum channel channel, uint32_t len)
{
	c->arrivals[channel].expected -= len;
	fabric_update_lowat(c);
}

void fabric_io_done(struct fabric_xport *x, struct fabric_op *op)
{
	if (op->conn && op->kind == OP_READ)
		fabric_finish_arrival(
			op->conn, fabric_read_channel(op->conn), ((struct fabric_rop *)op)->len);
	if (op->conn && op->kind == OP_EAGER_IN)
		fabric_finish_arrival(op->conn, CHANNEL_SECOND, ((struct fabric_rop *)op)->len);
	TAILQ_REMOVE(op->conn ? &op->conn->ops : &x->orphans, op, link);
	op->conn = NULL;
	TAILQ_INSERT_HEAD(op->kind == OP_SEND ? &x->tx_free : &x->rop_free, op, link);
}

void fabric_io_reclaim(struct fabric_xport *x)
{
	struct fabric_op *op;

	while ((op = TAILQ_FIRST(&x->orphans)) && x->n_drained > op->orphan_drained &&
		x->base.now_ns > op->orphan_ns + FABRIC_ORPHAN_NS)
		fabric_io_done(x, op);
}

void fabric_io_abandon(struct fabric_conn *c)
{
	struct fabric_xport *x = fabric_xport_of(c);
	struct fabric_op *op;

	TAILQ_FOREACH (op, &c->ops, link) {
		op->conn = NULL;
		op->orphan_ns = x->base.now_ns;
		op->orphan_drained = x->n_drained;
	}
	TAILQ_CONCAT(&x->orphans, &c->ops, link);
	if (c->open)
		TAILQ_INSERT_HEAD(&x->tx_free, &c->open->op, link);
	c->open = NULL;
	c->tx_inflight = 0;
	c->n_rops = 0;
	for (unsigned i = 0; i < N_CHANNELS; i++)
		c->arrivals[i].expected = 0;
	c->n_eager_out = c->eager_bytes = 0;
	c->n_eager = c->n_eager_posted = 0;
	c->n_eager_lost = 0;
}

static struct fabric_buf *fabric_take_send_buffer(struct fabric_xport *x)
{
	struct fabric_op *op;
	struct fabric_slab *s;

	if (TAILQ_EMPTY(&x->tx_free)) {
		fabric_io_reclaim(x);
		if (TAILQ_EMPTY(&x->tx_free)) {
			if (fabric_slab_create(x, TX_SLAB, FI_SEND, &s))
				return NULL;
			for (int i = 0; i < TX_SLAB; i++)
				TAILQ_INSERT_TAIL(&x->tx_free, &s->bufs[i].op, link);
		}
	}
	op = TAILQ_FIRST(&x->tx_free);
	TAILQ_REMOVE(&x->tx_free, op, link);
	return (struct fabric_buf *)op;
}

struct fabric_rop *fabric_io_get_rop(struct fabric_xport *x, enum fabric_op_kind kind)
{
	struct fabric_op *op;

	if (TAILQ_EMPTY(&x->rop_free)) {
		struct fabric_rop_slab *s = calloc(1, sizeof(*s));

		if (!s)
			return NULL;
		s->next = x->rop_slabs;
		x->rop_slabs = s;
		for (size_t i = 0; i < sizeof(s->rops) / sizeof(s->rops[0]); i++)
			TAILQ_INSERT_TAIL(&x->rop_free, &s->rops[i].op, link);
	}
	op = TAILQ_FIRST(&x->rop_free);
	TAILQ_REMOVE(&x->rop_free, op, link);
	op->kind = kind;
	return (struct fabric_rop *)op;
}

int fabric_io_post_rx(struct fabric_xport *x, struct fabric_buf *b)
{
	return (int)fi_recv(x->srx, b->data, FABRIC_BUF_BYTES, b->desc, 0, &b->op.ctx);
}

/* The posted receive buffers belong to no single connection. When a connection ends, the buffers
 * stay posted, and the next connection uses them. */
int fabric_io_grow_rx(struct fabric_xport *x, uint32_t n_posted)
{
	struct fabric_slab *s;
	uint32_t n;
	int rc;

	if (x->rx_posted >= n_posted)
		return 0;
	n = n_posted - x->rx_posted;
	rc = fabric_slab_create(x, n, FI_RECV, &s);
	for (uint32_t i = 0; !rc && i < n; i++) {
		rc = fabric_io_post_rx(x, &s->bufs[i]);
		x->rx_posted += !rc;
	}
	return rc;
}

int fabric_io_renew(struct fabric_xport *x)
{
	struct fabric_op *op;
	int rc = 0;

	while ((op = TAILQ_FIRST(&x->orphans)))
		fabric_io_done(x, op);
	x->rx_posted = 0;
	for (struct fabric_slab *s = x->slabs; s; s = s->next)
		for (uint32_t i = 0; !rc && i < s->bytes / FABRIC_BUF_BYTES; i++) {
			if (s->bufs[i].op.kind != OP_RECV)
				break;
			rc = fabric_io_post_rx(x, &s->bufs[i]);
			x->rx_posted += !rc;
		}
	return rc;
}

/* ---- sending ---- */

void fabric_io_touch(struct fabric_conn *c)
{
	if (c->is_busy)
		return;
	c->is_busy = true;
	TAILQ_INSERT_TAIL(&fabric_xport_of(c)->busy, c, link);
}

void fabric_io_serve_next_poll(struct fabric_conn *c)
{
	struct fabric_xport *x = fabric_xport_of(c);

	if (c->is_stuck)
		return;
	if (c->is_busy)
		TAILQ_REMOVE(&x->busy, c, link);
	c->is_busy = c->is_stuck = true;
	TAILQ_INSERT_TAIL(&x->stuck, c, link);
}

int fabric_io_flush(struct fabric_conn *c)
{
	struct fabric_xport *x = fabric_xport_of(c);
	struct fabric_buf *b = c->open;
	ssize_t rc;

	if (!b || !b->used)
		return 0;
	if (x->is_spoiled || !c->is_linked)
		return -EAGAIN;
	rc = fi_send(c->ep, b->data, b->used, b->desc, 0, &b->op.ctx);
	if (rc == -FI_EAGAIN)
		return -EAGAIN;
	if (rc) {
		peer_conn_doom(&c->base, "cannot send: %s", fi_strerror((int)-rc));
		return -ENOTCONN;
	}
	b->op.conn = c;
	TAILQ_INSERT_TAIL(&c->ops, &b->op, link);
	c->open = NULL;
	net_counter_add(&x->shared.count.tx_bytes, b->used);
	return 0;
}

static int fabric_conn_open_buffer(struct fabric_conn *c, uint32_t reserve)
{
	struct fabric_xport *x = fabric_xport_of(c);

	if (c->credits <= reserve || c->tx_inflight >= x->f->tx_max)
		return -EAGAIN;
	c->open = fabric_take_send_buffer(x);
	if (!c->open)
		return -EAGAIN;
	c->open->used = 0;
	c->credits--;
	c->tx_inflight++;
	return 0;
}

int fabric_io_make_room(struct fabric_conn *c, size_t n_bytes, uint32_t reserve)
{
	int rc = 0;

	if (c->open && c->open->used + n_bytes > FABRIC_BUF_BYTES)
		rc = fabric_io_flush(c);
	if (!rc && !c->open)
		rc = fabric_conn_open_buffer(c, reserve);
	return rc;
}

int fabric_io_put_message(struct fabric_conn *c, const struct wire_msg *m, uint32_t reserve)
{
	struct wire_msg out;
	int rc = fabric_io_make_room(c, wire_size(m), reserve);

	if (rc)
		return rc;
	out = *m;
	out.cookie = c->tx_cookie;
	out.credits = (uint16_t)c->owed;
	if (!c->open->used)
		fabric_io_touch(c);
	c->rx_allow += c->owed;
	c->owed = 0;
	c->open->used += (uint32_t)wire_encode(&out, c->open->data + c->open->used);
	net_counter_add(&fabric_xport_of(c)->shared.count.messages_out, 1);
	return 0;
}

int fabric_io_send(struct xconn *xc, const struct wire_msg *m)
{
	struct fabric_conn *c = (struct fabric_conn *)xc;
	int rc = 0;

	FAILPOINT(NET_SEND);
	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	/* Announce new segments first, because the message m may name a new segment */
	if (c->n_dirty)
		rc = fabric_seg_announce(c);
	if (!rc)
		rc = fabric_io_put_message(c, m, 1);
	if (rc == -EAGAIN)
		c->has_want = true;
	else if (!rc && c->is_eager && m->len && !(m->flags & WIRE_INLINE))
		/* The message offers bytes without sending them, so the peer will request them. */
		eager_policy_forget(&c->policy, m->segment, m->offset);
	return rc;
}

/* ---- reads ---- */

/* Post a read of the next len bytes. Returns false when the read cannot be posted now, or when the
 * connection has failed. */
static bool fabric_issue_read_piece(struct fabric_conn *c, struct peer_read *rd, uint32_t len)
{
	struct fabric_xport *x = fabric_xport_of(c);
	const struct xport_read *r = rd->r;
	const struct fabric_peer_seg *s = fabric_seg_find(c, r->segment);
	struct fabric_rop *rop;
	ssize_t rc = -FI_EAGAIN;

	if (!s || r->offset > s->bytes || r->len > s->bytes - r->offset) {
		peer_conn_doom(
			&c->base, "the peer withdrew segment %u while it was read", r->segment);
		return false;
	}
	if (x->is_spoiled || !c->is_linked)
		return false;
	rop = fabric_io_get_rop(x, OP_READ);
	if (rop)
		rc = fi_read(c->eps[fabric_read_channel(c)], (uint8_t *)r->dst + rd->issued, len,
			x->segs[r->own_segment].desc, 0, s->base + r->offset + rd->issued, s->key,
			&rop->op.ctx);
	if (rc) {
		if (rop)
			TAILQ_INSERT_HEAD(&x->rop_free, &rop->op, link);
		if (rc == -FI_EAGAIN)
			fabric_io_touch(c);
		else
			peer_conn_doom(&c->base, "cannot read: %s", fi_strerror((int)-rc));
		return false;
	}
	rop->rd = rd;
	rop->len = len;
	rop->asked_ns = x->base.now_ns;
	rop->op.conn = c;
	TAILQ_INSERT_TAIL(&c->ops, &rop->op, link);
	c->n_rops++;
	fabric_io_expect(c, fabric_read_channel(c), len);
	peer_reads_requested(&c->reads, rd, len);
	return true;
}

void fabric_io_issue_reads(struct fabric_conn *c)
{
	size_t max = fabric_xport_of(c)->f->info->ep_attr->max_msg_size;
	struct peer_read *rd;
	uint32_t len;

	while (c->n_rops < READS_MAX && (len = peer_reads_next_piece(&c->reads, &rd)))
		if (!fabric_issue_read_piece(c, rd, len > max ? (uint32_t)max : len))
			return;
}

static bool fabric_segment_has_range(const struct fabric_seg *s, const void *p, size_t n)
{
	uintptr_t off = (uintptr_t)p - (uintptr_t)s->mem;

	return s->mem && off <= s->bytes && n <= s->bytes - off;
}

int fabric_io_read(struct xport_read *r)
{
	struct fabric_conn *c = (struct fabric_conn *)r->conn;
	const struct fabric_peer_seg *s;
	struct fabric_eager *e;
	struct peer_read *rd;
	int rc = FAILPOINT(NET_READ);

	if (rc < 0)
		return rc;
	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	s = fabric_seg_find(c, r->segment);
	if (!s || !r->len || r->offset > s->bytes || r->len > s->bytes - r->offset)
		return BPS_EPROTO;
	if (r->own_segment >= FABRIC_SEGS_MAX ||
		!fabric_segment_has_range(
			&fabric_xport_of(c)->segs[r->own_segment], r->dst, r->len))
		return -EINVAL;
	e = fabric_eager_find(c, r);
	/* With eager bytes, accept reads that wait for the window, too: if this function returned
	 * -EAGAIN for such a read, the caller would start no further read, and this side would
	 * discard the eager bytes of the next ones. */
	if (!c->is_eager && c->reads.n_queued == READ_WINDOW_QUEUE)
		return -EAGAIN;
	rd = peer_reads_start(&c->reads, r);
	if (!rd)
		return -EAGAIN;
	if (e) {
		e->rd = rd;
		fabric_eager_post(c);
		return 0;
	}
	peer_reads_enqueue(&c->reads, rd);
	fabric_io_issue_reads(c);
	return 0;
}
