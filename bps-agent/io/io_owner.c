/* The owner of an I/O thread's transport executes the records of the data thread, and
 * receives the transport's events. While the thread runs, events become records for the data
 * thread. While the thread is parked, the data thread is the owner, and events go to the core at
 * once. Thread: the owner, see io_threads.h. */
#include <errno.h>
#include <stdlib.h>

#include "bps-agent/io/io_impl.h"
#include "common/base/log.h"

/* ---- events of the transport ---- */

static void owner_conn_up(void *ctx, struct xconn *real, uint32_t peer_id, uint64_t peer_instance)
{
	struct io_thread *t = ctx;
	struct io_conn *c = real->user;
	struct io_up *up;

	(void)peer_id;
	(void)peer_instance; /* they are those that the core has asked for */
	if (!t->is_running) {
		io_core_up(c, real->is_same_host, real->x->ahead_bytes);
		return;
	}
	up = (struct io_up *)(void *)io_put(&t->out, IO_UP, c, sizeof(*up))->body;
	*up = (struct io_up){real->is_same_host, real->x->ahead_bytes};
}

static void conn_mark_dirty(struct io_conn *c)
{
	if (!c->is_dirty)
		LIST_INSERT_HEAD(&c->t->dirty, c, dirty);
	c->is_dirty = true;
}

/* Count bytes that have left the queue of the connection. */
static void conn_note_sent(struct io_conn *c, const struct io_message *msg)
{
	if (msg->is_eager)
		c->sent_ahead += msg->m.len;
	else
		c->sent_queued += (uint32_t)io_message_bytes(&msg->m);
	conn_mark_dirty(c);
}

/* Drop the messages that wait. Their tasks have run. */
static void conn_drop_deferred(struct io_conn *c)
{
	struct io_deferred *d;

	while ((d = STAILQ_FIRST(&c->deferred))) {
		STAILQ_REMOVE_HEAD(&c->deferred, link);
		conn_note_sent(c, d->msg);
		free(d->msg);
		free(d);
	}
}

static void conn_lose_real(struct io_conn *c)
{
	if (c->real) {
		LIST_REMOVE(c, of_thread);
		atomic_store_explicit(
			&c->heard_ns, c->real->x->ops->heard_ns(c->real), memory_order_relaxed);
	}
	c->real = NULL;
	conn_drop_deferred(c);
}

static void owner_conn_down(void *ctx, struct xconn *real, const char *why)
{
	struct io_thread *t = ctx;
	struct io_conn *c = real->user;

	conn_lose_real(c);
	if (t->is_running)
		io_put_text(&t->out, IO_DOWN, c, why);
	else
		io_core_down(c, why);
}

static void owner_conn_message(void *ctx, struct xconn *real, const struct wire_msg *m)
{
	struct io_thread *t = ctx;

	if (t->is_running)
		io_put_message(&t->out, IO_MESSAGE, real->user, m, NULL, false);
	else
		io_core_message(real->user, m);
}

static void owner_report_read(struct io_conn *c, struct xport_read *r, int status)
{
	struct io_thread *t = c->t;

	if (t->is_running)
		io_put_pointer(&t->out, IO_READ_DONE, c, r)->status = status;
	else
		io_core_read_done(c, r, status);
}

static void owner_read_done(void *ctx, struct xport_read *r, int status)
{
	(void)ctx;
	owner_report_read(r->conn->user, r, status);
}

static void owner_task_done(void *ctx, struct xport_task *task)
{
	struct io_thread *t = ctx;

	if (t->is_running)
		io_put_pointer(&t->out, IO_TASK_DONE, NULL, task);
	else
		io_core_task_done(t, task);
}

static void conn_send_deferred(struct io_conn *c);

static void owner_conn_writable(void *ctx, struct xconn *real)
{
	struct io_conn *c = real->user;

	(void)ctx;
	conn_send_deferred(c);
	conn_mark_dirty(c); /* the core may wait for room, too */
}

const struct xport_events io_owner_events = {
	.up = owner_conn_up,
	.down = owner_conn_down,
	.message = owner_conn_message,
	.read_done = owner_read_done,
	.writable = owner_conn_writable,
	.task_done = owner_task_done,
};

/* ---- messages ---- */

static int conn_try_send(struct io_conn *c, const struct io_message *msg)
{
	return msg->is_eager ? xport_send_eager(c->real, &msg->m, true)
			     : xport_send(c->real, &msg->m);
}

