#include "common/transport/peer_reads.h"

#include <errno.h>

void peer_reads_init(struct peer_reads *p, uint32_t least_bytes)
{
	p->window = (struct read_window){.limit = READ_WINDOW_FIRST, .least = least_bytes};
	TAILQ_INIT(&p->queue);
}

struct peer_read *peer_reads_start(struct peer_reads *p, struct xport_read *r)
{
	unsigned i = (unsigned)__builtin_ctz(~p->used);

	if (p->n == READS_MAX)
		return NULL;
	p->all[i] = (struct peer_read){.r = r};
	p->used |= UINT32_C(1) << i;
	p->n++;
	return &p->all[i];
}

void peer_reads_enqueue(struct peer_reads *p, struct peer_read *rd)
{
	TAILQ_INSERT_TAIL(&p->queue, rd, link);
	p->n_queued++;
}

void peer_reads_dequeue(struct peer_reads *p, struct peer_read *rd)
{
	TAILQ_REMOVE(&p->queue, rd, link);
	p->n_queued--;
}

uint32_t peer_reads_next_piece(const struct peer_reads *p, struct peer_read **ret)
{
	struct peer_read *rd = TAILQ_FIRST(&p->queue);
	uint32_t len = rd ? read_window_piece(&p->window, rd->r->len - rd->issued) : 0;

	*ret = rd;
	return read_window_takes(&p->window, len) ? len : 0;
}

void peer_reads_requested(struct peer_reads *p, struct peer_read *rd, uint32_t len)
{
	p->window.bytes += len;
	rd->issued += len;
	if (rd->issued == rd->r->len)
		peer_reads_dequeue(p, rd);
}

bool peer_reads_arrived(struct peer_reads *p, struct peer_read *rd, uint32_t len, uint64_t took_ns)
{
	read_window_arrived(&p->window, len, took_ns, p->n_queued > 0);
	rd->done += len;
	return rd->done == rd->r->len;
}

void peer_reads_finish(
	struct peer_reads *p, struct peer_read *rd, const struct xport *x, int status)
{
	p->used &= ~(UINT32_C(1) << (rd - p->all));
	p->n--;
	x->ev->read_done(x->ctx, rd->r, status);
}

void peer_reads_cancel(struct peer_reads *p, const struct xport *x)
{
	p->n_queued = p->window.bytes = 0;
	TAILQ_INIT(&p->queue);
	while (p->used)
		peer_reads_finish(p, &p->all[__builtin_ctz(p->used)], x, -ECANCELED);
}
