/* The parts of our own TCP that other transports do not have: frames, the two channels of a
 * connection, and peers that pass the ticket check and then misbehave. test_net.c covers what all
 * network transports share. */
#include <errno.h>
#include <stdlib.h>

#include "common/data/crc32c.h"
#include "tests/unit/tcp_peer.h"

/* ---- frames ---- */

static void malformed_frame_closes_its_connection(void **state)
{
	static const struct tcp_frame frames[] = {
		{.type = 0},
		{.type = FRAME_BYTES, .len = 8},
		{.type = 200, .len = 64},
		{.type = FRAME_MESSAGE, .len = 0},
		{.type = FRAME_MESSAGE, .len = 63},
		{.type = FRAME_MESSAGE, .len = TCP_FRAME_MAX},
		{.type = FRAME_MESSAGE, .len = UINT32_MAX & ~7u},
		{.type = FRAME_MESSAGE, .len = 64, .status = 1},
		{.type = FRAME_MESSAGE, .len = 64, .segment = 1},
		{.type = FRAME_MESSAGE, .len = 64, .offset = 1},
		{.type = FRAME_READ, .len = 0},
		{.type = FRAME_READ, .len = READ_WINDOW_MAX + 1},
		{.type = FRAME_READ, .len = UINT32_MAX, .offset = UINT64_MAX},
		{.type = FRAME_READ, .len = 8, .status = 1},
		{.type = FRAME_READ, .len = 8, .segment = TCP_SEGS_MAX},
		{.type = FRAME_READ, .len = 8, .segment = UINT16_MAX},
	};
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	for (unsigned i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
		struct raw_conn p = raw_up(&r);

		raw_send(&p, LANE_MESSAGES, &frames[i], sizeof(frames[i]));
		RUN(&r, r.server.n_down == i + 1);
		assert_non_null(strstr(r.server.why, "protocol"));
		assert_int_equal(protocol_errors(&r.server), i + 1);
		raw_close(&p);
	}
	assert_int_equal(r.server.n_messages, 0);
	net_rig_close(&r);
}

static void malformed_or_foreign_message_closes_its_connection(void **state)
{
	static const enum wire_type foreign[] = {
		WIRE_CREDIT, WIRE_SEG_ADD, WIRE_SEG_DEL, WIRE_DISCARDED};
	const unsigned n_foreign = sizeof(foreign) / sizeof(foreign[0]);
	uint8_t b[256];
	struct net_rig r;
	size_t n;

	(void)state;
	net_rig_open(&r);
	for (unsigned i = 0; i < n_foreign + 2; i++) {
		struct raw_conn p = raw_up(&r);

		n = put_kind(b, i < n_foreign ? foreign[i] : WIRE_PING);
		if (i == n_foreign)
			b[sizeof(struct tcp_frame) + 1] ^= 0x40; /* another version */
		if (i == n_foreign + 1)                          /* two messages in one frame */
			((struct tcp_frame *)b)->len *= 2;
		raw_send(&p, LANE_MESSAGES, b, n);
		if (i == n_foreign + 1)
			raw_send(&p, LANE_MESSAGES, b + sizeof(struct tcp_frame),
				n - sizeof(struct tcp_frame));
		RUN(&r, r.server.n_down == i + 1);
		assert_int_equal(protocol_errors(&r.server), i + 1);
		raw_close(&p);
	}
	assert_int_equal(r.server.n_messages, 0);
	net_rig_close(&r);
}

static void incomplete_frame_is_not_processed(void **state)
{
	const struct wire_msg m = inline_message(1, "12345678", 8);
	uint8_t b[256];
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	for (size_t cut = 1; cut < put_message(b, &m); cut += 9) {
		struct raw_conn p = raw_up(&r);
		unsigned n_down = r.server.n_down;

		raw_send(&p, LANE_MESSAGES, b, cut);
		raw_close(&p);
		RUN(&r, r.server.n_down == n_down + 1);
		assert_int_equal(r.server.n_messages, 0);
	}
	net_rig_close(&r);
}

