#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_IMPL_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_IMPL_H
/* Internal declarations of common/transport/fabric/fabric.h, shared by its files and its unit test
 * only.
 *
 *   fabric.c           process-wide object, data-thread object, listener, statistics
 *   fabric_listener.c  connection-management thread: event queues, ticket check, refusals
 *   fabric_conn.c      life of a connection: connect, accept, up, down, pings, segments
 *   fabric_io.c        buffers, messages under credit, reads
 *   fabric_poll.c      completions and the poll loop
 *
 * Ownership: endpoints, completion queue, buffers and connections belong to the data thread. The
 * connection-management thread only reads event queues (each data thread has one) and passes the
 * events on through handover_queue.h; it never touches a connection. A stranger's half-sent
 * handshake can block that thread only, never data.
 *
 * The states are those of peer_conn.h. A doomed connection ends at the next poll. GONE becomes FREE
 * before the down callback's caller returns.
 *
 * The connecting side opens the second channel when the first has brought it the proof. Its ticket
 * has the next count, by which the accepting side finds the connection.
 *
 * The accepting side sends nothing before the connecting side's first message. So no message can
 * overtake the proof that the connecting side still has to check.
 *
 * The cookie of a message is the receiver's. Its low 16 bits are the slot in the receiver's table;
 * the other 48 bits cannot be guessed by other peers. With a shared receive context only the cookie
 * identifies the sender of a message. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <pthread.h>
#include <sys/queue.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/transport/fabric/fabric.h"
#include "common/transport/net_shared.h"
#include "common/transport/read_window.h"
#include "common/wire/ticket.h"

#define FABRIC_CONNS_MAX 256 /* libfabric 1.17 polls every endpoint of a queue */
#define FABRIC_SEGS_MAX  4096
#define FABRIC_SEG_CHUNK 64 /* step by which peers' segment tables grow */
#define FABRIC_TX_MAX    64 /* sends in flight per connection */
/* Requested from the provider: with all sends and reads of a connection posted its queue is never
 * full. */
#define FABRIC_TX_DEPTH       (FABRIC_TX_MAX + READS_MAX + 16)
#define FABRIC_CREDITS        64
#define FABRIC_BUF_BYTES      (((size_t)WIRE_SEND_MAX + 63) & ~(size_t)63)
#define FABRIC_ORPHAN_NS      UINT64_C(5000000000)
#define FABRIC_CQ_DEPTH       16384
#define FABRIC_CM_QUEUE       512
#define FABRIC_LOCKED_MIN     (UINT64_C(128) << 20) /* a job of any size needs at least this */
#define FABRIC_WIRE_COOKIE_AT 8 /* byte offset of the cookie in the header (protocol-data.md) */

enum fabric_op_kind { OP_RECV, OP_SEND, OP_READ };

/* Operation that libfabric holds. conn is NULL for receives and for orphans: operations of a closed
 * connection, whose completions may still come. An orphan is reused after its completion, or after
 * FABRIC_ORPHAN_NS: fi_close has queued all completions when it returns. */
struct fabric_op {
	struct fi_context2 ctx; /* first: completions point to it */
	enum fabric_op_kind kind;
	struct fabric_conn *conn;
	uint64_t orphan_ns;
	TAILQ_ENTRY(fabric_op) link;
};
TAILQ_HEAD(fabric_op_list, fabric_op);

struct fabric_buf {
	struct fabric_op op;
	uint8_t *data;
	void *desc;
	uint32_t used;
};
struct fabric_rop {
	struct fabric_op op;
	struct fabric_read *rd;
	uint32_t len;
	uint64_t asked_ns;
};

/* Registered memory of a pool; freed with the data thread's object. */
struct fabric_slab {
	struct fabric_slab *next;
	void *mem;
	size_t bytes;
	struct fid_mr *mr;
	struct fabric_buf *bufs;
};
struct fabric_rop_slab {
	struct fabric_rop_slab *next;
	struct fabric_rop rops[64];
};

struct fabric_read {
	struct xport_read *r;
	uint32_t issued, done;
	TAILQ_ENTRY(fabric_read) link; /* on c->queue until it is fully issued */
};
TAILQ_HEAD(fabric_read_list, fabric_read);

