#ifndef BPS_TESTS_FAKE_XPORT_H
#define BPS_TESTS_FAKE_XPORT_H
/* A transport for unit tests of the cores (common/transport/xport.h): synchronous, nothing happens
 * by itself. What the core sends is kept until the test takes it; reads wait until the test ends
 * them. Messages pass through wire_encode and wire_decode both ways, so that a field that does not
 * travel is missed here too.
 *
 *   core --send--> conn's queue --fake_take--> test --fake_deliver--> core
 *   core --read--> conn's list --fake_end_read--> read_done
 *
 * A peer on the same host: set conn's base.is_same_host; then its segments can be borrowed.
 *
 * A closed connection stays in memory until fake_fini, so that a test can see that it is. One
 * thread. */
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
	struct fake_segment peer[FAKE_SEGMENTS]; /* the peer's memory, that reads may name */
	size_t n_sent, n_reads;
	unsigned *n_loans; /* of the xport */
	size_t credit;     /* sends until -EAGAIN */
	size_t room;       /* patient offers until -EAGAIN */
	size_t read_limit; /* reads until -EAGAIN */
	uint64_t heard_ns; /* what the transport says */
	bool is_up, is_closed, was_refused;
	char why[128]; /* it was closed */
};

struct fake_xport {
	struct xport base;
	TAILQ_HEAD(, fake_conn) conns;
	struct fake_segment own[FAKE_SEGMENTS];
	uint16_t n_own;
	unsigned n_loans;        /* that have not ended */
	struct fake_sent *taken; /* the message that fake_take lent */
};

void fake_init(struct fake_xport *x, const struct xport_events *ev, void *ctx);
/* Closes what is open first. */
void fake_fini(struct fake_xport *x);

/* A peer connects: runs up. */
struct fake_conn *fake_accept(struct fake_xport *x, uint32_t peer_id, uint64_t instance);
/* What the shell does to connect: a connection that waits for fake_up. */
struct fake_conn *fake_connect(struct fake_xport *x, uint32_t peer_id, void *user);
void fake_up(struct fake_conn *c);
/* The connection is lost: its reads end with -ECANCELED, then down runs. */
void fake_down(struct fake_conn *c, const char *why);

/* A message from the peer. */
void fake_deliver(struct fake_conn *c, const struct wire_msg *m);
/* The oldest message to the peer, lent until the next fake_take; NULL: none. */
const struct wire_msg *fake_take(struct fake_conn *c);
/* Grant n more sends; writable runs if one was refused. */
void fake_grant(struct fake_conn *c, size_t n);
/* The same for patient offers. */
void fake_make_room(struct fake_conn *c, size_t n);

/* The i-th oldest running read; NULL: none. */
const struct xport_read *fake_read_at(const struct fake_conn *c, unsigned i);
/* It ends: with status 0 its bytes are copied from the peer's memory. */
void fake_end_read(struct fake_conn *c, unsigned i, int status);

/* Bytes at an offset of one of the core's own segments; NULL: outside of it. */
const void *fake_own(const struct fake_xport *x, uint16_t segment, uint64_t offset, size_t bytes);
#endif
