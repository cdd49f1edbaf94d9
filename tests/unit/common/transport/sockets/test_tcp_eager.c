/* Eager bytes with the transport over TCP sockets. Eager bytes are sent with their offer and
 * without a request (xport_send_eager). Some tests use two real ends. Some tests use a peer of bare
 * sockets, which can break every rule. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>

#include "common/data/crc32c.h"
#include "tests/unit/eager_rig.h"
#include "tests/unit/tcp_peer.h"

#define ITEM 1000

static unsigned n_requests(const struct net_node *n)
{
	const struct tcp_conn *c = tcp_conn_of(n);

	return c->n_pieces + c->reads.n_queued;
}

static void begin(struct net_rig *r)
{
	net_rig_open(r);
	memset(takers, 0, sizeof(takers));
	taker_requests = n_requests;
}

/* ---- between two ends ---- */

static void offer_both_ways(bool is_late)
{
	static const uint32_t sizes[] = {
		1, 15, 16, 17, 4096, 65537, 300001, 1u << 20, READ_MAX - 5, READ_MAX};
	struct taker *s = &takers[1], *c = &takers[0];
	struct mem from_s, from_c;
	struct net_rig r;

	begin(&r);
	rig_connect(&r);
	from_s = mem_new(&r.server, READ_MAX, 11);
	from_c = mem_new(&r.client, READ_MAX, 12);
	s->to = mem_new(&r.server, READ_MAX, 0);
	c->to = mem_new(&r.client, READ_MAX, 0);
	r.server.on_message = r.client.on_message = is_late ? hear : hear_and_take;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t at = (READ_MAX - sizes[i]) / 2;

		memset(s->to.p, 0, READ_MAX);
		memset(c->to.p, 0, READ_MAX);
		assert_int_equal(send_offer(&r.server, &from_s, i + 1, at, sizes[i]), 0);
		assert_int_equal(send_offer(&r.client, &from_c, i + 1, at, sizes[i]), 0);
		RUN(&r, (!is_late || (take_all_heard(&r.server), take_all_heard(&r.client), 1)) &&
				r.server.n_read_done == i + 1 && r.client.n_read_done == i + 1);
		check_bytes(s, i, &from_c);
		check_bytes(c, i, &from_s);
	}
	assert_int_equal(r.server.n_read_failed + r.client.n_read_failed, 0);
	assert_false(r.server.is_wrong || r.client.is_wrong || s->is_asked || c->is_asked);
	assert_int_equal(discarded(&r.server) + discarded(&r.client), 0);
	net_rig_close(&r);
	mem_free(&from_s);
	mem_free(&from_c);
	mem_free(&s->to);
	mem_free(&c->to);
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

static void pair_open(struct offer_pair *p, size_t bytes)
{
	begin(&p->r);
	rig_connect(&p->r);
	p->from = mem_new(&p->r.server, bytes, 11);
	p->t = &takers[0];
	p->t->to = mem_new(&p->r.client, bytes, 0);
}

static void pair_close(struct offer_pair *p)
{
	assert_false(p->r.client.is_wrong);
	assert_int_equal(p->r.server.n_down + p->r.client.n_down, 0);
	net_rig_close(&p->r);
	mem_free(&p->from);
	mem_free(&p->t->to);
}

static void bytes_of_an_unread_offer_are_discarded(void **state)
{
	const uint32_t len = 300000;
	struct offer_pair p;

	(void)state;
	pair_open(&p, 2 * len);
	p.r.client.on_message = hear;
	assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, len), 0);
	RUN(&p.r, discarded(&p.r.client) == len);
	/* Messages, offers and reads still work after the bytes were discarded. */
	p.r.client.on_message = hear_and_take;
	assert_int_equal(send_offer(&p.r.server, &p.from, 2, len, len), 0);
	RUN(&p.r, p.r.client.n_read_done == 1);
	check_bytes(p.t, 1, &p.from);
	assert_false(p.t->is_asked);
	/* The client has discarded the bytes that came with the first offer. The offer can still be
	 * read, so the client requests the bytes from the server. */
	assert_int_equal(take(&p.r.client, 0), 0);
	assert_true(p.t->is_asked);
	RUN(&p.r, p.r.client.n_read_done == 2);
	check_bytes(p.t, 0, &p.from);
	assert_int_equal(p.r.client.n_read_failed, 0);
	assert_int_equal(discarded(&p.r.client), len);
	pair_close(&p);
}

static void bytes_of_an_offer_wait_for_an_owner_that_decides_late(void **state)
{
	const uint32_t len = 300000;
	struct offer_pair p;

	(void)state;
	pair_open(&p, 2 * len);
	bytes_wait_for_a_late_owner(&p, len);
	pair_close(&p);
}

static void read_of_other_bytes_requests_them(void **state)
{
	const uint32_t len = 50000;
	struct mem other;
	struct offer_pair p;

	(void)state;
	pair_open(&p, len + 1);
	other = mem_new(&p.r.server, len + 1, 77);
	p.r.client.on_message = hear;
	for (unsigned i = 0; i < 4; i++) {
		const struct mem *from = i == 3 ? &other : &p.from;
		struct xport_read rd = read_of(&p.r.client, &p.t->to, from, i == 1, len);

		rd.len -= i == 0;
		rd.len += i == 2;
		/* Start with a policy that has no history. */
		tcp_conn_of(&p.r.server)->policy = (struct eager_policy){0};
		assert_int_equal(send_offer(&p.r.server, &p.from, i + 1, 0, len), 0);
		RUN(&p.r, p.t->n_heard == i + 1);
		assert_int_equal(xport_read(&rd), 0);
		assert_int_equal(tcp_conn_of(&p.r.client)->n_pieces, 1);
		RUN(&p.r, p.r.client.n_read_done == i + 1 &&
				  discarded(&p.r.client) == (i + 1) * (uint64_t)len);
		assert_int_equal(p.r.client.read_status, 0);
		assert_memory_equal(rd.dst, from->p + rd.offset, rd.len);
		assert_int_equal(xport_read_crc(&rd), crc32c(0, from->p + rd.offset, rd.len));
	}
	pair_close(&p);
	mem_free(&other);
}

