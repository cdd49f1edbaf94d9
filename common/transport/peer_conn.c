/* Connections to peers, for all transports: state changes, deadlines, pings, and the check of
 * proofs. Each transport has its own sockets or endpoints. Thread: the data thread. */
#include "common/transport/peer_conn.h"

#include <assert.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/state.h"

static const struct state_row states[] = {
	[CONN_FREE] = {"free", 1u << CONN_CONNECTING | 1u << CONN_ACCEPTING},
	[CONN_CONNECTING] = {"connecting", 1u << CONN_UP | 1u << CONN_DOOMED | 1u << CONN_GONE},
	[CONN_ACCEPTING] = {"accepting", 1u << CONN_UP | 1u << CONN_DOOMED | 1u << CONN_GONE},
	[CONN_UP] = {"up", 1u << CONN_DOOMED | 1u << CONN_GONE},
	[CONN_DOOMED] = {"doomed", 1u << CONN_GONE},
	[CONN_GONE] = {"gone", 1u << CONN_FREE},
};

static struct peer_xport *peer_xport_of_conn(const struct peer_conn *c)
{
	return (struct peer_xport *)c->pub.x;
}

void peer_xport_init(struct peer_xport *x, const struct xport_ops *ops,
	const struct xport_events *ev, void *ctx, unsigned thread, struct peer_times times)
{
	x->pub = (struct xport){.ops = ops, .ev = ev, .ctx = ctx};
	x->thread = thread;
	x->times = times;
	x->now_ns = clock_now_ns();
	x->next_deadline_ns = UINT64_MAX;
	TAILQ_INIT(&x->doomed);
}

void peer_xport_lower_deadline(struct peer_xport *x, uint64_t at_ns)
{
	if (at_ns < x->next_deadline_ns)
		x->next_deadline_ns = at_ns;
}

int peer_xport_poll_fd(struct xport *x)
{
	return ((const struct peer_xport *)x)->epoll_fd;
}

uint64_t peer_next_deadline(struct xport *x)
{
	return ((const struct peer_xport *)x)->next_deadline_ns;
}

uint64_t peer_last_received_ns(const struct xconn *c)
{
	return ((const struct peer_conn *)c)->rx_ns;
}

int peer_close_doomed(struct peer_xport *x)
{
	struct peer_conn *c;
	int n = 0;

	for (; (c = TAILQ_FIRST(&x->doomed)); n++)
		xport_close(&c->pub, c->why);
	return n;
}

void peer_conn_set_state(struct peer_conn *c, enum conn_state to, const char *why)
{
	assert(states[c->state].next >> to & 1);
	log_debug("%sconnection to peer %u in slot %u changes from %s to %s: %s",
		c->pub.is_same_host ? "same-host " : "", c->pub.peer_id, c->slot,
		states[c->state].name, states[to].name, why);
	if (c->state == CONN_DOOMED)
		TAILQ_REMOVE(&peer_xport_of_conn(c)->doomed, c, doomed);
	if (to == CONN_DOOMED)
		TAILQ_INSERT_TAIL(&peer_xport_of_conn(c)->doomed, c, doomed);
	c->state = to;
}

void peer_conn_set_peer(struct peer_conn *c, uint16_t thread, uint32_t peer_id,
	uint64_t peer_instance, const void *key, void *user)
{
	c->pub.user = user;
	c->pub.peer_id = peer_id;
	c->pub.peer_instance = peer_instance;
	c->is_told = true;
	c->peer_thread = thread;
	memcpy(c->key, key, sizeof(c->key));
}

void peer_conn_begin(struct peer_conn *c, enum conn_state state, const char *why)
{
	struct peer_xport *x = peer_xport_of_conn(c);

	c->rx_ns = clock_now_ns();
	c->connect_by_ns = c->rx_ns + x->times.connect_timeout_ms * NS_PER_MS;
	peer_xport_lower_deadline(x, c->connect_by_ns);
	peer_conn_set_state(c, state, why);
}