struct fabric_seg {
	uint8_t *mem;
	size_t bytes;
	struct fid_mr *mr;
	void *desc;
};
struct fabric_peer_seg {
	uint64_t base, key, bytes;
};

/* Connection with two endpoints (enum channel). Each side posts its messages and reads on its own
 * endpoint. So a request never waits behind the bytes that the same side sends: those answer the
 * other side's reads, on the other channel. */
struct fabric_conn {
	struct peer_conn base; /* first */
	bool has_want, has_pong, is_busy, is_stuck;
	bool is_linked;   /* our channel is open: posting may begin */
	uint32_t credits; /* sends that the peer still accepts */
	uint32_t tx_inflight;
	uint32_t owed;     /* receives posted again, not granted yet */
	uint32_t rx_allow; /* receives granted, not used by the peer yet */
	struct fabric_buf *open;
	uint64_t rx_cookie, tx_cookie, last_cookie;
	struct fid_ep *eps[N_CHANNELS];
	struct fid_ep *ep; /* the endpoint that we post on */
	struct fabric_op_list ops;
	TAILQ_ENTRY(fabric_conn) link; /* on x->busy or x->stuck */

	uint32_t n_reads, n_rops, n_queued;
	struct read_window read_window;
	struct fabric_read_list queue;
	uint32_t reads_used; /* one bit per element of reads */
	struct fabric_read reads[READS_MAX];

	struct fi_info *info; /* destination, until both channels are open */
	uint32_t n_dirty;
	/* Own segments whose changes the peer has not received */
	uint64_t dirty[FABRIC_SEGS_MAX / 64];
	struct fabric_peer_seg *peer_segs[FABRIC_SEGS_MAX / FABRIC_SEG_CHUNK];
};
TAILQ_HEAD(fabric_conn_list, fabric_conn);

enum fabric_cm_kind { CM_REQUEST, CM_CONNECTED, CM_DOWN };
struct fabric_cm_event {
	enum fabric_cm_kind kind;
	int err;              /* CM_DOWN: 0 is an orderly end */
	struct fid *fid;      /* only compared: the endpoint may be closed already */
	struct fi_info *info; /* CM_REQUEST: we free it */
	struct ticket ticket;
	uint32_t data_bytes;
	uint8_t data[PROOF_BYTES];
	uint8_t key[TICKET_KEY_BYTES];
};
struct fabric_xport {
	struct peer_xport base; /* first */
	struct net_thread shared;
	struct fabric *f;
	bool is_verbs;
	bool is_spoiled; /* see fabric_spoil */
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *srx;

	struct fabric_conn_list busy, stuck;
	struct fabric_op_list tx_free, rop_free, orphans;
	struct fabric_slab *slabs;
	struct fabric_rop_slab *rop_slabs;
	uint32_t rx_posted;
	struct fabric_conn *conns[FABRIC_CONNS_MAX];

	uint16_t seg_next;
	struct fabric_seg *segs; /* FABRIC_SEGS_MAX */
};

struct fabric {
	struct net base; /* first */
	struct fi_info *info;
	uint64_t mr_mode;
	uint32_t tx_max;
	struct fid_fabric *fabric;
	struct fid_eq *eq; /* event queue of the listener */
	struct fid_pep *pep;
	/* base.lock is held while event queues are read. */
	uint64_t swept_ns; /* connection-management thread only */
	pthread_t thread;
	int epoll_fd, stop_fd;
};

static inline struct fabric_xport *fabric_xport_of(const struct fabric_conn *c)
{
	return (struct fabric_xport *)c->base.pub.x;
}

/* Open like fabric_open with another memory-registration mode: FI_MR_BASIC makes provider tcp use
 * addresses and keys like verbs. */
int fabric_open_mr(const struct net_config *cfg, int mr_mode, net_key_fn key_fn, void *key_ctx,
	struct net **ret, struct err_text *err);

/* Functions of struct xport_ops. */
int fabric_poll(struct xport *x, uint64_t now_ns);
/* Send the queued messages. Returns true when it is safe to block on its descriptor (fi_trywait),
 * false: poll again. */
