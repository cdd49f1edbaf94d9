/* Simulates eager bytes (eager.h). The bytes leave the sender's memory in pieces at random moments.
 * The receiver's read operations take the bytes. */
#include "tests/sim/eager.h"

#include <string.h>

#include "common/data/crc32c.h"
#include "tests/sim/sim.h"

#define EAGER_MAX 7

struct sim_eager {
	struct sim_eager *next, **prev; /* list of the sender's offers, newest first */
	struct sim_end *from;
	uint64_t number; /* number of the message that offers the bytes */
	uint16_t segment;
	uint64_t offset;
	uint32_t len, piece;
	uint32_t taken; /* number of bytes copied from the sender's memory so far */
	uint32_t crc;   /* CRC of the bytes when the offer was sent */
	int status;
	bool is_here;  /* the bytes have arrived and wait for the message with their offer */
	bool is_heard; /* the message with the offer has arrived */
	bool is_old;   /* a later message that offers the same memory has arrived */
	/* the simulator has decided whether a read takes the bytes: rd is this read, or NULL if no
	 * read takes them */
	bool is_open;
	/* the read that takes the bytes; NULL: no read has been chosen, or the bytes are dropped */
	struct sim_read *rd;
	uint8_t *bytes;
};

void eager_draw(struct sim *s)
{
	s->o.eager_max = (unsigned)(mix(s->seed ^ 0xea9e4) % (EAGER_MAX + 1));
}

bool eager_takes(const struct sim_end *from, bool is_patient)
{
	struct sim *s = from->port->s;

	/* The limit of offers in progress is twice as high for an impatient sender. */
	return !from->pipe->is_near && from->n_eager < s->o.eager_max * (is_patient ? 1 : 2) &&
	       !rnd_chance(s, s->o.eagain_permille);
}

static bool is_in_segment(const struct sim_eager *e)
{
	const struct sim_port *p = e->from->port;

	return e->segment < p->n_segs && e->offset + e->len <= p->segs[e->segment].bytes;
}

/* All bytes have arrived: remove the offer from the list, and end the read that takes the bytes, if
 * there is one. */
static void eager_end(struct sim_eager *e)
{
	struct sim *s = e->from->port->s;

	*e->prev = e->next;
	if (e->next)
		e->next->prev = e->prev;
	if (e->rd)
		read_arrived(e->rd, e->status);
	else
		s->tot->thrown++;
}

static void on_take(struct sim *s, struct sim_event *e)
{
	struct sim_eager *eager = e->p;
	struct sim_end *from = eager->from;
	uint64_t paused = from->port->node->paused_until;
	uint32_t at = eager->taken, n = eager->len - at;

	if (from->pipe->is_broken || !from->is_open)
		return;
	if (!s->o.is_nic_alone && paused > s->now) {
		sim_post(s, NULL, paused - s->now, on_take)->p = eager;
		return;
	}
	n = n < eager->piece ? n : eager->piece;
	if (!is_in_segment(eager))
		eager->status = BPS_ENOTFOUND; /* the sender has withdrawn the memory */
	else
		memcpy(eager->bytes + at, from->port->segs[eager->segment].mem + eager->offset + at,
			n);
	eager->taken += n;
	if (eager->rd && eager->is_open)
		memcpy((uint8_t *)eager->rd->r->dst + at, eager->bytes + at, n);
	if (eager->taken < eager->len) {
		sim_post(s, NULL, read_delay(s), on_take)->p = eager;
		return;
	}
	from->n_eager--;
	sim_net_room(from);
	if (eager->is_open)
		eager_end(eager);
}

static void on_open(struct sim *s, struct sim_event *e)
{
	struct sim_eager *eager = e->p;
	struct sim_end *to = eager->from->peer;

	/* The receiver has not yet received the acceptance of the connection. Try again later. */
	if (to->is_connecting) {
		sim_post(s, to->port->node, sim_net_delay(s), on_open)->p = eager;
		return;
	}
	if (!to->is_open || (to->pipe->is_broken && to->pipe->has_lost))
		return;
	if (to->cut_until > s->now) {
		sim_post(s, to->port->node, to->cut_until - s->now, on_open)->p = eager;
		return;
	}
	eager->is_here = true;
	if (!eager->is_heard)
		return;
	eager->is_open = true;
	if (eager->rd)
		memcpy(eager->rd->r->dst, eager->bytes, eager->taken);
	if (eager->taken == eager->len)
		eager_end(eager);
}

void eager_send(struct sim_end *from, const struct wire_msg *m, uint64_t number)
{
	struct sim *s = from->port->s;
	struct sim_eager *e;

	if (m->flags & WIRE_INLINE || !m->len || m->segment == WIRE_NO_SEGMENT)
		return;
	e = sim_alloc(s, sizeof(*e));
	*e = (struct sim_eager){.from = from,
		.number = number,
		.segment = m->segment,
		.offset = m->offset,
		.len = m->len,
		.piece = (m->len + 2) / (1 + (uint32_t)rnd_below(s, 3)),
		.bytes = sim_alloc(s, m->len)};
	if (is_in_segment(e))
		e->crc = crc32c(0, from->port->segs[e->segment].mem + e->offset, e->len);
	e->next = from->eager;
	e->prev = &from->eager;
	if (e->next)
		e->next->prev = &e->next;
	from->eager = e;
	from->n_eager++;
	s->tot->eager++;
	sim_post(s, NULL, read_delay(s), on_take)->p = e;
	sim_post(s, from->peer->port->node, read_delay(s), on_open)->p = e;
}

static bool is_same_memory(
	const struct sim_eager *e, uint16_t segment, uint64_t offset, uint32_t len)
{
	return e->segment == segment && e->offset == offset && e->len == len;
}

void eager_heard(struct sim_end *to, const struct wire_msg *m, uint64_t number)
{
	struct sim *s = to->port->s;

	for (struct sim_eager *e = to->peer->eager; e; e = e->next) {
		if (e->number < number && is_same_memory(e, m->segment, m->offset, m->len))
			e->is_old = true;
		if (e->number != number || e->is_heard)
			continue;
		e->is_heard = true;
		/* Decide in a later event whether a read takes the bytes. The receiver may start
		 * the read some time after the offer has arrived. */
		if (e->is_here)
			sim_post(s, to->port->node, rnd_below(s, s->o.delay_ns), on_open)->p = e;
	}
}

bool eager_takes_read(struct sim_read *rd)
{
	const struct xport_read *r = rd->r;
	struct sim_eager *e = rd->end->peer->eager;

	while (e && (!e->is_heard || e->is_old || e->is_open || e->rd ||
			    !is_same_memory(e, r->segment, r->offset, r->len)))
		e = e->next;
	if (!e)
		return false;
	e->rd = rd;
	rd->eager = e;
	rd->crc = e->crc;
	rd->end->port->s->tot->eager_reads++;
	return true;
}

void eager_forget(struct sim_eager *e)
{
	e->rd = NULL;
}
