/* Moves chunks and partitions through their stages, which the diagram in engine.h shows. The
 * functions add work to the queues of lanes, and never wait for the end of work. Thread: the
 * executor's. */
#include "bps-agent/executor/engine_stage.h"

#include <assert.h>

#include "common/base/log.h"
#include "common/base/state.h"

/* Maximum number of collectives that run or are queued. A few collectives are queued behind the
 * running collective, to keep the GPUs busy. If more were queued, an urgent collective would wait
 * behind less urgent collectives. */
#define COLLECTIVES_MAX 4

static const struct state_row part_states[PART_STATES] = {
	[PART_IDLE] = {"idle", 1u << PART_UP_WAIT},
	[PART_UP_WAIT] = {"up-wait", 1u << PART_UP},
	[PART_UP] = {"up", 1u << PART_STAGED},
	[PART_STAGED] = {"staged", 1u << PART_DOWN_WAIT},
	[PART_DOWN_WAIT] = {"down-wait", 1u << PART_DOWN},
	[PART_DOWN] = {"down", 1u << PART_LANDED},
	[PART_LANDED] = {"landed", 0},
};
static const struct state_row chunk_states[CHUNK_STATES] = {
	[CHUNK_IDLE] = {"idle", 1u << CHUNK_REDUCE_WAIT | 1u << CHUNK_OPEN},
	[CHUNK_REDUCE_WAIT] = {"reduce-wait", 1u << CHUNK_REDUCING | 1u << CHUNK_OPEN},
	[CHUNK_REDUCING] = {"reducing", 1u << CHUNK_OPEN},
	[CHUNK_OPEN] = {"open", 1u << CHUNK_GATHER_WAIT},
	[CHUNK_GATHER_WAIT] = {"gather-wait", 1u << CHUNK_GATHERING},
	[CHUNK_GATHERING] = {"gathering", 0},
};

/* Set the state. Any state may change to IDLE when the round is over. */
static void engine_part_set_state(struct engine_part *p, enum engine_part_state state)
{
	assert(state == PART_IDLE || (part_states[p->state].next >> state & 1));
	log_trace("partition changes from %s to %s: tensor=%u part=%u round=%llu",
		part_states[p->state].name, part_states[state].name, p->chunk->tensor->id, p->index,
		(unsigned long long)p->chunk->tensor->round);
	p->state = state;
}

static void engine_chunk_set_state(struct engine_chunk *c, enum engine_chunk_state state)
{
	assert(state == CHUNK_IDLE || (chunk_states[c->state].next >> state & 1));
	log_trace("chunk changes from %s to %s: tensor=%u first_part=%u round=%llu",
		chunk_states[c->state].name, chunk_states[state].name, c->tensor->id, c->first,
		(unsigned long long)c->tensor->round);
	c->state = state;
}

static uint64_t engine_part_offset(const struct engine_part *p)
{
	return (uint64_t)p->index * p->chunk->tensor->part_bytes;
}

uint64_t engine_part_bytes(const struct engine_part *p)
{
	const struct engine_tensor *t = p->chunk->tensor;
	uint64_t left = t->bytes - engine_part_offset(p);

	return left < t->part_bytes ? left : t->part_bytes;
}

static uint64_t engine_chunk_offset(const struct engine_chunk *c)
{
	return (uint64_t)c->first * c->tensor->part_bytes;
}

static uint64_t engine_chunk_bytes(const struct engine_chunk *c)
{
	uint64_t left = c->tensor->bytes - engine_chunk_offset(c), n = c->n * c->tensor->part_bytes;

	return left < n ? left : n;
}

/* Return the key of a partition or chunk in the engine's heaps. index: index of the partition, or
 * of the chunk's first partition. The smallest key is first. The order is by priority, then by the
 * order in which rounds began. The agent sends contributions in the same order
 * (bps-agent/core/part.c). */
static uint64_t engine_heap_key_of(const struct engine_tensor *t, uint32_t index)
{
	return heap_key_of_partition(t->priority, t->run_seq, index);
}

/* ---- byte ranges of members ---- */

struct range {
	uint64_t first, bytes; /* first: offset of the range in the tensor */
};

