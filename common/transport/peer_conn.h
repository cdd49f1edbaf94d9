#ifndef BPS_COMMON_TRANSPORT_PEER_CONN_H
#define BPS_COMMON_TRANSPORT_PEER_CONN_H
/* Connection to a peer: its states, the deadline of its handshake, and pings when the peer is
 * silent. All transports share this code: their structs for connections and for data threads begin
 * with struct peer_conn and struct peer_xport. Closing sockets, cancelling reads and running
 * callbacks is the task of each transport.
 *
 *   FREE --connect--> CONNECTING --proofs checked-> UP --error--> DOOMED --(closed)--> GONE
 *   FREE --accept---> ACCEPTING  --first message--> UP   (xport_close goes straight to GONE)
 *
 * A DOOMED connection has failed, and peer_close_doomed closes it later. After GONE, the memory of
 * the connection is freed, or its slot becomes FREE. Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/base/clock.h"
#include "common/transport/xport.h"
#include "common/wire/ticket.h"

enum conn_state {
	CONN_FREE,
	CONN_CONNECTING,
	CONN_ACCEPTING,
	CONN_UP,
	CONN_DOOMED,
	CONN_GONE,
};

struct peer_conn {
	struct xconn pub; /* first member, so a pointer to it can be cast to this struct */
	enum conn_state state;
	uint16_t slot; /* index in the data thread's table of connections */
	/* The owner got a pointer to this connection from `connect` or from the `up` callback, so
	 * the `down` callback must run */
	bool is_told;
	bool is_pinged;         /* a ping was sent, and nothing was received since then */
	uint64_t rx_ns;         /* when the last message or byte was received */
	uint64_t ping_ns;       /* when the last ping was sent */
	uint64_t connect_by_ns; /* deadline of the handshake */
	/* Nonce in the ticket of the first channel. The nonce of the second channel is the same,
	 * except that the serial number in the nonce is larger by one */
	uint64_t nonce;
	uint16_t peer_thread;
	uint8_t key[TICKET_KEY_BYTES]; /* shared key, erased after the proofs are checked */
	TAILQ_ENTRY(peer_conn) doomed;
	char why[192];
};

struct peer_times {
	uint32_t connect_timeout_ms; /* time limit of the handshake */
	uint32_t ping_ms, dead_ms;   /* as in struct net_config */
};
struct peer_xport {
	struct xport pub; /* first member, so a pointer to it can be cast to this struct */
	unsigned thread;
	int epoll_fd; /* epoll descriptor, opened and closed by the transport */
	struct peer_times times;
	uint64_t now_ns, next_deadline_ns;
	uint32_t n_conns;
	TAILQ_HEAD(peer_conn_list, peer_conn) doomed;
};

/* Fill in the fields of x, which must be zeroed. */
void peer_xport_init(struct peer_xport *x, const struct xport_ops *ops,
	const struct xport_events *ev, void *ctx, unsigned thread, struct peer_times times);
/* Make the data thread poll x no later than at the time at_ns. */
void peer_xport_lower_deadline(struct peer_xport *x, uint64_t at_ns);
/* Implement fd, next_deadline and heard_ns of struct xport_ops. */
int peer_xport_poll_fd(struct xport *x);
uint64_t peer_next_deadline(struct xport *x);
uint64_t peer_last_received_ns(const struct xconn *c);
/* Close the DOOMED connections. Returns how many connections were closed. */
int peer_close_doomed(struct peer_xport *x);

/* Change the connection's state, and log the reason `why`. to: the new state; the present state
 * must allow this change. */
void peer_conn_set_state(struct peer_conn *c, enum conn_state to, const char *why);
/* Record the peer that c connects to. `key` has TICKET_KEY_BYTES bytes. */
void peer_conn_set_peer(struct peer_conn *c, uint16_t thread, uint32_t peer_id,
	uint64_t peer_instance, const void *key, void *user);
/* Start a handshake: change from FREE to `state`, which is CONNECTING or ACCEPTING. */
void peer_conn_begin(struct peer_conn *c, enum conn_state state, const char *why);
/* Finish the handshake: go to UP. The caller then runs the `up` callback. */
void peer_conn_come_up(struct peer_conn *c);
/* Record that bytes were received from the peer. */
void peer_conn_heard(struct peer_conn *c);
/* Mark the connection as failed (DOOMED) and record the reason. peer_close_doomed closes it later.
 * A second call changes nothing, so the first reason stays. */
void peer_conn_doom(struct peer_conn *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Log that the peer broke the protocol, and mark the connection as failed. */
void peer_conn_broke_protocol(struct peer_conn *c, const char *what);
/* Mark the connection as failed if its handshake exceeds the deadline or its peer is dead. Returns
 * whether the caller has to send a ping. One ping is due when the peer has sent no byte for
 * ping_ms. The peer is dead if each of these periods has passed without a byte from the peer:
 * - dead_ms since the last byte;
 * - (dead_ms - ping_ms) since the ping. This period leaves the peer time to answer, even if this
 *   process was stopped before it sent the ping. */
bool peer_conn_tick(struct peer_conn *c);

static inline uint64_t peer_conn_nonce(const struct peer_conn *c, enum channel channel)
{
	return ticket_channel_nonce(c->nonce, channel);
}
/* Return whether ticket t comes from the peer of connection c and is for the second channel of
 * c. */
bool peer_conn_is_second(const struct peer_conn *c, const struct ticket *t);
/* Check the proof that has arrived from the peer on a channel. Returns 0, BPS_EAUTH, BPS_EPROTO or
 * BPS_EVERSION. */
int peer_conn_check_proof(const struct peer_conn *c, enum channel channel, const void *buf,
	size_t n_bytes, struct proof *ret);
#endif
