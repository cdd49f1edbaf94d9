/* Eager bytes with the transport over libfabric's provider tcp. Eager bytes are sent with their
 * offer and without a request (xport_send_eager). With versions of libfabric that lack what they
 * need, the peer requests the bytes. One thread drives both ends. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/fabric_pair.h"

static void offer_both_ways(bool is_late)
{
	static const uint32_t sizes[] = {1, 15, 4096, 4097, 65537, 300001, FABRIC_EAGER_BYTES};
	struct taker *s = &takers[1], *c = &takers[0];
	struct net_stats stats;
	struct mem from_c;
	struct offer_pair p;

	fabric_pair_open(&p, READ_MAX);
	from_c = mem_new(&p.r.client, READ_MAX, 12);
	s->to = mem_new(&p.r.server, READ_MAX, 0);
	p.r.server.on_message = p.r.client.on_message = is_late ? hear : hear_and_take;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t at = (READ_MAX - sizes[i]) / 2;

		memset(s->to.p, 0, READ_MAX);
		memset(c->to.p, 0, READ_MAX);
		assert_int_equal(send_offer(&p.r.server, &p.from, i + 1, at, sizes[i]), 0);
		assert_int_equal(send_offer(&p.r.client, &from_c, i + 1, at, sizes[i]), 0);
		RUN(&p.r, (!is_late ||
				  (take_all_heard(&p.r.server), take_all_heard(&p.r.client), 1)) &&
				  p.r.server.n_read_done == i + 1 &&
				  p.r.client.n_read_done == i + 1);
		check_bytes(s, i, &from_c);
		check_bytes(c, i, &p.from);
	}
	assert_int_equal(p.r.server.n_read_failed + p.r.client.n_read_failed, 0);
	assert_int_equal(s->is_asked || c->is_asked, !fabric_has_eager(&p.r.server));
	assert_int_equal(discarded(&p.r.server) + discarded(&p.r.client), 0);
	net_stats(p.r.server.f, &stats);
	assert_in_range(stats.tx_bytes, 1, 10000); /* only messages */
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
	mem_free(&from_c);
	mem_free(&s->to);
}

static void bytes_of_long_offers_are_requested(void **state)
{
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, READ_MAX);
	p.r.client.on_message = hear_and_take;
	assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, FABRIC_EAGER_BYTES + 1), 0);
	RUN(&p.r, p.r.client.n_read_done == 1);
	assert_true(p.t->is_asked);
	check_bytes(p.t, 0, &p.from);
	fabric_pair_close(&p);
}

static void bytes_come_with_their_offer(void **state)
{
	(void)state;
	offer_both_ways(false);
}

static void offer_may_be_read_after_the_turn_that_received_it(void **state)
{
	(void)state;
	offer_both_ways(true);
}

static void bytes_of_an_unread_offer_are_discarded(void **state)
{
	const uint32_t len = 300000;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, 2 * len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, len), 0);
	RUN(&p.r, discarded(&p.r.client) == len);
	/* The client reports this, so that the server sends its next offers without bytes. */
	RUN(&p.r, !eager_policy_may_go(&fabric_conn_of(&p.r.server)->policy));
	/* The offer can still be read, so the client requests the bytes from the server. */
	assert_int_equal(take(&p.r.client, 0), 0);
	assert_true(p.t->is_asked);
	RUN(&p.r, p.r.client.n_read_done == 1);
	check_bytes(p.t, 0, &p.from);
	/* Messages, offers and reads still work after the bytes were discarded. */
	fabric_conn_of(&p.r.server)->policy = (struct eager_policy){0};
	p.t->is_asked = false;
	p.r.client.on_message = hear_and_take;
	assert_int_equal(send_offer(&p.r.server, &p.from, 2, len, len), 0);
	RUN(&p.r, p.r.client.n_read_done == 2);
	check_bytes(p.t, 1, &p.from);
	assert_false(p.t->is_asked);
	assert_int_equal(p.r.client.n_read_failed, 0);
	assert_int_equal(discarded(&p.r.client), len);
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
}

