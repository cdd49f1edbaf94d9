/* Messages, reads and loans of the shared-memory transport. Rings are in shm_ring.c, mappings in
 * shm_seg.c. Thread: the data thread. */
#include "common/transport/shm/shm_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "common/data/copy_nontemporal.h"

/* ---- messages ---- */

void shm_send_wakeup(struct shm_conn *c)
{
	const struct shm_note note = {.type = SHM_WAKE};

	/* Ignore errors: a full socket already contains a wake-up, and epoll reports a closed
	 * socket. */
	send(c->sock, &note, sizeof(note), MSG_DONTWAIT | MSG_NOSIGNAL);
}

int shm_put_message(struct shm_conn *c, const struct wire_msg *m)
{
	struct shm_xport *x = shm_xport_of_conn(c);
	struct wire_msg out = *m;
	size_t n;
	int rc;

	out.cookie = 0;
	out.credits = 0;
	n = wire_encode(&out, x->tx_buf);
	rc = ring_put(&c->tx, x->tx_buf, n);
	if (rc == BPS_EPROTO) {
		shm_protocol_error(c, "an invalid read index in the ring");
		return -ENOTCONN;
	}
	if (rc)
		return rc;
	shm_counter_add(&x->cfg.counters->messages_out, 1);
	if (ring_must_wake(&c->tx))
		shm_send_wakeup(c);
	return 0;
}

int shm_send(struct xconn *xc, const struct wire_msg *m)
{
	struct shm_conn *c = (struct shm_conn *)xc;
	int rc = 0;

	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	if (c->n_dirty) /* announce new segments first, because the message may name one */
		rc = shm_announce_dirty(c);
	if (!rc)
		rc = shm_put_message(c, m);
	if (rc == -EAGAIN)
		c->has_want = true;
	return rc;
}

static void shm_dispatch_message(struct shm_conn *c, const struct wire_msg *m)
{
	struct shm_xport *x = shm_xport_of_conn(c);

	shm_counter_add(&x->cfg.counters->messages_in, 1);
	switch (m->type) {
	case WIRE_CREDIT:
	case WIRE_PONG:
		return;
	case WIRE_PING:
		c->has_pong = true;
		return;
	case WIRE_SEG_ADD:
	case WIRE_SEG_DEL:
		shm_apply_segment_message(c, m);
		return;
	case WIRE_DISCARDED:
		shm_protocol_error(c, "a message of another transport");
		return;
	default:
		if (m->flags & WIRE_INLINE)
			shm_counter_add(&x->cfg.counters->received_bytes, m->len);
		x->base.pub.ev->message(x->base.pub.ctx, &c->base.pub, m);
	}
}

static int shm_receive_messages(struct shm_conn *c)
{
	struct shm_xport *x = shm_xport_of_conn(c);
	struct err_text err = {"a malformed message"};
	struct wire_msg m;
	int i, n = 0;

	for (i = 0; i < SHM_RX_BATCH && c->base.state == CONN_UP; i++) {
		n = ring_get(&c->rx, x->rx_buf, sizeof(x->rx_buf));
		if (n <= 0)
			break;
		if (wire_decode(x->rx_buf, (size_t)n, &m, &err) != n || m.flags & WIRE_EAGER) {
			shm_protocol_error(c, err.s);
			break;
		}
		peer_conn_heard(&c->base);
		shm_dispatch_message(c, &m);
	}
	if (n < 0)
		shm_protocol_error(c, "an invalid write index or entry in the ring");
	if (i && c->base.state == CONN_UP && ring_release_consumed(&c->rx) &&
		ring_must_wake(&c->tx))
		shm_send_wakeup(c);
	return i;
}

/* ---- reads ---- */

int shm_start_read(struct xport_read *r)
{
	struct shm_conn *c = (struct shm_conn *)r->conn;
	struct peer_read *rd;
	struct shm_map *map;
	int rc;

	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	rc = shm_map_get(c, r->segment, r->offset, r->len, &map);
	if (rc)
		return rc;
	rd = peer_reads_start(&c->reads, r);
	if (!rd) {
		shm_map_put(map);
		return -EAGAIN;
	}
	rd->impl = map;
	peer_reads_enqueue(&c->reads, rd);
	return 0;
}

