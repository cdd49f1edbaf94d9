/* A data thread. It processes one item after the other. Processing an item takes time. The messages
 * that the item causes are sent at the end of that time. */
#include "tests/scale/scale.h"

static void node_run(struct scale_node *n);

void scale_node_init(struct scale_world *w, struct scale_node *n, struct scale_host *host)
{
	*n = (struct scale_node){.w = w, .host = host, .speed = 1};
	n->inbox_tail = &n->inbox;
	n->outbox_tail = &n->outbox;
}

static void append(struct scale_item ***tail, struct scale_item *it)
{
	it->next = NULL;
	**tail = it;
	*tail = &it->next;
}

void scale_node_send(struct scale_node *n, struct scale_item *it)
{
	it->wire_bytes = it->end->node->host == n->host ? 0 : it->left;
	n->wire_bytes += it->wire_bytes;
	append(&n->outbox_tail, it);
}

void scale_node_post(struct scale_node *n, struct scale_item *it)
{
	append(&n->inbox_tail, it);
	node_run(n);
}

void scale_node_kick(struct scale_node *n)
{
	n->has_work = true;
	node_run(n);
}

static void flush(struct scale_node *n)
{
	struct scale_item *it = n->outbox, *next;

	n->outbox = NULL;
	n->outbox_tail = &n->outbox;
	for (; it; it = next) {
		next = it->next;
		card_transmit(n, it);
	}
}

static void on_free(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_node *n = p;

	(void)w, (void)a;
	flush(n);
	node_run(n);
}

static void on_tick(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_node *n = p;

	(void)w;
	if (a != n->tick_at)
		return;
	n->tick_at = 0;
	scale_node_kick(n);
}

static bool turn(struct scale_node *n)
{
	struct scale_item *it = n->inbox;

	if (it) {
		n->inbox = it->next;
		if (!n->inbox)
			n->inbox_tail = &n->inbox;
		n->wire_bytes += it->wire_bytes;
		it->fn(n, it);
		n->has_work = true;
		return true;
	}
	if (n->has_work)
		n->has_work = n->work(n->core);
	return n->has_work;
}

static void arm(struct scale_node *n, uint64_t at)
{
	if (at == UINT64_MAX || (n->tick_at && n->tick_at <= at))
		return;
	n->tick_at = at > n->w->now ? at : n->w->now + 1;
	scale_post(n->w, n->tick_at, on_tick, n, n->tick_at);
}

/* Return the nanoseconds that the node needs for what it has just done. */
static double cost_ns(struct scale_node *n)
{
	double ns = n->cost(n) + (double)n->wire_bytes * n->cpu_ns;

	n->wire_bytes = 0;
	return ns / n->speed;
}

static void node_run(struct scale_node *n)
{
	struct scale_world *w = n->w;
	uint64_t next = UINT64_MAX;
	bool more = true;

	if (n->is_running || w->now < n->busy_until)
		return;
	n->is_running = true;
	while (more) {
		double cost;

		next = n->tick(n->core, w->now);
		more = turn(n);
		cost = cost_ns(n);
		if (cost >= 1) {
			n->busy_until = w->now + (uint64_t)cost;
			scale_post(w, n->busy_until, on_free, n, 0);
			break;
		}
		flush(n);
	}
	n->is_running = false;
	if (!more)
		next = n->tick(n->core, w->now);
	arm(n, next);
}