int fabric_may_sleep(struct xport *x);

/* Function of fabric_strangers.c: end connections that brought no byte; called at intervals on the
 * connection-management thread. */
void fabric_sweep_silent(struct fabric *f);

/* Functions of fabric.c. */
/* Mark the data thread after a read was cut short. libfabric before 1.18.0 frees the entry of an
 * arriving read twice when its endpoint closes or fails. Its pool then gives the same entry to two
 * operations, whose bytes go to the wrong place. So nothing more is posted until fabric_renew, at
 * the next poll, has closed all connections of this data thread. It then replaces the completion
 * queue, which has the pool. Peers reconnect within milliseconds. */
void fabric_spoil(struct fabric_xport *x);
void fabric_renew(struct fabric_xport *x);

/* Register memory with a key that cannot be guessed (where we may choose it). */
int fabric_mr_reg(
	struct fabric_xport *x, void *mem, size_t bytes, uint64_t access, struct fid_mr **ret);

/* Function of fabric_listener.c. */
void *fabric_cm_main(void *arg);
void fabric_cm_reject(struct fabric *f, struct fi_info *info, const char *code);

/* Functions of fabric_conn.c. */
int fabric_conn_connect(struct xport *x, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn);
void fabric_conn_accept(struct fabric_xport *x, struct fabric_cm_event *ev);
void fabric_conn_cm_event(struct fabric_xport *x, const struct fabric_cm_event *ev);
void fabric_conn_up(struct fabric_conn *c);
/* Take down at once: fence, read_done of all reads, down. */
void fabric_conn_down(struct fabric_conn *c, const char *why);
void fabric_conn_tick(struct fabric_xport *x);
int fabric_seg_add(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment);
void fabric_seg_del(struct xport *x, uint16_t segment);
/* Send the changes of our segments that the peer has not received. Returns 0, or -EAGAIN. */
int fabric_seg_announce(struct fabric_conn *c);
void fabric_seg_note(struct fabric_conn *c, const struct wire_msg *m);
const struct fabric_peer_seg *fabric_seg_find(const struct fabric_conn *c, uint16_t segment);

/* Functions of fabric_explain.c. */
/* Explain the error rc that fi_getinfo returned for cfg. Returns rc. */
int fabric_explain(const struct net_config *cfg, int rc, struct err_text *err);
/* Return the bytes that this process may lock, which provider verbs does with registered memory;
 * UINT64_MAX: no limit. */
uint64_t fabric_lockable_bytes(void);

/* Functions of fabric_io.c. */
int fabric_io_send(struct xconn *c, const struct wire_msg *m);
int fabric_io_read(struct xport_read *r);
/* Append to the open send buffer. reserve: credits that must remain. */
int fabric_io_put(struct fabric_conn *c, const struct wire_msg *m, uint32_t reserve);
/* Put the connection on the list that is served before the thread sleeps. */
void fabric_io_touch(struct fabric_conn *c);
/* Turn all operations of c into orphans of the fence, and drop its open buffer. */
void fabric_io_abandon(struct fabric_conn *c);
void fabric_io_reclaim(struct fabric_xport *x);
int fabric_io_grow_rx(struct fabric_xport *x, uint32_t n_posted);
/* Take back everything that libfabric held on the old completion queue, and post the receives
 * again. */
int fabric_io_renew(struct fabric_xport *x);
void fabric_io_free(struct fabric_xport *x);
/* Post the open send buffer. 0, -EAGAIN (the endpoint is full), -ENOTCONN (now doomed). */
int fabric_io_flush(struct fabric_conn *c);
/* Post as much of the waiting reads as the window takes. */
void fabric_io_issue_reads(struct fabric_conn *c);
/* Handle the arrival of a piece of a read, took_ns after its request. */
void fabric_io_read_arrived(struct fabric_conn *c, uint32_t len, uint64_t took_ns);
/* Return a finished send or read to its pool. */
void fabric_io_done(struct fabric_xport *x, struct fabric_op *op);
int fabric_io_post_rx(struct fabric_xport *x, struct fabric_buf *b);
#endif
