#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_IMPL_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_IMPL_H
/* Internal declarations of common/transport/sockets/tcp.h, shared by its files and its unit test
 * only.
 *
 *   tcp.c       process-wide object, data-thread object, the poll loop
 *   tcp_conn.c  connections: connect, accept, up, down, pings
 *   tcp_msg.c   the socket for messages and read requests
 *   tcp_in.c    the socket for bytes: receiving
 *   tcp_out.c   the socket for bytes: sending
 *
 * The states are those of peer_conn.h. A DOOMED connection is closed in the same poll, and its
 * memory is freed in the next poll.
 *
 * A connection has two sockets, which this code calls its lanes. LANE_MESSAGES carries messages and
 * read requests. LANE_BULK carries the bytes of segments. So a small message waits neither behind
 * megabytes of segment bytes nor for their retransmission. On LANE_BULK, a head before the bytes
 * identifies them. A trailer after the bytes reports whether they are valid. There are two kinds of
 * bytes:
 *
 *   - answers to requests, in the order of the requests;
 *   - eager bytes, which are sent with an offer, without a request (xport_send_eager). A frame on
 *     LANE_MESSAGES announces the eager bytes before the message with the offer. So the receiver
 *     can read the offered bytes without a request. Eager bytes are sent in the order of their
 *     announcements. If the bytes and the message have arrived and no read takes the offer, the
 *     receiver discards the bytes. So eager bytes never delay other bytes. The receiver can still
 *     request the discarded bytes. If the same memory is offered again before the eager bytes of
 *     the older offer arrive, the receiver also discards these bytes.
 *
 * All descriptors are watched edge-triggered; each is added to epoll once. can_recv and can_send
 * record what a socket may still receive or send. Every connection that has something to send or to
 * receive is on x->busy. The thread may sleep when that list is empty. During a read the kernel
 * wakes the thread only when many of the bytes have arrived (SO_RCVLOWAT).
 *
 * All of this code and data belongs to the data thread. The connection thread uses only
 * tcp_listener.h. */
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/transport/flow/eager_policy.h"
#include "common/transport/flow/socket_window.h"
#include "common/transport/net_shared.h"
#include "common/transport/peer_reads.h"
#include "common/transport/sockets/tcp.h"
#include "common/transport/sockets/tcp_frame.h"
#include "common/transport/sockets/tcp_listener.h"

#define TCP_SEGS_MAX 4096
/* Largest number of read requests of each side that the other side has not answered yet. */
#define TCP_PIECES  READS_MAX
#define TCP_ANSWERS (TCP_PIECES + EAGER_OUT_MAX)

#define TCP_RX_BYTES ((size_t)64 << 10)
#define TCP_TX_BYTES ((size_t)256 << 10)
/* Bytes of the send buffer that are reserved for three kinds of frames: read requests, pings and
 * answers to pings. */
#define TCP_TX_RESERVE 2048
/* Part of TCP_TX_RESERVE that is kept for read requests. Without this part, a peer that sends pings
 * and never receives would cause answers that fill the whole reserve. */
#define TCP_READS_RESERVE (TCP_PIECES * sizeof(struct tcp_frame))
_Static_assert(TCP_RX_BYTES >= 2 * TCP_FRAME_MAX, "a frame fits, wherever it begins");

enum tcp_lane_kind { LANE_MESSAGES, LANE_BULK, N_LANES };
_Static_assert((int)N_LANES == (int)N_CHANNELS, "a socket per channel of the tickets");

/* Part of a read. Each part is requested by its own FRAME_READ. */
struct tcp_piece {
	struct peer_read *rd;
	uint32_t at, len; /* offset and length of the piece in the read */
	uint64_t asked_ns;
};
/* Part of a segment that the peer requested, or that is sent eagerly. */
struct tcp_answer {
	uint16_t segment;
	/* The segment does not contain these bytes, or the segment was removed. Zeros are sent
	 * instead of the remaining bytes */
	bool is_refused;
	bool is_eager;
	uint32_t len;
	uint64_t offset;
	uint64_t count; /* if is_eager: number of eager offers before this offer */
};
/* An offer that the peer announced. The peer sends the offer's bytes without a request. */
struct tcp_eager {
	uint16_t segment;
	bool is_heard; /* the message with the offer was received */
	/* The same memory was offered again. The arriving bytes may belong to the older offer, so
	 * discard them */
	bool is_old;
	uint32_t len;
	uint64_t offset, count;
	uint64_t turn;        /* value of x->turn when the message was received */
	uint64_t message;     /* number of the message on its connection; the first one is 1 */
	struct peer_read *rd; /* the read that takes the bytes */
};
/* State of the bytes being received on LANE_BULK. */
struct tcp_arrival {
	bool is_open; /* the head was received, and the destination of the bytes is decided */
	bool is_eager;
	uint32_t len;
	uint64_t got; /* number of bytes received, including head and trailer */
	/* Value of the head's field `offset`. For requested bytes: offset in the segment. For eager
	 * bytes: number of eager offers before the offer of these bytes */
	uint64_t offset;
	struct peer_read *rd; /* the read that takes the bytes; NULL: the bytes are discarded */
	uint8_t *dst;
	struct tcp_frame trailer;
};