static void offers_ahead_may_be_read_in_another_order(void **state)
{
	const uint32_t len = 30011;
	struct offer_pair p;

	(void)state;
	pair_open(&p, EAGER_BATCH * (size_t)len);
	read_batches_backwards(&p, len);
	assert_int_equal(p.r.client.n_read_failed, 0);
	assert_int_equal(discarded(&p.r.client), 0);
	assert_false(p.t->is_asked);
	pair_close(&p);
}

static void check_patience(bool is_slow, uint32_t ahead)
{
	const uint32_t len = 100000;
	unsigned n_sent = 0, n_first;
	struct tcp_xport *x;
	struct wire_msg m;
	struct offer_pair p;
	int rc;

	pair_open(&p, len);
	x = (struct tcp_xport *)p.r.server.x;
	x->window.is_quick = !is_slow;
	tcp_set_windows(x);
	p.r.client.on_message = hear;
	m = offer_of(&p.from, 1, 0, len);
	for (unsigned k = 0; k < 3; k++) {
		/* The client does not read, so the kernel takes only a limited number of bytes. */
		while ((rc = xport_send_eager(p.r.server.conn, &m, true)) == 0 ||
			p.r.server.x->ops->poll(p.r.server.x, clock_now_ns()) > 0 ||
			!p.r.server.x->ops->may_sleep(p.r.server.x))
			n_sent += rc == 0;
		assert_int_equal(rc, -EAGAIN);
		assert_in_range(tcp_conn_of(&p.r.server)->eager_bytes, ahead, ahead + len - 1);
		assert_true(n_sent < TAKER_MANY - 10);
		n_first = p.r.server.n_writable;
		/* The last offer of the `while` loop, with `is_patient` true, was refused. The next
		 * offers, with `is_patient` false, are accepted at once. The accepted offers do not
		 * trigger on_writable, which reports room for the refused offer. */
		for (unsigned i = 0; i <= EAGER_OUT_MAX; i++)
			assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, 1), 0);
		assert_int_equal(xport_send_eager(p.r.server.conn, &m, true), -EAGAIN);
		assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, 1), 0);
		n_sent += EAGER_OUT_MAX + 2;
		assert_int_equal(p.r.server.n_writable, n_first);
		RUN(&p.r, p.r.server.n_writable > n_first);
		RUN(&p.r, p.t->n_heard == n_sent);
		assert_int_equal(p.r.server.n_writable, n_first + 1);
	}
	pair_close(&p);
}

static void patient_sender_is_notified_when_there_is_room(void **state)
{
	(void)state;
	check_patience(false, SOCKET_AHEAD);
}

static void patient_sender_queues_less_on_a_slow_link(void **state)
{
	(void)state;
	check_patience(true, SOCKET_AHEAD_SLOW);
}

static void impatient_sender_offers_without_bytes_when_there_is_no_room(void **state)
{
	const uint32_t len = 20000;
	const unsigned n_all = EAGER_OUT_MAX + 9;
	struct offer_pair p;

	(void)state;
	pair_open(&p, n_all * (size_t)len);
	p.r.client.on_message = hear;
	for (unsigned i = 0; i < n_all; i++)
		assert_int_equal(send_offer(&p.r.server, &p.from, i + 1, i * len, len), 0);
	assert_int_equal(tcp_conn_of(&p.r.server)->eager_sent, EAGER_OUT_MAX);
	RUN(&p.r, p.t->n_heard == n_all && discarded(&p.r.client) == EAGER_OUT_MAX * (uint64_t)len);
	for (unsigned i = 0; i < n_all; i++) {
		assert_int_equal(take(&p.r.client, i), 0);
		RUN(&p.r, p.r.client.n_read_done == i + 1);
		assert_int_equal(p.r.client.read_status, 0);
		check_bytes(p.t, i, &p.from);
	}
	/* There is room again. But the receiver has requested bytes of earlier offers. So the
	 * policy first sends EAGER_POLICY_REST_MIN offers without bytes. */
	for (unsigned i = 0; i <= EAGER_POLICY_REST_MIN; i++) {
		assert_int_equal(tcp_conn_of(&p.r.server)->eager_sent, EAGER_OUT_MAX);
		assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, len), 0);
	}
	assert_int_equal(tcp_conn_of(&p.r.server)->eager_sent, EAGER_OUT_MAX + 1);
	pair_close(&p);
}

static int clamp_of(const struct net_node *n)
{
	int bytes = 0;
	socklen_t len = sizeof(bytes);

	assert_int_equal(getsockopt(tcp_conn_of(n)->lanes[LANE_BULK].fd, IPPROTO_TCP,
				 TCP_WINDOW_CLAMP, &bytes, &len),
		0);
	return bytes;
}

/* The kernel changes the window after the first segments. The transport must set it again. */
static void window_stays_what_was_chosen(void **state)
{
	const uint32_t len = READ_MAX / 4;
	struct tcp_xport *x;
	struct offer_pair p;

	(void)state;
	pair_open(&p, READ_MAX);
	p.r.client.on_message = hear_and_take;
	x = tcp_xport_of_conn(tcp_conn_of(&p.r.client));
	assert_true(recv_window_shared(&x->window, 9));
	tcp_set_windows(x);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(send_offer(&p.r.server, &p.from, i + 1, i * len, len), 0);
		RUN(&p.r, p.r.client.n_read_done == i + 1);
		check_bytes(p.t, i, &p.from);
		assert_int_equal(clamp_of(&p.r.client), 224 << 10);
	}
	pair_close(&p);
}

/* All data threads of a process share the link. */
static void window_depends_on_the_connections_of_all_data_threads(void **state)
{
	struct offer_pair p;
	struct tcp_xport *x;

	(void)state;
	pair_open(&p, ITEM);
	x = tcp_xport_of_conn(tcp_conn_of(&p.r.client));
	assert_int_equal(x->window.share, RECV_WINDOW_MAX);
	atomic_fetch_add(&x->net->base.n_conns, 20);
	tcp_tick_all_conns(x);
	assert_int_equal(x->window.share, 96 << 10);
	atomic_fetch_sub(&x->net->base.n_conns, 20);
	tcp_tick_all_conns(x);
	assert_int_equal(x->window.share, RECV_WINDOW_MAX);
	pair_close(&p);
}

