#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_IMPL_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_IMPL_H
/* Internal declarations of common/transport/fabric/fabric.h, shared by its files and its unit test
 * only.
 *
 *   fabric.c           process-wide object, data-thread object, listener, statistics
 *   fabric_listener.c  connection-management thread: event queues, ticket check, refusals
 *   fabric_conn.c      connections: connect, accept, up, down, pings, segments
 *   fabric_memory.c    domains, registered memory
 *   fabric_socket.c    options of the sockets of provider tcp
 *   fabric_io.c        buffers, messages under credit, reads
 *   fabric_eager.c     bytes that are sent without a request
 *   fabric_poll.c      completions and the poll loop
 *
 * Ownership: endpoints, completion queue, buffers and connections belong to the data thread. The
 * connection-management thread reads the listener's event queue, and passes connection requests to
 * the data threads (handover_queue.h). It never touches a connection. If a client without a ticket
 * sends half a handshake, the client can block only this thread, never the data threads. Each data
 * thread has an event queue for its connections. If has_own_events is set (fabric_gates.h), the
 * data thread reads this queue: the connection-management thread would wake for every arrival of
 * data, and hold libfabric's locks meanwhile. Otherwise the connection-management thread reads it.
 *
 * The states are those of peer_conn.h. A DOOMED connection is closed in the next poll.
 * fabric_conn_down sets the state GONE, runs the down callback, and sets the state FREE before it
 * returns.
 *
 * The connecting side opens the second channel after it has received the proof on the first
 * channel. Each channel has its own ticket. The count in the nonce of the second ticket is the
 * count of the first ticket plus one. The accepting side finds the connection by this nonce.
 *
 * The accepting side sends nothing before the connecting side's first message. So no message can
 * overtake the proof that the connecting side still has to check.
 *
 * Each message has a cookie, which the receiver chose for this connection. The low 16 bits of the
 * cookie are the slot in the receiver's table of connections. Other peers cannot guess the
 * remaining 48 bits. The cookie is needed because all connections share the posted receive buffers
 * (shared receive context). Only the cookie shows to which connection a received message
 * belongs. */
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
#include "common/transport/fabric/fabric_gates.h"
#include "common/transport/flow/congestion.h"
#include "common/transport/flow/eager_policy.h"
#include "common/transport/flow/socket_window.h"
#include "common/transport/net_shared.h"
#include "common/transport/peer_reads.h"
#include "common/wire/ticket.h"

/* Largest number of connections of a data thread with any version of libfabric. conns_max of struct
 * fabric_gates is the limit of the loaded version. */
#define FABRIC_CONNS_MAX 1024
#define FABRIC_SEGS_MAX  4096
#define FABRIC_SEG_CHUNK 64 /* number of entries added when a table of peer segments grows */
#define FABRIC_TX_MAX    64 /* largest number of sends in flight per connection */
/* Size that is requested from the provider for the send queue of an endpoint. The queue has room
 * for all messages and reads of a connection. With eager bytes, the second endpoint has READS_MAX
 * reads and EAGER_OUT_MAX sends at most. */
#define FABRIC_TX_DEPTH (FABRIC_TX_MAX + READS_MAX + 16)
/* FABRIC_EAGER_POSTED: largest number of receives of eager bytes that are posted at a time. With
 * partitions of 128 KiB, six are more than a window (RECV_WINDOW_MAX).
 * FABRIC_DISCARDED: largest number of discarded offers that wait to be reported to the peer;
 * further ones are not reported. */
#define FABRIC_EAGER_POSTED 6
#define FABRIC_DISCARDED    8
#define FABRIC_CREDITS      64
/* The first FABRIC_CONNS_RICH connections of a data thread have FABRIC_CREDITS credits each. Each
 * further connection has FABRIC_CREDITS_FEW credits. A credit is a posted buffer of
 * FABRIC_BUF_BYTES. In total, 1,024 connections have 22,528 buffers (370 MB). If every connection
 * had FABRIC_CREDITS credits, the buffers would take 1.1 GB. */
