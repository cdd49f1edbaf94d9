/* Connections. A connection carries messages, and the bytes that the messages offer. Credits limit
 * the messages in flight. A receiver may request the bytes in pieces. Eager bytes follow their
 * offer without a request. If the receiver has already started a read of the offered bytes when the
 * eager bytes begin to arrive, this read takes the bytes. Otherwise the eager bytes are discarded.
 * See docs/reference/protocol-data.md, "Over TCP". */
#include "tests/scale/scale.h"

#include <errno.h>

#include "common/wire/wire.h"

#define CREDITS    64
#define READ_BYTES 64 /* bytes of a read request on the wire */
/* The value of SOCKET_AHEAD_SLOW in common/transport/. */
#define EAGER_AHEAD (UINT32_C(64) << 10)

struct scale_item *item_new(struct scale_world *w, scale_item_fn *fn, struct scale_end *end)
{
	struct scale_item *it = w->free_items;

	if (it)
		w->free_items = it->next;
	else
		it = scale_alloc(w, sizeof(*it));
	it->next = NULL;
	it->fn = fn;
	it->end = end;
	it->read = NULL;
	it->eager = NULL;
	it->offer = NULL;
	it->is_answer = false;
	it->wire_bytes = 0;
	return it;
}

void item_free(struct scale_world *w, struct scale_item *it)
{
	it->next = w->free_items;
	w->free_items = it;
}

static struct scale_pending_read *read_new(struct scale_world *w)
{
	struct scale_pending_read *rd = w->free_reads;

	if (rd)
		w->free_reads = rd->next;
	else
		rd = scale_alloc(w, sizeof(*rd));
	*rd = (struct scale_pending_read){0};
	return rd;
}

static void read_free(struct scale_world *w, struct scale_pending_read *rd)
{
	*rd->prev_read = rd->next_read;
	if (rd->next_read)
		rd->next_read->prev_read = rd->prev_read;
	rd->next = w->free_reads;
	w->free_reads = rd;
}

static void read_end(struct scale_node *n, struct scale_pending_read *rd)
{
	struct xport_read *r = rd->r;

	((struct scale_end *)r->conn)->n_reads--;
	read_free(n->w, rd);
	n->x.ev->read_done(n->x.ctx, r, 0);
}

/* ---- eager bytes ---- */

static void eager_free(struct scale_end *e, struct scale_eager *eager)
{
	struct scale_world *w = e->node->w;
	struct scale_eager **at = &e->eager;

	while (*at != eager)
		at = &(*at)->next;
	*at = eager->next;
	if (!*at)
		e->eager_tail = at;
	item_free(w, eager->bytes);
	eager->next = w->free_eager;
	w->free_eager = eager;
}

/* Handle the arrival of all eager bytes of an offer. If a read takes the bytes, complete the
 * read. */
static void item_eager(struct scale_node *n, struct scale_item *it)
{
	struct scale_eager *eager = it->offer;
	struct scale_pending_read *rd = eager->read;
	uint32_t len = it->len;

	eager->is_here = !eager->is_heard;
	if (eager->is_here)
		return;
	eager_free(it->end, eager);
	if (!rd) {
		n->w->thrown += len;
		return;
	}
	n->read_bytes += len;
	read_end(n, rd);
}

/* Make the item for the eager bytes of the offer m. The item is sent after the offer. */
static struct scale_item *eager_new(struct scale_end *from, const struct wire_msg *m)
{
	struct scale_world *w = from->node->w;
	struct scale_end *to = from->peer;
	struct scale_eager *e = w->free_eager;
	struct scale_item *it = item_new(w, item_eager, to);

	if (e)
		w->free_eager = e->next;
	else
		e = scale_alloc(w, sizeof(*e));
	*e = (struct scale_eager){.bytes = it, .segment = m->segment, .offset = m->offset};
	*to->eager_tail = e;
	to->eager_tail = &e->next;
	it->is_answer = true;
	it->offer = e;
	it->len = m->len;
	it->left = m->len + w->o.header_bytes;
	from->answer.n_eager++;
	from->answer.eager_bytes += m->len;
	w->unasked += m->len;
	return it;
}

static bool takes_eager(const struct scale_end *from, bool is_patient)
{
	const struct scale_lane *l = &from->answer;

	return eager_policy_has_room(l->n_eager, l->eager_bytes, EAGER_AHEAD, is_patient);
}

static bool is_same_memory(
	const struct scale_eager *e, uint16_t segment, uint64_t offset, uint32_t len)
{
	return e->segment == segment && e->offset == offset && e->bytes->len == len;
}

