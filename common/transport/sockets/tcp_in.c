/* Receiving on a connection's LANE_BULK: find the destination of requested and eager bytes, compute
 * their crc, and set the receive window. tcp_msg.c sends the requests; tcp_out.c sends answers to
 * the peer.
 * Thread: the data thread. */
#include "common/transport/sockets/tcp_impl.h"

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "common/base/failpoint.h"

/* Largest number of bytes that one call receives. The limit has two purposes: other connections get
 * their turn, and received bytes are still in the cache when their crc is computed.
 * docs/explanation/performance.md, point 10, compares limits of 512 KiB and 256 KiB. */
#define RECV_SLICE (UINT32_C(512) << 10)
#define HEAD       sizeof(struct tcp_frame)
#define PLAN_ITEMS 6

/* ---- reads ---- */

static struct tcp_piece *tcp_read_piece_at(struct tcp_conn *c, unsigned i)
{
	return &c->pieces[(c->piece_first + i) % TCP_PIECES];
}

void tcp_issue_reads(struct tcp_conn *c)
{
	struct peer_read *rd;
	uint32_t len;

	while (c->n_pieces < TCP_PIECES && (len = peer_reads_next_piece(&c->reads, &rd))) {
		if (tcp_put_read_request(c, rd->r->segment, rd->r->offset + rd->issued, len))
			return;
		*tcp_read_piece_at(c, c->n_pieces++) = (struct tcp_piece){.rd = rd,
			.at = rd->issued,
			.len = len,
			.asked_ns = tcp_xport_of_conn(c)->base.now_ns};
		peer_reads_requested(&c->reads, rd, len);
	}
}

static struct tcp_eager *tcp_eager_offer_at(struct tcp_conn *c, unsigned i)
{
	return &c->eager[(c->eager_first + i) % EAGER_IN_MAX];
}

static bool tcp_eager_is_same_memory(
	const struct tcp_eager *e, uint16_t segment, uint64_t offset, uint32_t len)
{
	return e->segment == segment && e->offset == offset && e->len == len;
}

/* Return 1 when the bytes of the first recorded offer are arriving now, else 0. */
static unsigned tcp_count_arriving_offers(struct tcp_conn *c)
{
	const struct tcp_arrival *in = &c->in;

	return in->is_open && in->is_eager && c->n_eager &&
	       tcp_eager_offer_at(c, 0)->count == in->offset;
}

/* Find the recorded offer whose bytes the read r can take. Returns NULL if the peer does not send
 * the bytes of r eagerly, or if this side already discards the bytes. If the result is NULL, this
 * side must request the bytes. */
static struct tcp_eager *tcp_find_offer_of_read(struct tcp_conn *c, const struct xport_read *r)
{
	for (unsigned i = tcp_count_arriving_offers(c); i < c->n_eager; i++) {
		struct tcp_eager *e = tcp_eager_offer_at(c, i);

		if (e->is_heard && !e->rd && !e->is_old &&
			tcp_eager_is_same_memory(e, r->segment, r->offset, r->len))
			return e;
	}
	return NULL;
}

int tcp_start_read(struct xport_read *r)
{
	struct tcp_conn *c = (struct tcp_conn *)r->conn;
	const struct tcp_xport *x = tcp_xport_of_conn(c);
	const struct tcp_seg *own = &x->segs[r->own_segment % TCP_SEGS_MAX];
	uintptr_t at = (uintptr_t)r->dst - (uintptr_t)own->mem;
	struct peer_read *rd;
	struct tcp_eager *e;
	int rc = FAILPOINT(NET_READ);

	if (rc < 0)
		return rc;
	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	if (!r->len || r->segment >= TCP_SEGS_MAX || r->offset > UINT64_MAX - r->len)
		return BPS_EPROTO;
	if (r->own_segment >= TCP_SEGS_MAX || !own->mem || at > own->bytes ||
		r->len > own->bytes - at)
		return -EINVAL;
	e = tcp_find_offer_of_read(c, r);
	/* Accept up to READS_MAX reads, even if they wait for room in the read window. If this
	 * function returned -EAGAIN for such a read, the caller would start no further read until
	 * an earlier read ends. This side would discard the eager bytes that arrive until then, and
	 * would have to request them. */
	rd = peer_reads_start(&c->reads, r);
	if (!rd)
		return -EAGAIN;
	tcp_conn_mark_busy(c);
	if (e) {
		e->rd = rd;
		c->is_held = false;
		return 0;
	}
	peer_reads_enqueue(&c->reads, rd);
	tcp_issue_reads(c);
	return 0;
}