#define FABRIC_CREDITS_FEW 8
#define FABRIC_CONNS_RICH  256
#define FABRIC_BUF_BYTES   (((size_t)WIRE_SEND_MAX + 63) & ~(size_t)63)
#define FABRIC_ORPHAN_NS   UINT64_C(5000000000)
#define FABRIC_CQ_DEPTH    16384
#define FABRIC_CM_QUEUE    512
/* Number of bytes that a process must be allowed to lock if it uses the provider `verbs`. Every job
 * needs at least this much locked memory. */
#define FABRIC_LOCKED_MIN     (UINT64_C(128) << 20)
#define FABRIC_WIRE_COOKIE_AT 8 /* byte offset of the cookie in the header (protocol-data.md) */

/* Bytes that the provider `tcp` may receive into a buffer of its own, before it knows to which
 * operation they belong: the provider's default. fabric_socket_set_lowat depends on this number. */
#define FABRIC_PREFETCH 9000

/* Longer offers are sent without their bytes, so that a receiver can discard all eager bytes into
 * one buffer. Partitions have up to 512 KiB, unless BPS_PARTITION_BYTES is set. */
#define FABRIC_EAGER_BYTES (UINT32_C(1) << 20)

enum fabric_op_kind { OP_RECV, OP_SEND, OP_READ, OP_EAGER_OUT, OP_EAGER_IN };

/* An operation posted to libfabric. conn is NULL for receive operations and for orphans. An orphan
 * is an operation that was posted on a connection that is now closed. The completion of an orphan
 * may still be in the completion queue. The data thread reuses an orphan after it has read the
 * completion. It also reuses the orphan when FABRIC_ORPHAN_NS nanoseconds have passed since the
 * close, and the queue was empty once since the close. Then the completion will not come, because
 * fi_close queues all completions before it returns. */
struct fabric_op {
	struct fi_context2 ctx; /* first member: op_context of a completion points to it */
	enum fabric_op_kind kind;
	struct fabric_conn *conn;
	uint64_t orphan_ns;      /* time of the close */
	uint64_t orphan_drained; /* n_drained of struct fabric_xport at the close */
	TAILQ_ENTRY(fabric_op) link;
};
TAILQ_HEAD(fabric_op_list, fabric_op);

struct fabric_buf {
	struct fabric_op op;
	uint8_t *data;
	void *desc;
	uint32_t used;
};
/* An operation on memory of a segment: a piece of a read, or eager bytes that are sent or received.
 * rd: the read that takes the bytes; NULL: the bytes are sent, or discarded. */
struct fabric_rop {
	struct fabric_op op;
	struct peer_read *rd;
	uint32_t len;
	uint16_t segment;  /* of the bytes that are sent */
	uint64_t asked_ns; /* when the piece of a read was requested */
};

/* Memory of a pool of buffers. The memory is registered with libfabric, and freed together with the
 * data thread's object. */
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

/* An offer of the peer whose bytes arrive without a request. */
struct fabric_eager {
	uint16_t segment;
	/* The same memory was offered again. The arriving bytes may belong to the older offer, so
	 * discard them */
	bool is_offered_again;
	uint32_t len;
	uint64_t offset;
	/* x->turn when the message was received, and the message's number (n_messages of struct
	 * fabric_conn) */
	uint64_t turn, message;
	struct peer_read *rd; /* the read that takes the bytes */
};

/* Registered memory of a segment. Data threads with a common domain share it, because the provider
 * `verbs` would lock the memory again for each registration. */
struct fabric_region {
	LIST_ENTRY(fabric_region) link;
	struct fid_domain *domain;
	void *mem;
	size_t bytes;
	struct fid_mr *mr;
	unsigned n_uses; /* data threads that have a segment of this memory */
};

struct fabric_seg {
	uint8_t *mem;
	size_t bytes;
	struct fabric_region *region;
	void *desc;
};
struct fabric_peer_seg {
	uint64_t base, key, bytes;
};

