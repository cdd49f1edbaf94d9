/* The synchronous transport of fake_xport.h. The transport queues encoded messages, holds reads
 * until the test ends them, and checks that the core obeys the contract in
 * common/transport/xport.h. Only one thread may call these functions. */
#include "tests/unit/fake_xport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/error.h"

struct fake_sent {
	TAILQ_ENTRY(fake_sent) link;
	struct wire_msg m;
	/* The encoded message. The array has no spare room, because tests/bench/probe/sum.c
	 * measures a time that includes the allocation of this struct. */
	uint64_t bytes[];
};

struct fake_read {
	TAILQ_ENTRY(fake_read) link;
	struct xport_read *rd;
};

/* End the program with a message when a test fails or breaks the transport's contract. */
static void must(bool is_true, const char *what)
{
	if (is_true)
		return;
	fprintf(stderr, "fake_xport: %s\n", what);
	abort();
}

static struct fake_conn *conn_of(struct xconn *c)
{
	return (struct fake_conn *)c;
}

static struct fake_sent *sent_new(const struct wire_msg *m)
{
	uint64_t bytes[WIRE_SEND_MAX / 8 + 1];
	size_t n = wire_encode(m, bytes);
	struct fake_sent *s = malloc(sizeof(*s) + n);
	struct err_text err;

	must(s != NULL, "out of memory");
	memcpy(s->bytes, bytes, n);
	if (wire_decode(s->bytes, n, &s->m, &err) != (int)n) {
		fprintf(stderr, "fake_xport: an encoded message cannot be decoded: %s\n", err.s);
		abort();
	}
	return s;
}

static int op_send(struct xconn *xc, const struct wire_msg *m)
{
	struct fake_conn *c = conn_of(xc);
	struct fake_sent *s;

	must(!c->is_closed, "send on a closed connection");
	if (!c->is_up)
		return -ENOTCONN;
	if (c->credit == 0) {
		c->was_refused = true;
		return -EAGAIN;
	}
	c->credit--;
	s = sent_new(m);
	TAILQ_INSERT_TAIL(&c->sent, s, link);
	c->n_sent++;
	return 0;
}

static int op_send_eager(struct xconn *xc, const struct wire_msg *m, bool is_patient)
{
	struct fake_conn *c = conn_of(xc);
	int rc;

	if (is_patient && c->is_up && c->room == 0) {
		c->was_refused = true;
		return -EAGAIN;
	}
	rc = op_send(xc, m);
	c->room -= is_patient && rc == 0 && c->room != SIZE_MAX;
	return rc;
}

static bool lies_in(const struct fake_segment *s, uint64_t offset, size_t bytes)
{
	return s->mem && offset <= s->bytes && bytes <= s->bytes - offset;
}

static int op_read(struct xport_read *rd)
{
	struct fake_conn *c = conn_of(rd->conn);
	struct fake_xport *x = (struct fake_xport *)c->base.x;
	const struct fake_segment *own;
	struct fake_read *r;

	must(!c->is_closed, "read on a closed connection");
	if (!c->is_up)
		return -ENOTCONN;
	if (rd->segment >= FAKE_SEGMENTS || !lies_in(&c->peer[rd->segment], rd->offset, rd->len))
		return BPS_EPROTO;
	must(rd->own_segment < x->n_own, "read into a segment that does not exist");
	own = &x->own[rd->own_segment];
	must((unsigned char *)rd->dst >= own->mem &&
			(unsigned char *)rd->dst + rd->len <= own->mem + own->bytes,
		"read outside of its segment");
	if (c->n_reads >= c->read_limit)
		return -EAGAIN;
	r = malloc(sizeof(*r));
	must(r != NULL, "out of memory");
	r->rd = rd;
	TAILQ_INSERT_TAIL(&c->reads, r, link);
	c->n_reads++;
	return 0;
}

static void op_close(struct xconn *xc, const char *why)
{
	struct fake_conn *c = conn_of(xc);

	must(!c->is_closed, "closed twice");
	c->is_up = false;
	while (!TAILQ_EMPTY(&c->reads))
		fake_end_read(c, 0, -ECANCELED);
	snprintf(c->why, sizeof(c->why), "%s", why);
	c->base.x->ev->down(c->base.x->ctx, xc, why);
	c->is_closed = true;
}

static int op_seg_add(struct xport *xp, void *mem, size_t bytes, uint16_t *ret_segment)
{
	struct fake_xport *x = (struct fake_xport *)xp;

	if (x->n_own == FAKE_SEGMENTS)
		return -ENOMEM;
	x->own[x->n_own] = (struct fake_segment){mem, bytes};
	*ret_segment = x->n_own++;
	return 0;
}

static void op_seg_del(struct xport *xp, uint16_t segment)
{
	((struct fake_xport *)xp)->own[segment] = (struct fake_segment){0};
}

static void loan_end(void *impl)
{
	unsigned *n_loans = impl;

	must(*n_loans > 0, "a loan ended twice");
	--*n_loans;
}

static int op_borrow(
	struct xconn *xc, uint16_t segment, uint64_t offset, uint32_t len, struct xport_loan *ret)
{
	struct fake_conn *c = conn_of(xc);