/* Packets on the loopback are larger than the smallest window. Data must flow without the kernel's
 * timers. */
static void smallest_window_does_not_wait_for_timers(void **state)
{
	struct tcp_xport *x;
	struct offer_pair p;

	(void)state;
	pair_open(&p, READ_MAX);
	p.r.client.on_message = hear_and_take;
	assert_int_equal(send_offer(&p.r.server, &p.from, 1, 0, READ_MAX / 4), 0);
	RUN(&p.r, p.r.client.n_read_done == 1);
	x = tcp_xport_of_conn(tcp_conn_of(&p.r.client));
	x->window.bytes = RECV_WINDOW_MIN;
	tcp_set_windows(x);
	assert_int_equal(send_offer(&p.r.server, &p.from, 2, READ_MAX / 4, READ_MAX / 2), 0);
	RUN(&p.r, p.r.client.n_read_done == 2);
	check_bytes(p.t, 0, &p.from);
	check_bytes(p.t, 1, &p.from);
	pair_close(&p);
}

/* The segment is withdrawn while one of its offers is half sent and another waits. */
static void withdrawn_segment_is_not_sent_any_more(void **state)
{
	struct mem gone;
	struct offer_pair p;

	(void)state;
	pair_open(&p, READ_MAX);
	gone = mem_new(&p.r.server, READ_MAX, 5);
	p.r.client.on_message = hear_and_take;
	assert_int_equal(send_offer(&p.r.server, &gone, 1, 0, READ_MAX), 0);
	assert_int_equal(send_offer(&p.r.server, &p.from, 2, READ_MAX / 2, 100000), 0);
	assert_int_equal(send_offer(&p.r.server, &gone, 3, 0, READ_MAX / 4), 0);
	assert_int_equal(send_offer(&p.r.server, &p.from, 4, READ_MAX / 4, 100000), 0);
	RUN(&p.r, p.t->to.p[0] == gone.p[0] && p.t->to.p[1] == gone.p[1]);
	assert_int_equal(p.r.client.n_read_done, 0);
	p.r.server.x->ops->seg_del(p.r.server.x, gone.seg);
	mem_free(&gone);
	for (unsigned i = 1; i <= 4; i++) {
		RUN(&p.r, p.r.client.n_read_done >= i);
		if (p.r.client.n_read_done == i)
			assert_int_equal(p.r.client.read_status, i % 2 ? BPS_ENOTFOUND : 0);
	}
	assert_int_equal(p.r.client.n_read_failed, 2);
	check_bytes(p.t, 1, &p.from);
	check_bytes(p.t, 3, &p.from);
	assert_false(p.t->is_asked);
	pair_close(&p);
}

/* ---- a peer made of bare sockets ---- */

#define HEAD sizeof(struct tcp_frame)

static const uint8_t *pattern(void)
{
	static uint8_t bytes[TAKER_MANY * ITEM];

	if (!bytes[0])
		fill(bytes, sizeof(bytes), 9);
	return bytes;
}

/* Announce the i-th offer: ITEM bytes of the pattern, from i * ITEM on. */
static void say_announcement(const struct raw_conn *p, unsigned i)
{
	const struct tcp_frame f = {
		.type = FRAME_EAGER, .segment = 3, .len = ITEM, .offset = i * (uint64_t)ITEM};

	raw_send(p, LANE_MESSAGES, &f, sizeof(f));
}

static void say_offer(const struct raw_conn *p, unsigned i)
{
	const struct wire_msg m = {.type = WIRE_CONTRIB,
		.round = i + 1,
		.segment = 3,
		.offset = i * (uint64_t)ITEM,
		.len = ITEM,
		.contrib.workers = 1};
	uint8_t b[HEAD + WIRE_SEND_MAX];

	raw_send(p, LANE_MESSAGES, b, put_message(b, &m));
}

static void announce(const struct raw_conn *p, unsigned i)
{
	say_announcement(p, i);
	say_offer(p, i);
}

/* Write the bytes of the i-th offer as an eager item. The head of the item states that `count`
 * eager offers were made before this offer. */
static size_t put_eager(uint8_t *to, uint64_t count, unsigned i)
{
	return put_item(to, FRAME_EAGER, count, pattern() + i * ITEM, ITEM);
}

static void say_eager(const struct raw_conn *p, unsigned i)
{
	uint8_t b[ITEM + 2 * HEAD];

	raw_send(p, LANE_BULK, b, put_eager(b, i, i));
}

struct lone {
	struct net_rig r;
	struct raw_conn p;
	struct taker *t;
};

static void lone_open(struct lone *l)
{
	begin(&l->r);
	l->t = &takers[1];
	l->t->to = mem_new(&l->r.server, TAKER_MANY * (size_t)ITEM, 0);
	l->p = raw_up(&l->r);
}

static void lone_close(struct lone *l)
{
	raw_close(&l->p);
	net_rig_close(&l->r);
	mem_free(&l->t->to);
}

static void check_item(const struct lone *l, unsigned i)
{
	assert_memory_equal(l->t->to.p + i * ITEM, pattern() + i * ITEM, ITEM);
	assert_int_equal(xport_read_crc(&l->t->reads[i]), crc32c(0, pattern() + i * ITEM, ITEM));
}

/* The peer sends all items in one batch, so one receive call of the server can take several
 * items. */
