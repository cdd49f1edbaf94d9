/* Hosts and their network cards. What leaves a host waits for its card, which serves its
 * connections in turn, a quantum each; it reaches the other card one latency later and waits there
 * for those that came before. So each card is always busy while it has something to do, connections
 * share it as TCP's do, and the switch between them blocks nobody. */
#include "tests/scale/scale.h"

static void on_arrived(struct world *w, void *p, uint64_t a)
{
	struct item *it = p;

	(void)w, (void)a;
	node_post(it->end->node, it);
}

/* A quantum begins to reach its host's card. a: its bytes, and whether it is the last. */
static void on_quantum(struct world *w, void *p, uint64_t a)
{
	struct item *it = p;
	struct host *from = it->end->peer->node->host, *to = it->end->node->host;
	uint64_t bytes = a >> 1, sent, got;

	sent = w->now + (uint64_t)((double)bytes * from->tx_ns);
	got = (w->now > to->rx_free ? w->now : to->rx_free) + (uint64_t)((double)bytes * to->rx_ns);
	to->rx_free = got > sent ? got : sent;
	to->rx_bytes += bytes;
	if (a & 1)
		post(w, to->rx_free, on_arrived, it, 0);
}

static void card_send(struct world *w, struct host *h);

static void take_turn(struct lane *l)
{
	l->has_turn = true;
	l->next_turn = NULL;
	*l->host->turn_tail = l;
	l->host->turn_tail = &l->next_turn;
}

static void on_sent(struct world *w, void *p, uint64_t a)
{
	struct lane *l = p;

	(void)a;
	l->host->is_sending = false;
	if (l->out)
		take_turn(l);
	else
		l->has_turn = false;
	card_send(w, l->host);
}

static void card_send(struct world *w, struct host *h)
{
	struct lane *l = h->turn;
	struct item *it;
	uint32_t bytes;

	if (h->is_sending || !l)
		return;
	h->turn = l->next_turn;
	if (!h->turn)
		h->turn_tail = &h->turn;
	it = l->out;
	bytes = it->left < w->o.quantum ? it->left : w->o.quantum;
	it->left -= bytes;
	if (!it->left) {
		l->out = it->next;
		if (!l->out)
			l->out_tail = &l->out;
	}
	h->is_sending = true;
	h->tx_bytes += bytes;
	post(w, w->now + (uint64_t)(w->o.latency_us * 1e3), on_quantum, it,
		(uint64_t)bytes << 1 | !it->left);
	post(w, w->now + (uint64_t)((double)bytes * h->tx_ns), on_sent, l, 0);
}

void card_transmit(struct node *from, struct item *it)
{
	struct world *w = from->w;
	struct host *h = from->host;
	struct lane *l = it->is_answer ? &it->end->peer->answer : &it->end->peer->say;

	if (h == it->end->node->host) {
		double ns = w->o.local_gbps > 0 ? (double)it->left * 8 / w->o.local_gbps : 0;

		h->local_free = (h->local_free > w->now ? h->local_free : w->now) + (uint64_t)ns;
		post(w, h->local_free, on_arrived, it, 0);
		return;
	}
	it->next = NULL;
	*l->out_tail = it;
	l->out_tail = &it->next;
	if (!l->has_turn)
		take_turn(l);
	card_send(w, h);
}
