#include "common/tcp_impl.h"

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "common/failpoint.h"

/* Bytes of one call, so that the other connections get their turn, and what was received is still in
 * the cache for its crc. */
#define SEND_SLICE (UINT32_C(512) << 10)
#define RECV_SLICE (UINT32_C(256) << 10)
/* The kernel wakes us when this much of a piece is here, or all of it: a compromise between
 * wake-ups, which cost, and bytes that lie in the kernel when they could be copied. */
#define LOWAT_MAX (128 << 10)
#define ZEROS     (64 << 10)
#define N_IOV     (2 * TCP_PIECES)

static const uint8_t zeros[ZEROS];

/* ---- what we read ---- */

static struct piece *piece_at(struct tcp_conn *c, unsigned i)
{
	return &c->pieces[(c->piece_first + i) % TCP_PIECES];
}

/* False: there is no room for the request. */
static bool ask(struct tcp_conn *c, struct tcp_read *rd, uint32_t len)
{
	const struct xport_read *r = rd->r;

	if (tcp_put_read(c, r->segment, r->offset + rd->issued, len))
		return false;
	*piece_at(c, c->n_pieces) = (struct piece){
		.rd = rd, .at = rd->issued, .len = len, .asked_ns = tcp_of(c)->now_ns};
	c->n_pieces++;
	c->read_window.bytes += len;
	rd->issued += len;
	return true;
}

void tcp_issue_reads(struct tcp_conn *c)
{
	struct tcp_read *rd;

	while ((rd = TAILQ_FIRST(&c->queue)) && c->n_pieces < TCP_PIECES) {
		uint32_t len = read_window_piece(&c->read_window, rd->r->len - rd->issued);

		if (!read_window_takes(&c->read_window, len) || !ask(c, rd, len))
			return;
		if (rd->issued < rd->r->len)
			continue;
		TAILQ_REMOVE(&c->queue, rd, link);
		c->n_queued--;
	}
}

int tcp_read(struct xport_read *r)
{
	struct tcp_conn *c = (struct tcp_conn *)r->conn;
	const struct tcp_xport *x = tcp_of(c);
	const struct tcp_seg *own = &x->segs[r->own_segment % TCP_SEGS_MAX];
	uintptr_t at = (uintptr_t)r->dst - (uintptr_t)own->mem;
	struct tcp_read *rd;
	int rc = FAILPOINT(NET_READ);

	if (rc < 0)
		return rc;
	if (c->state != TCP_UP)
		return -ENOTCONN;
	if (!r->len || r->segment >= TCP_SEGS_MAX || r->offset > UINT64_MAX - r->len)
		return BPS_EPROTO;
	if (r->own_segment >= TCP_SEGS_MAX || !own->mem || at > own->bytes ||
		r->len > own->bytes - at)
		return -EINVAL;
	if (c->n_reads == READS_MAX || c->n_queued == READ_WINDOW_QUEUE)
		return -EAGAIN;
	rd = &c->reads[__builtin_ctz(~c->reads_used)];
	*rd = (struct tcp_read){.r = r};
	r->impl = rd;
	c->reads_used |= UINT32_C(1) << (rd - c->reads);
	c->n_reads++;
	TAILQ_INSERT_TAIL(&c->queue, rd, link);
	c->n_queued++;
	tcp_issue_reads(c);
	tcp_touch(c);
	return 0;
}

static void read_end(struct tcp_conn *c, struct tcp_read *rd, int status)
{
	const struct xport *x = c->pub.x;

	c->reads_used &= ~(UINT32_C(1) << (rd - c->reads));
	c->n_reads--;
	if (!status)
		net_count(&tcp_of(c)->count.reads, 1);
	rd->r->has_crc = true;
	rd->r->crc = rd->crc;
	x->ev->read_done(x->ctx, rd->r, status);
}

void tcp_cancel_reads(struct tcp_conn *c)
{
	while (c->reads_used)
		read_end(c, &c->reads[__builtin_ctz(c->reads_used)], -ECANCELED);
}