static void answers_and_eager_bytes_come_in_any_order(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 16; k++) {
		uint8_t b[5 * (ITEM + 2 * HEAD)];
		struct xport_read asked[2];
		unsigned n_asked = 0;
		struct tcp_frame f;
		struct lone l;
		size_t n = 0;

		lone_open(&l);
		l.r.server.on_message = hear_and_take;
		for (unsigned i = 0; i < 3; i++)
			announce(&l.p, i);
		RUN(&l.r, l.t->n_heard == 3);
		for (unsigned i = 0; i < 2; i++) {
			asked[i] = (struct xport_read){.conn = l.r.server.conn,
				.dst = l.t->to.p + (10 + i) * ITEM,
				.own_segment = l.t->to.seg,
				.segment = 3,
				.offset = (10 + i) * ITEM,
				.len = ITEM};
			assert_int_equal(xport_read(&asked[i]), 0);
			raw_recv(&l.p, LANE_MESSAGES, &f, sizeof(f));
			assert_int_equal(f.type, FRAME_READ);
		}
		for (unsigned i = 0; i <= 3; i++) {
			for (; n_asked < 2 && (n_asked ? k / 4 : k % 4) <= i; n_asked++)
				n += put_item(b + n, FRAME_ANSWER, (10 + n_asked) * ITEM,
					pattern() + (10 + n_asked) * ITEM, ITEM);
			if (i < 3)
				n += put_eager(b + n, i, i);
		}
		assert_int_equal(n, sizeof(b));
		raw_send(&l.p, LANE_BULK, b, n);
		RUN(&l.r, l.r.server.n_read_done == 5);
		assert_int_equal(l.r.server.n_read_failed, 0);
		for (unsigned i = 0; i < 3; i++)
			check_item(&l, i);
		assert_memory_equal(l.t->to.p + 10 * ITEM, pattern() + 10 * ITEM, 2 * ITEM);
		assert_int_equal(xport_read_crc(&asked[1]), crc32c(0, pattern() + 11 * ITEM, ITEM));
		lone_close(&l);
	}
}

static void bytes_wait_for_their_announcement_and_its_message(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		const struct tcp_conn *c;
		struct lone l;
		uint8_t ping[256];

		lone_open(&l);
		c = tcp_conn_of(&l.r.server);
		l.r.server.on_message = k ? hear_and_take : hear;
		for (unsigned i = 0; i < 3; i++)
			say_eager(&l.p, i);
		RUN(&l.r, c->is_held);
		assert_false(RUN_MS(&l.r, c->in.is_open, 5));
		/* The bytes wait for an announcement. A message of another type does not release
		 * them. */
		raw_send(&l.p, LANE_MESSAGES, ping, put_kind(ping, WIRE_PING));
		RUN(&l.r, !c->is_held || c->has_pong || c->tx_tail == 0);
		assert_false(RUN_MS(&l.r, c->in.is_open, 5));
		say_announcement(&l.p, 0);
		RUN(&l.r, c->n_eager == 1);
		assert_false(RUN_MS(&l.r, c->in.is_open || !c->is_held, 5));
		assert_int_equal(discarded(&l.r.server), 0);
		say_offer(&l.p, 0);
		RUN(&l.r, c->eager_done == 1 && c->is_held);
		announce(&l.p, 1);
		announce(&l.p, 2);
		RUN(&l.r, c->eager_done == 3);
		assert_int_equal(l.r.server.n_read_done, k ? 3 : 0);
		assert_int_equal(discarded(&l.r.server), k ? 0 : 3 * ITEM);
		for (unsigned i = 0; i < 3 && k; i++)
			check_item(&l, i);
		assert_int_equal(l.r.server.n_down, 0);
		assert_false(l.t->is_asked);
		lone_close(&l);
	}
}

/* The peer announces bytes but makes no offer of them. The bytes are discarded when another message
 * arrives in place of the offer. */
static void announcement_without_an_offer_costs_nothing(void **state)
{
	struct lone l;
	uint8_t ping[256];

	(void)state;
	lone_open(&l);
	l.r.server.on_message = hear_and_take;
	for (unsigned i = 0; i < 3; i++)
		say_announcement(&l.p, i);
	for (unsigned i = 0; i < 3; i++)
		say_eager(&l.p, i);
	RUN(&l.r, tcp_conn_of(&l.r.server)->is_held);
	assert_int_equal(discarded(&l.r.server), 0);
	raw_send(&l.p, LANE_MESSAGES, ping, put_kind(ping, WIRE_PING));
	RUN(&l.r, discarded(&l.r.server) == 3 * ITEM);
	announce(&l.p, 3);
	say_eager(&l.p, 3);
	RUN(&l.r, l.r.server.n_read_done == 1);
	assert_memory_equal(l.t->to.p + 3 * ITEM, pattern() + 3 * ITEM, ITEM);
	lone_close(&l);
}

static void hear_and_take_some(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	unsigned i = (unsigned)m->round - 1;

	hear(n, c, m);
	if (i % 150 == 0 || i % 150 == EAGER_IN_MAX - 1 || i % 150 == EAGER_IN_MAX || i == 149)
		n->is_wrong |= take(n, i) != 0;
}

/* The server records at most EAGER_IN_MAX offers, and discards the bytes of further offers. The
 * server can still request the discarded bytes. */
static void bytes_of_offers_beyond_the_limit_are_requested(void **state)
{
	static const unsigned asked[] = {EAGER_IN_MAX, 149};
	struct lone l;
	struct tcp_frame f;
	uint8_t b[ITEM + 2 * HEAD];

	(void)state;
	lone_open(&l);
	l.r.server.on_message = hear_and_take_some;
	for (unsigned i = 0; i < 150; i++)
		announce(&l.p, i);
	RUN(&l.r, l.t->n_heard == 150);
	assert_int_equal(tcp_conn_of(&l.r.server)->n_eager, EAGER_IN_MAX);
	for (unsigned i = 0; i < 2; i++) {
		raw_recv(&l.p, LANE_MESSAGES, &f, sizeof(f));
		assert_int_equal(f.type, FRAME_READ);
		assert_int_equal(f.offset, asked[i] * ITEM);
	}
	for (unsigned i = 0; i < 150; i++)
		say_eager(&l.p, i);
	RUN(&l.r, discarded(&l.r.server) == 148 * ITEM);
	assert_int_equal(l.r.server.n_read_done, 2);
	for (unsigned i = 0; i < 2; i++)
		raw_send(&l.p, LANE_BULK, b,
			put_item(b, FRAME_ANSWER, asked[i] * ITEM, pattern() + asked[i] * ITEM,
				ITEM));
	RUN(&l.r, l.r.server.n_read_done == 4);
	assert_int_equal(l.r.server.n_read_failed, 0);
	check_item(&l, 0);
	check_item(&l, EAGER_IN_MAX - 1);
	check_item(&l, EAGER_IN_MAX);
	check_item(&l, 149);
	/* The transport now has room, so it records the next offer. */
	l.r.server.on_message = hear_and_take;
	announce(&l.p, 150);
	say_eager(&l.p, 150);
	RUN(&l.r, l.r.server.n_read_done == 5);
	check_item(&l, 150);
	lone_close(&l);
}

