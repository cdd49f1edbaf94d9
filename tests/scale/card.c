/* Hosts and their network cards. A lane is one direction of a connection's channel. Bytes that
 * leave a host wait for its card. The card serves its lanes in turn, and sends one quantum of bytes
 * from a lane at a time. One latency later the bytes reach the receiver's card. They wait there
 * until the card has received all earlier bytes. A card sends whenever it has bytes to send.
 * Connections share the card as TCP connections do. The switch between the cards never blocks. The
 * window of a lane limits the lane's bytes in flight. Bytes are in flight until the receiving
 * thread has had time to process them. */
#include "tests/scale/scale.h"

#define KERNEL_BYTES (UINT32_C(64) << 10) /* SOCKET_AHEAD_SLOW of flow/socket_window.h */

static struct scale_lane *lane_of(const struct scale_item *it)
{
	return it->is_answer ? &it->end->peer->answer : &it->end->peer->say;
}

static void on_arrived(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_item *it = p;

	(void)w, (void)a;
	scale_node_post(it->end->node, it);
}

static void card_send(struct scale_world *w, struct scale_host *h);
static void take_turn(struct scale_world *w, struct scale_lane *l);

/* The sender receives the acknowledgment of bytes. */
static void on_ack(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_lane *l = p;

	l->on_way -= (uint32_t)a;
	if (!l->has_turn)
		take_turn(w, l);
	card_send(w, l->host);
}

static uint64_t latency_ns(const struct scale_world *w)
{
	return (uint64_t)(w->o.latency_us * 1e3);
}

/* A quantum arrives at the card of its receiver. a: twice the quantum's number of bytes, plus 1 if
 * the quantum is the last one of an item. */
static void on_quantum(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_item *it = p;
	struct scale_host *from = it->end->peer->node->host, *to = it->end->node->host;
	uint64_t bytes = a >> 1, busy = it->end->node->busy_until, sent, got;

	if (it->offer)
		scale_net_begun(it->offer);
	sent = w->now + (uint64_t)((double)bytes * from->tx_ns);
	got = (w->now > to->rx_free ? w->now : to->rx_free) + (uint64_t)((double)bytes * to->rx_ns);
	to->rx_free = got > sent ? got : sent;
	to->rx_bytes += bytes;
	if (lane_of(it)->window)
		scale_post(w, (busy > to->rx_free ? busy : to->rx_free) + latency_ns(w), on_ack,
			lane_of(it), bytes);
	if (a & 1)
		scale_post(w, to->rx_free, on_arrived, it, 0);
}

static uint32_t next_bytes(const struct scale_world *w, const struct scale_lane *l)
{
	return l->out->left < w->o.quantum ? l->out->left : w->o.quantum;
}

/* If the lane has bytes to send and its window permits sending, queue the lane at its card. */
static void take_turn(struct scale_world *w, struct scale_lane *l)
{
	l->has_turn =
		l->out && (!l->window || !l->on_way || l->on_way + next_bytes(w, l) <= l->window);
	if (!l->has_turn)
		return;
	l->next_turn = NULL;
	*l->host->turn_tail = l;
	l->host->turn_tail = &l->next_turn;
}

static void on_sent(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_lane *l = p;

	(void)a;
	l->host->is_sending = false;
	take_turn(w, l);
	card_send(w, l->host);
}

/* Move items from the process into the kernel's buffer while the buffer has room. */
static void fill(struct scale_world *w, struct scale_lane *l, struct scale_end *from)
{
	struct scale_item *it;

	while ((it = l->outside) && l->inside_bytes + it->left <= KERNEL_BYTES) {
		l->inside_bytes += it->left;
		l->outside = it->next;
		if (!it->offer)
			continue;
		l->n_eager--;
		l->eager_bytes -= it->len;
	}
	scale_net_room(w, from);
}

static void card_send(struct scale_world *w, struct scale_host *h)
{
	struct scale_lane *l = h->turn;
	struct scale_item *it;
	uint32_t bytes;

	if (h->is_sending || !l)
		return;
	h->turn = l->next_turn;
	if (!h->turn)
		h->turn_tail = &h->turn;
	it = l->out;
	bytes = next_bytes(w, l);
	it->left -= bytes;
	if (l->window)
		l->on_way += bytes;
	if (it != l->outside)
		l->inside_bytes -= bytes;
	fill(w, l, it->end->peer);
	if (!it->left) {
		l->out = it->next;
		if (!l->out)
			l->out_tail = &l->out;
	}
	h->is_sending = true;
	h->tx_bytes += bytes;
	scale_post(w, w->now + latency_ns(w), on_quantum, it, (uint64_t)bytes << 1 | !it->left);
	scale_post(w, w->now + (uint64_t)((double)bytes * h->tx_ns), on_sent, l, 0);
}

void card_transmit(struct scale_node *from, struct scale_item *it)
{
	struct scale_world *w = from->w;
	struct scale_host *h = from->host;
	struct scale_lane *l = lane_of(it);

	if (h == it->end->node->host) {
		double ns = w->o.local_gbps > 0 ? (double)it->left * 8 / w->o.local_gbps : 0;

		h->local_free = (h->local_free > w->now ? h->local_free : w->now) + (uint64_t)ns;
		scale_post(w, h->local_free, on_arrived, it, 0);
		return;
	}
	it->next = NULL;
	*l->out_tail = it;
	l->out_tail = &it->next;
	if (!l->outside)
		l->outside = it;
	fill(w, l, it->end->peer);
	if (!l->has_turn)
		take_turn(w, l);
	card_send(w, h);
}