static void bytes_of_an_offer_wait_for_an_owner_that_decides_late(void **state)
{
	const uint32_t len = 300000;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, 2 * len);
	NEED_EAGER(&p);
	bytes_wait_for_a_late_owner(&p, len);
	fabric_pair_close(&p);
}

static void read_of_other_bytes_requests_them(void **state)
{
	const uint32_t len = 50000;
	struct mem other;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, len + 1);
	NEED_EAGER(&p);
	other = mem_new(&p.r.server, len + 1, 77);
	p.r.client.on_message = hear;
	for (unsigned i = 0; i < 4; i++) {
		const struct mem *from = i == 3 ? &other : &p.from;
		struct xport_read rd = read_of(&p.r.client, &p.t->to, from, i == 1, len);

		rd.len -= i == 0;
		rd.len += i == 2;
		fabric_conn_of(&p.r.server)->policy = (struct eager_policy){0};
		assert_int_equal(send_offer(&p.r.server, &p.from, i + 1, 0, len), 0);
		RUN(&p.r, p.t->n_heard == i + 1);
		assert_int_equal(xport_read(&rd), 0);
		RUN(&p.r, p.r.client.n_read_done == i + 1 &&
				  discarded(&p.r.client) == (i + 1) * (uint64_t)len);
		assert_int_equal(p.r.client.read_status, 0);
		assert_memory_equal(rd.dst, from->p + rd.offset, rd.len);
	}
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
	mem_free(&other);
}

static void offers_ahead_may_be_read_in_another_order(void **state)
{
	const uint32_t len = 30011;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, EAGER_BATCH * (size_t)len);
	read_batches_backwards(&p, len);
	assert_int_equal(p.r.client.n_read_failed, 0);
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
}

/* The same memory is offered twice, and read once, after the second offer. */
static void bytes_of_an_older_offer_are_not_taken(void **state)
{
	const uint32_t len = 40000;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, len), 0);
	assert_int_equal(send_offer(&p.r.server, &p.from, 2, 0, len), 0);
	RUN(&p.r, p.t->n_heard == 2);
	assert_int_equal(take(&p.r.client, 1), 0);
	RUN(&p.r, p.r.client.n_read_done == 1 && discarded(&p.r.client) >= len);
	check_bytes(p.t, 1, &p.from);
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
}

/* The client polls only after the server has made more offers than the client can record. */
static void more_offers_than_are_recorded_are_discarded(void **state)
{
	const uint32_t len = 100;
	const unsigned n = 3 * EAGER_IN_MAX;
	unsigned sent = 0;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, (n + 1) * (size_t)len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	while (sent < n) {
		fabric_conn_of(&p.r.server)->policy = (struct eager_policy){0};
		if (send_offer(&p.r.server, &p.from, sent + 1, sent * (uint64_t)len, len) == 0)
			sent++;
		else
			RUN(&p.r, p.t->n_heard == sent);
	}
	RUN(&p.r, p.t->n_heard == n && !fabric_conn_of(&p.r.client)->n_eager &&
			  !fabric_conn_of(&p.r.client)->n_eager_lost);
	fabric_conn_of(&p.r.server)->policy = (struct eager_policy){0};
	p.r.client.on_message = hear_and_take;
	assert_int_equal(send_offer(&p.r.server, &p.from, n + 1, n * (uint64_t)len, len), 0);
	RUN(&p.r, p.r.client.n_read_done == 1);
	assert_int_equal(p.r.client.read_status, 0);
	assert_memory_equal(p.t->to.p + n * len, p.from.p + n * len, len);
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
}