static void conn_defer(struct io_conn *c, const struct io_message *msg)
{
	struct io_deferred *d = malloc(sizeof(*d));
	struct io_message *copy = malloc(io_message_bytes(&msg->m));

	if (!d || !copy) {
		log_error("out of memory for a message that waits");
		abort();
	}
	io_message_store(copy, &msg->m, NULL, msg->is_eager);
	d->msg = copy;
	STAILQ_INSERT_TAIL(&c->deferred, d, link);
}

static void conn_send_deferred(struct io_conn *c)
{
	struct io_deferred *d;

	while (c->real && (d = STAILQ_FIRST(&c->deferred))) {
		if (conn_try_send(c, d->msg) == -EAGAIN)
			return;
		STAILQ_REMOVE_HEAD(&c->deferred, link);
		conn_note_sent(c, d->msg);
		free(d->msg);
		free(d);
	}
}

void io_owner_send(struct io_conn *c, struct io_message *msg)
{
	if (msg->task) {
		msg->task->run(msg->task);
		msg->m.crc = msg->task->crc;
		owner_task_done(c->t, msg->task);
		msg->task = NULL;
	}
	if (c->real && (!STAILQ_EMPTY(&c->deferred) || conn_try_send(c, msg) == -EAGAIN))
		conn_defer(c, msg);
	else
		conn_note_sent(c, msg); /* sent, or the connection is down */
}

void io_owner_report_sent(struct io_thread *t)
{
	struct io_conn *c;

	while ((c = LIST_FIRST(&t->dirty))) {
		struct io_sent sent = {
			c->sent_queued, c->sent_ahead, c->real ? c->real->x->ahead_bytes : 0};

		LIST_REMOVE(c, dirty);
		c->is_dirty = false;
		c->sent_queued = c->sent_ahead = 0;
		if (t->is_running)
			memcpy(io_put(&t->out, IO_SENT, c, sizeof(sent))->body, &sent,
				sizeof(sent));
		else
			io_core_sent(c, sent.queued, sent.ahead, sent.ahead_bytes);
	}
}

void io_owner_note_heard(struct io_thread *t)
{
	struct io_conn *c;

	LIST_FOREACH (c, &t->conns, of_thread)
		atomic_store_explicit(
			&c->heard_ns, c->real->x->ops->heard_ns(c->real), memory_order_relaxed);
}

/* ---- records of the data thread ---- */

int io_owner_connect(
	struct io_conn *c, const char *addr, uint16_t port, uint16_t thread, const void *key)
{
	int rc = c->t->real->ops->connect(c->t->real, addr, port, thread, c->pub.peer_id,
		c->pub.peer_instance, key, c, &c->real);

	if (rc < 0) {
		c->real = NULL;
		return rc;
	}
	c->real->x->decides_late = true;
	LIST_INSERT_HEAD(&c->t->conns, c, of_thread);
	return 0;
}

static void execute_connect(struct io_conn *c, const struct io_connect *to)
{
	int rc = io_owner_connect(c, to->addr, to->port, to->thread, to->key);

	if (rc < 0)
		io_put_text(&c->t->out, IO_DOWN, c, err_str(rc));
}

static void execute_read(struct io_conn *c, struct xport_read *r)
{
	int rc = -ENOTCONN;

	if (c->real) {
		r->conn = c->real;
		rc = xport_read(r);
	}
	if (rc < 0)
		owner_report_read(c, r, rc);
}

static void execute_record(struct io_thread *t, struct io_record *r)
{
	struct io_conn *c = r->conn;
	struct xport_task *task;
	uint64_t n;

	switch ((enum io_kind)r->kind) {
	case IO_CONNECT:
		execute_connect(c, (const struct io_connect *)(const void *)r->body);
		break;
	case IO_SEND:
		io_owner_send(c, io_message_of(r));
		break;
	case IO_READ:
		execute_read(c, io_pointer(r));
		break;
	case IO_CLOSE:
		if (c->real)
			xport_close(c->real, (const char *)r->body);
		break;
	case IO_DECIDED:
		memcpy(&n, r->body, sizeof(n));
		if (c->real && c->real->x->ops->decided)
			c->real->x->ops->decided(c->real, n);
		break;
	case IO_RUN:
		task = io_pointer(r);
		task->run(task);
		io_put_pointer(&t->out, IO_TASK_DONE, NULL, task)->status = 1;
		break;
	case IO_FORGET:
		if (c->is_dirty)
			LIST_REMOVE(c, dirty);
		io_put(&t->out, IO_FORGOTTEN, c, 0);
		break;
	default:
		break; /* the other records are for the data thread */
	}
}

unsigned io_owner_execute(struct io_thread *t, unsigned most)
{
	struct io_record *r;
	unsigned n = 0;

	while (n < most && (r = io_queue_next(&t->in))) {
		execute_record(t, r);
		n++;
	}
	return n;
}