static void take_the_second(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	hear(n, c, m);
	if (taker_of(n)->n_heard == 2)
		n->is_wrong |= take(n, 1) != 0;
}

/* The owner may have changed the memory between the two offers. A read of the second offer must not
 * return the bytes of the first offer. */
static void memory_offered_again_is_read_with_its_new_bytes(void **state)
{
	uint8_t b[2 * (ITEM + 2 * HEAD)];
	struct lone l;
	size_t n;

	(void)state;
	lone_open(&l);
	l.r.server.on_message = take_the_second;
	announce(&l.p, 0);
	announce(&l.p, 0);
	RUN(&l.r, l.t->n_begun == 1);
	n = put_eager(b, 0, 7);
	n += put_eager(b + n, 1, 0);
	raw_send(&l.p, LANE_BULK, b, n);
	RUN(&l.r, l.r.server.n_read_done == 1);
	assert_memory_equal(l.t->to.p, pattern(), ITEM);
	assert_int_equal(discarded(&l.r.server), ITEM);
	assert_false(l.t->is_asked || l.r.server.is_wrong);
	lone_close(&l);
}

static void offer_that_is_being_discarded_is_read_by_request(void **state)
{
	uint8_t b[ITEM + 2 * HEAD];
	struct lone l;
	struct tcp_frame f;

	(void)state;
	lone_open(&l);
	l.r.server.on_message = hear;
	announce(&l.p, 0);
	put_eager(b, 0, 0);
	raw_send(&l.p, LANE_BULK, b, sizeof(b) / 2);
	RUN(&l.r, tcp_conn_of(&l.r.server)->in.got > HEAD);
	assert_int_equal(take(&l.r.server, 0), 0);
	raw_recv(&l.p, LANE_MESSAGES, &f, sizeof(f));
	assert_int_equal(f.type, FRAME_READ);
	raw_send(&l.p, LANE_BULK, b + sizeof(b) / 2, sizeof(b) - sizeof(b) / 2);
	RUN(&l.r, discarded(&l.r.server) == ITEM);
	assert_int_equal(l.r.server.n_read_done, 0);
	raw_send(&l.p, LANE_BULK, b, put_item(b, FRAME_ANSWER, 0, pattern(), ITEM));
	RUN(&l.r, l.r.server.n_read_done == 1);
	check_item(&l, 0);
	lone_close(&l);
}

static void eager_bytes_that_the_peer_has_lost_end_their_read(void **state)
{
	uint8_t b[ITEM + 2 * HEAD];
	struct lone l;

	(void)state;
	lone_open(&l);
	l.r.server.on_message = hear_and_take;
	announce(&l.p, 0);
	put_eager(b, 0, 0);
	((struct tcp_frame *)(b + HEAD + ITEM))->status = 1;
	raw_send(&l.p, LANE_BULK, b, sizeof(b));
	RUN(&l.r, l.r.server.n_read_done == 1);
	assert_int_equal(l.r.server.read_status, BPS_ENOTFOUND);
	announce(&l.p, 1);
	say_eager(&l.p, 1);
	RUN(&l.r, l.r.server.n_read_done == 2);
	assert_int_equal(l.r.server.read_status, 0);
	lone_close(&l);
}

static void peer_that_ends_in_the_middle_is_noticed(void **state)
{
	uint8_t b[ITEM + 2 * HEAD];
	unsigned n = 0;
	struct lone l;

	(void)state;
	lone_open(&l);
	raw_close(&l.p);
	put_eager(b, 0, 0);
	RUN(&l.r, l.r.server.n_down == 1);
	for (size_t cut = 0; cut < sizeof(b); cut += 61, n++) {
		bool is_read = n % 2;

		l.r.server.on_message = is_read ? hear_and_take : hear;
		l.p = raw_up(&l.r);
		announce(&l.p, 0);
		raw_send(&l.p, LANE_BULK, b, cut);
		RUN(&l.r, l.t->n_heard == n + 1);
		if (n % 4 < 2)
			RUN_MS(&l.r, false, 2);
		shutdown(l.p.fds[LANE_BULK], SHUT_WR);
		RUN(&l.r, l.r.server.n_down == n + 2);
		assert_int_equal(l.r.server.n_read_done, (n + 1) / 2);
		raw_close(&l.p);
	}
	assert_int_equal(l.r.server.n_read_failed, l.r.server.n_read_done);
	assert_int_equal(protocol_errors(&l.r.server), 0);
	l.p.fds[0] = l.p.fds[1] = -1;
	lone_close(&l);
}

static void close_in_read_done(struct net_node *n, struct xport_read *rd, int status)
{
	n->is_wrong |= status && n->n_read_done == 1;
	xport_close(rd->conn, "from its callback");
	n->is_wrong |= xport_read(rd) != -ENOTCONN;
}

static void close_in_message(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	hear_and_take(n, c, m);
	xport_close(c, "from its callback");
}

/* The callback of a read closes the connection after everything has arrived. From then on, new
 * files may use the connection's descriptor numbers. */
static void connection_may_be_closed_from_the_end_of_a_read(void **state)
{
	uint8_t b[5 * (ITEM + 2 * HEAD)];
	struct tcp_xport *x;
	struct lone l;
	size_t n = 0;

	(void)state;
	lone_open(&l);
	l.r.server.on_message = hear_and_take;
	l.r.server.on_read_done = close_in_read_done;
	for (unsigned i = 0; i < 4; i++)
		announce(&l.p, i);
	for (unsigned i = 0; i < 5; i++)
		n += put_eager(b + n, i, i);
	RUN(&l.r, l.t->n_begun == 4);
	x = tcp_xport_of_conn(tcp_conn_of(&l.r.server));
	x->window.unmeasured = 1 << 20;
	raw_send(&l.p, LANE_BULK, b, n);
	RUN(&l.r, l.r.server.n_down == 1);
	/* the transport neither counted bytes nor set options for the closed connection */
	assert_int_equal(x->window.unmeasured, 1 << 20);
	assert_int_equal(l.r.server.n_read_done, 4);
	assert_int_equal(l.r.server.n_read_failed, 3);
	assert_int_equal(l.r.server.downs_at_read, 0);
	assert_false(l.r.server.is_wrong);
	assert_int_equal(protocol_errors(&l.r.server), 0);
	lone_close(&l);
}

