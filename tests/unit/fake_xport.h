#ifndef BPS_TESTS_FAKE_XPORT_H
#define BPS_TESTS_FAKE_XPORT_H
/* A transport for unit tests of the cores (common/transport/xport.h). It is synchronous, and
 * nothing happens by itself. It keeps what the core sends until the test takes it; reads wait until
 * the test ends them. Messages pass through wire_encode and wire_decode in both directions, so that
 * a field without an encoding is missing here, too.
 *
 *   core --send--> conn's queue --fake_take--> test --fake_deliver--> core
 *   core --read--> conn's list --fake_end_read--> read_done
 *
 * For a peer on the same host, set conn's base.is_same_host. Then its segments can be borrowed.
 *
 * A closed connection stays in memory until fake_fini, so that a test can see that it is closed.
 * One thread. */
#include <stdbool.h>
#include <sys/queue.h>

#include "common/transport/xport.h"

#define FAKE_SEGMENTS 64

struct fake_segment {
	unsigned char *mem;
	size_t bytes;
};
struct fake_sent;
struct fake_read;

struct fake_conn {
	struct xconn base;
	TAILQ_ENTRY(fake_conn) link;
	TAILQ_HEAD(, fake_sent) sent;
	TAILQ_HEAD(, fake_read) reads;
	struct fake_segment peer[FAKE_SEGMENTS]; /* memory of the peer that reads may name */
	size_t n_sent, n_reads;
	unsigned *n_loans; /* counter of the whole transport */
	size_t credit;     /* further sends before -EAGAIN */
	size_t room;       /* further patient offers before -EAGAIN */
	size_t read_limit; /* further reads before -EAGAIN */
	uint64_t heard_ns; /* reported by the transport */
	bool is_up, is_closed, was_refused;
	char why[128]; /* reason of the close */
};

struct fake_xport {
	struct xport base;
	TAILQ_HEAD(, fake_conn) conns;
	struct fake_segment own[FAKE_SEGMENTS];
	uint16_t n_own;
	unsigned n_loans;        /* loans that have not ended */
	struct fake_sent *taken; /* the message that fake_take returned */
};

void fake_init(struct fake_xport *x, const struct xport_events *ev, void *ctx);
/* Close open connections and free everything. */
void fake_fini(struct fake_xport *x);

/* Connect a peer; calls up. */
struct fake_conn *fake_accept(struct fake_xport *x, uint32_t peer_id, uint64_t instance);
/* Start a connection as the shell does. It waits for fake_up. */
struct fake_conn *fake_connect(struct fake_xport *x, uint32_t peer_id, void *user);
void fake_up(struct fake_conn *c);
/* Lose the connection: its reads end with -ECANCELED, then down is called. */
void fake_down(struct fake_conn *c, const char *why);

/* Deliver a message from the peer. */
void fake_deliver(struct fake_conn *c, const struct wire_msg *m);
/* Return the oldest message to the peer, valid until the next fake_take. NULL: none. */
const struct wire_msg *fake_take(struct fake_conn *c);
/* Allow n more sends. Calls writable if one was refused. */
void fake_grant(struct fake_conn *c, size_t n);
/* Allow n more patient offers. */
void fake_make_room(struct fake_conn *c, size_t n);

/* Return the i-th oldest running read. NULL: none. */
const struct xport_read *fake_read_at(const struct fake_conn *c, unsigned i);
/* End the i-th read. With status 0 its bytes are copied from the peer's memory. */
void fake_end_read(struct fake_conn *c, unsigned i, int status);

/* Return the bytes at an offset of one of the core's own segments. NULL: outside of it. */
const void *fake_own(const struct fake_xport *x, uint16_t segment, uint64_t offset, size_t bytes);
#endif
