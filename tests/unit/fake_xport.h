#ifndef BPS_TESTS_FAKE_XPORT_H
#define BPS_TESTS_FAKE_XPORT_H
/* A transport for unit tests of the cores (common/transport/xport.h). It is synchronous, and
 * nothing happens by itself. Messages that the core sends are kept until the test takes them. Reads
 * wait until the test ends them. In both directions messages are encoded and decoded by wire_encode
 * and wire_decode. A field that has no encoding is therefore lost, as it is in a real transport.
 *
 *   core --send--> conn's queue --fake_take--> test --fake_deliver--> core
 *   core --read--> conn's list --fake_end_read--> read_done
 *
 * For a peer on the core's host, set base.is_same_host of the connection. The core can then borrow
 * segments of the peer (loans).
 *
 * A closed connection stays in memory until fake_fini, so that a test can see that it is closed.
 * Only one thread may call these functions. */
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
	/* the peer's memory, from which the core can read */
	struct fake_segment peer[FAKE_SEGMENTS];
	size_t n_sent, n_reads;
	unsigned *n_loans; /* points to the transport's counter of loans */
	size_t credit;     /* number of sends that succeed before -EAGAIN */
	size_t room;       /* number of sends with `is_patient` that succeed before -EAGAIN */
	size_t read_limit; /* number of reads that succeed before -EAGAIN */
	/* time of the last message from the peer, as the transport's heard_ns reports it */
	uint64_t heard_ns;
	bool is_up, is_closed, was_refused;
	char why[128]; /* the reason for the close */
};

struct fake_xport {
	struct xport base;
	TAILQ_HEAD(, fake_conn) conns;
	struct fake_segment own[FAKE_SEGMENTS];
	uint16_t n_own;
	unsigned n_loans;        /* number of loans that have not ended */
	struct fake_sent *taken; /* the message that fake_take returned last */
};

void fake_init(struct fake_xport *x, const struct xport_events *ev, void *ctx);
/* Close open connections and free everything. */
void fake_fini(struct fake_xport *x);

/* Accept a connection from a peer. Calls the core's callback `up`. */
struct fake_conn *fake_accept(struct fake_xport *x, uint32_t peer_id, uint64_t instance);
/* Start a connection to a peer. The connection is up only after fake_up. */
struct fake_conn *fake_connect(struct fake_xport *x, uint32_t peer_id, void *user);
void fake_up(struct fake_conn *c);
/* Lose the connection: its reads end with -ECANCELED, and then the callback `down` is called. */
void fake_down(struct fake_conn *c, const char *why);

/* Deliver a message from the peer to the core. */
void fake_deliver(struct fake_conn *c, const struct wire_msg *m);
/* Take and return the oldest message that the core has sent to the peer. The message is valid until
 * the next fake_take. Returns NULL if there is no message. */
const struct wire_msg *fake_take(struct fake_conn *c);
/* Allow n more sends. If a send was refused before, the callback `writable` is called. */
void fake_grant(struct fake_conn *c, size_t n);
/* Allow n more sends with `is_patient`. */
void fake_make_room(struct fake_conn *c, size_t n);

/* Return the i-th oldest read that has not ended, or NULL. */
const struct xport_read *fake_read_at(const struct fake_conn *c, unsigned i);
/* End the i-th read. If status is 0, first copy the read's bytes from the peer's memory. */
void fake_end_read(struct fake_conn *c, unsigned i, int status);

/* Return the bytes at an offset of one of the core's own segments, or NULL if the range is outside
 * of the segment. */
const void *fake_own(const struct fake_xport *x, uint16_t segment, uint64_t offset, size_t bytes);
#endif