/* The first piece is here with its trailer. */
static void piece_end(struct tcp_conn *c)
{
	struct piece p = *piece_at(c, 0);
	const struct frame *t = &c->trailers[c->piece_first];
	struct tcp_read *rd = p.rd;

	if (t->type != FRAME_BYTES || t->status > 1 || t->segment != 0 ||
		le32toh(t->len) != p.len || le64toh(t->offset) != rd->r->offset + p.at) {
		tcp_protocol_error(c, "an answer to another request");
		return;
	}
	c->piece_first = (c->piece_first + 1) % TCP_PIECES;
	c->n_pieces--;
	c->piece_got = 0;
	read_window_arrived(
		&c->read_window, p.len, tcp_of(c)->now_ns - p.asked_ns, c->n_queued > 0);
	net_count(&tcp_of(c)->count.rx_bytes, p.len);
	if (t->status)
		rd->status = BPS_ENOTFOUND;
	rd->done += p.len;
	if (c->n_queued)
		tcp_touch(c);
	if (rd->done == rd->r->len)
		read_end(c, rd, rd->status);
}

static size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Where the next bytes go, over as many pieces as a call may fill. Returns the bytes wanted. */
static size_t recv_plan(struct tcp_conn *c, struct iovec iov[N_IOV], unsigned *ret_n)
{
	uint32_t got = c->piece_got;
	size_t want = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < c->n_pieces && want < RECV_SLICE; i++) {
		struct piece *p = piece_at(c, i);
		uint8_t *trailer = (uint8_t *)&c->trailers[p - c->pieces];
		uint32_t in_trailer = got > p->len ? got - p->len : 0;

		if (got < p->len) {
			size_t len = min_size(p->len - got, RECV_SLICE - want);

			iov[n++] = (struct iovec){(uint8_t *)p->rd->r->dst + p->at + got, len};
			want += len;
			if (got + len < p->len)
				break;
		}
		iov[n++] = (struct iovec){trailer + in_trailer, sizeof(struct frame) - in_trailer};
		want += sizeof(struct frame) - in_trailer;
		got = 0;
	}
	*ret_n = n;
	return want;
}

/* That many bytes more of the first piece, still in the processor's cache. */
static void add_crc(const struct piece *p, uint32_t got, size_t n)
{
	size_t payload = got < p->len ? p->len - got : 0;

	p->rd->crc = crc32c(
		p->rd->crc, (const uint8_t *)p->rd->r->dst + p->at + got, min_size(n, payload));
}

static void take(struct tcp_conn *c, size_t n)
{
	while (n && c->state == TCP_UP) {
		size_t left = piece_at(c, 0)->len + sizeof(struct frame) - c->piece_got;
		size_t part = min_size(n, left);

		add_crc(piece_at(c, 0), c->piece_got, part);
		c->piece_got += (uint32_t)part;
		n -= part;
		if (part == left)
			piece_end(c);
	}
}

/* Nothing more is there: how much has to come before we are woken? */
static void set_lowat(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_BULK];
	int want = 1;

	if (c->n_pieces) {
		size_t left = piece_at(c, 0)->len + sizeof(struct frame) - c->piece_got;

		want = (int)min_size(left, LOWAT_MAX);
	}
	if (want == l->lowat)
		return;
	if (setsockopt(l->fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof(want)) == 0)
		l->lowat = want;
}

void tcp_take_bulk(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_BULK];
	struct iovec iov[N_IOV];
	struct msghdr mh = {.msg_iov = iov};
	unsigned n_iov;
	size_t want = recv_plan(c, iov, &n_iov);
	uint8_t byte;
	ssize_t n;

	if (!want) { /* nothing is to come: only the end can */
		iov[0] = (struct iovec){&byte, 1};
		n_iov = 1;
	}
	mh.msg_iovlen = n_iov;
	n = recvmsg(l->fd, &mh, MSG_DONTWAIT);
	if (n < 0 && errno == EINTR)
		return;
	if (n <= 0) {
		l->can_recv = false;
		if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
			tcp_lost(c, n == 0 ? 0 : errno);
		else
			set_lowat(c);
		return;
	}
	if (!want) {
		tcp_protocol_error(c, "bytes that nobody asked for");
		return;
	}
	tcp_heard(c);
	take(c, (size_t)n);
	if (l->is_ended || ((size_t)n == want && c->n_pieces))
		return;
	l->can_recv = false; /* what comes from now on is an event of its own */
	if (c->state == TCP_UP)
		set_lowat(c);
}