static void unrequested_bytes_close_the_connection(void **state)
{
	static const struct tcp_frame heads[] = {
		{.type = FRAME_ANSWER, .len = 8},
		{.type = FRAME_ANSWER, .len = 0},
		{.type = FRAME_ANSWER, .len = 8, .status = 1},
		{.type = FRAME_ANSWER, .len = 8, .segment = 1},
		{.type = FRAME_BYTES, .len = 8},
		{.type = FRAME_MESSAGE, .len = 64},
		{.type = FRAME_READ, .len = 8},
		{.type = 0, .len = 8},
		{.type = 200, .len = 8},
	};
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	for (unsigned i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
		struct raw_conn p = raw_up(&r);

		raw_send(&p, LANE_BULK, &heads[i], sizeof(heads[i]));
		RUN(&r, r.server.n_down == i + 1);
		assert_int_equal(protocol_errors(&r.server), i + 1);
		raw_close(&p);
	}
	net_rig_close(&r);
}

static void too_many_requests_close_the_connection(void **state)
{
	struct tcp_frame f = {.type = FRAME_READ, .len = READ_WINDOW_MAX};
	struct mem from;
	struct net_rig r;
	struct raw_conn p;

	(void)state;
	net_rig_open(&r);
	from = mem_new(&r.server, READ_WINDOW_MAX, 1);
	f.segment = from.seg;
	p = raw_up(&r);
	for (unsigned i = 0; i < TCP_PIECES; i++)
		raw_send(&p, LANE_MESSAGES, &f, sizeof(f));
	/* The peer does not read, so only a few megabytes leave. */
	assert_false(RUN_MS(&r, r.server.n_down, 50));
	raw_send(&p, LANE_MESSAGES, &f, sizeof(f));
	raw_send(&p, LANE_MESSAGES, &f, sizeof(f));
	RUN(&r, r.server.n_down == 1);
	assert_int_equal(protocol_errors(&r.server), 1);
	raw_close(&p);
	net_rig_close(&r);
	mem_free(&from);
}

/* Fill the send queue with pongs, until nothing leaves and no pong can be queued. */
static void fill_with_pongs(struct net_rig *r, const struct raw_conn *p)
{
	struct tcp_conn *c = tcp_conn_of(&r->server);
	uint8_t ping[256];
	size_t n_ping = put_kind(ping, WIRE_PING);

	do {
		while (send_round(r->server.conn, 1) == 0)
			;
		r->server.x->ops->poll(r->server.x, clock_now_ns());
	} while (c->lanes[LANE_MESSAGES].can_send || send_round(r->server.conn, 1) == 0);
	while (tcp_tx_room(c) >= TCP_READS_RESERVE + n_ping) {
		uint32_t used = c->tx_tail - c->tx_head;

		raw_send(p, LANE_MESSAGES, ping, n_ping);
		RUN(r, c->tx_tail - c->tx_head != used);
	}
	/* Send four more pings. Their pongs find no room, because the room that is left is reserved
	 * for read requests (TCP_READS_RESERVE). */
	for (unsigned i = 0; i < 4; i++) {
		uint64_t n_heard =
			atomic_load(&((struct tcp_xport *)r->server.x)->shared.count.messages_in);

		raw_send(p, LANE_MESSAGES, ping, n_ping);
		RUN(r, atomic_load(&((struct tcp_xport *)r->server.x)->shared.count.messages_in) >
				n_heard);
	}
}

/* Pongs fill the queue except for the room that is reserved for read requests. When the server's
 * read requests have filled this room, further read requests must wait. The server must not write
 * these requests beyond the end of the queue. */
