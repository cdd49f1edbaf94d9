#ifndef BPS_COMMON_TRANSPORT_SOCKETS_EAGER_POLICY_H
#define BPS_COMMON_TRANSPORT_SOCKETS_EAGER_POLICY_H
/* Shall the bytes of the next offer go with it? Of one connection, for who offers.
 *
 * A peer that has no room for what comes unasked lets it pass and asks for it later: then it went
 * twice. So when it asks for what was sent, offers go without their bytes for a while, but for a
 * few at a time that find out how it is now: twice as long when one of these was asked for, too,
 * else half as long, until none is held back any more. Pure; the transport and the simulator of
 * bandwidth (tests/scale) share it. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Offers that went with their bytes are remembered: at 128 KiB each, what a server reads of one agent
 * at a time by default (8 MiB). One that is asked for still later goes unnoticed. */
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
		rest; /* offers without their bytes before the next EAGER_POLICY_TRIES; 0: all go with them */
	uint32_t rest_left, tries_left;
	bool is_refused; /* something was asked for since the last tries began */
};

static inline bool eager_policy_may_go(const struct eager_policy *u)
{
	return !u->rest_left;
}

/* A remembered offer of this byte, or NULL. */
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

/* An offer went with its bytes. */
static inline void eager_policy_sent(
	struct eager_policy *u, uint16_t segment, uint64_t offset, uint32_t len)
{
	eager_policy_forget(u, segment, offset);
	u->noted[u->next] = (struct eager_policy_offer){offset, len, segment};
	u->next = (u->next + 1) % EAGER_POLICY_NOTED;
	if (u->rest && --u->tries_left == 0)
		u->rest_left = u->rest;
}

/* One went without them, and will be asked for. */
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

/* The peer asks for bytes: had they gone with their offer? */
static inline void eager_policy_asked(struct eager_policy *u, uint16_t segment, uint64_t offset)
{
	struct eager_policy_offer *o = eager_policy_find(u, segment, offset);

	if (!o)
		return;
	o->len = 0; /* its other pieces say the same */
	u->is_refused = true;
	if (u->rest)
		return;
	u->rest_left = EAGER_POLICY_REST_MIN;
	u->rest = EAGER_POLICY_REST_MIN / 2; /* before the first tries */
}
#endif
