/* Chooses the network card of each connection, and lets connections begin again on another card
 * when theirs is lost or has too many. A card is lost when it has no carrier, or when all its
 * connections are silent. A lost card is left out for RETURN_NS, and longer each time that its
 * connections fall silent again. A connection is on one card as a whole: parts of it on several
 * cards would wait for the slowest. Thread: the data thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>

#include "bps-agent/io/io_impl.h"
#include "common/base/addr.h"
#include "common/base/log.h"

#define RETURN_NS   UINT64_C(30000000000)
#define REST_MAX_NS UINT64_C(600000000000)
#define BALANCE_NS  UINT64_C(1000000000)
/* A card that could not reach a server is tried again after this time. */
#define UNREACHABLE_NS UINT64_C(60000000000)

/* ---- servers ---- */

static struct io_peer *cards_find_peer(struct io_xport *x, uint32_t id)
{
	for (unsigned i = 0; i < x->n_peers; i++)
		if (x->peers[i].id == id)
			return &x->peers[i];
	return NULL;
}

static void io_peer_note_unreachable(struct io_xport *x, uint32_t id, unsigned card)
{
	struct io_peer *p = cards_find_peer(x, id);

	if (!p) {
		p = realloc(x->peers, (x->n_peers + 1) * sizeof(*p));
		if (!p)
			return; /* the card is tried again */
		x->peers = p;
		p += x->n_peers++;
		*p = (struct io_peer){.id = id};
	}
	p->unreachable |= UINT32_C(1) << card;
	p->until_ns = x->now_ns + UNREACHABLE_NS;
}

/* Return the cards that do not reach the server, a bit for each. A new connection may try them
 * again after some time. A connection that works is not moved to them. */
static uint32_t io_peer_unreachable(struct io_xport *x, const struct io_conn *c)
{
	const struct io_peer *p = cards_find_peer(x, c->pub.peer_id);

	return p && (c->is_up || x->now_ns < p->until_ns) ? p->unreachable : 0;
}

/* ---- choice ---- */

static bool bytes_are_equal_under_mask(
	const uint8_t *a, const uint8_t *b, const uint8_t *mask, size_t n_bytes)
{
	for (size_t i = 0; i < n_bytes; i++)
		if ((a[i] ^ b[i]) & mask[i])
			return false;
	return true;
}

/* Return whether the address is in the card's subnet. */
static bool is_same_subnet(const struct card *card, const struct sockaddr_storage *peer)
{
	const struct sockaddr_in *a4 = (const void *)&card->addr, *b4 = (const void *)peer;
	const struct sockaddr_in *m4 = (const void *)&card->mask;
	const struct sockaddr_in6 *a6 = (const void *)&card->addr, *b6 = (const void *)peer;
	const struct sockaddr_in6 *m6 = (const void *)&card->mask;

	if (card->addr.ss_family != peer->ss_family || card->mask.ss_family != peer->ss_family)
		return false;
	if (peer->ss_family == AF_INET)
		return !((a4->sin_addr.s_addr ^ b4->sin_addr.s_addr) & m4->sin_addr.s_addr);
	return peer->ss_family == AF_INET6 &&
	       bytes_are_equal_under_mask(a6->sin6_addr.s6_addr, b6->sin6_addr.s6_addr,
		       m6->sin6_addr.s6_addr, sizeof(a6->sin6_addr));
}

static uint32_t cards_filter(const struct io_xport *x, uint32_t among,
	bool (*matches)(
		const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer),
	const struct sockaddr_storage *peer)
{
	uint32_t found = 0;

	for (unsigned i = 0; i < x->cfg.cards->n; i++)
		if (among >> i & 1 && matches(x, i, peer))
			found |= UINT32_C(1) << i;
	return found ? found : among;
}

static bool card_is_in_subnet(
	const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer)
{
	return is_same_subnet(&x->cfg.cards->of[card], peer);
}

static bool card_has_carrier(
	const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer)
{
	(void)peer;
	return x->cards[card].has_carrier;
}

static bool card_is_in_use(
	const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer)
{
	return card_has_carrier(x, card, peer) && x->now_ns >= x->cards[card].unused_until_ns;
}

/* Filter the cards by four conditions in turn: carrier, in use, reaches the server, same subnet.
 * Skip a condition that no card meets. Returns a bit for each card; there is at least one. */
static uint32_t conn_candidates(struct io_xport *x, const struct io_conn *c)
{
	uint32_t all = (UINT32_C(1) << x->cfg.cards->n) - 1, good;

	all = cards_filter(x, all, card_has_carrier, &c->peer);
	all = cards_filter(x, all, card_is_in_use, &c->peer);
	good = all & ~io_peer_unreachable(x, c);
	return cards_filter(x, good ? good : all, card_is_in_subnet, &c->peer);
}

