/* Connections: messages under credit, and reads in pieces. */
#include "tests/scale/scale.h"

#include <errno.h>

#include "common/wire.h"

#define CREDITS    64
#define READ_BYTES 64 /* of a request to read */

struct item *item_new(struct world *w, item_fn *fn, struct end *end)
{
	struct item *it = w->free_items;

	if (it)
		w->free_items = it->next;
	else
		it = world_alloc(w, sizeof(*it));
	it->next = NULL;
	it->fn = fn;
	it->end = end;
	it->read = NULL;
	it->is_answer = false;
	return it;
}

void item_free(struct world *w, struct item *it)
{
	it->next = w->free_items;
	w->free_items = it;
}

static struct pending_read *read_new(struct world *w)
{
	struct pending_read *rd = w->free_reads;

	if (rd)
		w->free_reads = rd->next;
	else
		rd = world_alloc(w, sizeof(*rd));
	*rd = (struct pending_read){0};
	return rd;
}

static void read_free(struct world *w, struct pending_read *rd)
{
	*rd->prev_read = rd->next_read;
	if (rd->next_read)
		rd->next_read->prev_read = rd->prev_read;
	rd->next = w->free_reads;
	w->free_reads = rd;
}

/* ---- messages ---- */

static void item_writable(struct node *n, struct item *it)
{
	struct end *e = it->end;

	item_free(n->w, it);
	e->is_refused = false;
	n->x.ev->writable(n->x.ctx, &e->c);
}

static void on_credit(struct world *w, void *p, uint64_t a)
{
	struct end *e = p;

	(void)a;
	node_post(e->node, item_new(w, item_writable, e));
}

static void item_message(struct node *n, struct item *it)
{
	struct end *e = it->end, *from = e->peer;

	n->x.ev->message(n->x.ctx, &e->c, &it->m);
	item_free(n->w, it);
	from->in_flight--;
	if (from->is_refused && from->in_flight == CREDITS / 2)
		post(n->w, n->w->now + (uint64_t)(n->w->o.latency_us * 1e3), on_credit, from, 0);
}

static int net_send(struct xconn *c, const struct wire_msg *m)
{
	struct end *e = (struct end *)c;
	struct world *w = e->node->w;
	struct item *it;

	if (!e->is_open)
		return -ENOTCONN;
	if (e->in_flight >= CREDITS) {
		e->is_refused = true;
		return -EAGAIN;
	}
	e->in_flight++;
	it = item_new(w, item_message, e->peer);
	it->m = *m;
	if (m->flags & WIRE_INLINE)
		it->m.payload = w->memory;
	it->left = (uint32_t)wire_size(m) + w->o.header_bytes;
	node_send(e->node, it);
	return 0;
}

/* ---- reads ---- */

static void issue_reads(struct end *e);

/* A piece is here. */
static void item_data(struct node *n, struct item *it)
{
	struct end *e = it->end;
	struct pending_read *rd = it->read;
	struct xport_read *r = rd->r;

	e->n_pieces--;
	if (n->w->o.read_window)
		e->window.bytes -= it->len;
	else
		read_window_arrived(&e->window, it->len, n->w->now - it->asked_ns, e->n_queued > 0);
	n->read_bytes += it->len;
	rd->arrived += it->len;
	item_free(n->w, it);
	issue_reads(e);
	if (rd->arrived < r->len)
		return;
	e->n_reads--;
	read_free(n->w, rd);
	n->x.ev->read_done(n->x.ctx, r, 0);
}

/* A request is here: answer it. */
static void item_request(struct node *n, struct item *it)
{
	it->end = it->end->peer;
	it->fn = item_data;
	it->is_answer = true;
	it->left = it->len + n->w->o.header_bytes;
	node_send(n, it);
}