static void patient_sender_is_notified_when_there_is_room(void **state)
{
	const uint32_t len = 1u << 20;
	struct offer_pair p;
	struct wire_msg m;
	unsigned n_sent = 0;
	int rc;

	(void)state;
	fabric_pair_open(&p, len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	m = offer_of(&p.from, 1, 0, len);
	/* The client does not poll, so its kernel takes only a limited number of bytes. */
	do {
		rc = xport_send_eager(p.r.server.conn, &m, true);
		n_sent += rc == 0;
		fabric_poll(p.r.server.x, clock_now_ns());
	} while (rc == 0);
	assert_int_equal(rc, -EAGAIN);
	assert_true(n_sent > 0 && n_sent < TAKER_MANY);
	assert_in_range(fabric_conn_of(&p.r.server)->eager_bytes, p.r.server.x->ahead_bytes,
		p.r.server.x->ahead_bytes + len);
	assert_int_equal(p.r.server.n_writable, 0);
	RUN(&p.r, p.r.server.n_writable > 0);
	RUN(&p.r, p.t->n_heard == n_sent);
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
}

/* The sender waits for its bytes to be sent. When they are, it has no credits. */
static void patient_sender_is_notified_when_credits_arrive(void **state)
{
	const uint32_t len = 1u << 20;
	struct fabric_conn *c;
	struct offer_pair p;
	struct wire_msg m;

	(void)state;
	fabric_pair_open(&p, len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	c = fabric_conn_of(&p.r.server);
	m = offer_of(&p.from, 1, 0, len);
	assert_int_equal(xport_send_eager(p.r.server.conn, &m, true), 0);
	assert_int_equal(xport_send_eager(p.r.server.conn, &m, true), -EAGAIN);
	c->credits = 1;
	while (c->n_eager_out) {
		fabric_conn_of(&p.r.client)->owed = 0; /* so that DISCARDED grants nothing */
		fabric_poll(p.r.client.x, clock_now_ns());
		fabric_poll(p.r.server.x, clock_now_ns());
	}
	assert_int_equal(p.r.server.n_writable, 0);
	fabric_conn_of(&p.r.client)->owed = fabric_conn_of(&p.r.client)->granted / 2;
	fabric_io_touch(fabric_conn_of(&p.r.client));
	RUN(&p.r, p.r.server.n_writable == 1);
	fabric_pair_close(&p);
}

/* The server removes a segment while libfabric still sends its bytes. */
static void removing_a_segment_in_flight_closes_the_connection(void **state)
{
	const uint32_t len = FABRIC_EAGER_BYTES;
	struct offer_pair p;
	struct mem gone;

	(void)state;
	fabric_pair_open(&p, len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	gone = mem_new(&p.r.server, len, 5);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(send_offer(&p.r.server, &gone, i + 1, 0, len), 0);
	assert_true(fabric_conn_of(&p.r.server)->n_eager_out > 0);
	p.r.server.x->ops->seg_del(p.r.server.x, gone.seg);
	memset(gone.p, 0xee, len);
	mem_free(&gone);
	RUN(&p.r, p.r.server.n_down == 1 && p.r.client.n_down == 1);
	fabric_pair_close(&p);
}

/* The connection ends while bytes arrive: the read ends before the down callback. */
static void reads_of_arriving_bytes_end_with_their_connection(void **state)
{
	const uint32_t len = READ_MAX;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear_and_take;
	assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, len), 0);
	RUN(&p.r, p.t->n_begun == 1);
	xport_close(p.r.client.conn, "test");
	assert_int_equal(p.r.client.n_read_done, 1);
	assert_int_equal(p.r.client.downs_at_read, 0);
	memset(p.t->to.p, 0x77, len);
	RUN(&p.r, p.r.server.n_down == 1);
	for (uint32_t i = 0; i < len; i++)
		if (p.t->to.p[i] != 0x77)
			fail_msg("byte %u was written after the read had ended", i);
	fabric_pair_close(&p);
}

/* The server offers `len` bytes and sends `sent` bytes. is_taken: a read takes them. */
static void send_another_length(uint32_t len, uint32_t sent, bool is_taken)
{
	struct offer_pair p;
	struct wire_msg m;
	struct fabric_conn *c;

	fabric_pair_open(&p, len + 1);
	NEED_EAGER(&p);
	p.r.client.on_message = is_taken ? hear_and_take : hear;
	c = fabric_conn_of(&p.r.server);
	RUN(&p.r, fabric_seg_find(fabric_conn_of(&p.r.client), p.from.seg));
	m = offer_of(&p.from, 1, 0, len);
	m.flags = WIRE_EAGER;
	assert_int_equal(fabric_io_put_message(c, &m, 1), 0);
	m = offer_of(&p.from, 2, 0, sent);
	assert_int_equal(xport_send_eager(p.r.server.conn, &m, false), 0);
	RUN(&p.r, p.r.client.n_down == 1);
	assert_int_equal(protocol_errors(&p.r.client), 1);
	fabric_pair_close(&p);
}

static void bytes_of_another_length_end_the_connection(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++)
		send_another_length(20000, i & 1 ? 20001 : 19999, i & 2);
}