/* ---- what the peer reads ---- */

static struct answer *answer_at(struct tcp_conn *c, unsigned i)
{
	return &c->answers[(c->answer_first + i) % TCP_PIECES];
}

void tcp_asked(struct tcp_conn *c, const struct frame *f)
{
	const struct tcp_xport *x = tcp_of(c);
	struct answer a = {.segment = le16toh(f->segment),
		.len = le32toh(f->len),
		.offset = le64toh(f->offset)};
	const struct tcp_seg *s = &x->segs[a.segment % TCP_SEGS_MAX];

	if (f->status || !a.len || a.len > READ_WINDOW_MAX || a.segment >= TCP_SEGS_MAX) {
		tcp_protocol_error(c, "a malformed request to read");
		return;
	}
	if (c->n_answers == TCP_PIECES) {
		tcp_protocol_error(c, "more requests to read than anybody has");
		return;
	}
	a.is_refused = a.offset > s->bytes || a.len > s->bytes - a.offset;
	*answer_at(c, c->n_answers++) = a;
	tcp_touch(c);
}

void tcp_refuse_segment(struct tcp_conn *c, uint16_t segment)
{
	for (unsigned i = 0; i < c->n_answers; i++) {
		struct answer *a = answer_at(c, i);

		a->is_refused |= a->segment == segment;
	}
}

static size_t answer_bytes(const struct answer *a)
{
	return a->len + sizeof(struct frame);
}

/* Some of the next bytes to go. trailers: room for one per answer. */
static size_t send_plan(struct tcp_conn *c, struct iovec iov[N_IOV],
	struct frame trailers[TCP_PIECES], unsigned *ret_n)
{
	uint32_t sent = c->answer_sent;
	size_t want = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < c->n_answers && want < SEND_SLICE; i++) {
		const struct answer *a = answer_at(c, i);
		uint32_t in_trailer = sent > a->len ? sent - a->len : 0;
		size_t left = sent < a->len ? a->len - sent : 0;
		size_t len = min_size(left, a->is_refused ? ZEROS : SEND_SLICE - want);

		if (len)
			iov[n++] = (struct iovec){
				a->is_refused ? (void *)zeros
					      : (void *)(tcp_of(c)->segs[a->segment].mem +
							 a->offset + sent),
				len};
		want += len;
		if (len < left)
			break;
		trailers[i] = (struct frame){.type = FRAME_BYTES,
			.status = a->is_refused,
			.len = htole32(a->len),
			.offset = htole64(a->offset)};
		iov[n++] = (struct iovec){
			(uint8_t *)&trailers[i] + in_trailer, sizeof(struct frame) - in_trailer};
		want += sizeof(struct frame) - in_trailer;
		sent = 0;
	}
	*ret_n = n;
	return want;
}

void tcp_send_bulk(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_BULK];
	struct frame trailers[TCP_PIECES];
	struct iovec iov[N_IOV];
	struct msghdr mh = {.msg_iov = iov};
	unsigned n_iov;
	size_t want = send_plan(c, iov, trailers, &n_iov);
	ssize_t n;

	mh.msg_iovlen = n_iov;
	n = sendmsg(l->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && errno == EINTR)
		return;
	if (n < 0) {
		l->can_send = false;
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			tcp_lost(c, errno);
		return;
	}
	l->can_send = (size_t)n == want;
	while (n) {
		size_t left = answer_bytes(answer_at(c, 0)) - c->answer_sent;
		size_t part = min_size((size_t)n, left);

		c->answer_sent += (uint32_t)part;
		n -= (ssize_t)part;
		if (part < left)
			break;
		c->answer_first = (c->answer_first + 1) % TCP_PIECES;
		c->n_answers--;
		c->answer_sent = 0;
	}
}