/* Record the arrival of an offer. Call offer_heard before the node processes the offer, because the
 * node may start to read the offered bytes at once. Eager bytes of earlier offers of the same
 * memory are out of date from now on. */
static void offer_heard(struct scale_end *e, const struct scale_item *it)
{
	for (struct scale_eager *i = e->eager; i && i->is_heard; i = i->next)
		i->is_old |= is_same_memory(i, it->m.segment, it->m.offset, it->m.len);
	if (it->eager)
		it->eager->offer->is_heard = true;
}

/* Handle the end of the node's work on an offer. If eager bytes of the offer are arriving and no
 * read takes them, discard them. */
static void offer_told(struct scale_node *n, struct scale_eager *e)
{
	e->is_thrown |= e->is_begun && !e->read;
	if (e->is_here)
		scale_node_post(n, e->bytes);
}

void scale_net_begun(struct scale_eager *e)
{
	e->is_begun = true;
	e->is_thrown |= e->is_heard && !e->read;
}

/* Return the offer whose eager bytes the read r can take, or NULL. Skip offers whose bytes were
 * discarded. */
static struct scale_eager *eager_of(const struct scale_end *e, const struct xport_read *r)
{
	for (struct scale_eager *i = e->eager; i && i->is_heard; i = i->next)
		if (!i->is_old && !i->is_thrown && !i->read &&
			is_same_memory(i, r->segment, r->offset, r->len))
			return i;
	return NULL;
}

/* ---- messages ---- */

static void item_writable(struct scale_node *n, struct scale_item *it)
{
	struct scale_end *e = it->end;

	item_free(n->w, it);
	e->is_refused = false;
	n->x.ev->writable(n->x.ctx, &e->c);
}

static void on_room(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_end *e = p;

	(void)a;
	scale_node_post(e->node, item_new(w, item_writable, e));
}

static void item_message(struct scale_node *n, struct scale_item *it)
{
	struct scale_end *e = it->end, *from = e->peer;

	offer_heard(e, it);
	n->x.ev->message(n->x.ctx, &e->c, &it->m);
	if (it->eager)
		offer_told(n, it->eager->offer);
	item_free(n->w, it);
	from->in_flight--;
	if (from->is_refused && from->in_flight == CREDITS / 2)
		scale_post(
			n->w, n->w->now + (uint64_t)(n->w->o.latency_us * 1e3), on_room, from, 0);
}

void scale_net_room(struct scale_world *w, struct scale_end *from)
{
	if (!from->wants_eager || !takes_eager(from, true))
		return;
	from->wants_eager = false;
	scale_post(w, w->now, on_room, from, 0);
}

static int send_it(struct scale_end *e, const struct wire_msg *m, bool is_eager)
{
	struct scale_world *w = e->node->w;
	struct scale_item *it;

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
	scale_node_send(e->node, it);
	if (!is_eager)
		return 0;
	it->eager = eager_new(e, m);
	eager_policy_sent(&e->unasked, m->segment, m->offset, m->len);
	scale_node_send(e->node, it->eager);
	return 0;
}

static int net_send(struct xconn *c, const struct wire_msg *m)
{
	return send_it((struct scale_end *)c, m, false);
}

/* Send a message with eager bytes. Within one host, send the message without the bytes, because the
 * receiver reads them in shared memory. */
static int net_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient)
{
	struct scale_end *e = (struct scale_end *)c;
	bool is_near = e->node->host == e->peer->node->host;
	bool may_go = eager_policy_may_go(&e->unasked);
	bool is_eager = !is_near && may_go && takes_eager(e, is_patient);
	int rc;

	if (!is_eager && !is_near && is_patient && may_go) {
		e->wants_eager = true;
		return -EAGAIN;
	}
	rc = send_it(e, m, is_eager);
	if (!rc && !is_eager && !is_near)
		eager_policy_held_back(&e->unasked, m->segment, m->offset);
	return rc;
}

/* ---- reads ---- */

static void issue_reads(struct scale_end *e);

/* A piece of a read has arrived. */
static void item_data(struct scale_node *n, struct scale_item *it)
{
	struct scale_end *e = it->end;
	struct scale_pending_read *rd = it->read;

	e->n_pieces--;
	if (n->w->o.read_window)
		e->window.bytes -= it->len;
	else
		read_window_arrived(&e->window, it->len, n->w->now - it->asked_ns, e->n_queued > 0);
	n->read_bytes += it->len;
	rd->arrived += it->len;
	item_free(n->w, it);
	issue_reads(e);
	if (rd->arrived == rd->r->len)
		read_end(n, rd);
}

