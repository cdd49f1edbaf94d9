#ifndef BPS_COMMON_TRANSPORT_XPORT_H
#define BPS_COMMON_TRANSPORT_XPORT_H
/* The transport of the data plane, as seen by a data thread: connections that carry wire messages
 * under credit, and reads of what the peer offered. One struct xport per data thread; all calls and
 * callbacks run on that thread. The implementation is a table (struct xport_ops):
 * common/transport/sockets/tcp.c is our own sockets, common/transport/fabric/fabric.c libfabric
 * FI_EP_MSG (verbs), common/transport/shm/shm.c the memory of a peer on the same host,
 * common/datapath/datapath.c chooses between that and the network; the simulator's network is
 * another.
 *
 *   connection:  CONNECTING --up--> UP --down--> (freed by xport after the down callback returned)
 *                CONNECTING --down--> ...
 *
 * Promises the cores stand on:
 *   - every xport_read that returned 0 has its read_done exactly once, also when the connection
 *     goes down (before its down callback) and on close; after it nothing writes to dst any more;
 *   - messages of one connection arrive in the order they were sent, or the connection goes down;
 *   - after down no callback names that connection again;
 *   - memory of a segment is only ever read by peers, never written;
 *   - once close has returned, or down has run, no read of the peer's that began before counts:
 *     what it was offered may change. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/data/crc32c.h"
#include "common/wire/wire.h"

struct xport;
struct xconn;

/* One read: bytes at [offset, offset + len) of the peer's segment into dst, which lies in one of
 * our own segments (own_segment). Owned by the caller, untouched by it until read_done. */
struct xport_read {
	struct xconn *conn;
	void *dst;
	uint16_t own_segment;
	uint16_t segment;
	uint32_t len;
	bool is_past_caches; /* where we copy it: nobody uses it soon (common/data/copy_nontemporal.h) */
	bool has_crc; /* set with status 0: crc is that of the bytes in dst, taken as they came */
	uint32_t crc;
	uint64_t offset;
	void *impl; /* the transport's */
};

/* A peer's memory, read where it lies. It stays readable until xport_loan_end, also when the
 * connection is down; whether its bytes stay the same is the protocol's business. */
struct xport_loan {
	const void *mem; /* NULL: none */
	void (*end)(void *impl);
	void *impl;
};

struct xport_events {
	/* A connection is usable. peer_id/peer_instance: who it is, proved by its ticket; user: of
	 * ops->connect, or NULL for an accepted one. */
	void (*up)(void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance);
	/* It is gone, with the reason for the log. */
	void (*down)(void *ctx, struct xconn *c, const char *why);
	/* A message; m and its payload live until the callback returns. */
	void (*message)(void *ctx, struct xconn *c, const struct wire_msg *m);
	/* status 0, or negative: dst holds garbage. */
	void (*read_done)(void *ctx, struct xport_read *r, int status);
	/* A send was refused with -EAGAIN before; now there may be room for it. */
	void (*writable)(void *ctx, struct xconn *c);
};

struct xport_ops {
	/* Start connecting to a peer's data thread; up or down follows. */
	int (*connect)(struct xport *x, const char *addr, uint16_t port, uint16_t thread,
		uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
		struct xconn **ret_conn);
	/* Queue one message; it leaves at the latest when the thread next goes idle, small ones
	 * together. Copies m and its payload. Errors: -EAGAIN no credit (writable follows),
	 * -ENOTCONN. */
	int (*send)(struct xconn *c, const struct wire_msg *m);
	/* Send a message that offers bytes, and the bytes behind it without being asked. A read of
	 * just these bytes that the receiver starts when it hears the offer takes them as they come.
	 * Without such a read they are thrown away, and without room for them here they are not
	 * sent; then the offer is like any other. is_patient: rather refuse than offer without bytes,
	 * or behind many others. To a receiver that threw some away, offers go without their
	 * bytes for a while. NULL: send does instead.
	 * Owns: the memory stays as it is until the offer ends, as for a read.
	 * Errors: -EAGAIN no credit, or is_patient and too much waits (writable follows),
	 * -ENOTCONN. */
	int (*send_eager)(struct xconn *c, const struct wire_msg *m, bool is_patient);
	/* Start a read. Errors: -EAGAIN too many in flight on this connection (try after one of its
	 * read_done), -ENOTCONN, BPS_EPROTO no such segment of the peer or out of its bounds. */
	int (*read)(struct xport_read *r);
	/* Drop a connection; reads complete with -ECANCELED, then down runs (before close
	 * returns). */
	void (*close)(struct xconn *c, const char *why);
	/* Offer memory to peers (they may read it) and to our own reads. Never moves, never
	 * shrinks. */
	int (*seg_add)(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment);
	/* When the peer was last heard, by the clock of the thread's turns; at most some
	 * seconds ago, since a silent connection goes down. */
	uint64_t (*heard_ns)(const struct xconn *c);
	/* Withdraw it. The caller made sure that no read of our own targets it. */
	void (*seg_del)(struct xport *x, uint16_t segment);
	/* The segment is all of this sealed memfd, which peers on the same host may map; before the
	 * first offer from it. NULL: nobody will. fd stays the caller's. Errors: -EMFILE, ... */
	int (*seg_share)(struct xport *x, uint16_t segment, int fd);
	/* Read an offer where it lies. NULL for those who cannot; only when is_same_host.
	 * Errors: -ENOTCONN, BPS_EPROTO as of read. */
	int (*borrow)(struct xconn *c, uint16_t segment, uint64_t offset, uint32_t len,
		struct xport_loan *ret);

	/* For the thread that turns it (common/loop/dataloop.h); those of the tests lack them. */
	/* Make progress and run callbacks; how much was done, 0: nothing was there. */
	int (*poll)(struct xport *x, uint64_t now_ns);
	/* Flush; true when it is safe to block on fd until next_deadline, false: poll again. */
	int (*may_sleep)(struct xport *x);
	int (*fd)(struct xport *x); /* readable when poll has something to do */
	uint64_t (*next_deadline)(struct xport *x);
	/* Close all connections, free. On its own thread, or after that has ended. */
	void (*free)(struct xport *x);
};

/* First member of every implementation's object. */
struct xport {
	const struct xport_ops *ops;
	const struct xport_events *ev;
	void *ctx;
	/* Of patient offers a connection takes no more while so many bytes wait to leave; may change.
	 * 0: not known. */
	uint32_t ahead_bytes;
};
struct xconn {
	struct xport *x;
	void *user; /* the core's object for this connection */
	uint32_t peer_id;
	uint64_t peer_instance;
	bool is_same_host; /* no wire: offers can be borrowed, and nobody needs a crc */
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
/* NULL is allowed. */
static inline void xport_free(struct xport *x)
{
	if (x)
		x->ops->free(x);
}
/* Of the bytes of a read that has ended with status 0. */
static inline uint32_t xport_read_crc(const struct xport_read *r)
{
	return r->has_crc ? r->crc : crc32c(0, r->dst, r->len);
}
/* An empty loan is allowed; it is empty afterwards. */
static inline void xport_loan_end(struct xport_loan *l)
{
	if (l->mem)
		l->end(l->impl);
	*l = (struct xport_loan){0};
}
#endif