static void issue_piece(struct end *e, struct pending_read *rd, uint32_t len)
{
	struct world *w = e->node->w;
	struct item *it = item_new(w, item_request, e->peer);

	it->read = rd;
	it->len = len;
	it->asked_ns = w->now;
	it->left = READ_BYTES + w->o.header_bytes;
	rd->issued += len;
	e->window.bytes += len;
	e->n_pieces++;
	node_send(e->node, it);
}

static void issue_reads(struct end *e)
{
	struct pending_read *rd;

	while ((rd = e->queue) && e->n_pieces < READS_MAX) {
		uint32_t len = read_window_piece(&e->window, rd->r->len - rd->issued);

		if (!read_window_takes(&e->window, len))
			return;
		issue_piece(e, rd, len);
		if (rd->issued < rd->r->len)
			continue;
		e->queue = rd->next;
		if (!e->queue)
			e->queue_tail = &e->queue;
		e->n_queued--;
	}
}

static int net_read(struct xport_read *r)
{
	struct end *e = (struct end *)r->conn;
	struct pending_read *rd;

	if (!e->is_open)
		return -ENOTCONN;
	if (e->n_reads == READS_MAX || e->n_queued == READ_WINDOW_QUEUE)
		return -EAGAIN;
	rd = read_new(e->node->w);
	rd->r = r;
	rd->next_read = e->reads;
	rd->prev_read = &e->reads;
	if (e->reads)
		e->reads->prev_read = &rd->next_read;
	e->reads = rd;
	e->n_reads++;
	*e->queue_tail = rd;
	e->queue_tail = &rd->next;
	e->n_queued++;
	issue_reads(e);
	return 0;
}

/* ---- connections ---- */

static void item_up(struct node *n, struct item *it)
{
	struct end *e = it->end;

	item_free(n->w, it);
	e->is_open = true;
	n->x.ev->up(n->x.ctx, &e->c, e->c.peer_id, e->c.peer_instance);
}

static void on_up(struct world *w, void *p, uint64_t a)
{
	struct end *e = p;

	(void)a;
	node_post(e->node, item_new(w, item_up, e));
}

static struct end *end_new(struct node *n, uint32_t peer_id, void *user)
{
	struct end *e = world_alloc(n->w, sizeof(*e));

	e->c = (struct xconn){
		.x = &n->x, .user = user, .peer_id = peer_id, .peer_instance = peer_id};
	e->node = n;
	e->say.host = e->answer.host = n->host;
	e->say.out_tail = &e->say.out;
	e->answer.out_tail = &e->answer.out;
	e->queue_tail = &e->queue;
	e->window.limit = n->w->o.read_window ? n->w->o.read_window : READ_WINDOW_FIRST;
	e->next_all = n->w->ends;
	n->w->ends = e;
	return e;
}

struct xconn *net_connect(
	struct node *agent, struct node *server, uint32_t agent_id, uint32_t server_id, void *user)
{
	struct end *a = end_new(agent, server_id, user), *s = end_new(server, agent_id, NULL);
	uint64_t at = agent->w->now + (uint64_t)(agent->w->o.latency_us * 1e3);

	a->peer = s;
	s->peer = a;
	post(agent->w, at, on_up, s, 0);
	post(agent->w, at + 1, on_up, a, 0);
	return &a->c;
}

void net_end(struct world *w)
{
	for (struct end *e = w->ends; e; e = e->next_all) {
		struct pending_read *rd;

		if (!e->is_open)
			continue;
		e->is_open = false;
		while ((rd = e->reads)) {
			struct xport_read *r = rd->r;

			read_free(w, rd);
			e->node->x.ev->read_done(e->node->x.ctx, r, -ECANCELED);
		}
		e->node->x.ev->down(e->node->x.ctx, &e->c, "the end");
	}
}

static void net_close(struct xconn *c, const char *why)
{
	fatal("peer %u is closed: %s", c->peer_id, why);
}

/* Nothing comes unasked: the model is of reads, which the receiver's window bounds. */
const struct xport_ops scale_xport_ops = {
	.send = net_send,
	.read = net_read,
	.close = net_close,
};