	must(xc->is_same_host, "borrow from another host");
	if (!c->is_up)
		return -ENOTCONN;
	if (segment >= FAKE_SEGMENTS || !lies_in(&c->peer[segment], offset, len))
		return BPS_EPROTO;
	*ret = (struct xport_loan){c->peer[segment].mem + offset, loan_end, c->n_loans};
	++*c->n_loans;
	return 0;
}

static uint64_t op_heard_ns(const struct xconn *c)
{
	return ((const struct fake_conn *)c)->heard_ns;
}

static const struct xport_ops ops = {
	.send = op_send,
	.send_eager = op_send_eager,
	.read = op_read,
	.close = op_close,
	.seg_add = op_seg_add,
	.seg_del = op_seg_del,
	.borrow = op_borrow,
	.heard_ns = op_heard_ns,
};

void fake_init(struct fake_xport *x, const struct xport_events *ev, void *ctx)
{
	*x = (struct fake_xport){.base = {.ops = &ops, .ev = ev, .ctx = ctx}};
	TAILQ_INIT(&x->conns);
}

void fake_fini(struct fake_xport *x)
{
	struct fake_conn *c;
	struct fake_sent *s;

	TAILQ_FOREACH (c, &x->conns, link)
		if (!c->is_closed)
			op_close(&c->base, "the test is over");
	while ((c = TAILQ_FIRST(&x->conns))) {
		TAILQ_REMOVE(&x->conns, c, link);
		while ((s = TAILQ_FIRST(&c->sent))) {
			TAILQ_REMOVE(&c->sent, s, link);
			free(s);
		}
		free(c);
	}
	free(x->taken);
	x->taken = NULL;
}

struct fake_conn *fake_connect(struct fake_xport *x, uint32_t peer_id, void *user)
{
	struct fake_conn *c = calloc(1, sizeof(*c));

	must(c != NULL, "out of memory");
	c->base = (struct xconn){.x = &x->base, .user = user, .peer_id = peer_id};
	c->n_loans = &x->n_loans;
	c->credit = c->room = c->read_limit = SIZE_MAX;
	TAILQ_INIT(&c->sent);
	TAILQ_INIT(&c->reads);
	TAILQ_INSERT_TAIL(&x->conns, c, link);
	return c;
}

void fake_up(struct fake_conn *c)
{
	c->is_up = true;
	c->base.x->ev->up(c->base.x->ctx, &c->base, c->base.peer_id, c->base.peer_instance);
}

struct fake_conn *fake_accept(struct fake_xport *x, uint32_t peer_id, uint64_t instance)
{
	struct fake_conn *c = fake_connect(x, peer_id, NULL);

	c->base.peer_instance = instance;
	fake_up(c);
	return c;
}

void fake_down(struct fake_conn *c, const char *why)
{
	if (!c->is_closed)
		op_close(&c->base, why);
}

void fake_deliver(struct fake_conn *c, const struct wire_msg *m)
{
	struct fake_sent *s = sent_new(m);

	must(c->is_up, "a message on a connection that is not up");
	c->base.x->ev->message(c->base.x->ctx, &c->base, &s->m);
	free(s);
}

const struct wire_msg *fake_take(struct fake_conn *c)
{
	struct fake_xport *x = (struct fake_xport *)c->base.x;

	free(x->taken);
	x->taken = TAILQ_FIRST(&c->sent);
	if (!x->taken)
		return NULL;
	TAILQ_REMOVE(&c->sent, x->taken, link);
	c->n_sent--;
	return &x->taken->m;
}

static void writable(struct fake_conn *c)
{
	if (!c->was_refused || !c->is_up)
		return;
	c->was_refused = false;
	c->base.x->ev->writable(c->base.x->ctx, &c->base);
}

void fake_grant(struct fake_conn *c, size_t n)
{
	c->credit += n;
	writable(c);
}

void fake_make_room(struct fake_conn *c, size_t n)
{
	c->room = n < SIZE_MAX - c->room ? c->room + n : SIZE_MAX;
	writable(c);
}

static struct fake_read *read_at(const struct fake_conn *c, unsigned i)
{
	struct fake_read *r = TAILQ_FIRST(&c->reads);

	while (r && i-- > 0)
		r = TAILQ_NEXT(r, link);
	return r;
}

const struct xport_read *fake_read_at(const struct fake_conn *c, unsigned i)
{
	const struct fake_read *r = read_at(c, i);

	return r ? r->rd : NULL;
}

void fake_end_read(struct fake_conn *c, unsigned i, int status)
{
	struct fake_read *r = read_at(c, i);
	struct xport_read *rd;

	must(r != NULL, "no such read");
	rd = r->rd;
	TAILQ_REMOVE(&c->reads, r, link);
	c->n_reads--;
	free(r);
	if (status == 0)
		memcpy(rd->dst, c->peer[rd->segment].mem + rd->offset, rd->len);
	else
		memset(rd->dst, 0xa5, rd->len); /* a failed read leaves garbage in its buffer */
	c->base.x->ev->read_done(c->base.x->ctx, rd, status);
}

const void *fake_own(const struct fake_xport *x, uint16_t segment, uint64_t offset, size_t bytes)
{
	if (segment >= x->n_own || !lies_in(&x->own[segment], offset, bytes))
		return NULL;
	return x->own[segment].mem + offset;
}
