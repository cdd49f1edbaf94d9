#ifndef BPS_COMMON_TRANSPORT_SOCKETS_EAGER_POLICY_H
#define BPS_COMMON_TRANSPORT_SOCKETS_EAGER_POLICY_H
/* Policy of one connection's sender: decide whether the next offer's bytes are sent with it.
 *
 * A peer without room for eager bytes discards them and requests them later: then they are sent
 * twice. So when it requests bytes that were sent, offers are sent without their bytes for a while.
 * A few offers with bytes test at intervals whether the peer has room. The interval doubles when
 * one of them was requested, too; else it halves, until no bytes are held back. Pure; the transport
 * and the simulator of bandwidth (tests/scale) share it. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number of remembered offers that were sent with their bytes. At 128 KiB each, they cover what a
 * server reads of one agent at a time by default (8 MiB). A request for an older one is not
 * noticed. */
#define EAGER_POLICY_NOTED    64
#define EAGER_POLICY_REST_MIN 8
#define EAGER_POLICY_REST_MAX 512
#define EAGER_POLICY_TRIES    4

struct eager_policy_offer {
	uint64_t offset;
	uint32_t len; /* 0: none */
	uint16_t segment;
};
struct eager_policy {
	struct eager_policy_offer noted[EAGER_POLICY_NOTED];
	unsigned next;
	uint32_t
		/* Number of offers without their bytes before the next EAGER_POLICY_TRIES; 0: all
		 * go with them */
		rest;
	uint32_t rest_left, tries_left;
	bool is_refused; /* bytes were requested since the last tries began */
};

static inline bool eager_policy_may_go(const struct eager_policy *u)
{
	return !u->rest_left;
}

/* Find a remembered offer that has this byte; NULL: none. */
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

/* Record an offer that was sent without them, and will be requested. */
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

/* Handle a request of the peer: were these bytes sent with their offer? */
static inline void eager_policy_asked(struct eager_policy *u, uint16_t segment, uint64_t offset)
{
	struct eager_policy_offer *o = eager_policy_find(u, segment, offset);

	if (!o)
		return;
	o->len = 0; /* requests for its other pieces mean the same */
	u->is_refused = true;
	if (u->rest)
		return;
	u->rest_left = EAGER_POLICY_REST_MIN;
	u->rest = EAGER_POLICY_REST_MIN / 2; /* interval before the first tries */
}
#endif