static void peer_that_pings_and_does_not_read_leaves_room_for_requests(void **state)
{
	uint8_t answer[1 + 2 * sizeof(struct tcp_frame)];
	size_t n_answer = put_item(answer, FRAME_ANSWER, 0, "x", 1);
	struct xport_read reads[TCP_PIECES];
	const struct tcp_conn *c;
	unsigned n_begun = 0;
	struct mem to;
	struct net_rig r;
	struct raw_conn p;

	(void)state;
	net_rig_open(&r);
	to = mem_new(&r.server, 4096, 0);
	p = raw_up(&r);
	c = tcp_conn_of(&r.server);
	fill_with_pongs(&r, &p);
	while (n_begun < TCP_PIECES) {
		reads[n_begun] = (struct xport_read){.conn = r.server.conn,
			.dst = to.p + n_begun,
			.own_segment = to.seg,
			.segment = 1,
			.len = 1};
		if (xport_read(&reads[n_begun]))
			break;
		n_begun++;
	}
	/* The peer sends answers although the requests have not left yet. Each answer ends a read,
	 * and the server then tries to start another read. */
	for (unsigned i = 0; c->n_pieces; i++) {
		assert_true(i < 4 * TCP_PIECES);
		raw_send(&p, LANE_BULK, answer, n_answer);
		RUN(&r, r.server.n_read_done == i + 1);
		xport_read(&reads[i % n_begun]);
	}
	assert_true(c->reads.n_queued > 0);
	assert_true(c->tx_tail <= TCP_TX_BYTES);
	assert_int_equal(r.server.n_down, 0);
	xport_close(r.server.conn, "test");
	assert_int_equal(r.server.n_down, 1);
	raw_close(&p);
	net_rig_close(&r);
	mem_free(&to);
}

/* Receive what is available, then parse frames up to the first message of the type `type`. Return
 * whether a message of this type was found. */
static bool has_message(struct raw_conn *p, uint8_t *buf, size_t *used, enum wire_type type)
{
	ssize_t n = recv(p->fds[LANE_MESSAGES], buf + *used, TCP_RX_BYTES - *used, MSG_DONTWAIT);
	size_t at = 0;
	bool is_found = false;

	rig_watched_fd = p->fds[LANE_MESSAGES];
	if (n > 0)
		*used += (size_t)n;
	while (!is_found && *used - at >= sizeof(struct tcp_frame)) {
		const struct tcp_frame *f = (const struct tcp_frame *)(buf + at);
		struct err_text err;
		struct wire_msg m;

		if (*used - at < sizeof(*f) + f->len)
			break;
		assert_int_equal(f->type, FRAME_MESSAGE);
		assert_int_equal(wire_decode(f + 1, f->len, &m, &err), f->len);
		is_found = m.type == type;
		at += sizeof(*f) + f->len;
	}
	*used -= at;
	memmove(buf, buf + at, *used);
	if (is_found)
		rig_watched_fd = -1;
	return is_found;
}

/* The ping was due when the queue was full. The ping must be sent when there is room again.
 * Otherwise the peer would be declared dead. */
static void ping_that_found_no_room_is_sent_when_there_is(void **state)
{
	uint8_t *buf = malloc(TCP_RX_BYTES);
	bool is_found = false;
	size_t used = 0;
	struct tcp_conn *c;
	struct net_rig r;
	struct raw_conn p;
	uint64_t now_ns;

	(void)state;
	rig_open_pinging(&r, 10000, 60000);
	p = raw_up(&r);
	c = tcp_conn_of(&r.server);
	fill_with_pongs(&r, &p);
	assert_int_equal(r.server.n_down, 0);
	now_ns = c->base.rx_ns + 11000 * MS;
	r.server.x->ops->poll(r.server.x, now_ns);
	assert_true(c->base.is_pinged);
	RUN(&r, is_found || (is_found = has_message(&p, buf, &used, WIRE_PING)));
	raw_close(&p);
	net_rig_close(&r);
	free(buf);
}

/* A callback may give the thread more work. The transport must not let the thread sleep after the
 * callback, because the sleep would delay this work. */
