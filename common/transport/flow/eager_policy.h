#ifndef BPS_COMMON_TRANSPORT_FLOW_EAGER_POLICY_H
#define BPS_COMMON_TRANSPORT_FLOW_EAGER_POLICY_H
/* Policy of the sending side of a connection. The policy decides whether the next offer is sent
 * together with its bytes, before the peer requests these bytes.
 *
 * If a peer cannot yet receive the bytes of an offer, the peer discards the bytes and requests the
 * same bytes later. Over libfabric the peer reports this with the message DISCARDED. The bytes are
 * then sent twice. To avoid this, the sender sends offers without bytes for a while after the peer
 * has requested bytes that were already sent. At intervals the sender sends EAGER_POLICY_TRIES
 * offers with bytes, to test whether the peer takes the bytes. If the peer requests bytes that were
 * sent in a test, the interval doubles. Otherwise the interval halves, until all offers are sent
 * with their bytes. The functions are pure: they do no I/O, and use no clock and no threads. The
 * transport and the simulator of bandwidth (tests/scale) share this policy. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* EAGER_OUT_MAX: largest number of offers whose eager bytes wait to be sent; further offers wait,
 * or are sent without bytes (is_patient of xport_send_eager). 32 partitions of 128 KiB are more
 * than may be ahead (SOCKET_AHEAD), so the number matters only for small offers.
 * EAGER_IN_MAX: largest number of the peer's offers that are recorded until their eager bytes
 * arrive; the bytes of further offers are discarded. */
#define EAGER_OUT_MAX 32
#define EAGER_IN_MAX  128

/* Number of offers that the sender remembers. The sender remembers the most recent offers that were
 * sent together with their bytes. If each of these offers has 128 KiB, the offers have 8 MiB
 * together. By default a server reads this amount from one agent at a time. If the peer requests
 * the bytes of an older offer, the policy does not notice that the bytes were already sent. */
#define EAGER_POLICY_NOTED    64
#define EAGER_POLICY_REST_MIN 8
#define EAGER_POLICY_REST_MAX 512
#define EAGER_POLICY_TRIES    4

struct eager_policy_offer {
	uint64_t offset;
	uint32_t len; /* length of the offer in bytes; 0: the element is not used */
	uint16_t segment;
};
struct eager_policy {
	struct eager_policy_offer noted[EAGER_POLICY_NOTED];
	unsigned next;
	/* Number of offers between two tests. These offers are sent without their bytes. In a test,
	 * EAGER_POLICY_TRIES offers are sent with their bytes. 0: all offers are sent with their
	 * bytes. */
	uint32_t rest;
	uint32_t rest_left, tries_left;
	/* Since the last test began, the peer has requested bytes that had already been sent */
	bool is_refused;
};

/* Return whether the bytes of one more offer may be queued. n, bytes: offers and bytes that wait to
 * be sent. If is_patient, fewer than ahead_bytes bytes may wait. */
static inline bool eager_policy_has_room(
	unsigned n, uint32_t bytes, uint32_t ahead_bytes, bool is_patient)
{
	return n < EAGER_OUT_MAX && (!is_patient || bytes < ahead_bytes);
}

/* Return whether the next offer may be sent with its bytes. */
static inline bool eager_policy_may_go(const struct eager_policy *u)
{
	return !u->rest_left;
}

/* Find the remembered offer that contains the byte at `offset` of `segment`. Returns NULL when
 * there is no such offer. */
static inline struct eager_policy_offer *eager_policy_find(
	struct eager_policy *u, uint16_t segment, uint64_t offset)
{
	for (unsigned i = 0; i < EAGER_POLICY_NOTED; i++) {
		struct eager_policy_offer *o = &u->noted[i];

		if (o->segment == segment && offset - o->offset < o->len)
			return o;
	}
	return NULL;
}

static inline void eager_policy_forget(struct eager_policy *u, uint16_t segment, uint64_t offset)
{
	struct eager_policy_offer *o = eager_policy_find(u, segment, offset);

	if (o)
		o->len = 0;
}

/* Record an offer that was sent with its bytes. */
static inline void eager_policy_sent(
	struct eager_policy *u, uint16_t segment, uint64_t offset, uint32_t len)
{
	eager_policy_forget(u, segment, offset);
	u->noted[u->next] = (struct eager_policy_offer){offset, len, segment};
	u->next = (u->next + 1) % EAGER_POLICY_NOTED;
	if (u->rest && --u->tries_left == 0)
		u->rest_left = u->rest;
}

/* Record an offer that was sent without its bytes. */
static inline void eager_policy_held_back(struct eager_policy *u, uint16_t segment, uint64_t offset)
{
	eager_policy_forget(u, segment, offset);
	if (!u->rest_left || --u->rest_left)
		return;
	if (!u->is_refused)
		u->rest = u->rest / 2 < EAGER_POLICY_REST_MIN ? 0 : u->rest / 2;
	else if (u->rest < EAGER_POLICY_REST_MAX)
		u->rest *= 2;
	u->is_refused = false;
	u->tries_left = EAGER_POLICY_TRIES;
}

/* Handle a request of the peer, or a message DISCARDED. If the requested bytes were already sent
 * with their offer, send the next offers without bytes. */
static inline void eager_policy_asked(struct eager_policy *u, uint16_t segment, uint64_t offset)
{
	struct eager_policy_offer *o = eager_policy_find(u, segment, offset);

	if (!o)
		return;
	o->len = 0; /* do not count further requests for bytes of this offer */
	u->is_refused = true;
	if (u->rest)
		return;
	u->rest_left = EAGER_POLICY_REST_MIN;
	/* eager_policy_held_back doubles `rest` before the first test */
	u->rest = EAGER_POLICY_REST_MIN / 2;
}
#endif
