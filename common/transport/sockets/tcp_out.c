/* Sending bytes on a connection's LANE_BULK: answers to the peer's requests, and eager bytes.
 * Receiving is in tcp_in.c. Thread: the data thread. */
#include "common/transport/sockets/tcp_impl.h"

#include <endian.h>
#include <errno.h>
#include <sys/uio.h>

/* Largest number of bytes that one call sends, so that other connections get their turn. */
#define SEND_SLICE (UINT32_C(1) << 20)
#define ZEROS      (64 << 10)
#define HEAD       sizeof(struct tcp_frame)
#define IOV_ROOM   64

static const uint8_t zeros[ZEROS];

static struct tcp_answer *tcp_answer_at_index(struct tcp_conn *c, unsigned i)
{
	return &c->answers[(c->answer_first + i) % TCP_ANSWERS];
}

static void tcp_append_answer(struct tcp_conn *c, const struct tcp_answer *a)
{
	*tcp_answer_at_index(c, c->n_answers++) = *a;
	tcp_conn_mark_busy(c);
}

void tcp_queue_read_answer(struct tcp_conn *c, const struct tcp_frame *f)
{
	const struct tcp_xport *x = tcp_xport_of_conn(c);
	struct tcp_answer a = {.segment = le16toh(f->segment),
		.len = le32toh(f->len),
		.offset = le64toh(f->offset)};
	const struct tcp_seg *s = &x->segs[a.segment % TCP_SEGS_MAX];

	if (f->status || !a.len || a.len > READ_WINDOW_MAX || a.segment >= TCP_SEGS_MAX) {
		tcp_protocol_error(c, "a malformed request to read");
		return;
	}
	if (c->n_asked == TCP_PIECES) {
		tcp_protocol_error(c, "too many requests to read");
		return;
	}
	a.is_refused = a.offset > s->bytes || a.len > s->bytes - a.offset;
	c->n_asked++;
	eager_policy_asked(&c->policy, a.segment, a.offset);
	tcp_append_answer(c, &a);
}

bool tcp_takes_eager(const struct tcp_conn *c, bool is_patient)
{
	return eager_policy_has_room(
		c->n_answers - c->n_asked, c->eager_bytes, c->base.pub.x->ahead_bytes, is_patient);
}

void tcp_push_eager(struct tcp_conn *c, const struct wire_msg *m)
{
	const struct tcp_seg *s = &tcp_xport_of_conn(c)->segs[m->segment % TCP_SEGS_MAX];

	tcp_append_answer(
		c, &(struct tcp_answer){.segment = m->segment,
			   .is_refused = m->offset > s->bytes || m->len > s->bytes - m->offset,
			   .is_eager = true,
			   .len = m->len,
			   .offset = m->offset,
			   .count = c->eager_sent++});
	c->eager_bytes += m->len;
}

void tcp_refuse_segment(struct tcp_conn *c, uint16_t segment)
{
	for (unsigned i = 0; i < c->n_answers; i++) {
		struct tcp_answer *a = tcp_answer_at_index(c, i);

		a->is_refused |= a->segment == segment;
	}
}

/* Plan of one call of sendmsg: the pieces of memory to send, in order. Heads and trailers are in
 * `frames`, data is in the segments. */
struct tcp_send_plan {
	struct iovec iov[IOV_ROOM];
	unsigned n;
	size_t bytes;
	struct tcp_frame frames[IOV_ROOM];
	unsigned n_frames;
};

static void send_plan_add_bytes(struct tcp_send_plan *p, const void *mem, size_t len)
{
	if (!len)
		return;
	p->iov[p->n++] = (struct iovec){(void *)mem, len};
	p->bytes += len;
}

static void send_plan_add_frame(struct tcp_send_plan *p, const struct tcp_answer *a,
	enum tcp_frame_type type, uint8_t status, size_t sent)
{
	struct tcp_frame *f = &p->frames[p->n_frames++];

	*f = (struct tcp_frame){.type = (uint8_t)type,
		.status = status,
		.len = htole32(a->len),
		.offset = htole64(a->is_eager ? a->count : a->offset)};
	send_plan_add_bytes(p, (const uint8_t *)f + sent, HEAD - sent);
}

/* Add the rest of an answer to the plan. `sent` bytes of the answer are already sent. Returns false
 * when the plan has room for only a part of the rest. */
static bool send_plan_add_answer(
	struct tcp_send_plan *p, const struct tcp_conn *c, const struct tcp_answer *a, size_t sent)
{
	const uint8_t *mem = tcp_xport_of_conn(c)->segs[a->segment].mem;
	size_t at = sent > HEAD ? sent - HEAD : 0, left = at < a->len ? a->len - at : 0, len;

	if (sent < HEAD)
		send_plan_add_frame(p, a, a->is_eager ? FRAME_EAGER : FRAME_ANSWER, 0, sent);
	len = a->is_refused ? ZEROS : p->bytes < SEND_SLICE ? SEND_SLICE - p->bytes : 0;
	len = left < len ? left : len;
	send_plan_add_bytes(p, a->is_refused ? zeros : mem + a->offset + at, len);
	if (len < left)
		return false;
	send_plan_add_frame(p, a, FRAME_BYTES, a->is_refused, at > a->len ? at - a->len : 0);
	return true;
}

static size_t tcp_answer_wire_bytes(const struct tcp_answer *a)
{
	return HEAD + a->len + HEAD;
}

/* Remove the first answer from the queue. The caller has sent this answer completely. */
static void tcp_remove_sent_answer(struct tcp_conn *c)
{
	const struct tcp_answer *a = tcp_answer_at_index(c, 0);

	if (a->is_eager)
		c->eager_bytes -= a->len;
	else
		c->n_asked--;
	c->answer_first = (c->answer_first + 1) % TCP_ANSWERS;
	c->n_answers--;
	c->answer_sent = 0;
}

void tcp_send_bulk(struct tcp_conn *c)
{
	struct tcp_lane *l = &c->lanes[LANE_BULK];
	struct tcp_send_plan p;
	struct msghdr mh = {.msg_iov = p.iov};
	size_t sent = c->answer_sent;
	ssize_t n;

	p.n = p.n_frames = 0;
	p.bytes = 0;
	for (unsigned i = 0; i < c->n_answers && p.bytes < SEND_SLICE && p.n + 3 <= IOV_ROOM; i++) {
		if (!send_plan_add_answer(&p, c, tcp_answer_at_index(c, i), sent))
			break;
		sent = 0;
	}
	mh.msg_iovlen = p.n;
	n = sendmsg(l->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && errno == EINTR)
		return;
	if (n < 0) {
		l->can_send = false;
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			tcp_doom_lost_conn(c, errno);
		return;
	}
	l->can_send = (size_t)n == p.bytes;
	while (n) {
		size_t left = tcp_answer_wire_bytes(tcp_answer_at_index(c, 0)) - c->answer_sent;
		size_t part = (size_t)n < left ? (size_t)n : left;

		c->answer_sent += (uint32_t)part;
		n -= (ssize_t)part;
		if (part == left)
			tcp_remove_sent_answer(c);
	}
}