/* Return the time in which a card would send n_conns equal shares, in any unit. */
static double card_load(const struct io_xport *x, unsigned card, unsigned n_conns)
{
	return n_conns / (x->has_speeds ? (double)x->cfg.cards->of[card].mbps : 1.0);
}

static unsigned cards_choose(struct io_xport *x, const struct io_conn *c)
{
	uint32_t candidates = conn_candidates(x, c);
	unsigned best = CARDS_MAX;

	for (unsigned i = 0; i < x->cfg.cards->n; i++)
		if (candidates >> i & 1 &&
			(best == CARDS_MAX ||
				card_load(x, i, x->cards[i].n_conns + 1) <
					card_load(x, best, x->cards[best].n_conns + 1)))
			best = i;
	return best;
}

static struct io_thread *card_least_loaded_thread(struct io_xport *x, unsigned card)
{
	struct io_thread *best = NULL;

	for (unsigned i = 0; i < x->n_threads; i++)
		if (x->threads[i].card == card && (!best || x->threads[i].n_conns < best->n_conns))
			best = &x->threads[i];
	return best;
}

struct io_thread *io_cards_assign(struct io_xport *x, struct io_conn *c, const char *addr)
{
	struct addr a = {.port = 0};
	socklen_t len;

	snprintf(a.host, sizeof(a.host), "%s", addr);
	if (addr_resolve_numeric(&a, &c->peer, &len) < 0)
		c->peer.ss_family = 0;
	c->begun_ns = x->now_ns;
	LIST_INSERT_HEAD(&x->conns, c, all);
	c->t = card_least_loaded_thread(x, cards_choose(x, c));
	c->t->n_conns++;
	x->cards[c->t->card].n_conns++;
	return c->t;
}

/* ---- loss and return ---- */

/* Look at the division of the connections after this time, or earlier. */
static void cards_balance_soon(struct io_xport *x, uint64_t after_ns)
{
	if (x->now_ns + after_ns < x->balance_ns)
		x->balance_ns = x->now_ns + after_ns;
}

static bool conn_is_on_card(const struct io_conn *c, unsigned card)
{
	return c->t->card == card && !(c->is_up && c->pub.is_same_host);
}

/* Return whether a connection has received nothing for a while. The time of the last bytes may be
 * later than x->now_ns, because an I/O thread has its own clock. */
static bool conn_is_silent(const struct io_conn *c)
{
	return c->t->x->now_ns >= io_conn_heard_ns(c) + c->t->x->cfg.silent_ns;
}

/* Return whether a connection of the card has received anything lately. */
static bool card_received_lately(const struct io_xport *x, unsigned card)
{
	const struct io_conn *c;

	LIST_FOREACH (c, &x->conns, all)
		if (conn_is_on_card(c, card) && c->is_up && !c->is_down && !conn_is_silent(c))
			return true;
	return false;
}

/* Leave out a card whose connections are all silent, for longer each time. */
static void card_note_silence(struct io_xport *x, const struct io_conn *c)
{
	unsigned i = c->t->card;
	struct io_card *card = &x->cards[i];
	bool was_good = x->now_ns >= card->unused_until_ns + 2 * card->unused_ns;

	if (!card->has_carrier || x->now_ns < card->unused_until_ns || card_received_lately(x, i))
		return;
	card->unused_ns = was_good ? RETURN_NS : 2 * card->unused_ns;
	if (card->unused_ns > REST_MAX_NS)
		card->unused_ns = REST_MAX_NS;
	card->unused_until_ns = x->now_ns + card->unused_ns;
	card->is_lost = true;
	card->silent_peer = c->pub.peer_id;
	cards_balance_soon(x, 0);
	log_warn("the connections of network card %s are silent, so it is left out: seconds=%llu",
		x->cfg.cards->of[i].nic.name, (unsigned long long)(card->unused_ns / 1000000000));
}

/* A server cannot be reached over a card. If other cards were left out because this server was
 * silent, use them again: the server is down, and not the cards. */
static void cards_excuse(struct io_xport *x, const struct io_conn *c)
{
	for (unsigned i = 0; i < x->cfg.cards->n; i++) {
		struct io_card *card = &x->cards[i];

		if (i == c->t->card || card->silent_peer != c->pub.peer_id ||
			x->now_ns >= card->unused_until_ns)
			continue;
		card->unused_until_ns = card->unused_ns = 0;
		card->is_lost = false;
		cards_balance_soon(x, BALANCE_NS);
	}
}