static void connection_may_be_closed_when_an_offer_is_received(void **state)
{
	struct lone l;

	(void)state;
	lone_open(&l);
	l.r.server.on_message = close_in_message;
	say_eager(&l.p, 0);
	RUN(&l.r, tcp_conn_of(&l.r.server)->is_held);
	announce(&l.p, 0);
	RUN(&l.r, l.r.server.n_down == 1);
	assert_int_equal(l.r.server.n_read_failed, 1);
	assert_int_equal(l.r.server.n_messages, 1);
	assert_int_equal(discarded(&l.r.server), 0);
	lone_close(&l);
}

static void all_may_come_byte_by_byte(void **state)
{
	const struct tcp_frame f = {.type = FRAME_EAGER, .segment = 3, .len = ITEM};
	uint8_t b[ITEM + 2 * HEAD];
	struct tcp_conn *c;
	struct lone l;

	(void)state;
	lone_open(&l);
	c = tcp_conn_of(&l.r.server);
	put_eager(b, 0, 0);
	for (unsigned i = 0; i < 2; i++) {
		l.r.server.on_message = i ? hear_and_take : hear;
		for (size_t k = 0; k < sizeof(f); k++) {
			raw_send(&l.p, LANE_MESSAGES, (const uint8_t *)&f + k, 1);
			l.r.server.x->ops->poll(l.r.server.x, clock_now_ns());
		}
		say_offer(&l.p, 0);
		RUN(&l.r, l.t->n_heard == i + 1);
		((struct tcp_frame *)b)->offset = ((struct tcp_frame *)(b + HEAD + ITEM))->offset =
			i;
		for (size_t k = 0; k < sizeof(b); k++) {
			assert_int_equal(l.r.server.n_read_done, 0);
			assert_int_equal(discarded(&l.r.server), i * ITEM);
			raw_send(&l.p, LANE_BULK, b + k, 1);
			/* The kernel would not wake the thread for so few bytes, so simulate the
			 * wake-up. */
			c->lanes[LANE_BULK].can_recv = true;
			tcp_conn_mark_busy(c);
			l.r.server.x->ops->poll(l.r.server.x, clock_now_ns());
		}
		RUN(&l.r, c->eager_done == i + 1);
	}
	assert_int_equal(l.r.server.n_read_done, 1);
	assert_memory_equal(l.t->to.p, pattern(), ITEM);
	assert_int_equal(xport_read_crc(&l.t->reads[1]), crc32c(0, pattern(), ITEM));
	lone_close(&l);
}

/* ---- a peer that does not keep to the protocol ---- */

static void malformed_announcement_closes_its_connection(void **state)
{
	static const struct tcp_frame frames[] = {
		{.type = FRAME_EAGER, .segment = 3, .len = 0},
		{.type = FRAME_EAGER, .segment = 3, .len = 8, .status = 1},
		{.type = FRAME_EAGER, .segment = TCP_SEGS_MAX, .len = 8},
		{.type = FRAME_EAGER, .segment = UINT16_MAX, .len = 8},
	};
	struct net_rig r;

	(void)state;
	begin(&r);
	for (unsigned i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
		struct raw_conn p = raw_up(&r);

		raw_send(&p, LANE_MESSAGES, &frames[i], sizeof(frames[i]));
		RUN(&r, r.server.n_down == i + 1);
		assert_int_equal(protocol_errors(&r.server), i + 1);
		raw_close(&p);
	}
	net_rig_close(&r);
}

/* Send the bytes of two announced offers, and check that the server closes the connection. `head`
 * replaces the frame before the bytes of the second offer, and `trailer` replaces the frame after
 * these bytes. If `head` or `trailer` is NULL, the correct frame is sent in its place. is_read:
 * whether the server reads the offers. */
static void expect_refusal(
	const struct tcp_frame *head, const struct tcp_frame *trailer, bool is_read)
{
	uint8_t b[2 * (ITEM + 2 * HEAD)];
	struct lone l;
	size_t n;

	lone_open(&l);
	l.r.server.on_message = is_read ? hear_and_take : hear;
	announce(&l.p, 0);
	announce(&l.p, 1);
	RUN(&l.r, l.t->n_heard == 2);
	n = put_eager(b, 0, 0);
	n += put_eager(b + n, 1, 1);
	if (head)
		memcpy(b + n / 2, head, sizeof(*head));
	if (trailer)
		memcpy(b + n - HEAD, trailer, sizeof(*trailer));
	raw_send(&l.p, LANE_BULK, b, n);
	RUN(&l.r, l.r.server.n_down == 1);
	assert_int_equal(protocol_errors(&l.r.server), 1);
	assert_int_equal(l.r.server.n_read_done, is_read ? 2 : 0);
	assert_int_equal(l.r.server.n_read_failed, is_read ? 1 : 0);
	lone_close(&l);
}

