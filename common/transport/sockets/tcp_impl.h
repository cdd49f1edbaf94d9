#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_IMPL_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_IMPL_H
/* Internal declarations of common/transport/sockets/tcp.h, shared by its files and its unit test
 * only.
 *
 *   tcp.c       process-wide object, data-thread object, the poll loop
 *   tcp_conn.c  life of a connection: connect, accept, up, down, pings
 *   tcp_msg.c   its socket for messages and requests to read
 *   tcp_in.c    its socket for bytes: receiving
 *   tcp_out.c   its socket for bytes: sending
 *
 * The states are those of peer_conn.h; a doomed connection ends in the same poll, and its memory is
 * freed at the next.
 *
 * A connection has two sockets. Messages and requests to read use the first (LANE_MESSAGES), bytes
 * the second (LANE_BULK). So nothing small waits behind megabytes, not even for the retransmission
 * of one of them. On LANE_BULK bytes lie between a head, which identifies them, and a trailer,
 * which reports whether they are valid:
 *
 *   - answers to requests, in the order of these;
 *   - eager bytes, which go with an offer (xport_send_eager). They are announced before its
 * message,
 *     so that a read of the offer needs no request, and come in the order of the announcements.
 * When
 *     they are here and the message was received, but no read takes the offer, they are discarded.
 *     So they never delay others, and the offer can still be read by a request. They are discarded
 *     also when their offer ended before they came and its memory is offered again.
 *
 * All descriptors are watched edge-triggered, once. can_recv and can_send record what a socket
 * still has. Every connection with work is on x->busy; the list is empty when the thread may sleep.
 * While a read is in progress the kernel wakes us only when a good part of it is here
 * (SO_RCVLOWAT).
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
/* Most unanswered requests to read, of each side. */
#define TCP_PIECES READS_MAX
/* TCP_EAGER_OUT: offers whose bytes may wait to leave; further offers go without bytes.
 * TCP_EAGER_IN: offers of the peer that are noted until their bytes arrive; bytes of further ones
 * are discarded. */
#define TCP_EAGER_OUT 32
#define TCP_EAGER_IN  128
#define TCP_ANSWERS   (TCP_PIECES + TCP_EAGER_OUT)

#define TCP_RX_BYTES ((size_t)64 << 10)
#define TCP_TX_BYTES ((size_t)256 << 10)
/* Room that only requests to read, pings and their answers may use. */
#define TCP_TX_RESERVE 2048
/* Part of it that only requests to read may use: else a peer that pings and does not read would
 * leave none. */
#define TCP_READS_RESERVE (TCP_PIECES * sizeof(struct tcp_frame))
_Static_assert(TCP_RX_BYTES >= 2 * TCP_FRAME_MAX, "a frame fits, wherever it begins");

enum tcp_lane_kind { LANE_MESSAGES, LANE_BULK, N_LANES };
_Static_assert((int)N_LANES == (int)N_CHANNELS, "a socket per channel of the tickets");

/* Part of a read, requested by one frame. */
struct tcp_piece {
	struct tcp_read *rd;
	uint32_t at, len; /* position in the read */
	uint64_t asked_ns;
};
/* Part of a segment that the peer requested, or that is sent eagerly. */
struct tcp_answer {
	uint16_t segment;
	bool is_refused; /* zeros are sent instead of the bytes, or of the rest of them */
	bool is_eager;
	uint32_t len;
	uint64_t offset;
	uint64_t count; /* is_eager: number of eager offers before it */
};
/* Offer of the peer whose bytes come eagerly. */
struct tcp_eager {
	uint16_t segment;
	bool is_heard; /* the message with the offer was received */
	bool is_old;   /* the same memory was offered again: these may be its previous bytes */
	uint32_t len;
	uint64_t offset, count;
	uint64_t turn;       /* turn of x in which the message was received */
	struct tcp_read *rd; /* the read that takes the bytes */
};
/* State of the bytes being received on LANE_BULK. */
struct tcp_arrival {
	bool is_open; /* its head is here, and the destination is known */
	bool is_eager;
	uint32_t len;
	uint64_t got;    /* bytes received, including head and trailer */
	uint64_t offset; /* from its head: offset in the segment; of eager bytes: their number */
	struct tcp_read *rd; /* NULL: the bytes are discarded */
	uint8_t *dst;
	struct tcp_frame trailer;
};

struct tcp_read {
	struct xport_read *r;
	uint32_t issued, done;
	uint32_t crc; /* crc of the bytes received */
	int status;
	TAILQ_ENTRY(tcp_read) link; /* on c->queue until it is fully issued */
};
TAILQ_HEAD(tcp_read_list, tcp_read);

struct tcp_seg {
	const uint8_t *mem; /* NULL: none */
	size_t bytes;
};

/* Step before the first frame on a socket. */
enum tcp_handshake_step { HS_CONNECT, HS_PROOF, HS_DONE };

struct tcp_lane {
	int fd; /* -1: none yet */
	enum tcp_handshake_step hs;
	bool can_recv, can_send;
	bool is_ended; /* the peer has closed: receive until that shows */
	int lowat;     /* current SO_RCVLOWAT */
	unsigned n_hs; /* bytes of the proof received */
	uint8_t hs_buf[PROOF_BYTES];
};

struct tcp_conn {
	struct peer_conn base; /* first */
	bool is_busy, has_want, has_ping, has_pong;
	struct tcp_lane lanes[N_LANES];
	TAILQ_ENTRY(tcp_conn) link; /* on x->busy */
	TAILQ_ENTRY(tcp_conn) gone;

	/* Fields of LANE_MESSAGES. */
	uint8_t *rx, *tx;
	uint32_t rx_used, tx_head, tx_tail;

