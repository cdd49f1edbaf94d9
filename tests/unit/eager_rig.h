#ifndef BPS_TESTS_UNIT_EAGER_RIG_H
#define BPS_TESTS_UNIT_EAGER_RIG_H
/* Ends that make and receive offers, for the tests of eager bytes with all transports: bytes that
 * are sent with their offer and without a request (xport_send_eager). */
#include "tests/unit/net_rig.h"

#define TAKER_MANY 400

/* State of an end that receives offers: the offers that it has received, and its reads of the
 * offered bytes. Rounds count from 1. */
struct taker {
	struct mem to;
	struct wire_msg heard[TAKER_MANY];
	struct xport_read reads[TAKER_MANY];
	unsigned n_heard, n_begun;
	bool is_asked; /* one of the reads had to request its bytes */
};

/* takers[0]: the client; takers[1]: the server. */
extern struct taker takers[2];
/* Return the number of bytes or pieces that a connection has requested and not received. A test
 * sets this function before it calls `take`. */
extern unsigned (*taker_requests)(const struct net_node *n);

struct taker *taker_of(const struct net_node *n);
struct wire_msg offer_of(const struct mem *m, uint64_t round, uint64_t offset, uint32_t len);
int send_offer(
	struct net_node *n, const struct mem *m, uint64_t round, uint64_t offset, uint32_t len);
/* Read the bytes of the i-th offer into `to`, at the offset that the bytes have in the offered
 * memory. */
int take(struct net_node *n, unsigned i);
/* Values of on_message: record an offer; record an offer and read its bytes. */
void hear(struct net_node *n, struct xconn *c, const struct wire_msg *m);
void hear_and_take(struct net_node *n, struct xconn *c, const struct wire_msg *m);
/* Read the bytes of all recorded offers. Returns whether there are any. */
bool take_all_heard(struct net_node *n);
void check_bytes(const struct taker *t, unsigned i, const struct mem *from);
uint64_t discarded(const struct net_node *n);

/* Two ends: the server makes offers and the client reads them. */
struct offer_pair {
	struct net_rig r;
	struct mem from;
	struct taker *t;
};

/* Let the client handle messages late: bytes wait until it has read them, or has said that it will
 * not (`decided` of struct xport_ops). p->from has two times len bytes. */
void bytes_wait_for_a_late_owner(struct offer_pair *p, uint32_t len);

#define EAGER_BATCH 8
/* Make EAGER_BATCH offers of len bytes at a time, and read each batch in the opposite order. */
void read_batches_backwards(struct offer_pair *p, uint32_t len);
#endif