static void other_bytes_than_were_announced_close_the_connection(void **state)
{
	static const struct tcp_frame heads[] = {
		/* `offset` 0 belongs to the first item, but these heads precede the second item */
		{.type = FRAME_EAGER, .len = ITEM, .offset = 0},
		{.type = FRAME_EAGER, .len = ITEM, .offset = 2},
		{.type = FRAME_EAGER, .len = ITEM, .offset = UINT64_MAX},
		{.type = FRAME_EAGER, .len = ITEM - 1, .offset = 1},
		{.type = FRAME_EAGER, .len = ITEM + 1, .offset = 1},
		{.type = FRAME_EAGER, .len = 0, .offset = 1},
		{.type = FRAME_EAGER, .len = ITEM, .offset = 1, .status = 1},
		{.type = FRAME_EAGER, .len = ITEM, .offset = 1, .segment = 3},
		{.type = FRAME_ANSWER, .len = ITEM, .offset = 1},
		{.type = FRAME_BYTES, .len = ITEM, .offset = 1},
		{.type = 0, .len = ITEM, .offset = 1},
	};
	static const struct tcp_frame trailers[] = {
		{.type = FRAME_EAGER, .len = ITEM, .offset = 1},
		{.type = FRAME_BYTES, .len = ITEM - 1, .offset = 1},
		{.type = FRAME_BYTES, .len = ITEM, .offset = 0},
		{.type = FRAME_BYTES, .len = ITEM, .offset = 1, .status = 2},
		{.type = FRAME_BYTES, .len = ITEM, .offset = 1, .segment = 3},
	};

	(void)state;
	for (unsigned is_read = 0; is_read < 2; is_read++) {
		for (unsigned i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
			expect_refusal(&heads[i], NULL, is_read);
		for (unsigned i = 0; i < sizeof(trailers) / sizeof(trailers[0]); i++)
			expect_refusal(NULL, &trailers[i], is_read);
	}
}

static void ask_in_read_done(struct net_node *n, struct xport_read *rd, int status)
{
	static struct xport_read asked;

	if (status || n->n_read_done != 1)
		return;
	asked = *rd;
	asked.dst = (uint8_t *)rd->dst + 20 * ITEM;
	asked.offset = 20 * ITEM;
	n->is_wrong |= xport_read(&asked) != 0;
}

/* The second read sends its request when the first read ends. Before that, the peer has sent an
 * answer that names the memory of the second read. This early answer must not complete the second
 * read, although its CRC is correct. */
static void answer_sent_before_its_request_closes_the_connection(void **state)
{
	uint8_t b[2 * (ITEM + 2 * HEAD)];
	struct lone l;
	size_t n;

	(void)state;
	lone_open(&l);
	l.r.server.on_message = hear_and_take;
	l.r.server.on_read_done = ask_in_read_done;
	announce(&l.p, 0);
	announce(&l.p, 1);
	RUN(&l.r, l.t->n_begun == 2);
	n = put_eager(b, 0, 0);
	n += put_item(b + n, FRAME_ANSWER, 20 * ITEM, pattern() + 20 * ITEM, ITEM);
	raw_send(&l.p, LANE_BULK, b, n);
	RUN(&l.r, l.r.server.n_down == 1);
	assert_int_equal(l.r.server.n_read_done, 3);
	assert_int_equal(l.r.server.n_read_failed, 2);
	assert_int_equal(protocol_errors(&l.r.server), 1);
	assert_false(l.r.server.is_wrong);
	lone_close(&l);
}

/* Head, bytes and trailer together exceed what 32 bits can count. */
static void largest_length_is_counted_right(void **state)
{
	const uint64_t len = UINT32_MAX;
	struct tcp_frame f = {.type = FRAME_EAGER, .segment = 3, .len = UINT32_MAX};
	uint8_t ping[256];
	struct tcp_conn *c;
	struct lone l;

	(void)state;
	lone_open(&l);
	c = tcp_conn_of(&l.r.server);
	raw_send(&l.p, LANE_MESSAGES, &f, sizeof(f));
	raw_send(&l.p, LANE_MESSAGES, ping, put_kind(ping, WIRE_PING));
	f.segment = 0;
	raw_send(&l.p, LANE_BULK, &f, sizeof(f));
	RUN(&l.r, c->in.is_open);
	c->in.got += len - TAKER_MANY * ITEM; /* pretend that all but the last bytes have arrived */
	raw_send(&l.p, LANE_BULK, pattern(), TAKER_MANY * ITEM);
	f.type = FRAME_BYTES;
	raw_send(&l.p, LANE_BULK, &f, sizeof(f));
	RUN(&l.r, discarded(&l.r.server) == len);
	assert_int_equal(l.r.server.n_down, 0);
	lone_close(&l);
}

/* ---- sockets with small buffers ---- */

#define AREA  (1u << 20)
#define LARGE 60000

static void shrink(const struct net_node *n)
{
	for (unsigned i = 0; i < N_LANES; i++) {
		int fd = tcp_conn_of(n)->lanes[i].fd, size = 16384;

		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)), 0);
	}
}

/* A player is one end of the connection. It offers random parts of `from`, and reads random offers
 * of the other end at random times. */
static struct player {
	struct mem from, to;
	const struct mem *others;
	uint32_t seed, largest;
	unsigned n_sent, n_heard, n_wanted, n_done, n_late;
	bool is_stuck;
	struct wire_msg late[TAKER_MANY];
	struct xport_read reads[READS_MAX];
	bool is_reading[READS_MAX];
} players[2];

static uint32_t draw(struct player *p, uint32_t n)
{
	p->seed = p->seed * 1664525u + 1013904223u;
	return (p->seed >> 8) % n;
}

static struct player *player_of(const struct net_node *n)
{
	return &players[n->peer_id == CLIENT_ID];
}

static bool play_read(struct net_node *n, const struct wire_msg *m)
{
	struct player *p = player_of(n);
	struct xport_read *rd;
	unsigned i = 0;
	int rc;

	while (i < READS_MAX && p->is_reading[i])
		i++;
	if (i == READS_MAX)
		return false;
	rd = &p->reads[i];
	*rd = (struct xport_read){.conn = n->conn,
		.dst = p->to.p + i * (LARGE + 1),
		.own_segment = p->to.seg,
		.segment = m->segment,
		.offset = m->offset,
		.len = m->len};
	if (m->round % 7 == 0 && rd->len > 1)
		rd->len--; /* a read of less than the whole offer */
	rc = xport_read(rd);
	n->is_wrong |= rc && rc != -EAGAIN;
	p->is_reading[i] = rc == 0;
	return rc == 0;
}

static void play_message(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	struct player *p = player_of(n);
	uint32_t what = draw(p, 8);

	(void)c;
	n->is_wrong |= m->round != ++p->n_heard;
	p->n_wanted += what > 0;
	if (what == 0 || (what > 3 && play_read(n, m)))
		return;
	p->late[p->n_late++] = *m;
}

static void play_done(struct net_node *n, struct xport_read *rd, int status)
{
	struct player *p = player_of(n);

	n->is_wrong |= status != 0 || memcmp(rd->dst, p->others->p + rd->offset, rd->len) != 0 ||
		       xport_read_crc(rd) != crc32c(0, rd->dst, rd->len);
	memset(rd->dst, 0, rd->len);
	p->is_reading[rd - p->reads] = false;
	p->n_done++;
}