void peer_conn_come_up(struct peer_conn *c)
{
	struct peer_xport *x = peer_xport_of_conn(c);

	peer_conn_set_state(c, CONN_UP, "handshake done");
	c->is_told = true;
	c->rx_ns = x->now_ns;
	if (x->times.ping_ms)
		peer_xport_lower_deadline(x, x->now_ns + x->times.ping_ms * NS_PER_MS);
}

void peer_conn_heard(struct peer_conn *c)
{
	struct peer_xport *x = peer_xport_of_conn(c);

	c->rx_ns = x->now_ns;
	if (c->is_pinged)
		peer_xport_lower_deadline(x, x->now_ns + x->times.ping_ms * NS_PER_MS);
	c->is_pinged = false;
}

void peer_conn_doom(struct peer_conn *c, const char *fmt, ...)
{

	if (c->state == CONN_DOOMED || c->state == CONN_GONE || c->state == CONN_FREE)
		return;
	format_arguments(c->why, fmt);
	peer_conn_set_state(c, CONN_DOOMED, c->why);
}

void peer_conn_broke_protocol(struct peer_conn *c, const char *what)
{
	log_rated(LOG_AS(LOG_WARN, PEER_BROKEN),
		"peer %u broke the protocol, so this side closes the %sconnection: %s",
		c->pub.peer_id, c->pub.is_same_host ? "same-host " : "", what);
	peer_conn_doom(c, "protocol: %s", what);
}

/* ---- time ---- */

static uint64_t peer_conn_dead_at_ns(const struct peer_conn *c, const struct peer_times *t)
{
	uint64_t by_rx = c->rx_ns + t->dead_ms * NS_PER_MS;
	uint64_t by_ping = c->ping_ns + (t->dead_ms - t->ping_ms) * NS_PER_MS;

	return by_rx > by_ping ? by_rx : by_ping;
}

static bool peer_conn_is_ping_due(struct peer_conn *c)
{
	struct peer_xport *x = peer_xport_of_conn(c);
	uint64_t ping_at_ns = c->rx_ns + x->times.ping_ms * NS_PER_MS, at_ns;
	bool must_ping = !c->is_pinged && x->now_ns >= ping_at_ns;

	if (!x->times.ping_ms)
		return false;
	if (must_ping) {
		c->is_pinged = true;
		c->ping_ns = x->now_ns;
	}
	at_ns = c->is_pinged ? peer_conn_dead_at_ns(c, &x->times) : ping_at_ns;
	if (c->is_pinged && x->now_ns >= at_ns) {
		peer_conn_doom(c, "no byte was received from the peer for %lu ms",
			(unsigned long)((x->now_ns - c->rx_ns) / NS_PER_MS));
		return false;
	}
	peer_xport_lower_deadline(x, at_ns);
	return must_ping;
}

bool peer_conn_tick(struct peer_conn *c)
{
	struct peer_xport *x = peer_xport_of_conn(c);

	if (c->state == CONN_UP)
		return peer_conn_is_ping_due(c);
	if (c->state != CONN_CONNECTING && c->state != CONN_ACCEPTING)
		return false;
	if (x->now_ns < c->connect_by_ns)
		peer_xport_lower_deadline(x, c->connect_by_ns);
	else
		peer_conn_doom(c, "the handshake was not complete after %u ms",
			x->times.connect_timeout_ms);
	return false;
}

/* ---- tickets and proofs ---- */

bool peer_conn_is_second(const struct peer_conn *c, const struct ticket *t)
{
	return c->state == CONN_ACCEPTING && c->pub.peer_id == t->peer_id &&
	       c->pub.peer_instance == t->instance &&
	       peer_conn_nonce(c, CHANNEL_SECOND) == t->nonce;
}

int peer_conn_check_proof(const struct peer_conn *c, enum channel channel, const void *buf,
	size_t n_bytes, struct proof *ret)
{
	int rc = proof_open(buf, n_bytes, peer_conn_nonce(c, channel), c->key, ret);

	if (!rc && (ret->instance != c->pub.peer_instance || ret->peer_id != c->pub.peer_id))
		rc = BPS_EAUTH;
	return rc;
}