/* A read request has arrived: answer it. */
static void item_request(struct scale_node *n, struct scale_item *it)
{
	const struct xport_read *r = it->read->r;

	eager_policy_asked(&it->end->unasked, r->segment, r->offset);
	it->end = it->end->peer;
	it->fn = item_data;
	it->is_answer = true;
	it->left = it->len + n->w->o.header_bytes;
	scale_node_send(n, it);
}

static void issue_piece(struct scale_end *e, struct scale_pending_read *rd, uint32_t len)
{
	struct scale_world *w = e->node->w;
	struct scale_item *it = item_new(w, item_request, e->peer);

	it->read = rd;
	it->len = len;
	it->asked_ns = w->now;
	it->left = READ_BYTES + w->o.header_bytes;
	rd->issued += len;
	e->window.bytes += len;
	e->n_pieces++;
	scale_node_send(e->node, it);
}

static void issue_reads(struct scale_end *e)
{
	struct scale_pending_read *rd;

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
	struct scale_end *e = (struct scale_end *)r->conn;
	struct scale_eager *eager = eager_of(e, r);
	struct scale_pending_read *rd;

	if (!e->is_open)
		return -ENOTCONN;
	if (e->n_reads == READS_MAX ||
		(e->node->w->o.is_asking && e->n_queued == READ_WINDOW_QUEUE))
		return -EAGAIN;
	rd = read_new(e->node->w);
	rd->r = r;
	rd->next_read = e->reads;
	rd->prev_read = &e->reads;
	if (e->reads)
		e->reads->prev_read = &rd->next_read;
	e->reads = rd;
	e->n_reads++;
	if (eager) {
		eager->read = rd;
		return 0;
	}
	*e->queue_tail = rd;
	e->queue_tail = &rd->next;
	e->n_queued++;
	issue_reads(e);
	return 0;
}

/* ---- connections ---- */

static void item_up(struct scale_node *n, struct scale_item *it)
{
	struct scale_end *e = it->end;

	item_free(n->w, it);
	e->is_open = true;
	n->x.ev->up(n->x.ctx, &e->c, e->c.peer_id, e->c.peer_instance);
}

static void on_up(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_end *e = p;

	(void)a;
	scale_node_post(e->node, item_new(w, item_up, e));
}

static struct scale_end *end_new(struct scale_node *n, uint32_t peer_id, void *user)
{
	struct scale_end *e = scale_alloc(n->w, sizeof(*e));

	e->c = (struct xconn){
		.x = &n->x, .user = user, .peer_id = peer_id, .peer_instance = peer_id};
	e->node = n;
	e->say.host = e->answer.host = n->host;
	e->say.out_tail = &e->say.out;
	e->answer.out_tail = &e->answer.out;
	e->queue_tail = &e->queue;
	e->eager_tail = &e->eager;
	e->answer.window = n->w->o.is_asking ? 0 : n->w->o.socket_window;
	e->window.least = READ_WINDOW_MIN;
	e->window.limit = n->w->o.read_window ? n->w->o.read_window : READ_WINDOW_FIRST;
	e->next_all = n->w->ends;
	n->w->ends = e;
	return e;
}

struct xconn *scale_net_connect(struct scale_node *agent, struct scale_node *server,
	uint32_t agent_id, uint32_t server_id, void *user)
{
	struct scale_end *a = end_new(agent, server_id, user), *s = end_new(server, agent_id, NULL);
	uint64_t at = agent->w->now + (uint64_t)(agent->w->o.latency_us * 1e3);

	a->peer = s;
	s->peer = a;
	scale_post(agent->w, at, on_up, s, 0);
	scale_post(agent->w, at + 1, on_up, a, 0);
	return &a->c;
}

void scale_net_end(struct scale_world *w)
{
	for (struct scale_end *e = w->ends; e; e = e->next_all) {
		struct scale_pending_read *rd;

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

/* Implement the operation heard_ns, which returns the time of the last message from the peer.
 * Simulated peers never fail, so return the present time. */
static uint64_t net_heard_ns(const struct xconn *c)
{
	return ((const struct scale_end *)c)->node->w->now;
}

/* Operations of a transport that sends eager bytes, like the daemons' TCP transport. */
const struct xport_ops scale_eager_ops = {
	.send = net_send,
	.send_eager = net_send_eager,
	.read = net_read,
	.close = net_close,
	.heard_ns = net_heard_ns,
};

/* Operations of a transport whose receiver requests all bytes, like the libfabric transport. */
const struct xport_ops scale_asking_ops = {
	.send = net_send,
	.read = net_read,
	.close = net_close,
	.heard_ns = net_heard_ns,
};