/* The bytes of reads and the eager bytes that are to arrive on one channel. */
struct fabric_arrivals {
	uint64_t expected; /* bytes of the posted operations that are not complete */
	uint64_t longest;  /* length of the longest of them since `expected` was 0 */
	struct socket_meter meter;
};

/* Connection with two channels (enum channel), and with one endpoint for each channel. The
 * connecting side posts its reads on the first channel, the accepting side on the second. The bytes
 * that answer a read arrive on the channel on which the read was posted. So a side's requests never
 * wait behind the bytes with which it answers the peer's requests.
 *
 * Without eager bytes, each side posts its messages where it posts its reads. With eager bytes
 * (is_eager), the messages of both sides use the first channel, and the eager bytes of both sides
 * use the second. So TCP acknowledges the bytes of one direction together with the bytes of the
 * other. If a channel had bytes in one direction only, the kernel would send an acknowledgment of
 * its own for each message. Reads are rare then. But the accepting side's messages wait behind its
 * answers to reads, and its requests wait behind its eager bytes. */
struct fabric_conn {
	struct peer_conn base; /* first member, so a pointer to it can be cast to this struct */
	bool has_want, has_pong, is_busy, is_stuck;
	bool is_connecting; /* this side has opened the connection */
	bool is_eager;      /* both sides can receive eager bytes */
	bool is_linked;     /* both channels are open */
	/* Number of receive buffers that are posted for this connection. Each buffer is a credit of
	 * the peer */
	uint32_t granted;
	uint32_t credits; /* number of further sends that the peer's grants allow */
	uint32_t tx_inflight;
	/* Number of receive buffers that were posted again and are not granted to the peer yet */
	uint32_t owed;
	uint32_t rx_allow; /* number of granted receive buffers that the peer has not used yet */
	struct fabric_buf *open;
	uint64_t rx_cookie, tx_cookie, last_cookie;
	struct fid_ep *eps[N_CHANNELS];
	struct fid_ep *ep; /* endpoint on which this side posts its messages */
	/* Sockets of the endpoints; -1: the provider has none, or this version of libfabric does
	 * not return it */
	int fds[N_CHANNELS];
	struct fabric_arrivals arrivals[N_CHANNELS];
	/* Number of bytes that must arrive on fabric_arrival_channel before the kernel wakes the
	 * thread */
	int lowat;
	struct fabric_op_list ops;
	TAILQ_ENTRY(fabric_conn) link; /* link in the list x->busy or x->stuck */

	uint32_t n_rops; /* posted pieces of reads */
	struct peer_reads reads;

	/* Fields for sending eager bytes. wants_eager: fabric_eager_send with is_patient has
	 * returned -EAGAIN, so call the writable callback when there is room. */
	bool wants_eager;
	uint32_t n_eager_out; /* number of offers whose bytes are posted and not sent yet */
	uint32_t eager_bytes; /* sum of the lengths of these offers */
	struct eager_policy policy;
	/* Fields for receiving eager bytes. eager: offers whose bytes have not arrived yet, in the
	 * order of the offers. The receives of the first n_eager_posted offers are posted. */
	struct fabric_eager eager[EAGER_IN_MAX];
	unsigned eager_first, n_eager, n_eager_posted;
	uint64_t n_eager_lost; /* number of later offers, for which `eager` had no room */
	/* n_messages: number of messages passed to the owner. n_decided: see `decided` of struct
	 * xport_ops */
	uint64_t n_messages, n_decided;
	unsigned n_discarded; /* discarded offers that are not reported to the peer yet */
	struct fabric_eager discarded[FABRIC_DISCARDED];

	struct fi_info *info; /* address of the peer, kept until both channels are open */
	uint32_t n_dirty;
	/* Bitmap of own segments whose addition or removal was not yet sent to the peer */
	uint64_t dirty[FABRIC_SEGS_MAX / 64];
	struct fabric_peer_seg *peer_segs[FABRIC_SEGS_MAX / FABRIC_SEG_CHUNK];
};
TAILQ_HEAD(fabric_conn_list, fabric_conn);

