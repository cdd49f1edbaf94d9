#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_IMPL_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_IMPL_H
/* Inside of common/transport/sockets/tcp.h, shared by its files and its unit test only.
 *
 *   tcp.c       process-wide object, data-thread object, the poll loop
 *   tcp_conn.c  life of a connection: connect, accept, up, down, pings
 *   tcp_msg.c   its socket for messages and requests to read
 *   tcp_in.c    its socket for bytes: those that come
 *   tcp_out.c   those that go
 *
 * Its states are those of peer_conn.h; a doomed connection ends in the same poll, and the memory of
 * one that is gone is freed at the next.
 *
 * A connection has two sockets. Messages and requests to read go over the first (LANE_MESSAGES),
 * bytes over the second (LANE_BULK): so nothing small waits behind megabytes, not even for the
 * retransmission of one of them. There bytes lie between a head, which says what they are, and a
 * trailer, which says whether they are that:
 *
 *   - answers to requests, in the order of these;
 *   - eager bytes, which go with an offer (xport_send_eager): announced in front of its message,
 *     so that a read of the offer asks for nothing, and in the order of the announcements. When
 *     they are here and the message was heard, but nobody reads the offer, they are thrown away:
 *     so they never keep others waiting, and the offer can still be read by asking. So are those
 *     of an offer that ended before they came, when its memory is offered again.
 *
 * All descriptors are watched edge-triggered, once. can_recv and can_send say what a socket still
 * has; whatever has something to do is on x->busy, and nothing is when the thread may sleep. While
 * a read is under way the kernel wakes us only when a good part of it is here (SO_RCVLOWAT).
 *
 * Everything belongs to the data thread; tcp_listener.h is the connection thread's. */
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/transport/net_shared.h"
#include "common/transport/read_window.h"
#include "common/transport/sockets/eager_policy.h"
#include "common/transport/sockets/recv_window.h"
#include "common/transport/sockets/tcp.h"
#include "common/transport/sockets/tcp_frame.h"
#include "common/transport/sockets/tcp_listener.h"

#define TCP_SEGS_MAX 4096
/* Answers that a peer may have asked for at a time, and those that it asked for in a row. */
#define TCP_PIECES READS_MAX
/* Offers whose bytes may wait to leave, of more only the offer goes; offers of the peer's that are
 * noted until their bytes are here, of more these are thrown away. */
#define TCP_EAGER_OUT 32
#define TCP_EAGER_IN  128
#define TCP_ANSWERS   (TCP_PIECES + TCP_EAGER_OUT)

#define TCP_RX_BYTES ((size_t)64 << 10)
#define TCP_TX_BYTES ((size_t)256 << 10)
/* Room that only requests to read, pings and their answers may use. */
#define TCP_TX_RESERVE 2048
/* Of this, what only requests to read may use: else a peer that pings and does not read would leave
 * none. */
#define TCP_READS_RESERVE (TCP_PIECES * sizeof(struct tcp_frame))
_Static_assert(TCP_RX_BYTES >= 2 * TCP_FRAME_MAX, "a frame fits, wherever it begins");

enum tcp_lane_kind { LANE_MESSAGES, LANE_BULK, N_LANES };
_Static_assert((int)N_LANES == (int)N_CHANNELS, "a socket per channel of the tickets");

/* Part of a read, asked for by one frame. */
struct tcp_piece {
	struct tcp_read *rd;
	uint32_t at, len; /* of the read */
	uint64_t asked_ns;
};
/* Part of a segment that the peer asked for, or that goes unasked. */
struct tcp_answer {
	uint16_t segment;
	bool is_refused; /* zeros go instead of the bytes, or of the rest of them */
	bool is_eager;
	uint32_t len;
	uint64_t offset;
	uint64_t count; /* is_eager: offers of that kind before it */
};
/* An offer of the peer's whose bytes come unasked. */
struct tcp_eager {
	uint16_t segment;
	bool is_heard; /* the message that makes it */
	bool is_old;   /* the same memory was offered anew: this may be what was there before */
	uint32_t len;
	uint64_t offset, count;
	uint64_t turn;       /* of x in which it was heard */
	struct tcp_read *rd; /* that takes them */
};
/* What is coming on LANE_BULK. */
struct tcp_arrival {
	bool is_open; /* its head is here, and where the bytes go is known */
	bool is_eager;
	uint32_t len;
	uint64_t got;        /* bytes of it, head and trailer too */
	uint64_t offset;     /* as its head says */
	struct tcp_read *rd; /* NULL: thrown away */
	uint8_t *dst;
	struct tcp_frame trailer;
};