static void tcp_finish_read(struct tcp_conn *c, struct peer_read *rd, int status)
{
	if (!status)
		net_counter_add(&tcp_xport_of_conn(c)->shared.count.reads, 1);
	rd->r->has_crc = true;
	rd->r->crc = rd->crc;
	peer_reads_finish(&c->reads, rd, c->base.pub.x, status);
}

/* ---- eager bytes ---- */

void tcp_record_eager_offer(struct tcp_conn *c, const struct tcp_frame *f)
{
	struct tcp_eager e = {.segment = le16toh(f->segment),
		.len = le32toh(f->len),
		.offset = le64toh(f->offset),
		.count = c->eager_count};

	if (f->status || !e.len || e.segment >= TCP_SEGS_MAX) {
		tcp_protocol_error(c, "a malformed offer");
		return;
	}
	c->eager_count++;
	if (c->n_eager < EAGER_IN_MAX)
		*tcp_eager_offer_at(c, c->n_eager++) = e;
}

/* Allow reads to take the eager bytes that were announced before message m. Call this function
 * before the owner receives m, because the owner may at once start a read that takes such bytes. */
void tcp_offer_heard(struct tcp_conn *c, const struct wire_msg *m)
{
	for (unsigned i = 0; i < c->n_eager; i++) {
		struct tcp_eager *e = tcp_eager_offer_at(c, i);

		if (e->is_heard) {
			e->is_old |= tcp_eager_is_same_memory(e, m->segment, m->offset, m->len);
			continue;
		}
		e->is_heard = true;
		e->turn = tcp_xport_of_conn(c)->turn;
		e->message = c->n_messages + 1;
	}
	if (c->is_held)
		tcp_conn_mark_busy(c);
	c->is_held = false;
}

void tcp_decided(struct xconn *xc, uint64_t n_messages)
{
	struct tcp_conn *c = (struct tcp_conn *)xc;

	c->n_decided = n_messages;
	if (c->is_held)
		tcp_conn_mark_busy(c);
	c->is_held = false;
}

/* Return whether the owner has handled the message that offers the eager bytes, so that no read
 * will take the bytes if none does now. */
static bool tcp_is_offer_decided(const struct tcp_conn *c, const struct tcp_eager *e)
{
	const struct tcp_xport *x = tcp_xport_of_conn(c);

	if (!e->is_heard)
		return false;
	return x->base.pub.decides_late ? e->message <= c->n_decided : e->turn < x->turn;
}

/* Handle the head of an answer. */
static void tcp_begin_answer(struct tcp_conn *c)
{
	const struct tcp_piece *p = tcp_read_piece_at(c, 0);

	if (!c->n_pieces) {
		tcp_protocol_error(c, "bytes that were not requested");
		return;
	}
	if (le32toh(c->head.len) != p->len || le64toh(c->head.offset) != p->rd->r->offset + p->at) {
		tcp_protocol_error(c, "an answer to another request");
		return;
	}
	c->in.rd = p->rd;
	c->in.dst = (uint8_t *)p->rd->r->dst + p->at;
	c->in.is_open = true;
}

/* Handle the head of eager bytes. The bytes stay in the socket until the message with their offer
 * has arrived. If no read takes the bytes at that time, they stay for one more poll, because the
 * owner may start the read a little later. */
