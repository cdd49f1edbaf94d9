/* A data thread: it deals with one thing after the other, and what that costs passes before what it
 * sends leaves. */
#include "tests/scale/scale.h"

static void node_run(struct node *n);

void node_init(struct world *w, struct node *n, struct host *host)
{
	*n = (struct node){.w = w, .host = host};
	n->inbox_tail = &n->inbox;
	n->outbox_tail = &n->outbox;
}

static void append(struct item ***tail, struct item *it)
{
	it->next = NULL;
	**tail = it;
	*tail = &it->next;
}

void node_send(struct node *n, struct item *it)
{
	append(&n->outbox_tail, it);
}

void node_post(struct node *n, struct item *it)
{
	append(&n->inbox_tail, it);
	node_run(n);
}

void node_kick(struct node *n)
{
	n->has_work = true;
	node_run(n);
}

static void flush(struct node *n)
{
	struct item *it = n->outbox, *next;

	n->outbox = NULL;
	n->outbox_tail = &n->outbox;
	for (; it; it = next) {
		next = it->next;
		card_transmit(n, it);
	}
}

static void on_free(struct world *w, void *p, uint64_t a)
{
	struct node *n = p;

	(void)w, (void)a;
	flush(n);
	node_run(n);
}

static void on_tick(struct world *w, void *p, uint64_t a)
{
	struct node *n = p;

	(void)w;
	if (a != n->tick_at)
		return;
	n->tick_at = 0;
	node_kick(n);
}

static bool turn(struct node *n)
{
	struct item *it = n->inbox;

	if (it) {
		n->inbox = it->next;
		if (!n->inbox)
			n->inbox_tail = &n->inbox;
		it->fn(n, it);
		n->has_work = true;
		return true;
	}
	if (n->has_work)
		n->has_work = n->work(n->core);
	return n->has_work;
}

static void arm(struct node *n, uint64_t at)
{
	if (at == UINT64_MAX || (n->tick_at && n->tick_at <= at))
		return;
	n->tick_at = at > n->w->now ? at : n->w->now + 1;
	post(n->w, n->tick_at, on_tick, n, n->tick_at);
}

static void node_run(struct node *n)
{
	struct world *w = n->w;
	uint64_t next = UINT64_MAX;
	bool more = true;

	if (n->is_running || w->now < n->busy_until)
		return;
	n->is_running = true;
	while (more) {
		double cost;

		next = n->tick(n->core, w->now);
		more = turn(n);
		cost = n->cost(n);
		if (cost >= 1) {
			n->busy_until = w->now + (uint64_t)cost;
			post(w, n->busy_until, on_free, n, 0);
			break;
		}
		flush(n);
	}
	n->is_running = false;
	if (!more)
		next = n->tick(n->core, w->now);
	arm(n, next);
}