static const struct engine_member *engine_member_at(const struct engine *e, unsigned i)
{
	return &e->members[i];
}

/* Return the chunk's root, as a position in the group. A route with roots has only one group. */
static unsigned chunk_root_place(const struct engine_chunk *c)
{
	const struct route *r = &c->tensor->e->route;

	return r->roots[(c->tensor->id + c->first / c->n) % r->n_roots];
}

/* Return the byte range that member i copies to the host (is_up true) or from the host (is_up
 * false). The range is part of the chunk. */
static struct range chunk_member_share(const struct engine_chunk *c, unsigned i, bool is_up)
{
	const struct engine *e = c->tensor->e;
	const struct route *r = &e->route;
	const struct engine_member *m = engine_member_at(e, i);
	struct range s = {0, engine_chunk_bytes(c)};
	bool is_split = is_up ? r->up == UP_SCATTER : r->down == DOWN_GATHER;
	bool has_root = is_up ? r->up == UP_REDUCE : r->down == DOWN_BCAST;

	if (is_split)
		route_piece_range(s.bytes, r->groups[m->group].n, m->place, &s.first, &s.bytes);
	else if (has_root)
		s.bytes = m->place == chunk_root_place(c) ? s.bytes : 0;
	else if (!is_up && r->down == DOWN_PEER)
		route_piece_range(s.bytes, r->n_members, i, &s.first, &s.bytes);
	s.first += engine_chunk_offset(c);
	return s;
}

/* Return the intersection of two ranges: the range that chunk_member_share returns, and the
 * partition. If the intersection is empty, the field `bytes` is 0. */
static struct range part_member_share(const struct engine_part *p, unsigned i, bool is_up)
{
	struct range s = chunk_member_share(p->chunk, i, is_up);
	uint64_t first = engine_part_offset(p), end = first + engine_part_bytes(p),
		 s_end = s.first + s.bytes;

	if (s.first < first)
		s.first = first;
	if (s_end > end)
		s_end = end;
	s.bytes = s_end > s.first ? s_end - s.first : 0;
	return s;
}

/* ---- partitions ---- */

static void engine_part_queue_up_copy(struct engine_part *p)
{
	struct engine_tensor *t = p->chunk->tensor;

	p->next = 0;
	engine_part_set_state(p, PART_UP_WAIT);
	p->node.key = engine_heap_key_of(t, p->index);
	heap_push(&t->e->up, &p->node);
}

static void engine_part_uncharge(struct engine_part *p)
{
	struct engine *e = p->chunk->tensor->e;

	if (!p->is_charged)
		return;
	p->is_charged = false;
	if (p->state <= PART_UP)
		e->up_bytes -= engine_part_bytes(p);
	else
		e->down_bytes -= engine_part_bytes(p);
}

/* Add a copy to the queue of member i. The copy covers the range that part_member_share returns for
 * member i. If that range is empty, no copy is added. Returns 0, DEVICE_AGAIN, or an error. */
static int part_copy_member_share(struct engine_part *p, unsigned i, bool is_up)
{
	struct engine_tensor *t = p->chunk->tensor;
	struct engine *e = t->e;
	struct range s = part_member_share(p, i, is_up);
	struct engine_lane *l = &e->members[i].lanes[is_up ? LANE_UP : LANE_DOWN];
	const struct engine_range *dev = &t->places[i].at, *host;
	int rc;

	if (!s.bytes)
		return 0;
	if (!engine_lane_has_room(l))
		return DEVICE_AGAIN;
	host = is_up ? &t->in[engine_member_at(e, i)->group] : &t->out[t->round & 1];
	if (is_up)
		rc = e->ops->copy(l->q, host->mem, host->offset + s.first, dev->mem,
			dev->offset + s.first, s.bytes);
	else
		rc = e->ops->copy(l->q, dev->mem, dev->offset + s.first, host->mem,
			host->offset + s.first, s.bytes);
	if (rc == 0)
		engine_lane_add_ticket(l, p, NULL);
	return rc;
}

/* Add the partition's copies to the queues, starting with the copy of member p->next. Returns
 * whether all copies are queued. */