static void tcp_begin_eager_bytes(struct tcp_conn *c)
{
	uint64_t count = le64toh(c->head.offset);
	struct tcp_eager *e = c->n_eager ? tcp_eager_offer_at(c, 0) : NULL;

	if (count != c->eager_done) {
		tcp_protocol_error(c, "eager bytes in the wrong order");
		return;
	}
	c->in.is_eager = true;
	c->is_held = count == c->eager_count;
	if (c->is_held)
		return;
	/* The table of offers had no room to record this offer, so discard its bytes */
	if (!e || e->count > count) {
		c->in.is_open = true;
		return;
	}
	if (e->len != le32toh(c->head.len)) {
		tcp_protocol_error(c, "eager bytes whose length differs from the announced length");
		return;
	}
	c->in.is_open = e->rd || tcp_is_offer_decided(c, e);
	c->is_held =
		!c->in.is_open && (!e->is_heard || tcp_xport_of_conn(c)->base.pub.decides_late);
	c->in.rd = e->rd;
	c->in.dst = e->rd ? e->rd->r->dst : NULL;
}

/* Handle a complete head: find the destination of the bytes that follow. */
static void tcp_begin_arrival(struct tcp_conn *c)
{
	const struct tcp_frame *h = &c->head;

	c->in.len = le32toh(h->len);
	c->in.offset = le64toh(h->offset);
	if (h->status || h->segment || !c->in.len)
		tcp_protocol_error(c, "a malformed head");
	else if (h->type == FRAME_ANSWER)
		tcp_begin_answer(c);
	else if (h->type == FRAME_EAGER)
		tcp_begin_eager_bytes(c);
	else
		tcp_protocol_error(c, "bytes that were not requested");
}

/* ---- receiving ---- */

static void tcp_finish_answer(struct tcp_conn *c, uint32_t len)
{
	struct tcp_piece p = *tcp_read_piece_at(c, 0);
	uint64_t took_ns = tcp_xport_of_conn(c)->base.now_ns - p.asked_ns;

	c->piece_first = (c->piece_first + 1) % TCP_PIECES;
	c->n_pieces--;
	if (c->reads.n_queued)
		tcp_conn_mark_busy(c);
	if (peer_reads_arrived(&c->reads, p.rd, len, took_ns))
		tcp_finish_read(c, p.rd, p.rd->status);
}

static void tcp_finish_eager_bytes(struct tcp_conn *c, const struct tcp_arrival *in)
{
	if (c->n_eager && tcp_eager_offer_at(c, 0)->count == in->offset) {
		c->eager_first = (c->eager_first + 1) % EAGER_IN_MAX;
		c->n_eager--;
	}
	c->eager_done = in->offset + 1;
	if (in->rd)
		tcp_finish_read(c, in->rd, in->rd->status);
	else
		net_counter_add(&tcp_xport_of_conn(c)->shared.count.discarded_bytes, in->len);
}

/* Finish an arrival: all its bytes and the trailer have been received. */
static void tcp_finish_arrival(struct tcp_conn *c)
{
	const struct tcp_arrival in = c->in;
	const struct tcp_frame *t = &in.trailer;

	if (t->type != FRAME_BYTES || t->status > 1 || t->segment != 0 ||
		le32toh(t->len) != in.len || le64toh(t->offset) != in.offset) {
		tcp_protocol_error(c, "a trailer that does not match its bytes");
		return;
	}
	net_counter_add(&tcp_xport_of_conn(c)->shared.count.rx_bytes, in.len);
	if (in.rd && t->status)
		in.rd->status = BPS_ENOTFOUND;
	/* Clear c->in before the calls below, because these calls run callbacks */
	c->in = (struct tcp_arrival){0};
	if (in.is_eager)
		tcp_finish_eager_bytes(c, &in);
	else
		tcp_finish_answer(c, in.len);
}