struct tcp_read {
	struct xport_read *r;
	uint32_t issued, done;
	uint32_t crc; /* of what is here */
	int status;
	TAILQ_ENTRY(tcp_read) link; /* on c->queue until it is issued whole */
};
TAILQ_HEAD(tcp_read_list, tcp_read);

struct tcp_seg {
	const uint8_t *mem; /* NULL: none */
	size_t bytes;
};

/* What comes before the first frame on a socket. */
enum tcp_handshake_step { HS_CONNECT, HS_PROOF, HS_DONE };

struct tcp_lane {
	int fd; /* -1: none yet */
	enum tcp_handshake_step hs;
	bool can_recv, can_send;
	bool is_ended; /* the peer sends no more: receive until that shows */
	int lowat;     /* SO_RCVLOWAT as it stands */
	unsigned n_hs; /* bytes of the proof that are here */
	uint8_t hs_buf[PROOF_BYTES];
};

struct tcp_conn {
	struct peer_conn base; /* first */
	bool is_busy, has_want, has_ping, has_pong;
	struct tcp_lane lanes[N_LANES];
	TAILQ_ENTRY(tcp_conn) link; /* on x->busy */
	TAILQ_ENTRY(tcp_conn) gone;

	/* LANE_MESSAGES */
	uint8_t *rx, *tx;
	uint32_t rx_used, tx_head, tx_tail;

	/* LANE_BULK in: what we asked for, in order; what comes unasked, in order. */
	struct tcp_piece pieces[TCP_PIECES];
	unsigned piece_first, n_pieces;
	struct tcp_eager eager[TCP_EAGER_IN];
	unsigned eager_first, n_eager;
	uint64_t eager_count, eager_done; /* announced and arrived so far */
	struct tcp_arrival in;
	struct tcp_frame head; /* of what comes next */
	bool is_held;          /* nothing is received until a message has been heard */
	struct recv_rtt rtt;
	size_t unclamped; /* bytes since its window was set */
	/* LANE_BULK out: what the peer asked for and what goes unasked; the first is leaving. */
	struct tcp_answer answers[TCP_ANSWERS];
	unsigned answer_first, n_answers, n_asked;
	uint32_t answer_sent; /* bytes of the first, head and trailer too */
	uint32_t eager_bytes; /* of those not gone whole */
	uint64_t eager_sent;  /* offers announced so far */
	bool wants_eager;     /* writable follows when there is room */
	struct eager_policy policy;

	uint32_t n_reads, n_queued;
	struct read_window read_window;
	struct tcp_read_list queue;
	uint32_t reads_used; /* bit per element of reads */
	struct tcp_read reads[READS_MAX];

	struct sockaddr_storage addr;
	socklen_t addr_len;
};
TAILQ_HEAD(tcp_conn_list, tcp_conn);

struct tcp_xport {
	struct peer_xport base; /* first */
	struct net_thread shared;
	struct tcp_net *net;
	uint64_t turn; /* polls so far */

	struct recv_window window; /* of all its LANE_BULKs */
	size_t unmeasured;

	struct tcp_conn_list busy, gone;
	struct tcp_conn *conns[TCP_CONNS_MAX];

	uint16_t seg_next;
	struct tcp_seg segs[TCP_SEGS_MAX];
	uint8_t nowhere[64 << 10]; /* what is thrown away */
};

static inline size_t tcp_tx_room(const struct tcp_conn *c)
{
	return TCP_TX_BYTES - (c->tx_tail - c->tx_head);
}

static inline struct tcp_xport *tcp_of(const struct tcp_conn *c)
{
	return (struct tcp_xport *)c->base.pub.x;
}

