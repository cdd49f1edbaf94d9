#ifndef BPS_TESTS_TCP_PEER_H
#define BPS_TESTS_TCP_PEER_H
/* A peer of the transport over TCP sockets (common/transport/sockets/tcp.h). The peer is made of
 * bare sockets, so that a test can send any bytes. A struct net_rig has the other end. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/transport/sockets/tcp_impl.h"
#include "tests/unit/net_rig.h"

static inline struct tcp_conn *tcp_conn_of(const struct net_node *n)
{
	return (struct tcp_conn *)n->conn;
}

struct raw_conn {
	struct net_rig *rig;
	int fds[N_LANES];
};

static inline bool has_come(int fd, uint8_t *buf, size_t *at, size_t n_bytes)
{
	ssize_t n = recv(fd, buf + *at, n_bytes - *at, MSG_DONTWAIT);

	if (n > 0)
		*at += (size_t)n;
	rig_watched_fd = *at == n_bytes || n == 0 ? -1 : fd;
	return *at == n_bytes;
}

static inline void raw_recv(struct raw_conn *p, enum tcp_lane_kind lane, void *buf, size_t n_bytes)
{
	size_t at = 0;

	RUN(p->rig, has_come(p->fds[lane], buf, &at, n_bytes));
}

static inline void raw_send(
	const struct raw_conn *p, enum tcp_lane_kind lane, const void *data, size_t n_bytes)
{
	assert_int_equal(send(p->fds[lane], data, n_bytes, MSG_NOSIGNAL), n_bytes);
}

/* Write an item of LANE_BULK. An item consists of a head, the bytes, and a trailer that repeats the
 * head. Returns the size of the item. */
static inline size_t put_item(
	uint8_t *to, enum tcp_frame_type type, uint64_t offset, const void *bytes, uint32_t len)
{
	struct tcp_frame f = {.type = (uint8_t)type, .len = len, .offset = offset};

	memcpy(to, &f, sizeof(f));
	memcpy(to + sizeof(f), bytes, len);
	f.type = FRAME_BYTES;
	memcpy(to + sizeof(f) + len, &f, sizeof(f));
	return 2 * sizeof(f) + len;
}

static inline void raw_close(struct raw_conn *p)
{
	for (unsigned i = 0; i < N_LANES; i++)
		if (p->fds[i] >= 0)
			close(p->fds[i]);
}

static inline bool is_at_end(int fd)
{
	uint8_t byte;
	ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);

	bool is_end = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK);

	assert_true(n <= 0);
	rig_watched_fd = is_end ? -1 : fd;
	return is_end;
}

/* Seal the ticket for one channel of a connection. `count` is the serial number of the connection's
 * first ticket. */
static inline void seal_channel(uint64_t count, enum channel channel, uint8_t ret[TICKET_BYTES])
{
	struct ticket t = a_ticket(count);

	t.nonce = ticket_channel_nonce(t.nonce, channel);
	t.channel = (uint8_t)channel;
	ticket_seal(&t, the_key, ret);
}

static inline void raw_join(struct raw_conn *p, uint64_t count, enum tcp_lane_kind lane)
{
	uint8_t ticket[TICKET_BYTES], proof[PROOF_BYTES];
	struct proof pr;

	seal_channel(count, (enum channel)lane, ticket);
	p->fds[lane] = stranger(net_port(p->rig->server.f), ticket, sizeof(ticket));
	raw_recv(p, lane, proof, sizeof(proof));
	assert_int_equal(proof_open(proof, sizeof(proof),
				 ticket_channel_nonce(a_ticket(count).nonce, (enum channel)lane),
				 the_key, &pr),
		0);
	assert_int_equal(pr.peer_id, SERVER_ID);
	assert_int_equal(pr.instance, SERVER_INSTANCE);
}

static inline size_t put_message(uint8_t *to, const struct wire_msg *m)
{
	struct tcp_frame f = {.type = FRAME_MESSAGE, .len = (uint32_t)wire_size(m)};

	memcpy(to, &f, sizeof(f));
	return sizeof(f) + wire_encode(m, to + sizeof(f));
}

static inline size_t put_kind(uint8_t *to, enum wire_type type)
{
	const struct wire_msg m = {.type = (uint8_t)type};

	return put_message(to, &m);
}

/* Connect a peer. Returns when its connection is up at the server. */
static inline struct raw_conn raw_up(struct net_rig *r)
{
	static uint64_t count = 1000;
	struct raw_conn p = {.rig = r, .fds = {-1, -1}};
	unsigned n_up = r->server.n_up;
	uint8_t ping[256];

	count += N_CHANNELS;
	raw_join(&p, count, LANE_MESSAGES);
	raw_join(&p, count, LANE_BULK);
	raw_send(&p, LANE_MESSAGES, ping, put_kind(ping, WIRE_PING));
	RUN(r, r->server.n_up == n_up + 1);
	/* Receive the server's first frame, which answers the PING. */
	raw_recv(&p, LANE_MESSAGES, ping, sizeof(struct tcp_frame) + WIRE_HDR_BYTES);
	return p;
}
#endif