struct tcp_seg {
	const uint8_t *mem; /* start of the segment; NULL: this element of x->segs is unused */
	size_t bytes;
};

/* Step of the handshake, before the first frame on a socket. */
enum tcp_handshake_step { HS_CONNECT, HS_PROOF, HS_DONE };

struct tcp_lane {
	int fd; /* descriptor of the socket; -1: there is no socket yet */
	enum tcp_handshake_step hs;
	bool can_recv, can_send;
	bool is_ended; /* the peer has closed the socket, so receive until recv returns 0 */
	int lowat;     /* current SO_RCVLOWAT */
	unsigned n_hs; /* number of received bytes of the proof */
	uint8_t hs_buf[PROOF_BYTES];
};

struct tcp_conn {
	struct peer_conn base; /* first member, so a pointer to it can be cast to this struct */
	bool is_busy, has_want, has_ping, has_pong;
	struct tcp_lane lanes[N_LANES];
	TAILQ_ENTRY(tcp_conn) link; /* entry in the list x->busy */
	TAILQ_ENTRY(tcp_conn) gone;

	/* Fields of LANE_MESSAGES. */
	uint8_t *rx, *tx;
	uint32_t rx_used, tx_head, tx_tail;

	/* Fields for receiving on LANE_BULK. pieces: requests without an answer, in the order of
	 * sending. eager: announced offers whose bytes have not arrived yet, in the order of their
	 * announcements. */
	struct tcp_piece pieces[TCP_PIECES];
	unsigned piece_first, n_pieces;
	struct tcp_eager eager[EAGER_IN_MAX];
	unsigned eager_first, n_eager;
	/* eager_count: number of eager offers that the peer has announced. eager_done: number of
	 * these offers whose bytes have arrived */
	uint64_t eager_count, eager_done;
	struct tcp_arrival in;
	/* The head that is being received, or the head of the bytes in `in` */
	struct tcp_frame head;
	/* true: the socket holds eager bytes, but the message that offers these bytes has not
	 * arrived, or the owner has not decided yet. Receive nothing on LANE_BULK until then */
	bool is_held;
	/* n_messages: number of messages passed to the owner. n_decided: see `decided` of struct
	 * xport_ops */
	uint64_t n_messages, n_decided;
	struct socket_meter meter;
	/* Fields for sending on LANE_BULK. answers: a queue of requested and eager bytes; the first
	 * element is being sent. n_asked: number of elements that the peer has requested. */
	struct tcp_answer answers[TCP_ANSWERS];
	unsigned answer_first, n_answers, n_asked;
	/* How many bytes of the queue's first answer were sent, including its head and trailer */
	uint32_t answer_sent;
	uint32_t eager_bytes; /* sum of the lengths of the eager answers in the queue */
	uint64_t eager_sent;  /* number of eager offers announced to the peer */
	/* tcp_send_eager with is_patient has returned -EAGAIN, so call the writable callback when
	 * the queue has room */
	bool wants_eager;
	struct eager_policy policy;

	struct peer_reads reads;

	struct sockaddr_storage addr;
	socklen_t addr_len;
};
TAILQ_HEAD(tcp_conn_list, tcp_conn);

struct tcp_xport {
	struct peer_xport base; /* first member, so a pointer to it can be cast to this struct */
	struct net_thread shared;
	struct tcp_net *net;
	uint64_t turn; /* number of polls so far */

	struct recv_window window; /* window of all LANE_BULK sockets */

	struct tcp_conn_list busy, gone;
	struct tcp_conn *conns[TCP_CONNS_MAX];

	uint16_t seg_next;
	struct tcp_seg segs[TCP_SEGS_MAX];
	uint8_t nowhere[64 << 10]; /* buffer for discarded bytes */
};

static inline size_t tcp_tx_room(const struct tcp_conn *c)
{
	return TCP_TX_BYTES - (c->tx_tail - c->tx_head);
}

static inline struct tcp_xport *tcp_xport_of_conn(const struct tcp_conn *c)
{
	return (struct tcp_xport *)c->base.pub.x;
}