/* The server offers `len` bytes at `offset` of a segment of READ_MAX bytes, with EAGER. */
static void offer_wrongly(uint64_t offset, uint32_t len)
{
	struct offer_pair p;
	struct wire_msg m;

	fabric_pair_open(&p, READ_MAX);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	RUN(&p.r, fabric_seg_find(fabric_conn_of(&p.r.client), p.from.seg));
	m = offer_of(&p.from, 1, 0, len);
	m.flags = WIRE_EAGER;
	m.offset = offset;
	assert_int_equal(fabric_io_put_message(fabric_conn_of(&p.r.server), &m, 1), 0);
	RUN(&p.r, p.r.client.n_down == 1);
	assert_int_equal(protocol_errors(&p.r.client), 1);
	assert_int_equal(p.t->n_heard, 0);
	fabric_pair_close(&p);
}

static void offer_outside_the_segments_ends_the_connection(void **state)
{
	(void)state;
	offer_wrongly(READ_MAX - 999, 1000);
}

static void too_long_offer_with_bytes_ends_the_connection(void **state)
{
	(void)state;
	offer_wrongly(0, FABRIC_EAGER_BYTES + 1);
}

/* The client's connection behaves as if one side could not receive eager bytes. */
static void eager_messages_without_eager_end_the_connection(void **state)
{
	struct wire_msg m = {.type = WIRE_DISCARDED};
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, 1000);
	fabric_conn_of(&p.r.client)->is_eager = false;
	assert_int_equal(fabric_io_put_message(fabric_conn_of(&p.r.server), &m, 1), 0);
	RUN(&p.r, p.r.client.n_down == 1);
	assert_int_equal(protocol_errors(&p.r.client), 1);
	fabric_pair_close(&p);
}

/* Only one end runs a version of libfabric that can receive eager bytes. */
static void versions_of_libfabric_may_differ(void **state)
{
	const uint32_t len = 100000;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct offer_pair p;

		net_rig_open(&p.r);
		(i ? &p.r.client : &p.r.server)->f->can_take_eager = false;
		fabric_pair_connect(&p, len);
		assert_false(fabric_conn_of(&p.r.client)->is_eager ||
			     fabric_conn_of(&p.r.server)->is_eager);
		p.r.client.on_message = p.r.server.on_message = hear_and_take;
		takers[1].to = mem_new(&p.r.server, len, 0);
		for (unsigned round = 1; round <= 3; round++) {
			assert_int_equal(send_offer(&p.r.server, &p.from, round, 0, len), 0);
			assert_int_equal(send_offer(&p.r.client, &p.t->to, round, 0, len), 0);
			RUN(&p.r,
				p.r.client.n_read_done == round && p.r.server.n_read_done == round);
		}
		assert_memory_equal(p.t->to.p, p.from.p, len);
		assert_true(p.t->is_asked);
		assert_true(takers[1].is_asked);
		assert_int_equal(p.r.client.n_read_failed + p.r.server.n_read_failed, 0);
		assert_int_equal(protocol_errors(&p.r.client) + protocol_errors(&p.r.server), 0);
		assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
		mem_free(&takers[1].to);
		fabric_pair_close(&p);
	}
}

