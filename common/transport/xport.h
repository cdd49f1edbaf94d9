#ifndef BPS_COMMON_TRANSPORT_XPORT_H
#define BPS_COMMON_TRANSPORT_XPORT_H
/* The transport of the data plane, as a data thread sees it. A connection carries wire messages.
 * With libfabric, each send uses a credit, which the receiver has granted. A message may offer
 * bytes in memory of its sender, and the receiver reads the bytes with xport_read. Each data thread
 * has one struct xport; all calls and callbacks run on that thread. Each implementation is a table
 * of functions (struct xport_ops):
 *   common/transport/sockets/tcp.c    our own sockets
 *   common/transport/fabric/fabric.c  libfabric's providers tcp and verbs
 *   common/transport/shm/shm.c        memory of a peer on the same host
 *   common/datapath/datapath.c        chooses between shared memory and the network
 * The network of the simulator (tests/sim) is another implementation.
 *
 *   connection:  CONNECTING --up--> UP --down--> (freed by xport after the down callback returned)
 *                CONNECTING --down--> ...
 *
 * Guarantees that the cores rely on:
 *   - for every xport_read that returned 0, read_done runs exactly once. When the connection goes
 *     down or is closed, read_done runs before the down callback. After read_done nothing writes
 *     to dst;
 *   - messages of one connection arrive in the order they were sent, or the connection goes down;
 *   - after the callback `down` of a connection, no callback has that connection as an argument;
 *   - peers only read the memory of a segment, and never write it;
 *   - once `down` has run, this side may overwrite the memory that it had offered. The peer
 *     discards its incomplete reads of that memory. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/data/crc32c.h"
#include "common/wire/wire.h"

struct xport;
struct xconn;

/* A read: copy the bytes [offset, offset + len) of the peer's segment to dst, which lies in one of
 * this side's segments (own_segment). The caller owns the struct, and does not change it until
 * read_done. */
struct xport_read {
	struct xconn *conn;
	void *dst;
	uint16_t own_segment;
	uint16_t segment;
	uint32_t len;
	/* Copy without filling the CPU caches, because dst is not used soon
	 * (common/data/copy_nontemporal.h) */
	bool is_past_caches;
	/* Some transports compute the CRC of the bytes in dst while the bytes arrive. Such a
	 * transport sets has_crc and crc before read_done. The CRC is valid only if the status of
	 * read_done is 0. */
	bool has_crc;
	uint32_t crc;
	uint64_t offset;
};

/* Memory of a peer, read in place. It stays readable until xport_loan_end, also when the connection
 * is down. The transport does not stop the peer from changing the bytes; the rules in
 * docs/reference/faults.md define when the peer must not change them. */
struct xport_loan {
	const void *mem; /* address of the peer's memory; NULL: this loan is empty */
	void (*end)(void *impl);
	void *impl;
};

/* Work on the bytes that a message offers, such as a local sum and a CRC. The transport may run it
 * on another thread. The owner keeps the struct, and all memory that the work touches, until the
 * callback task_done. */
struct xport_task {
	void (*run)(struct xport_task *task);
	uint32_t crc; /* the CRC for the message; `run` may change it */
};

struct xport_events {
	/* A connection can be used from now on. peer_id and peer_instance identify the peer; the
	 * handshake has proven them. c->user is the pointer that was passed to ops->connect; NULL
	 * for an accepted connection. */
	void (*up)(void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance);
	/* The connection has ended. why: the reason, for the log. */
	void (*down)(void *ctx, struct xconn *c, const char *why);
	/* A message was received. m and its payload are valid until the callback returns. */
	void (*message)(void *ctx, struct xconn *c, const struct wire_msg *m);
	/* A read has ended. If `status` is 0, the read succeeded. If `status` is negative, the read
	 * failed, and the content of dst is undefined. */
	void (*read_done)(void *ctx, struct xport_read *r, int status);
	/* There may be room again after an earlier send returned -EAGAIN, so the owner should
	 * repeat that send. */
	void (*writable)(void *ctx, struct xconn *c);
	/* A task has run. If the task came with an offer, this callback precedes every answer to
	 * the offer. NULL: the owner has no tasks. */
	void (*task_done)(void *ctx, struct xport_task *task);
};