void io_cards_note_up(struct io_conn *c)
{
	struct io_xport *x = c->t->x;
	struct io_peer *p = cards_find_peer(x, c->pub.peer_id);

	if (p)
		p->unreachable &= ~(UINT32_C(1) << c->t->card);
	if (c->pub.is_same_host)
		x->cards[c->t->card].n_conns--;
	cards_balance_soon(x, BALANCE_NS);
}

void io_cards_note_down(struct io_conn *c)
{
	struct io_xport *x = c->t->x;
	bool is_near_one = c->is_up && c->pub.is_same_host;

	LIST_REMOVE(c, all);
	c->t->n_conns--;
	if (is_near_one)
		return;
	x->cards[c->t->card].n_conns--;
	cards_balance_soon(x, BALANCE_NS);
	if (x->cfg.cards->n == 1 || c->is_closing || c->is_moving)
		return;
	if (!c->is_up) {
		io_peer_note_unreachable(x, c->pub.peer_id, c->t->card);
		cards_excuse(x, c);
	}
	if (conn_is_silent(c))
		card_note_silence(x, c);
}

void io_xport_set_carrier(struct xport *xp, unsigned card, bool has_carrier)
{
	struct io_xport *x = (struct io_xport *)xp;
	struct io_card *c = &x->cards[card];

	if (c->has_carrier == has_carrier)
		return;
	c->has_carrier = has_carrier;
	if (has_carrier)
		c->unused_until_ns = x->now_ns + RETURN_NS;
	c->is_lost = !has_carrier;
	cards_balance_soon(x, 0);
	log_info("network card %s %s", x->cfg.cards->of[card].nic.name,
		has_carrier ? "has a carrier again" : "has lost its carrier");
}

/* ---- moving connections ---- */

static bool conn_may_move(const struct io_conn *c)
{
	return c->is_up && !c->is_down && !c->is_closing && !c->is_moving && !c->pub.is_same_host;
}

/* Let the connections of lost cards begin again, if there is another card. */
static void cards_leave_lost(struct io_xport *x)
{
	struct io_conn *c, *next;

	for (c = LIST_FIRST(&x->conns); c; c = next) {
		next = LIST_NEXT(c, all);
		if (!x->cards[c->t->card].is_lost || c->is_down || c->is_closing || c->is_moving ||
			(c->is_up && c->pub.is_same_host) ||
			conn_candidates(x, c) >> c->t->card & 1)
			continue;
		io_conn_lose(c, "its network card is lost");
		next = LIST_FIRST(&x->conns); /* the core may have begun new connections */
	}
	for (unsigned i = 0; i < x->cfg.cards->n; i++)
		x->cards[i].is_lost = false;
}

/* Find the connection whose move to another card helps most. Returns NULL if no move helps. */
static struct io_conn *cards_find_move(struct io_xport *x)
{
	struct io_conn *c, *best = NULL;
	double gain, best_gain = 0;

	LIST_FOREACH (c, &x->conns, all) {
		unsigned from = c->t->card, to = conn_may_move(c) ? cards_choose(x, c) : from;

		gain = card_load(x, from, x->cards[from].n_conns) -
		       card_load(x, to, x->cards[to].n_conns + 1);
		if (to != from && gain > best_gain) {
			best = c;
			best_gain = gain;
		}
	}
	return best;
}

/* Return after which time a card or a server is tried again, if one is left out. */
static uint64_t cards_next_return_ns(const struct io_xport *x)
{
	uint64_t next_ns = x->now_ns + REST_MAX_NS;

	for (unsigned i = 0; i < x->cfg.cards->n; i++)
		if (x->cards[i].unused_until_ns > x->now_ns &&
			x->cards[i].unused_until_ns < next_ns)
			next_ns = x->cards[i].unused_until_ns;
	for (unsigned i = 0; i < x->n_peers; i++)
		if (x->peers[i].until_ns > x->now_ns && x->peers[i].until_ns < next_ns)
			next_ns = x->peers[i].until_ns;
	return next_ns - x->now_ns;
}

void io_cards_balance(struct io_xport *x)
{
	struct io_conn *c;

	if (x->cfg.cards->n == 1 || x->now_ns < x->balance_ns)
		return;
	x->balance_ns = UINT64_MAX;
	cards_leave_lost(x);
	c = cards_find_move(x);
	cards_balance_soon(x, c ? BALANCE_NS : cards_next_return_ns(x));
	if (c)
		io_conn_lose(c, "it moves to a network card with fewer connections");
}
