#ifndef BPS_COMMON_TRANSPORT_XPORT_H
#define BPS_COMMON_TRANSPORT_XPORT_H
/* The transport of the data plane, as seen by a data thread: connections that carry wire messages
 * under credit, and reads of the peer's offers. One struct xport per data thread; all calls and
 * callbacks run on that thread. The implementation is a table (struct xport_ops):
 *   common/transport/sockets/tcp.c    our own sockets
 *   common/transport/fabric/fabric.c  libfabric FI_EP_MSG (verbs)
 *   common/transport/shm/shm.c        memory of a peer on the same host
 *   common/datapath/datapath.c        chooses between shared memory and the network
 * The simulator's network is another.
 *
 *   connection:  CONNECTING --up--> UP --down--> (freed by xport after the down callback returned)
 *                CONNECTING --down--> ...
 *
 * Guarantees that the cores rely on:
 *   - every xport_read that returned 0 has its read_done exactly once, also when the connection
 *     goes down (before its down callback) and on close; after it nothing writes to dst any more;
 *   - messages of one connection arrive in the order they were sent, or the connection goes down;
 *   - after down no callback names that connection again;
 *   - memory of a segment is only ever read by peers, never written;
 *   - once close has returned, or down has run, no read of the peer's that began before counts:
 *     the memory that it was offered may change. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/data/crc32c.h"
#include "common/wire/wire.h"

struct xport;
struct xconn;

/* Read of bytes at [offset, offset + len) of the peer's segment into dst, which lies in one of our
 * own segments (own_segment). The caller owns it, and leaves it untouched until read_done. */
struct xport_read {
	struct xconn *conn;
	void *dst;
	uint16_t own_segment;
	uint16_t segment;
	uint32_t len;
	/* Copies bypass the caches: dst is not used soon (common/data/copy_nontemporal.h) */
	bool is_past_caches;
	/* Set with status 0: crc was computed over the bytes in dst as they arrived */
	bool has_crc;
	uint32_t crc;
	uint64_t offset;
	void *impl; /* owned by the transport */
};

/* Memory of a peer, read in place. It stays readable until xport_loan_end, also when the connection
 * is down. The protocol decides whether its bytes stay the same. */
struct xport_loan {
	const void *mem; /* NULL: none */
	void (*end)(void *impl);
	void *impl;
};

struct xport_events {
	/* A connection is usable. peer_id/peer_instance: the peer, proven by its ticket. user: from
	 * ops->connect, or NULL for an accepted one. */
	void (*up)(void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance);
	/* The connection has ended; why is for the log. */
	void (*down)(void *ctx, struct xconn *c, const char *why);
	/* A message was received; m and its payload live until the callback returns. */
	void (*message)(void *ctx, struct xconn *c, const struct wire_msg *m);
	/* A read has ended. status 0, or negative: the content of dst is undefined. */
	void (*read_done)(void *ctx, struct xport_read *r, int status);
	/* A send returned -EAGAIN before; now there may be room for it. */
	void (*writable)(void *ctx, struct xconn *c);
};