static bool part_queue_copies(struct engine_part *p, bool is_up)
{
	struct engine *e = p->chunk->tensor->e;

	for (; p->next < e->route.n_members; p->next++) {
		int rc = part_copy_member_share(p, p->next, is_up);

		if (rc < 0 && rc != DEVICE_AGAIN)
			engine_device_error(e, rc, "cannot queue a copy");
		if (rc < 0 || e->failed)
			return false;
	}
	return true;
}

static bool engine_issue_part_copies(struct engine *e, bool is_up)
{
	struct heap *heap = is_up ? &e->up : &e->down;
	uint64_t *used = is_up ? &e->up_bytes : &e->down_bytes;
	struct heap_node *node;
	bool any = false;

	while ((node = heap_min(heap)) && !e->failed) {
		struct engine_part *p =
			(struct engine_part *)((char *)node - offsetof(struct engine_part, node));

		if (!p->is_charged) {
			if (*used && *used + engine_part_bytes(p) > e->window_bytes)
				break;
			p->is_charged = true;
			*used += engine_part_bytes(p);
		}
		if (!part_queue_copies(p, is_up))
			break;
		heap_remove(heap, node);
		engine_part_set_state(p, is_up ? PART_UP : PART_DOWN);
		any = true;
		/* Add an extra ticket and end it at once. If all copies have ended already, the end
		 * of the extra ticket moves the partition to its next state. */
		p->n_tickets++;
		engine_part_ticket_done(p);
	}
	return any;
}

static void chunk_gather_or_end(struct engine_chunk *c);

static void part_down_done(struct engine_part *p)
{
	struct engine_chunk *c = p->chunk;

	engine_part_uncharge(p);
	engine_part_set_state(p, PART_LANDED);
	if (--c->n_left == 0)
		chunk_gather_or_end(c);
}

void engine_part_ticket_done(struct engine_part *p)
{
	struct engine_tensor *t = p->chunk->tensor;

	if (--p->n_tickets > 0 || t->state != TENSOR_RUNNING)
		return;
	if (p->state == PART_UP) {
		engine_part_uncharge(p);
		engine_part_set_state(p, PART_STAGED);
		if (!t->is_mute)
			t->e->env.staged(t->e->env.ctx, t->id, p->index, t->round);
	} else if (p->state == PART_DOWN) {
		part_down_done(p);
	}
}

void engine_part_landed(struct engine_part *p)
{
	struct engine_tensor *t = p->chunk->tensor;

	p->next = 0;
	engine_part_set_state(p, PART_DOWN_WAIT);
	p->node.key = engine_heap_key_of(t, p->index);
	heap_push(&t->e->down, &p->node);
}

bool engine_part_has_landed(const struct engine_part *p)
{
	/* When all stages of a chunk are done, its landed partitions change to IDLE. Then only the
	 * state of the chunk shows that these partitions have landed. */
	bool is_chunk_done = p->chunk->state == CHUNK_IDLE && p->chunk->n_left == 0;

	return p->chunk->tensor->state == TENSOR_RUNNING &&
	       (p->state > PART_STAGED || is_chunk_done);
}

/* ---- chunks ---- */

static void chunk_open_parts(struct engine_chunk *c)
{
	engine_chunk_set_state(c, CHUNK_OPEN);
	for (uint32_t i = 0; i < c->n; i++)
		engine_part_queue_up_copy(&c->tensor->parts[c->first + i]);
}

static void chunk_end_round(struct engine_chunk *c)
{
	struct engine_tensor *t = c->tensor;

	for (uint32_t i = 0; i < c->n; i++)
		engine_part_set_state(&t->parts[c->first + i], PART_IDLE);
	engine_chunk_set_state(c, CHUNK_IDLE);
	if (--t->chunks_left == 0)
		engine_tensor_done(t);
}

static void chunk_gather_or_end(struct engine_chunk *c)
{
	struct engine *e = c->tensor->e;

	if (e->route.down == DOWN_COPY) {
		chunk_end_round(c);
		return;
	}
	c->next = 0;
	engine_chunk_set_state(c, CHUNK_GATHER_WAIT);
	c->node.key = engine_heap_key_of(c->tensor, c->first);
	heap_push(&e->gather, &c->node);
}