enum fabric_cm_kind { CM_REQUEST, CM_CONNECTED, CM_DOWN };
struct fabric_cm_event {
	enum fabric_cm_kind kind;
	int err;              /* used by CM_DOWN; 0: the peer has closed the connection */
	struct fid *fid;      /* the endpoint; only compared, because it may be closed already */
	struct fi_info *info; /* CM_REQUEST: connection request, which the data thread frees */
	struct ticket ticket;
	uint32_t data_bytes;
	uint8_t data[PROOF_BYTES];
	uint8_t key[TICKET_KEY_BYTES];
};
struct fabric_xport {
	struct peer_xport base; /* first member, so a pointer to it can be cast to this struct */
	struct net_thread shared;
	struct fabric *f;
	bool is_verbs;
	bool is_spoiled; /* set by fabric_mark_spoiled, cleared by fabric_reset_connections */
	uint64_t turn;   /* number of polls so far */
	/* Fields for reading `eq` in this thread (has_own_events in fabric_gates.h). is_event_due:
	 * `eq` has an event. events_ns: when `eq` was last read. */
	bool is_event_due;
	uint64_t events_ns;
	/* Receive window of all sockets on which bytes arrive */
	struct recv_window window;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *srx;

	struct fabric_conn_list busy, stuck;
	struct fabric_op_list tx_free, rop_free, orphans;
	uint64_t n_drained; /* number of times that the completion queue was found empty */
	struct fabric_slab *slabs;
	struct fabric_rop_slab *rop_slabs;
	uint32_t rx_posted;
	uint32_t n_granted; /* sum of `granted` over all connections */
	struct fabric_conn *conns[FABRIC_CONNS_MAX];

	uint16_t seg_next;
	struct fabric_seg *segs; /* own segments, an array of FABRIC_SEGS_MAX elements */
	uint8_t *sink;           /* FABRIC_EAGER_BYTES for discarded bytes; NULL: not needed yet */
};

struct fabric {
	struct net base; /* first member, so a pointer to it can be cast to this struct */
	struct fabric_gates gates;
	/* Congestion control of data sockets; empty: the system's default */
	char congestion[CONGESTION_NAME_MAX + 1];
	struct fi_info *info;
	uint64_t mr_mode;
	uint32_t tx_max;
	struct fid_fabric *fabric;
	/* memory_lock guards `domain` and `regions` */
	pthread_mutex_t memory_lock;
	/* The domain of all data threads with provider `verbs`. With provider `tcp` each data
	 * thread has a domain, because libfabric locks the domain in each poll */
	struct fid_domain *domain;
	LIST_HEAD(, fabric_region) regions;
	struct fid_eq *eq; /* event queue of the listener */
	struct fid_pep *pep;
	/* The connection-management thread holds base.lock while it reads `eq` and, unless
	 * gates.has_own_events is set, the event queues of the data threads. */
	uint64_t swept_ns; /* used only by the connection-management thread */
	pthread_t thread;
	int epoll_fd, stop_fd;
};

static inline struct fabric_xport *fabric_xport_of(const struct fabric_conn *c)
{
	return (struct fabric_xport *)c->base.pub.x;
}

/* Return the channel on which this side posts its reads. */
static inline enum channel fabric_read_channel(const struct fabric_conn *c)
{
	return c->is_connecting ? CHANNEL_FIRST : CHANNEL_SECOND;
}

/* Return the channel on which most bytes of the peer's segments arrive. */
static inline enum channel fabric_arrival_channel(const struct fabric_conn *c)
{
	return c->is_eager ? CHANNEL_SECOND : fabric_read_channel(c);
}

/* The value of FI_MR_BASIC. libfabric 2 deprecates the name, but still has the mode. */
#define FABRIC_MR_BASIC 1