static size_t size_min_of_two(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Destinations of the next bytes from the socket. Heads and trailers are received into `frames`. */
struct tcp_recv_plan {
	struct iovec iov[3 * PLAN_ITEMS];
	unsigned n;
	size_t bytes;
	struct tcp_frame frames[2 * PLAN_ITEMS];
	unsigned n_frames;
};

static void recv_plan_add_bytes(struct tcp_recv_plan *p, void *mem, size_t len)
{
	p->iov[p->n++] = (struct iovec){mem, len};
	p->bytes += len;
}

static void recv_plan_add_frame(struct tcp_recv_plan *p, size_t got)
{
	recv_plan_add_bytes(p, &p->frames[p->n_frames++], HEAD - got);
}

/* Add destinations for the rest of `len` bytes and for the trailer after the bytes. `got` bytes
 * have already arrived. Returns false when the plan has room for only some of the bytes. */
static bool recv_plan_add_item(struct tcp_recv_plan *p, uint8_t *dst, size_t len, size_t got)
{
	size_t left = got < len ? len - got : 0;
	size_t part = size_min_of_two(left, p->bytes < RECV_SLICE ? RECV_SLICE - p->bytes : 0);

	if (part)
		recv_plan_add_bytes(p, dst + got, part);
	if (part < left)
		return false;
	recv_plan_add_frame(p, got > len ? got - len : 0);
	return true;
}

/* Return the i-th recorded offer under two conditions: a read takes this offer's bytes, and before
 * these bytes, only bytes of earlier recorded offers can arrive. Else return NULL. */
static const struct tcp_eager *tcp_next_eager_offer(struct tcp_conn *c, unsigned i)
{
	const struct tcp_eager *e = tcp_eager_offer_at(c, i);

	return !c->n_pieces && i < c->n_eager && e->rd && e->count == c->eager_done + i ? e : NULL;
}

static void tcp_make_recv_plan(struct tcp_conn *c, struct tcp_recv_plan *p)
{
	const struct tcp_arrival *in = &c->in;
	const struct tcp_eager *e;
	unsigned i = tcp_count_arriving_offers(c);

	p->n = p->n_frames = 0;
	p->bytes = 0;
	if (in->is_open && !in->rd) {
		size_t left = HEAD + in->len - in->got;

		if (in->got < HEAD + in->len)
			recv_plan_add_bytes(p, tcp_xport_of_conn(c)->nowhere,
				size_min_of_two(left, sizeof(tcp_xport_of_conn(c)->nowhere)));
		else
			recv_plan_add_frame(p, in->got - HEAD - in->len);
		return;
	}
	if (in->is_open && !recv_plan_add_item(p, in->dst, in->len, in->got - HEAD))
		return;
	recv_plan_add_frame(p, in->is_open ? 0 : in->got);
	while (p->n_frames + 2 <= 2 * PLAN_ITEMS && p->bytes < RECV_SLICE &&
		(e = tcp_next_eager_offer(c, i++))) {
		if (!recv_plan_add_item(p, e->rd->r->dst, e->len, 0))
			return;
		recv_plan_add_frame(p, 0);
	}
}

/* Record `len` received bytes at mem as bytes of the current section: head, data or trailer.
 * Returns how many of the bytes belong to this section. Returns 0 if a read takes the bytes, but
 * mem is not the address at which the read expects them. */
static size_t tcp_take_section_bytes(struct tcp_conn *c, const uint8_t *mem, size_t len)
{
	struct tcp_arrival *in = &c->in;
	size_t at = in->got - HEAD, n;

	if (!in->is_open) {
		n = size_min_of_two(len, HEAD - in->got);
		memcpy((uint8_t *)&c->head + in->got, mem, n);
	} else if (at < in->len) {
		if (in->rd && mem != in->dst + at)
			return 0;
		n = size_min_of_two(len, in->len - at);
		if (in->rd)
			in->rd->crc = crc32c(in->rd->crc, mem, n);
	} else {
		n = size_min_of_two(len, in->len + HEAD - at);
		memcpy((uint8_t *)&in->trailer + (at - in->len), mem, n);
	}
	in->got += n;
	return n;
}

/* Record n received bytes, which are stored at the planned destinations. */
static void tcp_take_received_bytes(struct tcp_conn *c, const struct tcp_recv_plan *p, size_t n)
{
	for (unsigned i = 0; n && c->base.state == CONN_UP; i++) {
		size_t len = size_min_of_two(n, p->iov[i].iov_len);

		if (tcp_take_section_bytes(c, p->iov[i].iov_base, len) != len) {
			tcp_protocol_error(c, "bytes that were not requested");
			return;
		}
		n -= len;
		if (!c->in.is_open && c->in.got == HEAD)
			tcp_begin_arrival(c);
		else if (c->in.is_open && c->in.got == HEAD + c->in.len + HEAD)
			tcp_finish_arrival(c);
	}
}

/* Set how many bytes must arrive before the kernel wakes this thread. The socket is empty now. */
static void tcp_set_recv_lowat(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_BULK];
	const struct tcp_arrival *in = &c->in;
	const struct tcp_eager *e = in->is_open || in->got ? NULL : tcp_next_eager_offer(c, 0);
	size_t len = in->is_open ? in->len + HEAD : e ? e->len + HEAD : 0;
	size_t left = HEAD + len - in->got;
	int want = (int)size_min_of_two(left, socket_window_lowat(&tcp_xport_of_conn(c)->window));

	if (want == l->lowat)
		return;
	if (setsockopt(l->fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof(want)) == 0)
		l->lowat = want;
}

