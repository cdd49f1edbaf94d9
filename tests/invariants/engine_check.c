/* The invariants of the executor's engine. */
#include "tests/invariants/invariants.h"

#include "bps-agent/executor/engine_stage.h"

struct engine_tally {
	size_t n_up, n_down, n_reduce, n_gather, n_collectives, n_tickets, n_running, n_waiting;
	uint64_t up_bytes, down_bytes;
};

struct engine_checker {
	const struct engine *e;
	struct err_text *err;
	int rc;
	struct engine_tally n;
};

static void expect(struct engine_checker *c, bool is_true, const char *what)
{
	if (!is_true && !c->rc)
		c->rc = err_set(c->err, -1, "engine: %s does not hold", what);
}

static void check_part(
	struct engine_checker *c, const struct engine_tensor *t, const struct engine_part *p)
{
	bool is_open = p->chunk->state == CHUNK_OPEN;
	bool is_queued = p->state == PART_UP_WAIT || p->state == PART_DOWN_WAIT;

	expect(c, heap_node_is_queued(&p->node) == is_queued,
		"a partition waits <=> it is in a heap");
	expect(c, p->state == PART_IDLE || p->state == PART_LANDED || is_open,
		"a partition is under way => its chunk is open");
	expect(c, !is_open || p->state != PART_IDLE,
		"a chunk is open => its partitions are under way");
	expect(c, (p->state != PART_UP && p->state != PART_DOWN) || p->n_tickets,
		"a partition is being copied => it has a ticket");
	expect(c, !p->is_charged || is_queued || p->state == PART_UP || p->state == PART_DOWN,
		"charged => being copied, or about to be");
	c->n.n_up += p->state == PART_UP_WAIT;
	c->n.n_down += p->state == PART_DOWN_WAIT;
	if (p->is_charged && p->state <= PART_UP)
		c->n.up_bytes += engine_part_bytes(p);
	else if (p->is_charged)
		c->n.down_bytes += engine_part_bytes(p);
	c->n.n_tickets += p->n_tickets;
	expect(c, p->state == PART_IDLE || t->state == TENSOR_RUNNING,
		"a partition is under way => its tensor is running");
}

static void check_chunk(
	struct engine_checker *c, const struct engine_tensor *t, const struct engine_chunk *k)
{
	uint32_t n_left = 0;

	for (uint32_t i = 0; i < k->n; i++)
		n_left += t->parts[k->first + i].state != PART_LANDED;
	expect(c, k->state != CHUNK_OPEN || n_left == k->n_left,
		"n_left = partitions that have not landed");
	expect(c, k->state != CHUNK_OPEN || n_left, "an open chunk has something left");
	c->n.n_reduce += k->state == CHUNK_REDUCE_WAIT;
	c->n.n_gather += k->state == CHUNK_GATHER_WAIT;
	c->n.n_collectives += k->state == CHUNK_REDUCING || k->state == CHUNK_GATHERING;
	c->n.n_tickets += k->n_tickets;
}

static void check_tensor(struct engine_checker *c, const struct engine_tensor *t)
{
	uint32_t n_left = 0;
	size_t n_before = c->n.n_tickets;

	for (uint32_t i = 0; i < t->n_parts; i++)
		check_part(c, t, &t->parts[i]);
	for (uint32_t i = 0; i < t->n_chunks; i++) {
		check_chunk(c, t, &t->chunks[i]);
		n_left += t->chunks[i].state != CHUNK_IDLE;
	}
	expect(c, c->n.n_tickets - n_before == t->n_tickets, "a tensor's tickets are counted");
	expect(c, t->state != TENSOR_RUNNING || (n_left && n_left == t->chunks_left),
		"running => chunks are left");
	c->n.n_running += t->state == TENSOR_RUNNING;
	c->n.n_waiting += t->state == TENSOR_WAITING;
}

int engine_check(const struct engine *e, struct err_text *err)
{
	struct engine_checker c = {.e = e, .err = err};
	const struct engine_tensor *t;
	size_t n_waiting = 0;

	for (uint32_t i = 0; i < e->n_tensors; i++)
		if (e->tensors[i])
			check_tensor(&c, e->tensors[i]);
	TAILQ_FOREACH (t, &e->waiting, link)
		n_waiting++;
	expect(&c, n_waiting == c.n.n_waiting, "WAITING <=> on the list");
	expect(&c, c.n.n_running == e->n_running, "n_running = tensors in RUNNING");
	expect(&c, c.n.n_up == e->up.n && c.n.n_down == e->down.n,
		"the heaps have the partitions that wait");
	expect(&c, c.n.n_reduce == e->reduce.n && c.n.n_gather == e->gather.n,
		"the heaps have the chunks that wait");
	expect(&c, c.n.n_collectives == e->n_collectives, "collectives are counted");
	expect(&c, c.n.n_tickets == e->n_tickets, "tickets are counted");
	expect(&c, c.n.up_bytes == e->up_bytes && c.n.down_bytes == e->down_bytes,
		"bytes under way are counted");
	expect(&c, !e->failed || (!e->n_running && !n_waiting), "failed => nothing runs");
	return c.rc;
}