static void thread_does_not_sleep_after_a_callback(void **state)
{
	const struct linger at_once = {.l_onoff = 1};
	struct net_rig r;
	struct raw_conn p;

	(void)state;
	net_rig_open(&r);
	p = raw_up(&r);
	while (r.server.x->ops->poll(r.server.x, clock_now_ns()) ||
		!r.server.x->ops->may_sleep(r.server.x))
		;
	assert_int_equal(setsockopt(p.fds[0], SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
	raw_close(&p); /* the connection is reset, so that sending fails */
	assert_int_equal(send_round(r.server.conn, 1), 0);
	assert_false(r.server.x->ops->may_sleep(r.server.x));
	RUN(&r, r.server.n_down == 1);
	net_rig_close(&r);
}

static void connection_ends_with_either_channel(void **state)
{
	(void)state;
	for (unsigned lane = 0; lane < N_LANES; lane++) {
		struct net_rig r;

		net_rig_open(&r);
		rig_connect(&r);
		assert_int_equal(shutdown(tcp_conn_of(&r.client)->lanes[lane].fd, SHUT_RDWR), 0);
		RUN(&r, r.client.n_down == 1 && r.server.n_down == 1);
		net_rig_close(&r);
	}
}

/* ---- reads ---- */

static struct xport_read raw_read(const struct net_node *n, const struct mem *to, uint32_t len)
{
	return (struct xport_read){.conn = n->conn,
		.dst = to->p,
		.own_segment = to->seg,
		.segment = 3,
		.offset = 4096,
		.len = len};
}

static void wrong_answer_closes_the_connection(void **state)
{
	static const struct tcp_frame heads[] = {
		{.type = FRAME_ANSWER, .len = 999, .offset = 4096},
		{.type = FRAME_ANSWER, .len = 1001, .offset = 4096},
		{.type = FRAME_ANSWER, .len = 1000, .offset = 4097},
	};
	static const struct tcp_frame trailers[] = {
		{.type = FRAME_READ, .len = 1000, .offset = 4096},
		{.type = FRAME_ANSWER, .len = 1000, .offset = 4096},
		{.type = FRAME_BYTES, .len = 1000, .offset = 4096, .status = 2},
		{.type = FRAME_BYTES, .len = 1000, .offset = 4096, .segment = 3},
		{.type = FRAME_BYTES, .len = 999, .offset = 4096},
		{.type = FRAME_BYTES, .len = 1000, .offset = 4097},
	};
	const unsigned n_heads = sizeof(heads) / sizeof(heads[0]);
	const unsigned n_trailers = sizeof(trailers) / sizeof(trailers[0]);
	uint8_t bytes[1000] = {1}, item[sizeof(bytes) + 2 * sizeof(struct tcp_frame)];
	struct mem to;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	to = mem_new(&r.server, 4096, 0);
	for (unsigned i = 0; i < n_heads + n_trailers; i++) {
		struct raw_conn p = raw_up(&r);
		struct xport_read rd = raw_read(&r.server, &to, sizeof(bytes));
		struct tcp_frame asked;

		assert_int_equal(xport_read(&rd), 0);
		raw_recv(&p, LANE_MESSAGES, &asked, sizeof(asked));
		assert_int_equal(asked.type, FRAME_READ);
		assert_int_equal(asked.segment, 3);
		assert_int_equal(asked.len, sizeof(bytes));
		assert_int_equal(asked.offset, 4096);
		put_item(item, FRAME_ANSWER, 4096, bytes, sizeof(bytes));
		if (i < n_heads)
			memcpy(item, &heads[i], sizeof(heads[i]));
		else
			memcpy(item + sizeof(item) - sizeof(struct tcp_frame),
				&trailers[i - n_heads], sizeof(struct tcp_frame));
		raw_send(&p, LANE_BULK, item, sizeof(item));
		RUN(&r, r.server.n_down == i + 1);
		assert_int_equal(r.server.n_read_done, i + 1);
		assert_int_equal(r.server.n_read_failed, i + 1);
		assert_int_equal(r.server.downs_at_read, i);
		assert_int_equal(protocol_errors(&r.server), i + 1);
		raw_close(&p);
	}
	net_rig_close(&r);
	mem_free(&to);
}

static void peer_that_ends_in_the_middle_of_an_answer_is_noticed(void **state)
{
	const uint8_t bytes[1000] = {1};
	uint8_t answer[sizeof(bytes) + 2 * sizeof(struct tcp_frame)];
	struct mem to;
	struct net_rig r;
	unsigned n = 0;

	(void)state;
	net_rig_open(&r);
	to = mem_new(&r.server, 4096, 0);
	put_item(answer, FRAME_ANSWER, 4096, bytes, sizeof(bytes));
	for (size_t cut = 0; cut < sizeof(answer); cut += 127, n++) {
		struct raw_conn p = raw_up(&r);
		struct xport_read rd = raw_read(&r.server, &to, 1000);
		struct tcp_frame asked;

		assert_int_equal(xport_read(&rd), 0);
		raw_recv(&p, LANE_MESSAGES, &asked, sizeof(asked));
		raw_send(&p, LANE_BULK, answer, cut);
		if (n % 2)
			RUN_MS(&r, false, 2);
		/* close one of the peer's two sockets; the other socket still works */
		shutdown(p.fds[LANE_BULK], SHUT_WR);
		RUN(&r, r.server.n_down == n + 1);
		assert_int_equal(r.server.n_read_failed, n + 1);
		assert_int_equal(r.server.n_read_done, n + 1);
		raw_close(&p);
	}
	assert_int_equal(protocol_errors(&r.server), 0);
	net_rig_close(&r);
	mem_free(&to);
}

static void answer_may_come_byte_by_byte(void **state)
{
	uint8_t bytes[300], answer[sizeof(bytes) + 2 * sizeof(struct tcp_frame)];
	struct xport_read rd;
	struct tcp_frame asked;
	struct mem to;
	struct net_rig r;
	struct raw_conn p;

	(void)state;
	net_rig_open(&r);
	to = mem_new(&r.server, 4096, 0);
	p = raw_up(&r);
	fill(bytes, 300, 4);
	put_item(answer, FRAME_ANSWER, 4096, bytes, sizeof(bytes));
	rd = raw_read(&r.server, &to, 300);
	assert_int_equal(xport_read(&rd), 0);
	raw_recv(&p, LANE_MESSAGES, &asked, sizeof(asked));
	for (size_t i = 0; i < sizeof(answer); i++) {
		assert_int_equal(r.server.n_read_done, 0);
		raw_send(&p, LANE_BULK, answer + i, 1);
		r.server.x->ops->poll(r.server.x, clock_now_ns());
	}
	RUN(&r, r.server.n_read_done == 1);
	assert_int_equal(r.server.n_read_failed, 0);
	assert_memory_equal(to.p, bytes, 300);
	assert_int_equal(xport_read_crc(&rd), crc32c(0, bytes, 300));
	raw_close(&p);
	net_rig_close(&r);
	mem_free(&to);
}

static void reads_beyond_the_window_are_refused(void **state)
{
	struct xport_read reads[READS_MAX + 1], bad;
	struct mem from, to;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	from = mem_new(&r.client, 1 << 20, 5);
	to = mem_new(&r.server, 1 << 20, 0);
	rig_connect(&r);
	for (unsigned i = 0; i <= READS_MAX; i++) {
		reads[i] = read_of(&r.server, &to, &from, i * 60000, 60000);
		assert_int_equal(xport_read(&reads[i]), i < READS_MAX ? 0 : -EAGAIN);
	}
	bad = read_of(&r.server, &to, &from, 0, 10);
	bad.offset = UINT64_MAX - 4;
	assert_int_equal(xport_read(&bad), BPS_EPROTO);
	bad = read_of(&r.server, &to, &from, 0, 10);
	bad.segment = TCP_SEGS_MAX;
	assert_int_equal(xport_read(&bad), BPS_EPROTO);
	bad = read_of(&r.server, &to, &from, (1 << 20) - 10, 10);
	bad.dst = to.p + (1 << 20) - 9;
	assert_int_equal(xport_read(&bad), -EINVAL);
	RUN(&r, r.server.n_read_done == READS_MAX);
	assert_int_equal(xport_read(&reads[READS_MAX]), 0);
	RUN(&r, r.server.n_read_done == READS_MAX + 1);
	assert_int_equal(r.server.n_read_failed, 0);
	assert_memory_equal(to.p, from.p, 60000u * (READS_MAX + 1));
	net_rig_close(&r);
	mem_free(&from);
	mem_free(&to);
}

static void reads_outside_of_what_is_offered_fail_and_others_go_on(void **state)
{
	struct xport_read rd;
	struct mem from, to;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	from = mem_new(&r.client, 65536, 5);
	to = mem_new(&r.server, 65536, 0);
	rig_connect(&r);
	for (unsigned i = 0; i < 4; i++) {
		rd = read_of(&r.server, &to, &from, 0, 4096);
		if (i == 0)
			rd.offset = 65536 - 4095; /* the read ends one byte beyond the segment */
		if (i == 1)
			rd.segment++; /* the segment does not exist */
		if (i == 2)
			rd.offset = UINT64_MAX - 4096;
		assert_int_equal(xport_read(&rd), 0);
		RUN(&r, r.server.n_read_done == i + 1);
		assert_int_equal(r.server.read_status, i < 3 ? BPS_ENOTFOUND : 0);
	}
	assert_memory_equal(to.p, from.p, 4096);
	assert_int_equal(r.server.n_down + r.client.n_down, 0);
	net_rig_close(&r);
	mem_free(&from);
	mem_free(&to);
}

static void note_refusal(struct net_node *n, struct xport_read *rd, int status)
{
	(void)rd;
	n->is_wrong |= status != (n->n_read_done == 1 ? BPS_ENOTFOUND : 0);
}

/* The segment is withdrawn while some answers wait and one answer is half sent. The owner may free
 * the segment's memory at once. */
static void withdrawn_segment_is_not_read_any_more(void **state)
{
	struct mem gone, stays, to;
	struct xport_read a, b;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	gone = mem_new(&r.client, READ_MAX, 5);
	stays = mem_new(&r.client, READ_MAX, 6);
	to = mem_new(&r.server, 2 * (size_t)READ_MAX, 0);
	rig_connect(&r);
	a = read_of(&r.server, &to, &gone, 0, READ_MAX);
	b = read_of(&r.server, &to, &stays, 0, 100000);
	b.dst = to.p + READ_MAX;
	assert_int_equal(xport_read(&a), 0);
	assert_int_equal(xport_read(&b), 0);
	RUN(&r, to.p[0] == gone.p[0] && to.p[1] == gone.p[1]);
	assert_int_equal(r.server.n_read_done, 0);
	r.client.x->ops->seg_del(r.client.x, gone.seg);
	mem_free(&gone);
	r.server.on_read_done = note_refusal;
	RUN(&r, r.server.n_read_done == 2);
	assert_int_equal(r.server.n_read_failed, 1);
	assert_false(r.server.is_wrong);
	assert_memory_equal(b.dst, stays.p, 100000);
	assert_int_equal(r.server.n_down + r.client.n_down, 0);
	net_rig_close(&r);
	mem_free(&stays);
	mem_free(&to);
}

static void close_in_read_done(struct net_node *n, struct xport_read *rd, int status)
{
	n->is_wrong |= status && n->n_read_done == 1;
	xport_close(rd->conn, "from its callback");
	n->is_wrong |= xport_read(rd) != -ENOTCONN;
}

/* Several reads have completed in one batch. The callback of the first read closes the
 * connection. */
static void connection_may_be_closed_from_the_end_of_a_read(void **state)
{
	struct xport_read reads[8];
	struct mem from, to;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	from = mem_new(&r.client, 1 << 16, 5);
	to = mem_new(&r.server, 1 << 16, 0);
	rig_connect(&r);
	r.server.on_read_done = close_in_read_done;
	for (unsigned i = 0; i < 8; i++) {
		reads[i] = read_of(&r.server, &to, &from, i * 4096, 4096);
		assert_int_equal(xport_read(&reads[i]), 0);
	}
	RUN(&r, r.server.n_down == 1 && r.client.n_down == 1);
	assert_int_equal(r.server.n_read_done, 8);
	assert_int_equal(r.server.n_read_failed, 7);
	assert_int_equal(r.server.downs_at_read, 0);
	assert_false(r.server.is_wrong);
	net_rig_close(&r);
	mem_free(&from);
	mem_free(&to);
}

static void read_again(struct net_node *n, struct xport_read *rd, int status)
{
	n->is_wrong |= status != 0;
	if (n->n_read_done < 1000)
		n->is_wrong |= xport_read(rd) != 0;
}

static void reads_may_be_started_from_the_end_of_another(void **state)
{
	struct xport_read reads[READS_MAX];
	struct mem from, to;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	from = mem_new(&r.client, 1 << 16, 5);
	to = mem_new(&r.server, 1 << 16, 0);
	rig_connect(&r);
	r.server.on_read_done = read_again;
	for (unsigned i = 0; i < READS_MAX; i++) {
		reads[i] = read_of(&r.server, &to, &from, i * 4096, 1 + i * 273);
		assert_int_equal(xport_read(&reads[i]), 0);
	}
	RUN(&r, r.server.n_read_done == 1000 + READS_MAX - 1);
	assert_false(r.server.is_wrong);
	for (unsigned i = 0; i < READS_MAX; i++)
		assert_memory_equal(to.p + i * 4096, from.p + i * 4096, 1 + i * 273);
	net_rig_close(&r);
	mem_free(&from);
	mem_free(&to);
}

/* ---- sockets with small buffers ---- */

static void shrink(const struct net_node *n)
{
	for (unsigned i = 0; i < N_LANES; i++) {
		int fd = tcp_conn_of(n)->lanes[i].fd, size = 16384;

		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)), 0);
	}
}