/* ---- a full endpoint, long messages, paused threads ---- */

static ssize_t full_send(
	struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, void *context)
{
	(void)ep, (void)buf, (void)len, (void)desc, (void)to, (void)context;
	return -FI_EAGAIN;
}

static struct wire_msg again;

static void send_again(struct net_node *n, struct xconn *c)
{
	if (xport_send_eager(c, &again, true) == 0)
		n->on_writable = NULL;
}

/* An offer finds the endpoint full after its message has got a buffer. The empty buffer is not
 * sent: the receiver could not tell whose it is, and the credit would be lost. */
static void full_endpoint_costs_no_credit(void **state)
{
	const uint32_t len = 20000;
	struct fi_ops_msg *real, full;
	struct fabric_conn *c;
	struct offer_pair p;
	struct wire_msg m;
	struct fid_ep *ep;
	uint32_t credits;

	(void)state;
	fabric_pair_open(&p, 2 * len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear_and_take;
	c = fabric_conn_of(&p.r.server);
	ep = c->eps[CHANNEL_SECOND];
	m = offer_of(&p.from, 1, 0, len);
	assert_int_equal(xport_send_eager(p.r.server.conn, &m, true), 0);
	assert_int_equal(c->n_eager_out, 1);
	assert_int_equal(fabric_io_flush(c), 0);
	credits = c->credits;
	real = ep->msg;
	full = *real;
	full.send = full_send;
	ep->msg = &full;
	again = offer_of(&p.from, 2, len, len);
	p.r.server.on_writable = send_again;
	assert_int_equal(xport_send_eager(p.r.server.conn, &again, true), -EAGAIN);
	fabric_may_sleep(p.r.server.x);
	assert_in_range(c->credits, credits - 1, credits);
	ep->msg = real;
	RUN(&p.r, p.r.client.n_read_done == 2);
	assert_int_equal(protocol_errors(&p.r.client), 0);
	assert_int_equal(p.r.server.n_down + p.r.client.n_down, 0);
	fabric_pair_close(&p);
}

static void message_longer_than_a_buffer_ends_the_connection(void **state)
{
	static uint8_t big[4 * FABRIC_BUF_BYTES];
	struct wire_msg m = {.type = WIRE_PING};
	struct fabric_xport *x;
	struct fabric_rop *rop;
	struct fabric_conn *c;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, 1000);
	NEED_EAGER(&p);
	x = (struct fabric_xport *)p.r.client.x;
	c = fabric_conn_of(&p.r.client);
	m.cookie = c->tx_cookie;
	wire_encode(&m, big);
	/* The completion belongs to no connection. */
	rop = fabric_io_get_rop(x, OP_EAGER_OUT);
	rop->op.conn = NULL;
	rop->op.orphan_ns = clock_now_ns();
	TAILQ_INSERT_TAIL(&x->orphans, &rop->op, link);
	assert_int_equal(fi_send(c->ep, big, sizeof(big), NULL, 0, &rop->op.ctx), 0);
	RUN(&p.r, p.r.server.n_down == 1);
	assert_int_equal(protocol_errors(&p.r.server), 1);
	fabric_pair_close(&p);
}

static void take_in_order(struct net_node *n)
{
	struct taker *t = taker_of(n);

	while (t->n_begun < t->n_heard && take(n, t->n_begun) == 0)
		;
}

static void hear_and_take_in_order(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	hear(n, c, m);
	take_in_order(n);
}

static void take_next(struct net_node *n, struct xport_read *r, int status)
{
	(void)r, (void)status;
	take_in_order(n);
}

