/* A lane is a work queue of one GPU with a counter in host memory. After the work of each ticket,
 * the GPU writes the ticket's number to the counter. So the host can find out which work has ended,
 * and needs no call of the driver for that. Thread: the executor's. */
#include "bps-agent/executor/engine_lane.h"

#include "bps-agent/executor/engine_stage.h"

int engine_lane_open(struct engine *e, unsigned member, enum engine_lane_kind kind)
{
	struct engine_lane *l = &e->members[member].lanes[kind];

	l->e = e;
	l->counter = ((uint64_t)member * LANES + kind) * GPU_SLOT_BYTES;
	return e->ops->queue_open(
		e->dev, e->members[member].m.gpu, kind == LANE_COLL ? 1 : 0, &l->q);
}

void engine_lane_close(struct engine_lane *l)
{
	if (l->q)
		l->e->ops->queue_close(l->q);
	l->q = NULL;
}

bool engine_lane_has_room(const struct engine_lane *l)
{
	return l->tail - l->head < LANE_TICKETS;
}

/* Queue a write of the last ticket's number to the counter. If the queue is full, engine_lane_poll
 * tries again later. */
static void engine_lane_post_counter(struct engine_lane *l)
{
	int rc = l->e->ops->post(l->q, l->e->counters, l->counter, l->seq);

	if (rc == 0)
		l->posted = l->seq;
	else if (rc != DEVICE_AGAIN)
		engine_device_error(l->e, rc, "cannot queue the write of a counter");
}

void engine_lane_add_ticket(
	struct engine_lane *l, struct engine_part *part, struct engine_chunk *chunk)
{
	struct engine_tensor *t = part ? part->chunk->tensor : chunk->tensor;

	l->tickets[l->tail++ % LANE_TICKETS] =
		(struct engine_ticket){.seq = ++l->seq, .part = part, .chunk = chunk};
	if (part)
		part->n_tickets++;
	else
		chunk->n_tickets++;
	t->n_tickets++;
	l->e->n_tickets++;
	engine_lane_post_counter(l);
}

static void engine_lane_retire_ticket(struct engine_lane *l)
{
	struct engine_ticket k = l->tickets[l->head++ % LANE_TICKETS];
	struct engine_tensor *t = k.part ? k.part->chunk->tensor : k.chunk->tensor;

	l->e->n_tickets--;
	t->n_tickets--;
	if (k.part)
		engine_part_ticket_done(k.part);
	else
		engine_chunk_ticket_done(k.chunk);
}

bool engine_lane_poll(struct engine_lane *l)
{
	_Atomic uint64_t *counter;
	uint64_t seen;
	bool any = false;

	if (l->head == l->tail)
		return false;
	if (l->posted != l->seq && !l->e->failed)
		engine_lane_post_counter(l);
	counter = (_Atomic uint64_t *)(void *)(l->e->counter_page + l->counter);
	/* The acquire load pairs with the GPU's write of the counter. The GPU writes the counter
	 * after its earlier copies, so the data of these copies is visible. */
	seen = atomic_load_explicit(counter, memory_order_acquire);
	while (l->head != l->tail && l->tickets[l->head % LANE_TICKETS].seq <= seen) {
		engine_lane_retire_ticket(l);
		any = true;
	}
	return any;
}

void engine_lane_check_queue(struct engine_lane *l)
{
	int rc = l->q && l->head != l->tail ? l->e->ops->queue_poll(l->q) : 0;

	if (rc < 0 && rc != DEVICE_AGAIN)
		engine_device_error(l->e, rc, "a GPU's work has failed");
}