static void play_writable(struct net_node *n, struct xconn *c)
{
	(void)c;
	player_of(n)->is_stuck = false;
}

static void play_send(struct net_node *n)
{
	struct player *p = player_of(n);

	while (p->n_sent < TAKER_MANY && !p->is_stuck && draw(p, 4)) {
		uint32_t len = 1 + draw(p, draw(p, 2) ? p->largest : 40);
		struct wire_msg m = offer_of(&p->from, p->n_sent + 1, draw(p, AREA - LARGE), len);
		int rc = xport_send_eager(n->conn, &m, draw(p, 4));

		n->is_wrong |= rc && rc != -EAGAIN;
		p->is_stuck = rc != 0;
		p->n_sent += rc == 0;
	}
}

/* Let one end of the connection act. Return whether this end is done. */
static bool play(struct net_node *n)
{
	const struct tcp_conn *c = tcp_conn_of(n);
	struct player *p = player_of(n);

	for (unsigned i = 0; i < p->n_late && !draw(p, 3); i++) {
		if (play_read(n, &p->late[i]))
			p->late[i--] = p->late[--p->n_late];
	}
	play_send(n);
	return p->n_sent == TAKER_MANY && p->n_heard == TAKER_MANY && p->n_done == p->n_wanted &&
	       c->eager_done == c->eager_count && !c->n_answers;
}

static void play_open(struct net_node *n, uint32_t seed, bool is_small)
{
	struct player *p = player_of(n);

	*p = (struct player){.others = &players[n->peer_id != CLIENT_ID].from,
		.seed = seed,
		.largest = is_small ? LARGE / 20 : LARGE};
	p->from = mem_new(n, AREA, seed + 1);
	p->to = mem_new(n, READS_MAX * (LARGE + 1), 0);
	n->on_message = play_message;
	n->on_read_done = play_done;
	n->on_writable = play_writable;
}

/* Let both ends play until they are done. Return false at the time limit. Each end acts at random,
 * so an end that did nothing in one turn may act in the next turn. Therefore each turn waits for
 * events for at most 1 ms. */
static bool play_all(struct net_rig *r)
{
	uint64_t until_ns = clock_now_ns() + 30000 * MS;
	struct net_node *both[] = {&r->server, &r->client};

	while (!((int)play(both[0]) & (int)play(both[1])) && clock_now_ns() < until_ns)
		turn(both, 2, clock_now_ns() + MS);
	return clock_now_ns() < until_ns;
}

static void hundreds_of_offers_pass_each_other_in_small_sockets(void **state)
{
	(void)state;
	for (uint32_t seed = 1; seed <= 5; seed++) {
		/* The first two seeds use sockets with small buffers. Their offers are small too,
		 * because a kernel with small buffers sends large pieces only when a timer runs
		 * out. */
		bool is_small = seed <= 2;
		struct net_rig r;

		begin(&r);
		rig_connect(&r);
		if (is_small) {
			shrink(&r.server);
			shrink(&r.client);
		}
		play_open(&r.server, seed, is_small);
		play_open(&r.client, seed + 100, is_small);
		if (!play_all(&r))
			fail_msg("seed %u: sent %u %u, heard %u %u, read %u %u of %u %u", seed,
				players[0].n_sent, players[1].n_sent, players[0].n_heard,
				players[1].n_heard, players[0].n_done, players[1].n_done,
				players[0].n_wanted, players[1].n_wanted);
		assert_false(r.server.is_wrong || r.client.is_wrong);
		assert_int_equal(r.server.n_down + r.client.n_down, 0);
		assert_true(tcp_conn_of(&r.server)->eager_done > EAGER_IN_MAX ||
			    tcp_conn_of(&r.client)->eager_done > EAGER_IN_MAX);
		assert_true(discarded(&r.server) > 0 && discarded(&r.client) > 0);
		net_rig_close(&r);
		for (unsigned i = 0; i < 2; i++) {
			mem_free(&players[i].from);
			mem_free(&players[i].to);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_come_with_their_offer),
		cmocka_unit_test(offer_may_be_read_after_the_turn_that_received_it),
		cmocka_unit_test(bytes_of_an_unread_offer_are_discarded),
		cmocka_unit_test(bytes_of_an_offer_wait_for_an_owner_that_decides_late),
		cmocka_unit_test(read_of_other_bytes_requests_them),
		cmocka_unit_test(offers_ahead_may_be_read_in_another_order),
		cmocka_unit_test(patient_sender_is_notified_when_there_is_room),
		cmocka_unit_test(patient_sender_queues_less_on_a_slow_link),
		cmocka_unit_test(impatient_sender_offers_without_bytes_when_there_is_no_room),
		cmocka_unit_test(window_stays_what_was_chosen),
		cmocka_unit_test(window_depends_on_the_connections_of_all_data_threads),
		cmocka_unit_test(smallest_window_does_not_wait_for_timers),
		cmocka_unit_test(withdrawn_segment_is_not_sent_any_more),
		cmocka_unit_test(answers_and_eager_bytes_come_in_any_order),
		cmocka_unit_test(bytes_wait_for_their_announcement_and_its_message),
		cmocka_unit_test(announcement_without_an_offer_costs_nothing),
		cmocka_unit_test(bytes_of_offers_beyond_the_limit_are_requested),
		cmocka_unit_test(memory_offered_again_is_read_with_its_new_bytes),
		cmocka_unit_test(offer_that_is_being_discarded_is_read_by_request),
		cmocka_unit_test(eager_bytes_that_the_peer_has_lost_end_their_read),
		cmocka_unit_test(peer_that_ends_in_the_middle_is_noticed),
		cmocka_unit_test(connection_may_be_closed_from_the_end_of_a_read),
		cmocka_unit_test(connection_may_be_closed_when_an_offer_is_received),
		cmocka_unit_test(all_may_come_byte_by_byte),
		cmocka_unit_test(malformed_announcement_closes_its_connection),
		cmocka_unit_test(other_bytes_than_were_announced_close_the_connection),
		cmocka_unit_test(answer_sent_before_its_request_closes_the_connection),
		cmocka_unit_test(largest_length_is_counted_right),
		cmocka_unit_test(hundreds_of_offers_pass_each_other_in_small_sockets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
