/* Ends that make and receive offers, for the tests of eager bytes with all transports. The tests of
 * a transport set taker_requests. Thread: that of the test. */
#include "tests/unit/eager_rig.h"

#include <string.h>

#include "common/data/crc32c.h"

struct taker takers[2];
unsigned (*taker_requests)(const struct net_node *n);

struct taker *taker_of(const struct net_node *n)
{
	return &takers[n->peer_id == CLIENT_ID];
}

struct wire_msg offer_of(const struct mem *m, uint64_t round, uint64_t offset, uint32_t len)
{
	return (struct wire_msg){.type = WIRE_CONTRIB,
		.round = round,
		.segment = m->seg,
		.offset = offset,
		.len = len,
		.crc = crc32c(0, m->p + offset, len),
		.contrib.workers = 1};
}

int send_offer(
	struct net_node *n, const struct mem *m, uint64_t round, uint64_t offset, uint32_t len)
{
	struct wire_msg o = offer_of(m, round, offset, len);

	return xport_send_eager(n->conn, &o, false);
}

int take(struct net_node *n, unsigned i)
{
	struct taker *t = taker_of(n);
	const struct wire_msg *m = &t->heard[i];
	unsigned n_asked = taker_requests(n);
	int rc;

	t->reads[i] = (struct xport_read){.conn = n->conn,
		.dst = t->to.p + m->offset,
		.own_segment = t->to.seg,
		.segment = m->segment,
		.offset = m->offset,
		.len = m->len};
	rc = xport_read(&t->reads[i]);
	t->n_begun += rc == 0;
	t->is_asked |= taker_requests(n) != n_asked;
	return rc;
}

void hear(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	struct taker *t = taker_of(n);

	(void)c;
	n->is_wrong |= (m->flags & WIRE_EAGER) != 0;
	t->heard[t->n_heard++ % TAKER_MANY] = *m;
}

void hear_and_take(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	hear(n, c, m);
	n->is_wrong |= take(n, taker_of(n)->n_heard - 1) != 0;
}

bool take_all_heard(struct net_node *n)
{
	struct taker *t = taker_of(n);

	while (t->n_begun < t->n_heard)
		n->is_wrong |= take(n, t->n_begun) != 0;
	return t->n_begun > 0;
}

void check_bytes(const struct taker *t, unsigned i, const struct mem *from)
{
	const struct wire_msg *m = &t->heard[i];

	assert_memory_equal(t->to.p + m->offset, from->p + m->offset, m->len);
	assert_int_equal(xport_read_crc(&t->reads[i]), crc32c(0, from->p + m->offset, m->len));
}

uint64_t discarded(const struct net_node *n)
{
	struct net_stats s;

	net_stats(n->f, &s);
	return s.discarded_bytes;
}

static void hear_batch_and_take_backwards(
	struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	hear(n, c, m);
	for (unsigned i = EAGER_BATCH; i > 0 && m->round % EAGER_BATCH == 0; i--)
		n->is_wrong |= take(n, (unsigned)m->round - EAGER_BATCH + i - 1) != 0;
}

void read_batches_backwards(struct offer_pair *p, uint32_t len)
{
	p->r.client.on_message = hear_batch_and_take_backwards;
	for (unsigned k = 0; k < 40; k++) { /* 40 batches use every place of all rings */
		memset(p->t->to.p, 0, p->t->to.bytes);
		for (unsigned i = 0; i < EAGER_BATCH; i++)
			assert_int_equal(send_offer(&p->r.server, &p->from, k * EAGER_BATCH + i + 1,
						 i * len, len),
				0);
		RUN(&p->r, p->r.client.n_read_done == (k + 1) * EAGER_BATCH);
		for (unsigned i = 0; i < EAGER_BATCH; i++)
			check_bytes(p->t, k * EAGER_BATCH + i, &p->from);
	}
}

void bytes_wait_for_a_late_owner(struct offer_pair *p, uint32_t len)
{
	struct net_node *c = &p->r.client;

	c->x->decides_late = true;
	c->on_message = hear;
	assert_int_equal(send_offer(&p->r.server, &p->from, 1, 0, len), 0);
	RUN(&p->r, p->t->n_heard == 1);
	assert_false(RUN_MS(&p->r, discarded(c), 30));
	assert_int_equal(take(c, 0), 0);
	RUN(&p->r, c->n_read_done == 1);
	check_bytes(p->t, 0, &p->from);
	assert_int_equal(send_offer(&p->r.server, &p->from, 2, len, len), 0);
	RUN(&p->r, p->t->n_heard == 2);
	c->x->ops->decided(c->conn, 1); /* an old decision */
	assert_false(RUN_MS(&p->r, discarded(c), 30));
	c->x->ops->decided(c->conn, 2);
	RUN(&p->r, discarded(c) == len);
	assert_false(p->t->is_asked);
	assert_int_equal(c->n_read_failed, 0);
}
