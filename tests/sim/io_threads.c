/* Simulates the I/O threads of an agent (io_threads.h). */
#include "tests/sim/io_threads.h"

#include <errno.h>
#include <string.h>

#include "tests/sim/sim.h"

#define QUEUE_MAX 4 /* largest number of messages that wait at one end */

/* A message that waits to be sent. */
struct sim_queued {
	struct sim_queued *next;
	struct xport_task *task; /* must run before the message leaves; NULL: none is left */
	bool is_eager;
	struct wire_msg m;
	uint8_t payload[];
};

void io_threads_draw(struct sim *s)
{
	s->o.is_threaded = mix(s->seed ^ 0x10f4ead) % 4 == 0;
}

static uint64_t hop(struct sim *s)
{
	return rnd_chance(s, 100) ? rnd_below(s, 5 * MS) : rnd_below(s, s->o.delay_ns);
}

/* ---- tasks ---- */

static struct sim_port *port_of_event(const struct sim_event *e)
{
	return (struct sim_port *)(uintptr_t)e->a;
}

/* Post an event for a task of the port. */
static void post_task(
	struct sim_port *port, struct xport_task *task, uint64_t span_ns, sim_event_fn *fn)
{
	struct sim_event *e = sim_post(port->s, port->node, span_ns, fn);

	e->p = task;
	e->a = (uintptr_t)port;
}

static void on_task_done(struct sim *s, struct sim_event *e)
{
	struct sim_port *port = port_of_event(e);

	s->tot->tasks++;
	port->enter(port->owner);
	port->x.ev->task_done(port->x.ctx, e->p);
	port->leave(port->owner);
}

/* Run a task, and report its end later. Returns the time of the report. */
static uint64_t run_task(struct sim_port *port, struct xport_task *task)
{
	uint64_t span_ns = hop(port->s);

	task->run(task);
	post_task(port, task, span_ns, on_task_done);
	return port->s->now + span_ns;
}

static void on_run(struct sim *s, struct sim_event *e)
{
	(void)s;
	run_task(port_of_event(e), e->p);
}

void io_threads_run(struct xport *x, struct xport_task *task)
{
	struct sim_port *port = (struct sim_port *)x;

	post_task(port, task, hop(port->s), on_run);
}

/* ---- messages ---- */

static void on_room(struct sim *s, struct sim_event *e)
{
	struct sim_end *end = e->p;

	(void)s;
	if (!end->is_open || end->is_closing || !end->wants_queue)
		return;
	end->wants_queue = false;
	end->port->enter(end->port->owner);
	end->port->x.ev->writable(end->port->x.ctx, &end->c);
	end->port->leave(end->port->owner);
}

static int send_now(struct sim_end *end, const struct sim_queued *q)
{
	return q->is_eager ? sim_net_send_eager(&end->c, &q->m, true)
			   : sim_net_send(&end->c, &q->m);
}

void io_threads_pump(struct sim_end *end)
{
	struct sim_queued *q;
	uint64_t at;

	while ((q = end->queue)) {
		if (q->task) {
			at = run_task(end->port, q->task);
			q->m.crc = q->task->crc;
			q->task = NULL;
			/* the end of the task precedes every answer to the message */
			end->tasks_at = at > end->tasks_at ? at : end->tasks_at;
		}
		if (end->is_open && !end->is_closing && send_now(end, q) == -EAGAIN)
			return; /* sim_net_room continues */
		end->queue = q->next;
		end->n_queued--;
		if (end->wants_queue)
			sim_post(end->port->s, end->port->node, hop(end->port->s), on_room)->p =
				end;
	}
}

static void on_pump(struct sim *s, struct sim_event *e)
{
	(void)s;
	io_threads_pump(e->p);
}

void io_threads_drop(struct sim_end *end)
{
	if (end->queue)
		sim_post(end->port->s, end->port->node, hop(end->port->s), on_pump)->p = end;
}

static int enqueue(
	struct xconn *c, const struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	struct sim_end *end = (struct sim_end *)c;
	struct sim *s = end->port->s;
	size_t n = m->flags & WIRE_INLINE ? m->len : 0;
	struct sim_queued *q, **tail = &end->queue;

	if (!end->is_open || end->is_closing || !end->port->node->is_up)
		return -ENOTCONN;
	if (end->n_queued == QUEUE_MAX) {
		end->wants_queue = true;
		return -EAGAIN;
	}
	q = sim_alloc(s, sizeof(*q) + n);
	*q = (struct sim_queued){.task = task, .is_eager = is_eager, .m = *m};
	if (n)
		q->m.payload = memcpy(q->payload, m->payload, n);
	while (*tail)
		tail = &(*tail)->next;
	*tail = q;
	end->n_queued++;
	sim_post(s, end->port->node, hop(s), on_pump)->p = end;
	return 0;
}

int io_threads_send(struct xconn *c, const struct wire_msg *m)
{
	return enqueue(c, m, NULL, false);
}

int io_threads_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient)
{
	(void)is_patient;
	return enqueue(c, m, NULL, true);
}

int io_threads_offer(
	struct xconn *c, const struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	return enqueue(c, m, task, is_eager);
}

/* ---- closing ---- */

static void on_close(struct sim *s, struct sim_event *e)
{
	struct sim_end *end = e->p;

	(void)s;
	end->port->enter(end->port->owner);
	sim_net_close(&end->c, "closed");
	end->port->leave(end->port->owner);
}

void io_threads_close(struct xconn *c, const char *why)
{
	struct sim_end *end = (struct sim_end *)c;

	(void)why;
	if (end->is_closing || (!end->is_open && !end->is_connecting))
		return;
	end->is_closing = true;
	sim_post(end->port->s, end->port->node, hop(end->port->s), on_close)->p = end;
}