struct xport_ops {
	/* Start connecting to a peer's data thread. Later the callback `up` or `down` runs. */
	int (*connect)(struct xport *x, const char *addr, uint16_t port, uint16_t thread,
		uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
		struct xconn **ret_conn);
	/* Queue one message. The transport copies m and its payload. Several small messages are
	 * sent together, at the latest before the thread blocks.
	 * Errors: -EAGAIN: there is no credit or no room in the send buffer; the callback
	 * `writable` reports when to send again. -ENOTCONN. */
	int (*send)(struct xconn *c, const struct wire_msg *m);
	/* Send a message that offers bytes, and send the bytes as well, without waiting for a
	 * request. When the receiver gets the offer, it must start a read of exactly these bytes.
	 * Otherwise the receiver discards the bytes when they arrive. For a while after that, this
	 * side sends offers without bytes to the receiver.
	 * is_patient decides what happens when this side has no room to queue the bytes. If
	 * is_patient is false, this side sends the offer without bytes. If is_patient is true, the
	 * function returns -EAGAIN. With is_patient, it also returns -EAGAIN when the bytes queued
	 * for earlier offers have reached the limit ahead_bytes of struct xport.
	 * Where eager bytes are impossible (verbs, libfabric before 1.19), the function sends the
	 * offer without bytes. It is NULL if the transport has only `send`.
	 * Owns: the offered memory must not change until the offer ends. This is the same rule as
	 * for an offer that is sent with `send`.
	 * Errors: -EAGAIN: for the same reasons as in `send`, and with is_patient also for the
	 * reasons above; the callback `writable` reports when to send again. -ENOTCONN. */
	int (*send_eager)(struct xconn *c, const struct wire_msg *m, bool is_patient);
	/* Run the task, copy its crc to the message, then send the message: as send_eager does with
	 * is_patient if is_eager is true, else as `send` does. The callback task_done runs once for
	 * each task that has run, before or after this function returns. After an error, a task
	 * that has not run never runs. NULL: the task runs on the thread that calls xport_offer.
	 * Errors: those of send_eager. */
	int (*offer)(
		struct xconn *c, const struct wire_msg *m, struct xport_task *task, bool is_eager);
	/* Run a task that belongs to no connection. The callback task_done follows. NULL: the task
	 * runs on the thread that calls xport_run. */
	void (*run)(struct xport *x, struct xport_task *task);
	/* Start a read.
	 * Errors: -ENOTCONN. -EAGAIN: too many reads are in flight on this connection; retry after
	 * a read_done of the connection. BPS_EPROTO: the peer has no such segment, or the bytes lie
	 * outside of the segment. */
	int (*read)(struct xport_read *r);
	/* Close a connection. The reads of the connection end with -ECANCELED, then the callback
	 * `down` runs. Some transports do this before the function returns, others later. From the
	 * call on, the callbacks `up`, `message` and `writable` do not run, and sends and reads
	 * return -ENOTCONN. */
	void (*close)(struct xconn *c, const char *why);
	/* Add a segment: memory that peers may read, and in which this side may store the bytes of
	 * its reads. The memory must neither move nor shrink until seg_del. */
	int (*seg_add)(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment);
	/* Add a segment with the number that another xport has given it.
	 * Errors: -EINVAL, -EEXIST: the number is in use. */
	int (*seg_set)(struct xport *x, uint16_t segment, void *mem, size_t bytes);
	/* Return the time at which this side last received anything from the peer. The time is the
	 * parameter now_ns of the call of `poll` that received the data. The time is at most some
	 * seconds ago, because a silent connection goes down. */
	uint64_t (*heard_ns)(const struct xconn *c);
	/* Remove a segment. Before the call, all reads that this side started with `dst` in the
	 * segment must have ended. */
	void (*seg_del)(struct xport *x, uint16_t segment);
	/* Declare that the segment is the whole of the sealed memfd `fd`, which peers on the same
	 * host may map. Call this function before the first offer of bytes in the segment. The
	 * caller still owns `fd`. seg_share is NULL if the transport cannot map memory of a peer.
	 * Errors: a negative code, such as -EMFILE. */
	int (*seg_share)(struct xport *x, uint16_t segment, int fd);
	/* Borrow the memory that the peer offers, so that this side can read it without a copy. The
	 * connection's is_same_host must be set. `borrow` is NULL if the transport cannot borrow
	 * memory.
	 * Errors: -ENOTCONN and BPS_EPROTO, for the same reasons as in `read`. */
	int (*borrow)(struct xconn *c, uint16_t segment, uint64_t offset, uint32_t len,
		struct xport_loan *ret);