	/* Fields of LANE_BULK, receiving: requests in order; eager offers in order. */
	struct tcp_piece pieces[TCP_PIECES];
	unsigned piece_first, n_pieces;
	struct tcp_eager eager[TCP_EAGER_IN];
	unsigned eager_first, n_eager;
	uint64_t eager_count, eager_done; /* announced and arrived so far */
	struct tcp_arrival in;
	struct tcp_frame head; /* head of the next bytes */
	bool is_held;          /* nothing is received until a message has come */
	struct recv_rtt rtt;
	size_t unclamped; /* bytes received since its window was set */
	/* Fields of LANE_BULK, sending: answers and eager bytes; the first is being sent. */
	struct tcp_answer answers[TCP_ANSWERS];
	unsigned answer_first, n_answers, n_asked;
	uint32_t answer_sent; /* bytes sent of the first, including head and trailer */
	uint32_t eager_bytes; /* eager bytes not fully sent */
	uint64_t eager_sent;  /* offers announced so far */
	bool wants_eager;     /* call writable when there is room */
	struct eager_policy policy;

	uint32_t n_reads, n_queued;
	struct read_window read_window;
	struct tcp_read_list queue;
	uint32_t reads_used; /* one bit per element of reads */
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

	struct recv_window window; /* window of all LANE_BULK sockets */
	size_t unmeasured;

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

static inline struct tcp_xport *tcp_of(const struct tcp_conn *c)
{
	return (struct tcp_xport *)c->base.pub.x;
}

/* Values of x->base.pub.ahead_bytes; as many bytes may be unsent in the kernel. This keeps the link
 * busy until we are woken. Bytes offered meanwhile may be more urgent, and connections get out of
 * step by that much. Where round trips are short (recv_window.h) both pass soon, and one call sends
 * several. */
#define TCP_AHEAD_SLOW (64 << 10)
#define TCP_AHEAD      (512 << 10)

/* Functions of tcp_conn.c. */
int tcp_connect(struct xport *x, const char *addr, uint16_t port, uint16_t thread, uint32_t peer_id,
	uint64_t peer_instance, const void *key, void *user, struct xconn **ret_conn);
/* Accept a connection; owns guest->fd. */
void tcp_accept(struct tcp_xport *x, const struct tcp_accepted *guest);
/* Continue the handshake of a lane. */
void tcp_handshake(struct tcp_conn *c, enum tcp_lane_kind lane);
/* Come up: the first message of the connecting side has arrived. */
void tcp_come_up(struct tcp_conn *c);
/* Put the connection on the list that is served before the thread sleeps. */
void tcp_touch(struct tcp_conn *c);
/* Doom a connection whose peer broke the protocol: this poll, or the next, takes it down. */
void tcp_protocol_error(struct tcp_conn *c, const char *what);
/* Doom a connection whose socket failed (err, an errno) or ended (0). */
void tcp_lost(struct tcp_conn *c, int err);
/* Take down at once: read_done of all reads, down. */
void tcp_down(struct tcp_conn *c, const char *why);
/* Send the due pings and end late connections. */
void tcp_tick(struct tcp_xport *x);
/* Free the memory of connections that went down since the last poll. */
void tcp_free_gone(struct tcp_xport *x);

/* Functions of tcp_msg.c. */
int tcp_send(struct xconn *c, const struct wire_msg *m);
/* Implement send_eager of common/transport/xport.h. */
int tcp_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient);
/* Append a message: 0, or -EAGAIN. reserve: bytes of room that must remain. */
int tcp_put(struct tcp_conn *c, const struct wire_msg *m, size_t reserve);
/* Append a request to read: 0, or -EAGAIN. */
int tcp_put_read(struct tcp_conn *c, uint16_t segment, uint64_t offset, uint32_t len);
/* Send the queued frames, as far as the socket takes them. */
void tcp_flush(struct tcp_conn *c);
/* Receive and handle the frames that are there; can_recv shows whether there may be more. */
void tcp_take_messages(struct tcp_conn *c);

/* Functions of tcp_in.c. */
int tcp_read(struct xport_read *r);
/* Request as much of the waiting reads as the window takes. */
void tcp_issue_reads(struct tcp_conn *c);
/* Receive the bytes that are there, requested or eager; can_recv shows whether there may be
 * more. */
void tcp_take_bulk(struct tcp_conn *c);
void tcp_cancel_reads(struct tcp_conn *c);
/* Give a new LANE_BULK socket the window of x, or a larger one when its segments would not fit.
 * Errors: -errno. */
int tcp_begin_window(const struct tcp_xport *x, int fd);
/* Give all of them the window of x. */
void tcp_set_windows(struct tcp_xport *x);
/* Note an announcement of eager bytes. */
void tcp_announced(struct tcp_conn *c, const struct tcp_frame *f);
void tcp_offer_heard(struct tcp_conn *c, const struct wire_msg *m);

/* Functions of tcp_out.c. */
/* Queue the answer to a peer's request for a piece. */
void tcp_asked(struct tcp_conn *c, const struct tcp_frame *f);
/* Return whether the queue takes the bytes of another offer. is_patient: only when little waits in
 * it. */
bool tcp_takes_eager(const struct tcp_conn *c, bool is_patient);
/* Queue the bytes that m offers; they were announced just before. */
void tcp_push_eager(struct tcp_conn *c, const struct wire_msg *m);
/* Send bytes, as far as the socket takes them; can_send shows whether it may take more. */
void tcp_send_bulk(struct tcp_conn *c);
/* Stop sending from a segment that is being removed. */
void tcp_refuse_segment(struct tcp_conn *c, uint16_t segment);
#endif