static void flood(struct net_node *n, struct xconn *c)
{
	static uint8_t data[WIRE_INLINE_MAX];

	while (n->next_round < 300) {
		struct wire_msg m = inline_message(n->next_round + 1, data,
			(uint32_t)(n->next_round * 7919 % WIRE_INLINE_MAX + 1));

		if (xport_send(c, &m))
			return;
		n->next_round++;
	}
}

static void little_room_in_the_sockets_only_costs_time(void **state)
{
	const uint32_t len = 300000;
	struct mem from_s, from_c, to_s, to_c;
	struct xport_read a, b;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	rig_connect(&r);
	shrink(&r.server);
	shrink(&r.client);
	from_s = mem_new(&r.server, len, 1);
	from_c = mem_new(&r.client, len, 2);
	to_s = mem_new(&r.server, len, 0);
	to_c = mem_new(&r.client, len, 0);
	r.server.on_writable = r.client.on_writable = flood;
	r.server.on_message = r.client.on_message = check_crc;
	a = read_of(&r.server, &to_s, &from_c, 0, len);
	b = read_of(&r.client, &to_c, &from_s, 0, len);
	assert_int_equal(xport_read(&a), 0);
	assert_int_equal(xport_read(&b), 0);
	flood(&r.server, r.server.conn);
	flood(&r.client, r.client.conn);
	assert_true(RUN_MS(&r,
		r.server.n_read_done && r.client.n_read_done && r.server.n_messages == 300 &&
			r.client.n_messages == 300,
		60000));
	assert_memory_equal(to_s.p, from_c.p, len);
	assert_memory_equal(to_c.p, from_s.p, len);
	assert_false(r.server.is_wrong || r.client.is_wrong);
	assert_int_equal(r.server.n_down + r.client.n_down, 0);
	net_rig_close(&r);
	mem_free(&from_s);
	mem_free(&from_c);
	mem_free(&to_s);
	mem_free(&to_c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(malformed_frame_closes_its_connection),
		cmocka_unit_test(malformed_or_foreign_message_closes_its_connection),
		cmocka_unit_test(incomplete_frame_is_not_processed),
		cmocka_unit_test(unrequested_bytes_close_the_connection),
		cmocka_unit_test(too_many_requests_close_the_connection),
		cmocka_unit_test(peer_that_pings_and_does_not_read_leaves_room_for_requests),
		cmocka_unit_test(ping_that_found_no_room_is_sent_when_there_is),
		cmocka_unit_test(thread_does_not_sleep_after_a_callback),
		cmocka_unit_test(wrong_answer_closes_the_connection),
		cmocka_unit_test(peer_that_ends_in_the_middle_of_an_answer_is_noticed),
		cmocka_unit_test(answer_may_come_byte_by_byte),
		cmocka_unit_test(reads_beyond_the_window_are_refused),
		cmocka_unit_test(reads_outside_of_what_is_offered_fail_and_others_go_on),
		cmocka_unit_test(withdrawn_segment_is_not_read_any_more),
		cmocka_unit_test(connection_may_be_closed_from_the_end_of_a_read),
		cmocka_unit_test(reads_may_be_started_from_the_end_of_another),
		cmocka_unit_test(little_room_in_the_sockets_only_costs_time),
		cmocka_unit_test(connection_ends_with_either_channel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