int tcp_begin_window(const struct tcp_xport *x, int fd)
{
	int rc = socket_window_begin(&x->window, fd);

	return rc ? rc : socket_window_pace(&x->window, fd);
}

void tcp_set_windows(struct tcp_xport *x)
{
	int rc = 0;

	x->base.pub.ahead_bytes = socket_window_ahead(&x->window);
	for (unsigned i = 0; i < TCP_CONNS_MAX; i++) {
		int fd = x->conns[i] ? x->conns[i]->lanes[LANE_BULK].fd : -1;

		if (fd < 0)
			continue;
		if (!rc)
			rc = socket_window_set(&x->window, fd);
		/* If this call fails, the previous limit of unsent bytes stays in force, which does
		 * no harm */
		socket_window_pace(&x->window, fd);
	}
	if (rc && !x->window.bytes)
		/* socket_window_set failed for the first socket, so no socket has changed */
		recv_window_refused(&x->window);
}

static void tcp_measure_window(struct tcp_conn *c, size_t n)
{
	struct tcp_xport *x = tcp_xport_of_conn(c);

	recv_rtt_heard(&c->meter.rtt, x->base.now_ns);
	if (socket_window_measure(&x->window, &c->meter, c->lanes[LANE_BULK].fd, n, x->base.now_ns))
		tcp_set_windows(x);
}

void tcp_take_bulk(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_BULK];
	struct tcp_recv_plan p;
	struct msghdr mh = {.msg_iov = p.iov};
	ssize_t n;

	if (c->in.got == HEAD && !c->in.is_open) {
		tcp_begin_arrival(c);
		if (!c->in.is_open)
			return;
	}
	tcp_make_recv_plan(c, &p);
	mh.msg_iovlen = p.n;
	n = recvmsg(l->fd, &mh, MSG_DONTWAIT);
	if (n < 0 && errno == EINTR)
		return;
	if (n <= 0) {
		l->can_recv = false;
		if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
			tcp_doom_lost_conn(c, n == 0 ? 0 : errno);
		else
			tcp_set_recv_lowat(c);
		return;
	}
	peer_conn_heard(&c->base);
	tcp_take_received_bytes(c, &p, (size_t)n);
	if (c->base.state != CONN_UP)
		return;
	tcp_measure_window(c, (size_t)n);
	if (l->is_ended || (size_t)n == p.bytes)
		return;
	l->can_recv = false; /* bytes that arrive later raise a new event */
	tcp_set_recv_lowat(c);
}
