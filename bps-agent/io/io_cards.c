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
#define BAD_NS UINT64_C(60000000000)

/* ---- servers ---- */

static struct io_peer *xport_find_peer(struct io_xport *x, uint32_t id)
{
	for (unsigned i = 0; i < x->n_peers; i++)
		if (x->peers[i].id == id)
			return &x->peers[i];
	return NULL;
}

static void xport_note_bad_card(struct io_xport *x, uint32_t id, unsigned card)
{
	struct io_peer *p = xport_find_peer(x, id);

	if (!p) {
		p = realloc(x->peers, (x->n_peers + 1) * sizeof(*p));
		if (!p)
			return; /* the card is tried again */
		x->peers = p;
		p += x->n_peers++;
		*p = (struct io_peer){.id = id};
	}
	if (x->now_ns >= p->until_ns)
		p->bad_cards = 0;
	p->bad_cards |= UINT32_C(1) << card;
	p->until_ns = x->now_ns + BAD_NS;
}

/* Return the cards that do not reach the server, a bit for each. */
static uint32_t xport_bad_cards(struct io_xport *x, uint32_t id)
{
	const struct io_peer *p = xport_find_peer(x, id);

	return p && x->now_ns < p->until_ns ? p->bad_cards : 0;
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
static bool card_is_near(const struct io_card_config *card, const struct sockaddr_storage *peer)
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

static uint32_t cards_where(const struct io_xport *x, uint32_t among,
	bool (*is_so)(const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer),
	const struct sockaddr_storage *peer)
{
	uint32_t found = 0;

	for (unsigned i = 0; i < x->cfg.n_cards; i++)
		if (among >> i & 1 && is_so(x, i, peer))
			found |= UINT32_C(1) << i;
	return found ? found : among;
}

static bool is_near(const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer)
{
	return card_is_near(&x->cfg.cards[card], peer);
}

static bool has_carrier(
	const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer)
{
	(void)peer;
	return x->cards[card].has_carrier;
}

static bool is_in_use(const struct io_xport *x, unsigned card, const struct sockaddr_storage *peer)
{
	return has_carrier(x, card, peer) && x->now_ns >= x->cards[card].out_ns;
}

/* Return the cards over which a connection may go, a bit for each, at least one: those with a
 * carrier, of these those that are in use, of these those that reach the server, of these those in
 * the server's subnet. A condition that no card meets is left out. */
static uint32_t conn_candidates(struct io_xport *x, const struct io_conn *c)
{
	uint32_t all = (UINT32_C(1) << x->cfg.n_cards) - 1, good;

	all = cards_where(x, all, has_carrier, &c->peer);
	all = cards_where(x, all, is_in_use, &c->peer);
	good = all & ~xport_bad_cards(x, c->pub.peer_id);
	return cards_where(x, good ? good : all, is_near, &c->peer);
}

/* Return the time in which a card would send n_conns equal shares, in any unit. */
static double card_load(const struct io_xport *x, unsigned card, unsigned n_conns)
{
	bool is_known = true;

	for (unsigned i = 0; i < x->cfg.n_cards; i++)
		is_known &= x->cfg.cards[i].mbps > 0;
	return n_conns / (is_known ? (double)x->cfg.cards[card].mbps : 1.0);
}

static unsigned cards_choose(struct io_xport *x, const struct io_conn *c)
{
	uint32_t candidates = conn_candidates(x, c);
	unsigned best = IO_CARDS_MAX;

	for (unsigned i = 0; i < x->cfg.n_cards; i++)
		if (candidates >> i & 1 &&
			(best == IO_CARDS_MAX ||
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

static bool conn_is_on_card(const struct io_conn *c, unsigned card)
{
	return c->t->card == card && !(c->is_up && c->pub.is_same_host);
}

/* Return whether a connection of the card has received anything lately. */
static bool card_is_heard(const struct io_xport *x, unsigned card)
{
	const struct io_conn *c;

	LIST_FOREACH (c, &x->conns, all)
		if (conn_is_on_card(c, card) && c->is_up && !c->is_down &&
			x->now_ns - io_conn_heard_ns(c) < x->cfg.silent_ns)
			return true;
	return false;
}

/* Leave out a card whose connections are all silent, for longer each time. */
static void card_note_silence(struct io_xport *x, unsigned i)
{
	struct io_card *card = &x->cards[i];
	bool was_good_long = x->now_ns >= card->out_ns + 2 * card->rest_ns;

	if (!card->has_carrier || x->now_ns < card->out_ns || card_is_heard(x, i))
		return;
	card->rest_ns = was_good_long ? RETURN_NS : 2 * card->rest_ns;
	if (card->rest_ns > REST_MAX_NS)
		card->rest_ns = REST_MAX_NS;
	card->out_ns = x->now_ns + card->rest_ns;
	card->is_lost = true;
	x->balance_ns = x->now_ns;
	log_warn("the connections of network card %s are silent, so it is left out: seconds=%llu",
		x->cfg.cards[i].name, (unsigned long long)(card->rest_ns / 1000000000));
}

void io_cards_note_up(struct io_conn *c)
{
	struct io_xport *x = c->t->x;
	struct io_peer *p = xport_find_peer(x, c->pub.peer_id);

	if (p)
		p->bad_cards &= ~(UINT32_C(1) << c->t->card);
	if (c->pub.is_same_host)
		x->cards[c->t->card].n_conns--;
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
	if (x->cfg.n_cards == 1 || c->is_closing || c->is_moving)
		return;
	if (!c->is_up)
		xport_note_bad_card(x, c->pub.peer_id, c->t->card);
	if (x->now_ns - io_conn_heard_ns(c) >= x->cfg.silent_ns)
		card_note_silence(x, c->t->card);
}

void io_xport_set_carrier(struct xport *xp, unsigned i, bool has_carrier_now)
{
	struct io_xport *x = (struct io_xport *)xp;
	struct io_card *card = &x->cards[i];

	if (i >= x->cfg.n_cards || card->has_carrier == has_carrier_now)
		return;
	card->has_carrier = has_carrier_now;
	if (has_carrier_now)
		card->out_ns = x->now_ns + RETURN_NS;
	card->is_lost = !has_carrier_now;
	x->balance_ns = x->now_ns;
	log_info("network card %s %s", x->cfg.cards[i].name,
		has_carrier_now ? "has a carrier again" : "has lost its carrier");
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
	for (unsigned i = 0; i < x->cfg.n_cards; i++)
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

void io_cards_balance(struct io_xport *x)
{
	struct io_conn *c;

	if (x->cfg.n_cards == 1 || x->now_ns < x->balance_ns)
		return;
	x->balance_ns = x->now_ns + BALANCE_NS;
	cards_leave_lost(x);
	c = cards_find_move(x);
	if (c)
		io_conn_lose(c, "it moves to a network card with fewer connections");
}