void engine_chunk_ticket_done(struct engine_chunk *c)
{
	struct engine *e = c->tensor->e;

	if (--c->n_tickets > 0)
		return;
	if (c->state != CHUNK_REDUCING && c->state != CHUNK_GATHERING)
		/* the chunk's work is not completely queued yet, or the chunk's round is over */
		return;
	e->n_collectives--;
	if (c->tensor->state != TENSOR_RUNNING)
		engine_chunk_set_state(c, CHUNK_IDLE);
	else if (c->state == CHUNK_REDUCING)
		chunk_open_parts(c);
	else
		chunk_end_round(c);
}

/* Add the collective of one group to the queues of the group's members. If the route has no root,
 * each member has an equal block of the chunk, and the last member also has the remainder. */
static int chunk_issue_collective(struct engine_chunk *c, unsigned g, bool is_up)
{
	const struct engine_tensor *t = c->tensor;
	struct engine *e = t->e;
	const struct route_group *group = &e->route.groups[g];
	struct device_clique *q = e->cliques[g];
	struct device_piece pieces[DEVICE_GPUS_MAX], tails[DEVICE_GPUS_MAX];
	uint64_t elem = dtype_bytes(t->shape.dtype), all = engine_chunk_bytes(c) / elem, count,
		 tail;
	bool has_root = e->route.up == UP_REDUCE;
	/* For an average, the GPUs only sum, and a server divides the sum by the number of workers.
	 * In a job with one member, the agent does so. Only where contributions are means, the GPUs
	 * compute the mean of their group. */
	enum op op = t->op == OP_AVG && !op_takes_means(t->op, t->shape.dtype) ? OP_SUM : t->op;
	int root = has_root ? (int)chunk_root_place(c) : group->n - 1, rc, end;

	count = has_root ? 0 : route_block_bytes(engine_chunk_bytes(c), group->n) / elem;
	tail = all - count * group->n;
	for (unsigned i = 0; i < group->n; i++) {
		const struct engine_range *at = &t->places[group->member[i]].at;

		pieces[i] = (struct device_piece){at->mem, at->offset + engine_chunk_offset(c),
			e->members[group->member[i]].lanes[LANE_COLL].q};
		tails[i] = pieces[i];
		tails[i].offset += count * group->n * elem;
	}
	rc = e->ops->group_begin(q);
	if (rc < 0)
		return rc;
	if (count)
		rc = is_up ? e->ops->reduce_scatter(q, pieces, count, t->shape.dtype, op)
			   : e->ops->all_gather(q, pieces, count, t->shape.dtype);
	if (rc == 0 && tail)
		rc = is_up ? e->ops->reduce(q, tails, tail, t->shape.dtype, op, root)
			   : e->ops->broadcast(q, tails, tail, t->shape.dtype, root);
	end = e->ops->group_end(q);
	return rc < 0 ? rc : end;
}

/* Add the collectives of all groups to the queues. Returns 0 if all collectives are queued, else
 * DEVICE_AGAIN or an error. */
static int issue_collectives(struct engine_chunk *c, bool is_up)
{
	struct engine *e = c->tensor->e;

	for (; c->next < e->route.n_groups; c->next++) {
		const struct route_group *g = &e->route.groups[c->next];
		int rc = e->cliques[c->next] ? e->ops->clique_poll(e->cliques[c->next]) : 0;

		for (unsigned i = 0; rc == 0 && i < g->n; i++)
			if (!engine_lane_has_room(&e->members[g->member[i]].lanes[LANE_COLL]))
				rc = DEVICE_AGAIN;
		if (rc == 0 && e->cliques[c->next])
			rc = chunk_issue_collective(c, c->next, is_up);
		if (rc < 0)
			return rc;
		for (unsigned i = 0; e->cliques[c->next] && i < g->n; i++)
			engine_lane_add_ticket(&e->members[g->member[i]].lanes[LANE_COLL], NULL, c);
		if (e->failed)
			return DEVICE_LOST;
	}
	return 0;
}

/* Add the copies between GPUs to the queues. Each member has received one piece of the chunk from
 * host memory, and copies this piece to all other members. c->next is the index of the next pair of
 * members. */