static void shm_finish_read(struct shm_conn *c, struct peer_read *rd, int status)
{
	shm_map_put(rd->impl);
	peer_reads_dequeue(&c->reads, rd);
	peer_reads_finish(&c->reads, rd, c->base.pub.x, status);
}

void shm_conn_cancel_reads(struct shm_conn *c)
{
	struct peer_read *rd;

	while ((rd = TAILQ_FIRST(&c->reads.queue)))
		shm_finish_read(c, rd, -ECANCELED);
}

/* Return whether the peer still offered the memory when the last byte of a read had been copied. */
static bool shm_map_is_intact(const struct shm_conn *c, const struct shm_map *map)
{
	enum shm_side peer = c->side == SHM_AGENT ? SHM_SERVER : SHM_AGENT;

	/* Load is_over with a fetch-or. The peer's shm_conn_tear_down sets is_over to 1 with an
	 * exchange. Both are read-modify-write operations, so one of them comes first. If the
	 * fetch-or comes first, this process has copied all bytes before the peer makes any write
	 * that follows the exchange (release to acquire). If the exchange comes first, the fetch-or
	 * returns 1. */
	return !map->is_withdrawn &&
	       !atomic_fetch_or_explicit(&c->page->is_over[peer], 0, memory_order_acq_rel);
}

/* Copy at most SHM_COPY_SLICE bytes of the started reads. Returns the number of reads for which the
 * function copied bytes. */
static int shm_copy_read_bytes(struct shm_conn *c)
{
	size_t left = SHM_COPY_SLICE;
	const uint8_t *from;
	struct peer_read *rd;
	const struct shm_map *map;
	uint8_t *to;
	int n = 0;

	while (left && c->base.state == CONN_UP && (rd = TAILQ_FIRST(&c->reads.queue))) {
		const struct xport_read *r = rd->r;
		size_t len = r->len - rd->done < left ? r->len - rd->done : left;

		to = (uint8_t *)r->dst + rd->done;
		map = rd->impl;
		from = map->mem + r->offset + rd->done;
		if (r->is_past_caches)
			copy_nontemporal(to, from, len);
		else
			memcpy(to, from, len);
		rd->done += (uint32_t)len;
		left -= len;
		n++;
		if (rd->done < r->len)
			break;
		if (!shm_map_is_intact(c, map)) {
			peer_conn_doom(&c->base, "the peer withdrew memory that was being read");
			break;
		}
		shm_counter_add(&shm_xport_of_conn(c)->cfg.counters->received_bytes, r->len);
		shm_finish_read(c, rd, 0);
	}
	return n;
}

int shm_borrow(
	struct xconn *xc, uint16_t segment, uint64_t offset, uint32_t len, struct xport_loan *ret)
{
	struct shm_conn *c = (struct shm_conn *)xc;
	struct shm_map *map;
	int rc;

	if (c->base.state != CONN_UP)
		return -ENOTCONN;
	rc = shm_map_get(c, segment, offset, len, &map);
	if (rc)
		return rc;
	shm_counter_add(&shm_xport_of_conn(c)->cfg.counters->received_bytes, len);
	*ret = (struct xport_loan){.mem = map->mem + offset, .end = shm_map_put, .impl = map};
	return 0;
}

/* ---- the turn ---- */

static void shm_serve_conn(struct shm_conn *c)
{
	const struct wire_msg pong = {.type = WIRE_PONG};

	if (c->has_pong && !shm_put_message(c, &pong))
		c->has_pong = false;
	if (c->base.state == CONN_UP && c->n_dirty)
		shm_announce_dirty(c);
	if (c->base.state == CONN_UP && c->has_want && !c->is_sock_full && ring_want_room(&c->tx)) {
		c->has_want = false;
		c->base.pub.x->ev->writable(c->base.pub.x->ctx, &c->base.pub);
	}
}

int shm_conn_run_turn(struct shm_conn *c)
{
	int n = shm_receive_messages(c);

	if (c->base.state == CONN_UP)
		n += shm_copy_read_bytes(c);
	if (c->base.state == CONN_UP)
		shm_serve_conn(c);
	return n;
}
