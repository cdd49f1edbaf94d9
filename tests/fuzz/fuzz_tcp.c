/* Fuzzes a connection over TCP (common/transport/sockets/tcp.h). The peer has passed the ticket
 * check and may send anything. The input is a list of steps. A step consists of two bytes (kind and
 * amount) and the step's data. Some steps send raw bytes. To reach later states, the other steps
 * send what a correct peer would send. Rings and buffers must keep their bounds, and every read
 * must end exactly once. */
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/transport/sockets/tcp_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum step {
	RAW_MESSAGES, /* send `amount` raw bytes on the lane of messages */
	RAW_BULK,
	READ, /* start a read, which requests its bytes or takes eager bytes */
	PING, /* let the peer send a correct frame, so that the offers before it are processed */
	ASK,  /* let the peer request bytes of memory that may or may not exist */
	/* let the peer answer the first piece that the connection has requested; if any of the bits
	 * 4 to 6 of `amount` is set, damage a byte of the answer's head or trailer */
	ANSWER,
	SEND,     /* send the queued data, and receive the data at the peer */
	SEGMENT,  /* withdraw a segment, or add one */
	ANNOUNCE, /* announce eager offers, which READ can read; one in 16 is malformed */
	EAGER,    /* send the bytes of the next eager offer, damaged as in ANSWER */
	OFFER,    /* send an offer, and set its `is_patient` if the step's amount is odd */
	TURN,     /* begin the next poll, in which the bytes of an unread offer are dropped */
	N_STEPS
};
#define OFFERED 65536
#define WANTED  (256 << 10)

struct fuzzed {
	struct tcp_xport *x;
	struct tcp_conn *c;
	int peer[N_LANES];
	uint8_t *offered, *wanted;
	struct xport_read reads[READS_MAX];
	bool is_reading[READS_MAX];
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void on_read_done(void *ctx, struct xport_read *r, int status)
{
	struct fuzzed *f = ctx;
	size_t i = (size_t)(r - f->reads);

	(void)status;
	must(i < READS_MAX && f->is_reading[i]);
	f->is_reading[i] = false;
}

static void on_up(void *ctx, struct xconn *c, uint32_t id, uint64_t instance)
{
	(void)ctx;
	(void)c;
	(void)id;
	(void)instance;
}

static void on_down(void *ctx, struct xconn *c, const char *why)
{
	const struct fuzzed *f = ctx;

	(void)c;
	must(why[0]);
	for (unsigned i = 0; i < READS_MAX; i++)
		must(!f->is_reading[i]);
}

static void on_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	(void)ctx;
	(void)c;
	must(m->type > 0 && m->type < WIRE_TYPE_END);
}

static void on_writable(void *ctx, struct xconn *c)
{
	(void)ctx;
	(void)c;
}

static const struct xport_events events = {.up = on_up,
	.down = on_down,
	.message = on_message,
	.read_done = on_read_done,
	.writable = on_writable};