static int issue_peer_copies(struct engine_chunk *c)
{
	const struct engine_tensor *t = c->tensor;
	struct engine *e = t->e;
	unsigned n = e->route.n_members;

	for (; c->next < n * n; c->next++) {
		unsigned from = c->next / n, to = c->next % n;
		struct engine_lane *l = &e->members[from].lanes[LANE_DOWN];
		const struct engine_range *src = &t->places[from].at, *dst = &t->places[to].at;
		struct range s = chunk_member_share(c, from, false);
		int rc;

		if (from == to || !s.bytes)
			continue;
		if (!engine_lane_has_room(l))
			return DEVICE_AGAIN;
		rc = e->ops->copy(l->q, dst->mem, dst->offset + s.first, src->mem,
			src->offset + s.first, s.bytes);
		if (rc < 0)
			return rc;
		engine_lane_add_ticket(l, NULL, c);
		if (e->failed)
			return DEVICE_LOST;
	}
	return 0;
}

static bool engine_issue_chunks(struct engine *e, bool is_up)
{
	struct heap *heap = is_up ? &e->reduce : &e->gather;
	struct heap_node *node;
	bool any = false;

	while ((node = heap_min(heap)) && !e->failed && e->n_collectives < COLLECTIVES_MAX) {
		struct engine_chunk *c =
			(struct engine_chunk *)((char *)node - offsetof(struct engine_chunk, node));
		int rc = !is_up && e->route.down == DOWN_PEER ? issue_peer_copies(c)
							      : issue_collectives(c, is_up);

		if (rc == DEVICE_AGAIN)
			break;
		if (rc < 0) {
			engine_device_error(e, rc, "cannot queue a collective");
			break;
		}
		heap_remove(heap, node);
		any = true;
		engine_chunk_set_state(c, is_up ? CHUNK_REDUCING : CHUNK_GATHERING);
		e->n_collectives++;
		/* Add an extra ticket and end it at once. If the chunk has no other tickets, or if
		 * all other tickets have ended already, the end of the extra ticket moves the chunk
		 * to its next state. */
		c->n_tickets++;
		engine_chunk_ticket_done(c);
	}
	return any;
}

bool engine_issue_work(struct engine *e)
{
	bool any = false;

	/* Queue the work of gathering first, because the end of gathering ends a round, and
	 * trainers wait for the end of rounds. */
	any |= engine_issue_chunks(e, false);
	any |= engine_issue_part_copies(e, false);
	any |= engine_issue_chunks(e, true);
	any |= engine_issue_part_copies(e, true);
	return any;
}

/* ---- tensors ---- */

void engine_tensor_begin(struct engine_tensor *t)
{
	struct engine *e = t->e;

	t->chunks_left = t->n_chunks;
	for (uint32_t i = 0; i < t->n_chunks; i++) {
		struct engine_chunk *c = &t->chunks[i];

		c->n_left = c->n;
		c->next = 0;
		if (e->route.up == UP_COPY) {
			chunk_open_parts(c);
			continue;
		}
		engine_chunk_set_state(c, CHUNK_REDUCE_WAIT);
		c->node.key = engine_heap_key_of(t, c->first);
		heap_push(&e->reduce, &c->node);
	}
}

void engine_tensor_stop(struct engine_tensor *t)
{
	struct engine *e = t->e;

	for (uint32_t i = 0; i < t->n_parts; i++) {
		struct engine_part *p = &t->parts[i];

		engine_part_uncharge(p);
		if (heap_node_is_queued(&p->node))
			heap_remove(p->state == PART_UP_WAIT ? &e->up : &e->down, &p->node);
		engine_part_set_state(p, PART_IDLE);
	}
	for (uint32_t i = 0; i < t->n_chunks; i++) {
		struct engine_chunk *c = &t->chunks[i];

		if (heap_node_is_queued(&c->node))
			heap_remove(
				c->state == CHUNK_REDUCE_WAIT ? &e->reduce : &e->gather, &c->node);
		/* If collectives or copies of the chunk have not ended yet, keep the state. It
		 * changes to IDLE when the last ticket of the chunk has ended. */
		if (c->state != CHUNK_REDUCING && c->state != CHUNK_GATHERING)
			engine_chunk_set_state(c, CHUNK_IDLE);
	}
}