	/* The owner has handled the first n_messages messages of the connection: it has started the
	 * reads of all their bytes that it wants. Only an owner that sets decides_late calls this
	 * function. NULL: the transport has no eager bytes. */
	void (*decided)(struct xconn *c, uint64_t n_messages);

	/* Functions for the loop of the data thread (common/loop/dataloop.h). The transports of the
	 * tests do not have them. */
	/* Send and receive, and run callbacks. Returns 0 when there was nothing to do, else a
	 * positive number. */
	int (*poll)(struct xport *x, uint64_t now_ns);
	/* Send the queued messages. Returns true if the thread may block on the descriptor `fd`
	 * until next_deadline. Returns false if the thread must call `poll` again. */
	int (*may_sleep)(struct xport *x);
	/* Return a descriptor that is readable when `poll` has something to do. */
	int (*fd)(struct xport *x);
	uint64_t (*next_deadline)(struct xport *x);
	/* Close all connections and free x. Call this function on the data thread, or after that
	 * thread has ended. */
	void (*free)(struct xport *x);
};

/* The first member of every implementation's own struct. */
struct xport {
	const struct xport_ops *ops;
	const struct xport_events *ev;
	void *ctx;
	/* send_eager with is_patient returns -EAGAIN while at least this number of bytes waits to
	 * be sent on the call's connection. The transport may change the number. 0: the transport
	 * has no such limit. */
	uint32_t ahead_bytes;
	/* Number of tasks of xport_run that can run at the same time. 0: a task runs during the
	 * call. */
	uint32_t tasks_max;
	/* The owner may handle a message after the callback `message` has returned, and then calls
	 * ops->decided. If it is false, eager bytes wait for one poll after their message. */
	bool decides_late;
};
struct xconn {
	struct xport *x;
	void *user; /* pointer for the owner of the connection; not used by the transport */
	uint32_t peer_id;
	uint64_t peer_instance;
	/* The connection uses shared memory: ops->borrow works, and no crc is needed */
	bool is_same_host;
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
/* Run a task on this thread. */
static inline void xport_task_run_here(struct xport *x, struct xport_task *task)
{
	task->run(task);
	x->ev->task_done(x->ctx, task);
}
static inline void xport_run(struct xport *x, struct xport_task *task)
{
	if (x->ops->run)
		x->ops->run(x, task);
	else
		xport_task_run_here(x, task);
}
/* Send m after the task. The transport's `offer` describes the function and its errors. */
static inline int xport_offer(
	struct xconn *c, struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	if (c->x->ops->offer)
		return c->x->ops->offer(c, m, task, is_eager);
	xport_task_run_here(c->x, task);
	m->crc = task->crc;
	return is_eager ? xport_send_eager(c, m, true) : xport_send(c, m);
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
/* End a loan, and set l to the empty loan. l may be empty. */
static inline void xport_loan_end(struct xport_loan *l)
{
	if (l->mem)
		l->end(l->impl);
	*l = (struct xport_loan){0};
}
#endif