/* Open the transport as fabric_open does, but with the memory-registration mode `mr_mode`. With the
 * mode FABRIC_MR_BASIC, provider `tcp` uses addresses and keys, as provider `verbs` does. */
int fabric_open_mr(const struct net_config *cfg, int mr_mode, net_key_fn key_fn, void *key_ctx,
	struct net **ret, struct err_text *err);

/* Functions of struct xport_ops. */
int fabric_poll(struct xport *x, uint64_t now_ns);
/* Send the queued messages. Returns true when the thread may block on the descriptor of x
 * (fi_trywait). Returns false when the thread must poll again. */
int fabric_may_sleep(struct xport *x);

/* Function of fabric_strangers.c: end accepted connections that have sent no byte. The
 * connection-management thread calls this function at intervals. */
void fabric_sweep_silent(struct fabric *f);

/* Functions of fabric.c. */
/* Mark the data thread for fabric_reset_connections. Call this function when a connection ends
 * during a read. After such an end, some versions of libfabric use one entry of a pool for two
 * later operations. The bytes of these operations go to the wrong place (is_spoiled_by_cut_reads in
 * fabric_gates.h). So nothing more is posted until the next poll calls fabric_reset_connections.
 * fabric_reset_connections closes all connections of this data thread and replaces the completion
 * queue, which owns the pool. Peers reconnect within milliseconds. With versions of libfabric that
 * do not have this error, fabric_mark_spoiled does nothing. */
void fabric_mark_spoiled(struct fabric_xport *x);
void fabric_reset_connections(struct fabric_xport *x);

/* Functions of fabric_memory.c. */
bool fabric_is_verbs(const struct fabric *f);
/* Check that this process may lock as much memory as the provider needs.
 * Errors: -EPERM; err gets the text. */
int fabric_check_lockable(const struct fabric *f, struct err_text *err);
/* Open the domain of a data thread, or use that of the process. Errors: a code of libfabric. */
int fabric_open_domain(struct fabric_xport *x);
void fabric_close_domain(struct fabric_xport *x);
/* Register memory. Some providers choose the key. Otherwise the key is random, so that a peer to
 * which this process has not sent the key cannot guess the key. */
int fabric_register_memory(
	struct fabric_xport *x, void *mem, size_t bytes, uint64_t access, struct fid_mr **ret);
/* Register the memory of a segment, or use the registration of another data thread. Call
 * fabric_region_drop before the memory is unmapped. Errors: -ENOMEM, a code of libfabric. */
int fabric_region_take(struct fabric_xport *x, void *mem, size_t bytes, struct fabric_region **ret);
void fabric_region_drop(struct fabric *f, struct fabric_region *r);

/* Functions of fabric_listener.c. */
void *fabric_cm_main(void *arg);
/* Read x->eq, and add its events to the queue of the data thread. Returns the number of events.
 * Thread: the data thread if has_own_events is set (fabric_gates.h), else the
 * connection-management thread. */
int fabric_read_events(struct fabric_xport *x);
void fabric_cm_reject(struct fabric *f, struct fi_info *info, const char *code);

/* Functions of fabric_conn.c. */
int fabric_conn_connect(struct xport *x, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn);
void fabric_conn_accept(struct fabric_xport *x, struct fabric_cm_event *ev);
void fabric_conn_cm_event(struct fabric_xport *x, const struct fabric_cm_event *ev);
void fabric_conn_up(struct fabric_conn *c);
/* Implement `close` of struct xport_ops: close the endpoints, so that nothing more is received or
 * read. Then run read_done of all reads, then the down callback. */
void fabric_conn_down(struct xconn *conn, const char *why);
/* Close the endpoints of a DOOMED connection at once, before it goes down. After this call,
 * libfabric uses no memory of the connection's operations. */