struct xport_ops {
	/* Start connecting to a peer's data thread; up or down follows. */
	int (*connect)(struct xport *x, const char *addr, uint16_t port, uint16_t thread,
		uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
		struct xconn **ret_conn);
	/* Queue one message; it leaves at the latest when the thread next goes idle, small ones
	 * together. Copies m and its payload.
	 * Errors: -EAGAIN no credit (writable follows), -ENOTCONN. */
	int (*send)(struct xconn *c, const struct wire_msg *m);
	/* Send a message that offers bytes, and its bytes without a request. A read of exactly
	 * these bytes that the receiver starts when it receives the offer takes them on arrival.
	 * Without such a read they are discarded. Without room for them here they are not sent, and
	 * the offer is an ordinary one. is_patient: return -EAGAIN instead of sending the offer
	 * without its bytes or queueing it behind many others. To a receiver that discarded some,
	 * offers go without their bytes for a while. NULL: send does instead.
	 * Owns: the memory must not change until the offer ends, same as for a read.
	 * Errors: -EAGAIN no credit, or is_patient and too much waits (writable follows),
	 * -ENOTCONN. */
	int (*send_eager)(struct xconn *c, const struct wire_msg *m, bool is_patient);
	/* Start a read.
	 * Errors: -EAGAIN too many in flight on this connection (retry after one of its read_done),
	 * -ENOTCONN, BPS_EPROTO no such segment of the peer or out of its bounds. */
	int (*read)(struct xport_read *r);
	/* Drop a connection; reads complete with -ECANCELED, then down runs (before close
	 * returns). */
	void (*close)(struct xconn *c, const char *why);
	/* Offer memory to peers, which may read it, and to our own reads. It never moves and never
	 * shrinks. */
	int (*seg_add)(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment);
	/* Return when the peer last sent anything, by the clock of the thread's turns. At most some
	 * seconds ago, because a silent connection goes down. */
	uint64_t (*heard_ns)(const struct xconn *c);
	/* Withdraw a segment. The caller ensures that no read of our own targets it. */
	void (*seg_del)(struct xport *x, uint16_t segment);
	/* Declare that the segment is all of this sealed memfd, which peers on the same host may
	 * map; before the first offer from it. NULL: no transport maps it. fd stays the caller's.
	 * Errors: -EMFILE, ... */
	int (*seg_share)(struct xport *x, uint16_t segment, int fd);
	/* Read an offer in place; only when is_same_host. NULL for transports that cannot.
	 * Errors: -ENOTCONN, BPS_EPROTO same as read. */
	int (*borrow)(struct xconn *c, uint16_t segment, uint64_t offset, uint32_t len,
		struct xport_loan *ret);

	/* Functions for the thread that drives it (common/loop/dataloop.h); the transports of the
	 * tests lack them. */
	/* Make progress and run callbacks; returns how much was done, 0: nothing. */
	int (*poll)(struct xport *x, uint64_t now_ns);
	/* Send the queued messages; true when it is safe to block on fd until next_deadline, false:
	 * poll again. */
	int (*may_sleep)(struct xport *x);
	int (*fd)(struct xport *x); /* readable when poll has something to do */
	uint64_t (*next_deadline)(struct xport *x);
	/* Close all connections and free. Call it on its own thread, or after that has ended. */
	void (*free)(struct xport *x);
};

/* First member of every implementation's object. */
struct xport {
	const struct xport_ops *ops;
	const struct xport_events *ev;
	void *ctx;
	/* Patient offers are refused while this many bytes wait to leave on a connection; may
	 * change. 0: unknown. */
	uint32_t ahead_bytes;
};
struct xconn {
	struct xport *x;
	void *user; /* the core's object for this connection */
	uint32_t peer_id;
	uint64_t peer_instance;
	bool is_same_host; /* no network: offers can be borrowed, and no crc is needed */
};

static inline int xport_send(struct xconn *c, const struct wire_msg *m)
{
	return c->x->ops->send(c, m);
}
static inline int xport_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient)
{
	return c->x->ops->send_eager ? c->x->ops->send_eager(c, m, is_patient)
				     : c->x->ops->send(c, m);
}
static inline int xport_read(struct xport_read *r)
{
	return r->conn->x->ops->read(r);
}
static inline void xport_close(struct xconn *c, const char *why)
{
	c->x->ops->close(c, why);
}
/* Free x. NULL is allowed. */
static inline void xport_free(struct xport *x)
{
	if (x)
		x->ops->free(x);
}
/* Return the crc of the bytes of a read that ended with status 0. */
static inline uint32_t xport_read_crc(const struct xport_read *r)
{
	return r->has_crc ? r->crc : crc32c(0, r->dst, r->len);
}
/* End a loan; it is empty afterwards. An empty loan is allowed. */
static inline void xport_loan_end(struct xport_loan *l)
{
	if (l->mem)
		l->end(l->impl);
	*l = (struct xport_loan){0};
}
#endif
