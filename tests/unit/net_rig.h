#ifndef BPS_TESTS_NET_RIG_H
#define BPS_TESTS_NET_RIG_H
/* A rig for tests of a network transport (common/transport/net.h): both ends, the server and the
 * client, in one process. The ends use the loopback address and any free port. The environment
 * variables BPS_TEST_PROVIDER and BPS_TEST_ADDRESS replace the test's provider and the loopback
 * address (tests/qemu). Each end counts its callbacks. A test runs both ends in one thread, which
 * sleeps only when both ends may sleep. Some tests use more threads, or forked peers. A forked peer
 * is started before this process opens its end. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/datapath/net_open.h"
#include "common/wire/ticket.h"

#define SERVER_ID       7
#define SERVER_INSTANCE 0x5e5e5e01u
#define CLIENT_ID       3
#define CLIENT_INSTANCE 0xc1c1c101u
#define MS              UINT64_C(1000000)
#define DEADLINE_MS     (rig_is_tcp() ? 5000 : 60000) /* the machine of tests/qemu is slow */
#define READ_MAX        (8u << 20)

extern const uint8_t the_key[32];
extern const char *rig_provider; /* the provider of the group of tests that runs now */
/* Descriptor that a test sets. turn() also returns from its sleep when this descriptor becomes
 * readable. -1: none. */
extern int rig_watched_fd;

/* Return whether the rig runs over TCP. Some tests concern TCP itself, or cannot run with another
 * provider. */
bool rig_is_tcp(void);
/* Set the provider of the tests to `provider`, unless BPS_TEST_PROVIDER names another provider. */
void rig_use(const char *provider);
const char *rig_address(void);

struct net_node {
	struct net *f;
	struct xport *x;
	struct xconn *conn; /* the newest connection; NULL: none, or it has ended */
	unsigned n_up, n_down, n_messages, n_writable, n_read_done, n_read_failed;
	uint32_t peer_id;
	uint64_t peer_instance;
	char why[200];
	uint64_t down_ns;
	_Atomic bool is_known; /* whether the node's key function has a key for the peer */
	void (*on_message)(struct net_node *n, struct xconn *c, const struct wire_msg *m);
	void (*on_writable)(struct net_node *n, struct xconn *c);
	void (*on_read_done)(struct net_node *n, struct xport_read *r, int status);
	uint64_t next_round;
	bool is_wrong;
	unsigned downs_at_read; /* the value of n_down at the last read_done */
	int read_status;        /* status in the last read_done */
	atomic_bool stop;
};

struct net_rig {
	struct net_node server, client;
	struct net_node *third; /* a third node, or NULL */
};

extern const struct xport_events rig_events;

int rig_key_of(void *ctx, uint32_t peer_id, uint64_t peer_instance, void *ret_key);
struct net_config config_of(bool is_server);
/* net_node_begin resets a node that has no open `struct net`. net_node_attach makes the transport
 * (xport) of a node whose `struct net` is open. net_node_open resets the node, opens a `struct net`
 * and makes the transport. */
void net_node_begin(struct net_node *n);
void net_node_attach(struct net_node *n);
void net_node_open(struct net_node *n, const struct net_config *cfg);
void net_node_close(struct net_node *n);
void net_rig_open(struct net_rig *r);
/* Open both ends. Pings are sent after ping_ms of silence, and a peer is dead after dead_ms. */
void rig_open_pinging(struct net_rig *r, uint32_t ping_ms, uint32_t dead_ms);
/* Open both ends with the least number of credits that is allowed. */
void rig_open_least_credit(struct net_rig *r);
void net_rig_close(struct net_rig *r);
int dial(struct net_node *n, uint16_t port, const uint8_t *key);
void rig_connect(struct net_rig *r);

/* Run each node once. If no node has made progress and each node may sleep, wait for an event. The
 * wait ends at the time `until_ns` at the latest. */
void turn(struct net_node **n, unsigned n_nodes, uint64_t until_ns);
/* Run both ends until the condition `cond` is true, for `ms` milliseconds at most. The value of the
 * macro is whether `cond` is true at the end. */
#define RUN_MS(r, cond, ms)                                                                        \
	({                                                                                         \
		struct net_node *all_[] = {&(r)->server, &(r)->client, (r)->third};                \
		uint64_t until_ = clock_now_ns() + (uint64_t)(ms)*MS;                              \
		while (!(cond) && clock_now_ns() < until_)                                         \
			turn(all_, all_[2] ? 3 : 2, until_);                                       \
		(cond);                                                                            \
	})
#define RUN(r, cond) assert_true(RUN_MS(r, cond, DEADLINE_MS))
#define RUN_ONE(n, cond, ms)                                                                       \
	({                                                                                         \
		struct net_node *one_[] = {n};                                                     \
		uint64_t until_ = clock_now_ns() + (uint64_t)(ms)*MS;                              \
		while (!(cond) && clock_now_ns() < until_)                                         \
			turn(one_, 1, until_);                                                     \
		(cond);                                                                            \
	})
/* The function of a thread that runs one node until the node's field `stop` is set. */
void *serve(void *node);

uint64_t protocol_errors(const struct net_node *n);
uint64_t refused(const struct net_node *n);

struct wire_msg inline_message(uint64_t round, const void *payload, uint32_t len);
int send_round(struct xconn *c, uint64_t round);
void fill(uint8_t *p, size_t n, uint32_t seed);
struct ticket a_ticket(uint64_t count);
unsigned count_fds(void);
/* Connect a socket to the port, send the n_bytes at `data` without any handshake, and return the
 * socket. */
int stranger(uint16_t port, const void *data, size_t n_bytes);

/* An on_message that returns each message to its sender. */
void echo(struct net_node *n, struct xconn *c, const struct wire_msg *m);
/* An on_message that checks the CRC and the round of each message. Message n must be of round n,
 * counted from 1. */
void check_crc(struct net_node *n, struct xconn *c, const struct wire_msg *m);

struct mem {
	uint8_t *p;
	size_t bytes;
	uint16_t seg;
};
/* Allocate memory and add it to the node's transport as a segment, which the peer may read. Fill
 * the memory with bytes that depend on `seed`. Seed 0 leaves the memory zero. */
struct mem mem_new(struct net_node *n, size_t bytes, uint32_t seed);
void mem_free(struct mem *m);
/* Describe a read of `len` bytes from memory `from`, at offset `offset`. The bytes go to the same
 * offset in memory `to`. */
struct xport_read read_of(const struct net_node *n, const struct mem *to, const struct mem *from,
	uint64_t offset, uint32_t len);
/* Wait until the peer has announced the segment of the read `rd` to the transport, then start the
 * read. */
void begin_read(struct net_rig *r, struct xport_read *rd);
void read_both_ways(struct net_rig *r);
#endif
