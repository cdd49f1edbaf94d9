/* Passes the events of I/O threads to the core: those that an I/O thread has recorded, and those
 * that the data thread receives itself while the threads are parked. Thread: the data thread. */
#include <stdlib.h>

#include "bps-agent/io/io_impl.h"

static void conn_set_ahead_limit(struct io_conn *c, uint32_t ahead_bytes)
{
	c->ahead_bytes = ahead_bytes;
	/* All connections to other hosts have the same limit; those within this host have none. */
	if (ahead_bytes)
		c->t->x->pub.ahead_bytes = ahead_bytes;
}

void io_core_up(struct io_conn *c, bool is_same_host, uint32_t ahead_bytes)
{
	struct io_xport *x = c->t->x;

	if (c->is_closing)
		return;
	c->is_up = true;
	c->pub.is_same_host = is_same_host;
	c->t->n_near += is_same_host;
	io_cards_note_up(c);
	conn_set_ahead_limit(c, ahead_bytes);
	x->pub.ev->up(x->pub.ctx, &c->pub, c->pub.peer_id, c->pub.peer_instance);
}

void io_conn_stop_deciding(struct io_conn *c)
{
	if (c->n_decided < c->n_handled)
		LIST_REMOVE(c, undecided);
	c->n_decided = c->n_handled;
}

static void conn_tell_down(struct io_conn *c)
{
	struct io_xport *x = c->t->x;

	io_conn_stop_deciding(c);
	io_cards_note_down(c); /* first, because the core may begin a new connection */
	x->pub.ev->down(x->pub.ctx, &c->pub, c->why);
	c->t->n_near -= c->is_up && c->pub.is_same_host;
	if (c->t->is_running)
		io_put(&c->t->in, IO_FORGET, c, 0);
	else
		TAILQ_INSERT_TAIL(&x->gone, c, gone);
}

void io_core_down(struct io_conn *c, const char *why)
{
	snprintf(c->why, sizeof(c->why), "%s", why);
	c->is_down = true;
	/* Otherwise, the thread still has reads of this connection in its queue, and ends them. */
	if (!c->n_reads)
		conn_tell_down(c);
}

void io_core_message(struct io_conn *c, const struct wire_msg *m)
{
	struct io_xport *x = c->t->x;

	if (c->n_decided == c->n_handled)
		LIST_INSERT_HEAD(&x->undecided, c, undecided);
	c->n_handled++;
	if (!c->is_closing && !c->is_down)
		x->pub.ev->message(x->pub.ctx, &c->pub, m);
}

void io_core_read_done(struct io_conn *c, struct xport_read *r, int status)
{
	struct io_xport *x = c->t->x;

	r->conn = &c->pub;
	c->n_reads--;
	x->pub.ev->read_done(x->pub.ctx, r, status);
	if (c->is_down && !c->n_reads)
		conn_tell_down(c);
}

uint32_t io_conn_ahead_limit(const struct io_conn *c)
{
	return c->ahead_bytes ? c->ahead_bytes : IO_AHEAD_MAX;
}

void io_core_sent(struct io_conn *c, uint32_t queued, uint32_t ahead, uint32_t ahead_bytes)
{
	struct io_xport *x = c->t->x;

	c->queued -= queued;
	c->ahead -= ahead;
	conn_set_ahead_limit(c, ahead_bytes);
	if (!c->wants_writable || !c->is_up || c->is_closing || c->is_down ||
		c->ahead >= io_conn_ahead_limit(c) || c->queued >= IO_QUEUED_MAX)
		return;
	c->wants_writable = false;
	x->pub.ev->writable(x->pub.ctx, &c->pub);
}

void io_core_task_done(struct io_thread *t, struct xport_task *task)
{
	t->x->pub.ev->task_done(t->x->pub.ctx, task);
}

static void deliver_record(struct io_thread *t, struct io_record *r)
{
	struct io_conn *c = r->conn;
	struct io_sent sent;
	const struct io_up *up;

	switch ((enum io_kind)r->kind) {
	case IO_UP:
		up = (const struct io_up *)(const void *)r->body;
		io_core_up(c, up->is_same_host, up->ahead_bytes);
		break;
	case IO_DOWN:
		io_core_down(c, (const char *)r->body);
		break;
	case IO_MESSAGE:
		io_core_message(c, &io_message_of(r)->m);
		break;
	case IO_READ_DONE:
		io_core_read_done(c, io_pointer(r), r->status);
		break;
	case IO_SENT:
		memcpy(&sent, r->body, sizeof(sent));
		io_core_sent(c, sent.queued, sent.ahead, sent.ahead_bytes);
		break;
	case IO_TASK_DONE:
		if (r->status)
			t->n_tasks--;
		io_core_task_done(t, io_pointer(r));
		break;
	case IO_FORGOTTEN:
		free(c);
		break;
	default:
		break; /* the other records are for the I/O thread */
	}
}

unsigned io_core_deliver(struct io_thread *t)
{
	struct io_record *r;
	unsigned n = 0;

	while ((r = io_queue_next(&t->out))) {
		deliver_record(t, r);
		n++;
	}
	return n;
}