/* x->base.pub.ahead_bytes, and as many unsent in the kernel: enough to keep the link busy until we are
 * woken. What is offered meanwhile may be more urgent, and connections get out of step by as much;
 * where round trips are short (recv_window.h) both pass soon, and several go with one call. */
#define TCP_AHEAD_SLOW (64 << 10)
#define TCP_AHEAD      (512 << 10)

/* tcp_conn.c */
int tcp_connect(struct xport *x, const char *addr, uint16_t port, uint16_t thread, uint32_t peer_id,
	uint64_t peer_instance, const void *key, void *user, struct xconn **ret_conn);
/* Takes guest->fd. */
void tcp_accept(struct tcp_xport *x, const struct tcp_accepted *guest);
/* The handshake of a lane goes on. */
void tcp_handshake(struct tcp_conn *c, enum tcp_lane_kind lane);
/* The first message of the connecting side is here. */
void tcp_come_up(struct tcp_conn *c);
/* Have the connection looked at before the thread sleeps. */
void tcp_touch(struct tcp_conn *c);
/* A peer does not keep to the protocol: this poll, or the next, takes the connection down. */
void tcp_protocol_error(struct tcp_conn *c, const char *what);
/* The same, for a socket that failed (err, an errno) or ended (0). */
void tcp_lost(struct tcp_conn *c, int err);
/* Take down at once: read_done of all reads, down. */
void tcp_down(struct tcp_conn *c, const char *why);
/* Pings and deadlines of all. */
void tcp_tick(struct tcp_xport *x);
/* Memory of connections that went down since the last poll. */
void tcp_free_gone(struct tcp_xport *x);

/* tcp_msg.c */
int tcp_send(struct xconn *c, const struct wire_msg *m);
/* As send_eager of common/transport/xport.h. */
int tcp_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient);
/* Append a message: 0, or -EAGAIN. reserve: bytes of room that must remain. */
int tcp_put(struct tcp_conn *c, const struct wire_msg *m, size_t reserve);
/* Append a request to read: 0, or -EAGAIN. */
int tcp_put_read(struct tcp_conn *c, uint16_t segment, uint64_t offset, uint32_t len);
/* Send what is queued, as far as the socket takes it. */
void tcp_flush(struct tcp_conn *c);
/* Receive and handle what is there, in one go; can_recv says whether there may be more. */
void tcp_take_messages(struct tcp_conn *c);

/* tcp_in.c */
int tcp_read(struct xport_read *r);
/* Ask for what the window takes of the reads that have not been asked for whole. */
void tcp_issue_reads(struct tcp_conn *c);
/* Receive bytes that are there, asked for or not; can_recv says whether there may be more. */
void tcp_take_bulk(struct tcp_conn *c);
void tcp_cancel_reads(struct tcp_conn *c);
/* A new socket for bytes gets the window of x, or a larger one when its segments would not fit.
 * Errors: -errno. */
int tcp_begin_window(const struct tcp_xport *x, int fd);
/* Give all of them the window of x. */
void tcp_set_windows(struct tcp_xport *x);
/* Eager bytes are announced; the message that offers them, or another, is here. */
void tcp_announced(struct tcp_conn *c, const struct tcp_frame *f);
void tcp_offer_heard(struct tcp_conn *c, const struct wire_msg *m);

/* tcp_out.c */
/* The peer asks for a piece. */
void tcp_asked(struct tcp_conn *c, const struct tcp_frame *f);
/* Does the queue take the bytes of another offer? is_patient: only when little waits in it. */
bool tcp_takes_eager(const struct tcp_conn *c, bool is_patient);
/* Queue the bytes that m offers, which was announced just now. */
void tcp_push_eager(struct tcp_conn *c, const struct wire_msg *m);
/* Send bytes, as far as the socket takes them; can_send says whether it may take more. */
void tcp_send_bulk(struct tcp_conn *c);
/* The memory of a segment goes away: nothing of it is sent any more. */
void tcp_refuse_segment(struct tcp_conn *c, uint16_t segment);
#endif