/* The receiver starts its reads in order and stops at -EAGAIN, as bps-server does. */
static void reads_that_wait_delay_no_read_of_eager_bytes(void **state)
{
	const uint32_t len = FABRIC_EAGER_BYTES;
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, 6 * (size_t)len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear_and_take_in_order;
	p.r.client.on_read_done = take_next;
	for (unsigned i = 0; i < 5; i++) {
		struct wire_msg m = offer_of(&p.from, i + 1, i * (uint64_t)len, len);

		assert_int_equal(xport_send(p.r.server.conn, &m), 0);
	}
	assert_int_equal(send_offer(&p.r.server, &p.from, 6, 5 * (uint64_t)len, len), 0);
	RUN(&p.r, p.r.client.n_read_done == 6);
	assert_int_equal(discarded(&p.r.client), 0);
	assert_true(eager_policy_may_go(&fabric_conn_of(&p.r.server)->policy));
	fabric_pair_close(&p);
}

static unsigned n_orphans(const struct fabric_xport *x)
{
	const struct fabric_op *op;
	unsigned n = 0;

	TAILQ_FOREACH (op, &x->orphans, link)
		n++;
	return n;
}

/* After a close, the thread is stopped for longer than FABRIC_ORPHAN_NS. Operations whose
 * completions wait in the queue are not reused. */
static void pause_after_a_close_reuses_no_operation_too_early(void **state)
{
	const uint32_t len = FABRIC_EAGER_BYTES;
	struct fabric_xport *x;
	struct offer_pair p;
	unsigned n;

	(void)state;
	fabric_pair_open(&p, len);
	NEED_EAGER(&p);
	p.r.client.on_message = hear;
	x = (struct fabric_xport *)p.r.server.x;
	for (unsigned i = 0; i < EAGER_OUT_MAX; i++)
		assert_int_equal(send_offer(&p.r.server, &p.from, i + 1, 0, len), 0);
	xport_close(p.r.server.conn, "test");
	n = n_orphans(x);
	assert_true(n > 16);
	x->base.next_deadline_ns = 0;
	fabric_poll(p.r.server.x, clock_now_ns() + FABRIC_ORPHAN_NS + 1000 * MS);
	/* A poll reads 8 errors. */
	assert_in_range(n_orphans(x), n - 8, n - 1);
	RUN(&p.r, p.r.client.n_down == 1);
	fabric_pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_come_with_their_offer),
		cmocka_unit_test(bytes_of_long_offers_are_requested),
		cmocka_unit_test(offer_may_be_read_after_the_turn_that_received_it),
		cmocka_unit_test(bytes_of_an_unread_offer_are_discarded),
		cmocka_unit_test(bytes_of_an_offer_wait_for_an_owner_that_decides_late),
		cmocka_unit_test(read_of_other_bytes_requests_them),
		cmocka_unit_test(offers_ahead_may_be_read_in_another_order),
		cmocka_unit_test(bytes_of_an_older_offer_are_not_taken),
		cmocka_unit_test(more_offers_than_are_recorded_are_discarded),
		cmocka_unit_test(patient_sender_is_notified_when_there_is_room),
		cmocka_unit_test(patient_sender_is_notified_when_credits_arrive),
		cmocka_unit_test(removing_a_segment_in_flight_closes_the_connection),
		cmocka_unit_test(reads_of_arriving_bytes_end_with_their_connection),
		cmocka_unit_test(bytes_of_another_length_end_the_connection),
		cmocka_unit_test(offer_outside_the_segments_ends_the_connection),
		cmocka_unit_test(too_long_offer_with_bytes_ends_the_connection),
		cmocka_unit_test(eager_messages_without_eager_end_the_connection),
		cmocka_unit_test(versions_of_libfabric_may_differ),
		cmocka_unit_test(full_endpoint_costs_no_credit),
		cmocka_unit_test(message_longer_than_a_buffer_ends_the_connection),
		cmocka_unit_test(reads_that_wait_delay_no_read_of_eager_bytes),
		cmocka_unit_test(pause_after_a_close_reuses_no_operation_too_early),
	};

	return cmocka_run_group_tests(tests, fabric_pair_use_tcp, NULL);
}