static void begin(struct fuzzed *f, struct tcp_net *net)
{
	struct tcp_xport *x = f->x;
	struct tcp_conn *c = calloc(1, sizeof(*c));

	must(c);
	x->base.pub = (struct xport){.ev = &events, .ctx = f, .ahead_bytes = SOCKET_AHEAD};
	x->net = net;
	TAILQ_INIT(&x->busy);
	TAILQ_INIT(&x->gone);
	TAILQ_INIT(&x->base.doomed);
	x->base.n_conns = 1;
	x->conns[0] = c;
	x->segs[0] = (struct tcp_seg){f->offered, OFFERED};
	x->segs[1] = (struct tcp_seg){f->wanted, WANTED};
	c->base.pub.x = &x->base.pub;
	c->base.state = CONN_UP;
	c->base.is_told = true;
	c->rx = malloc(TCP_RX_BYTES);
	c->tx = malloc(TCP_TX_BYTES);
	must(c->rx && c->tx);
	peer_reads_init(&c->reads, READ_WINDOW_MIN);
	for (unsigned i = 0; i < N_LANES; i++) {
		int fds[2];

		must(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
		c->lanes[i] = (struct tcp_lane){
			.fd = fds[0], .hs = HS_DONE, .lowat = 1, .can_send = true};
		f->peer[i] = fds[1];
	}
	f->c = c;
}

static bool is_used(const struct tcp_conn *c, const struct peer_read *rd)
{
	const struct peer_read *all = c->reads.all;

	return rd >= all && rd < all + READS_MAX && c->reads.used >> (rd - all) & 1;
}

/* Check the eager offers whose bytes have not arrived. The offers must be in order. No two offers
 * may have the same read. */
static void check_eager(const struct tcp_conn *c)
{
	const struct tcp_arrival *in = &c->in;
	uint64_t next = c->eager_done;
	uint32_t taken = 0;

	must(c->n_eager <= EAGER_IN_MAX && c->eager_first < EAGER_IN_MAX);
	must(c->eager_done + c->n_eager <= c->eager_count);
	for (unsigned i = 0; i < c->n_eager; i++) {
		const struct tcp_eager *e = &c->eager[(c->eager_first + i) % EAGER_IN_MAX];
		uint32_t bit = e->rd ? UINT32_C(1) << (e->rd - c->reads.all) : 0;

		must(e->count >= next && e->count < c->eager_count && e->len);
		must(!e->rd || (is_used(c, e->rd) && e->rd->r->len == e->len));
		must(!(taken & bit));
		taken |= bit;
		next = e->count + 1;
	}
	must(in->got <= (uint64_t)in->len + 2 * sizeof(struct tcp_frame));
	must(!in->is_open || c->base.state != CONN_UP ||
		(in->got >= sizeof(struct tcp_frame) && in->len));
	must(!in->rd || c->base.state != CONN_UP || is_used(c, in->rd));
}

static void check_answers(const struct tcp_conn *c)
{
	unsigned n_asked = 0;
	uint64_t bytes = 0;

	must(c->n_answers <= TCP_ANSWERS && c->answer_first < TCP_ANSWERS);
	for (unsigned i = 0; i < c->n_answers; i++) {
		const struct tcp_answer *a = &c->answers[(c->answer_first + i) % TCP_ANSWERS];

		n_asked += !a->is_eager;
		bytes += a->is_eager ? a->len : 0;
		must(i || c->answer_sent < a->len + 2 * sizeof(struct tcp_frame));
	}
	must(n_asked == c->n_asked && n_asked <= TCP_PIECES);
	must(c->n_answers - n_asked <= EAGER_OUT_MAX);
	must(bytes == c->eager_bytes && (c->n_answers || !c->answer_sent));
}

static void check(const struct tcp_conn *c)
{
	unsigned n = 0;

	must(c->rx_used <= TCP_RX_BYTES);
	must(c->tx_head <= c->tx_tail && c->tx_tail <= TCP_TX_BYTES);
	must(c->n_pieces <= TCP_PIECES && c->piece_first < TCP_PIECES);
	check_eager(c);
	check_answers(c);
	must(c->reads.n_queued <= c->reads.n && c->reads.n <= READS_MAX);
	for (unsigned i = 0; i < READS_MAX; i++)
		n += c->reads.used >> i & 1;
	must(n == c->reads.n);
}

/* Return whether bytes of an offer have arrived in the same poll in which the offer was processed.
 * Such bytes wait until the next poll. */
static bool is_early(const struct tcp_conn *c)
{
	const struct tcp_eager *e = &c->eager[c->eager_first];

	return !c->in.is_open && c->in.got == sizeof(struct tcp_frame) && c->n_eager && !e->rd &&
	       e->is_heard && e->turn == ((struct tcp_xport *)c->base.pub.x)->turn;
}

/* Receive on a lane, in the same way as the function `serve` in common/transport/sockets/tcp.c. */
static void hear(struct fuzzed *f, enum tcp_lane_kind lane)
{
	struct tcp_lane *l = &f->c->lanes[lane];

	l->can_recv = true;
	while (l->can_recv && f->c->base.state == CONN_UP) {
		if (lane == LANE_MESSAGES)
			tcp_take_messages(f->c);
		else if (f->c->is_held || is_early(f->c))
			break;
		else
			tcp_take_bulk(f->c);
		check(f->c);
	}
}

/* Send bytes to the connection. When the socket has no room, drop the rest of the bytes, since no
 * other thread reads from the socket. */
static void say(struct fuzzed *f, enum tcp_lane_kind lane, const void *data, size_t n_bytes)
{
	while (n_bytes && f->c->base.state == CONN_UP) {
		size_t part = n_bytes < 65536 ? n_bytes : 65536;
		ssize_t n = send(f->peer[lane], data, part, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n <= 0)
			return;
		hear(f, lane);
		hear(f, LANE_BULK); /* bulk bytes may have waited for the message just sent */
		data = (const uint8_t *)data + n;
		n_bytes -= (size_t)n;
	}
}

static void drain(int fd)
{
	static uint8_t away[65536];

	while (recv(fd, away, sizeof(away), MSG_DONTWAIT) > 0)
		;
}

static void begin_read(struct fuzzed *f, uint8_t n)
{
	unsigned i = 0;

	while (i < READS_MAX && f->is_reading[i])
		i++;
	if (i == READS_MAX)
		return;
	f->reads[i] = (struct xport_read){.conn = &f->c->base.pub,
		.dst = f->wanted,
		.own_segment = 1,
		.segment = n,
		.len = (n + 1) * 997u,
		.offset = n * UINT64_C(4096)};
	f->is_reading[i] = true;
	if (tcp_start_read(&f->reads[i]))
		f->is_reading[i] = false;
}

static void ping(struct fuzzed *f)
{
	const struct wire_msg m = {.type = WIRE_PING};
	struct tcp_frame fr = {.type = FRAME_MESSAGE, .len = htole32((uint32_t)wire_size(&m))};
	uint8_t b[sizeof(fr) + WIRE_HDR_BYTES];

	memcpy(b, &fr, sizeof(fr));
	wire_encode(&m, b + sizeof(fr));
	say(f, LANE_MESSAGES, b, sizeof(b));
}

/* Send an item with the head h, or the rest of an item that was started. The step's amount n
 * selects the byte to damage. */
static void say_item(struct fuzzed *f, struct tcp_frame h, uint8_t n)
{
	static const uint8_t payload[WANTED];
	const struct tcp_arrival *in = &f->c->in;
	uint8_t *at = (uint8_t *)&h + n % sizeof(h), wrong = (n >> 4) & 7;
	uint64_t left = le32toh(h.len);

	if (in->is_open) {
		uint64_t end = sizeof(h) + (uint64_t)in->len;

		h.len = htole32(in->len);
		h.offset = htole64(in->offset);
		left = in->got < end ? end - in->got : 0;
	} else {
		*at ^= n & 0x80 ? wrong : 0;
		say(f, LANE_BULK, &h, sizeof(h));
		*at ^= n & 0x80 ? wrong : 0;
	}
	if (left > WANTED)
		return;
	say(f, LANE_BULK, payload, left);
	h.type = FRAME_BYTES;
	*at ^= n & 0x80 ? 0 : wrong;
	say(f, LANE_BULK, &h, sizeof(h));
}

static void answer(struct fuzzed *f, uint8_t n)
{
	const struct tcp_conn *c = f->c;
	const struct tcp_piece *p = &c->pieces[c->piece_first];

	if (c->n_pieces)
		say_item(f,
			(struct tcp_frame){.type = FRAME_ANSWER,
				.len = htole32(p->len),
				.offset = htole64(p->rd->r->offset + p->at)},
			n);
}

/* Announce the bytes that begin_read(n) will read. */
static void announce(struct fuzzed *f, uint8_t n)
{
	struct tcp_frame h = {.type = FRAME_EAGER,
		.segment = htole16(n),
		.len = htole32((n + 1) * 997u),
		.offset = htole64(n * UINT64_C(4096))};

	if (n % 16 == 15)
		((uint8_t *)&h)[1 + n / 16 % 15] ^= n;
	say(f, LANE_MESSAGES, &h, sizeof(h));
}

/* Send the bytes of the next announced offer. If no offer is announced, send bytes that were not
 * announced. */
static void eager(struct fuzzed *f, uint8_t n)
{
	const struct tcp_conn *c = f->c;
	const struct tcp_eager *e = &c->eager[c->eager_first];

	say_item(f,
		(struct tcp_frame){.type = FRAME_EAGER,
			.len = htole32(c->n_eager ? e->len : 997),
			.offset = htole64(c->eager_done)},
		n);
}

static void offer(struct fuzzed *f, uint8_t n)
{
	const struct wire_msg m = {.type = WIRE_CONTRIB,
		.segment = n % 3 ? 0 : 9,
		.len = (n + 1) * 512u,
		.offset = n % 64 * 1024u,
		.contrib.workers = 1};
	struct tcp_conn *c = f->c;
	int rc = tcp_send_eager(&c->base.pub, &m, n % 2);

	must(rc == 0 || (rc == -EAGAIN && (c->wants_eager || c->has_want)));
}

static void pass_turn(struct fuzzed *f)
{
	f->x->turn++;
	hear(f, LANE_BULK);
}

static void leave(struct fuzzed *f)
{
	struct tcp_conn *c = f->c;

	for (unsigned i = 0; i < N_LANES; i++) {
		drain(f->peer[i]);
		c->lanes[i].can_send = true;
	}
	tcp_issue_reads(c);
	tcp_flush(c);
	if (c->base.state == CONN_UP && c->n_answers)
		tcp_send_bulk(c);
}

static void segment(struct fuzzed *f, uint8_t n)
{
	f->x->segs[0] = (struct tcp_seg){0};
	tcp_refuse_segment(f->c, 0);
	if (n % 2)
		f->x->segs[0] = (struct tcp_seg){f->offered, OFFERED};
}

/* Run one step with the amount n. Returns the number of bytes of `data` that the step used. */
static size_t step(struct fuzzed *f, enum step what, uint8_t n, const uint8_t *data, size_t left)
{
	struct tcp_frame ask = {
		.type = FRAME_READ, .len = htole32(n * 512u), .offset = n % 64 * 1024u};
	size_t len = n < left ? n : left;

	switch (what) {
	case RAW_MESSAGES:
		say(f, LANE_MESSAGES, data, len);
		return len;
	case RAW_BULK:
		say(f, LANE_BULK, data, len);
		return len;
	case READ:
		begin_read(f, n);
		break;
	case PING:
		ping(f);
		break;
	case ASK:
		ask.offset = htole64(ask.offset);
		say(f, LANE_MESSAGES, &ask, sizeof(ask));
		break;
	case ANSWER:
		answer(f, n);
		break;
	case SEND:
		leave(f);
		break;
	case SEGMENT:
		segment(f, n);
		break;
	case ANNOUNCE:
		announce(f, n);
		break;
	case EAGER:
		eager(f, n);
		break;
	case OFFER:
		offer(f, n);
		break;
	case TURN:
		pass_turn(f);
		break;
	case N_STEPS:
		break;
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static uint8_t offered[OFFERED], wanted[WANTED];
	static struct tcp_xport x;
	static struct tcp_net net;
	struct fuzzed f = {.x = &x, .offered = offered, .wanted = wanted};

	begin(&f, &net);
	while (n_bytes >= 2 && f.c->base.state == CONN_UP) {
		size_t took = 2 + step(&f, data[0] % N_STEPS, data[1], data + 2, n_bytes - 2);

		check(f.c);
		data += took;
		n_bytes -= took;
	}
	tcp_conn_tear_down(&f.c->base.pub, "the input ends");
	for (unsigned i = 0; i < N_LANES; i++)
		close(f.peer[i]);
	tcp_free_gone(&x);
	must(TAILQ_EMPTY(&x.busy) && x.base.n_conns == 0);
	return 0;
}