/* Functions of tcp_conn.c. */
int tcp_connect(struct xport *x, const char *addr, uint16_t port, uint16_t thread, uint32_t peer_id,
	uint64_t peer_instance, const void *key, void *user, struct xconn **ret_conn);
/* Accept a socket whose ticket is valid. Takes ownership of guest->fd. */
void tcp_accept(struct tcp_xport *x, const struct tcp_accepted *guest);
/* Do the next step of the handshake on a lane, if its socket is ready. */
void tcp_handshake(struct tcp_conn *c, enum tcp_lane_kind lane);
/* Finish the handshake of the accepting side. Call this when the first message of the connecting
 * side has arrived. */
void tcp_come_up(struct tcp_conn *c);
/* Put the connection on x->busy, the list of connections to serve before the thread sleeps. */
void tcp_conn_mark_busy(struct tcp_conn *c);
/* Mark the connection as failed, because its peer broke the protocol. The connection goes down in
 * this poll or in the next one. */
void tcp_protocol_error(struct tcp_conn *c, const char *what);
/* Mark the connection as failed, because its socket failed (err is an errno) or was closed by the
 * peer (err is 0). */
void tcp_doom_lost_conn(struct tcp_conn *c, int err);
/* Implement `close` of struct xport_ops: close the sockets, then run read_done of all reads, then
 * the down callback. */
void tcp_conn_tear_down(struct xconn *conn, const char *why);
/* Send the due pings. Mark a connection as failed if its handshake or its answer to a ping is
 * overdue. */
void tcp_tick_all_conns(struct tcp_xport *x);
/* Free the memory of connections that went down since the last poll. */
void tcp_free_gone(struct tcp_xport *x);

/* Functions of tcp_msg.c. */
int tcp_send(struct xconn *c, const struct wire_msg *m);
/* Implement send_eager of common/transport/xport.h. */
int tcp_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient);
/* Append a message to the send buffer. reserve: bytes of the buffer that must stay free. Returns 0,
 * or -EAGAIN. */
int tcp_put_message(struct tcp_conn *c, const struct wire_msg *m, size_t reserve);
/* Append a read request (FRAME_READ) to the send buffer. Returns 0, or -EAGAIN. */
int tcp_put_read_request(struct tcp_conn *c, uint16_t segment, uint64_t offset, uint32_t len);
/* Send the frames in the send buffer, until the socket is full. */
void tcp_flush(struct tcp_conn *c);
/* Receive and handle frames that have arrived. After the call, can_recv is true if more frames may
 * have arrived. */
void tcp_take_messages(struct tcp_conn *c);

/* Functions of tcp_in.c. */
int tcp_start_read(struct xport_read *r);
/* Send requests for the bytes of the queued reads, until the read window has no room. */
void tcp_issue_reads(struct tcp_conn *c);
/* Receive requested and eager bytes that have arrived. After the call, can_recv is true if more
 * bytes may have arrived. */
void tcp_take_bulk(struct tcp_conn *c);
/* Set the receive window of a new LANE_BULK socket to x->window. If that window has no room for two
 * TCP segments of the peer, set a larger window. Errors: -errno. */
int tcp_begin_window(const struct tcp_xport *x, int fd);
/* Set the receive window of all LANE_BULK sockets to x->window. */
void tcp_set_windows(struct tcp_xport *x);
/* Record that frame f announces eager bytes. */
void tcp_record_eager_offer(struct tcp_conn *c, const struct tcp_frame *f);
/* Record that message m was received. From now on, reads may take the eager bytes that were
 * announced before m. */
void tcp_offer_heard(struct tcp_conn *c, const struct wire_msg *m);

void tcp_decided(struct xconn *c, uint64_t n_messages);

/* Functions of tcp_out.c. */
/* Queue the answer to the peer's read request, which is frame f (FRAME_READ). */
void tcp_queue_read_answer(struct tcp_conn *c, const struct tcp_frame *f);
/* Return whether the send queue has room for the bytes of one more offer. If is_patient, the queue
 * must also have fewer than ahead_bytes eager bytes. */
bool tcp_takes_eager(const struct tcp_conn *c, bool is_patient);
/* Queue the bytes that m offers. The caller has just queued their announcement. */
void tcp_push_eager(struct tcp_conn *c, const struct wire_msg *m);
/* Send queued bytes with one call of sendmsg. After the call, can_send is true if the socket may
 * take more bytes. */
void tcp_send_bulk(struct tcp_conn *c);
/* Stop sending bytes of a segment that is being removed, and send zeros instead. */
void tcp_refuse_segment(struct tcp_conn *c, uint16_t segment);
#endif