void fabric_conn_close_endpoints(struct fabric_conn *c);
void fabric_conn_tick(struct fabric_xport *x);
int fabric_seg_add(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment);
int fabric_seg_set(struct xport *x, uint16_t segment, void *mem, size_t bytes);
void fabric_seg_del(struct xport *x, uint16_t segment);
/* Send the peer a message for each own segment that was added or removed since the last call.
 * Returns 0, or -EAGAIN. */
int fabric_seg_announce(struct fabric_conn *c);
void fabric_seg_note(struct fabric_conn *c, const struct wire_msg *m);
const struct fabric_peer_seg *fabric_seg_find(const struct fabric_conn *c, uint16_t segment);

/* Functions of fabric_explain.c. */
/* fi_getinfo has returned the error `rc` for the configuration cfg. Write a sentence to err that
 * explains this error. Returns `rc`. */
int fabric_explain(const struct net_config *cfg, int rc, struct err_text *err);
/* Return how many bytes of memory this process may lock. UINT64_MAX: there is no limit. The
 * provider `verbs` locks all memory that is registered. */
uint64_t fabric_lockable_bytes(void);

/* Functions of fabric_io.c. */
int fabric_io_send(struct xconn *c, const struct wire_msg *m);
int fabric_io_read(struct xport_read *r);
/* Append a message to the open send buffer, or to a new send buffer, which takes a credit. reserve:
 * credits that must remain after this call.
 * Errors: -EAGAIN: there is no credit or no buffer; -ENOTCONN. */
int fabric_io_put_message(struct fabric_conn *c, const struct wire_msg *m, uint32_t reserve);
/* Put the connection on x->busy, the list of connections to serve before the thread sleeps. */
void fabric_io_touch(struct fabric_conn *c);
/* Put the connection on x->stuck, the list of connections to serve in the next poll. */
void fabric_io_serve_next_poll(struct fabric_conn *c);
/* Open a send buffer with room for n_bytes more. Then fabric_io_put_message of a message of this
 * size succeeds. reserve and errors as in fabric_io_put_message. */
int fabric_io_make_room(struct fabric_conn *c, size_t n_bytes, uint32_t reserve);
/* Get an operation from the pool. Returns NULL when out of memory. */
struct fabric_rop *fabric_io_get_rop(struct fabric_xport *x, enum fabric_op_kind kind);
/* Turn all operations of c into orphans (struct fabric_op), and discard the open send buffer of c.
 * Call this function after the endpoints of c are closed. */
void fabric_io_abandon(struct fabric_conn *c);
/* Reuse the orphans whose completions will not come (struct fabric_op). */
void fabric_io_reclaim(struct fabric_xport *x);
/* Post receive buffers until n_posted receive buffers are posted in total. */
int fabric_io_grow_rx(struct fabric_xport *x, uint32_t n_posted);
/* Reclaim all orphans (struct fabric_op) of the closed completion queue. Then post all receive
 * buffers again, for the new completion queue. */
int fabric_io_renew(struct fabric_xport *x);
void fabric_io_free(struct fabric_xport *x);
/* Post the open send buffer.
 * Errors: -EAGAIN: the endpoint is full; -ENOTCONN: the connection has failed (DOOMED). */
int fabric_io_flush(struct fabric_conn *c);
/* Post pieces of the queued reads, as many as fit into the read window. */
void fabric_io_issue_reads(struct fabric_conn *c);
/* Account for a posted operation whose len bytes are to arrive on a channel. */
void fabric_io_expect(struct fabric_conn *c, enum channel channel, uint32_t len);
/* Return a finished operation to its pool. */
void fabric_io_done(struct fabric_xport *x, struct fabric_op *op);
int fabric_io_post_rx(struct fabric_xport *x, struct fabric_buf *b);

/* Functions of fabric_poll.c. */
/* Count an error of the peer, and mark the connection as failed. */
void fabric_protocol_error(struct fabric_conn *c, const char *what);
/* End a read whose bytes have all arrived. */
void fabric_read_finish(struct fabric_conn *c, struct peer_read *rd);
#endif
