/* The buddy allocator of pool.h: split and merge blocks, add segments. The caller's segment_fn
 * allocates and registers the memory. Only one thread may use a pool. */
#include "common/data/pool.h"

#include <assert.h>
#include <stdlib.h>

#define ORDERS 40

struct pool_segment {
	struct pool_segment *next;
	struct pool *pool;
	/* Array with one entry for each POOL_MIN_BYTES of the segment. The entry at the start of a
	 * block describes the whole block */
	struct buf blocks[];
};

struct pool {
	pool_segment_fn segment_fn;
	void *ctx;
	size_t segment_bytes, limit, total, used, high;
	struct pool_segment *segments;
	TAILQ_HEAD(, buf) free[ORDERS];
};

static unsigned pool_order_for_bytes(size_t bytes)
{
	unsigned o = 0;

	while (((size_t)POOL_MIN_BYTES << o) < bytes)
		o++;
	return o;
}

struct pool *pool_new(size_t segment_bytes, size_t limit_bytes, pool_segment_fn fn, void *ctx)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	assert(segment_bytes >= POOL_MIN_BYTES && (segment_bytes & (segment_bytes - 1)) == 0);
	p->segment_fn = fn;
	p->ctx = ctx;
	p->segment_bytes = segment_bytes;
	p->limit = limit_bytes;
	for (unsigned o = 0; o < ORDERS; o++)
		TAILQ_INIT(&p->free[o]);
	return p;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	while (p->segments) {
		struct pool_segment *next = p->segments->next;

		free(p->segments);
		p->segments = next;
	}
	free(p);
}

static void free_list_add(struct pool *p, struct buf *b, size_t bytes)
{
	b->bytes = bytes;
	b->is_head = true;
	b->is_free = true;
	TAILQ_INSERT_HEAD(&p->free[pool_order_for_bytes(bytes)], b, link);
}

static void free_list_del(struct pool *p, struct buf *b)
{
	b->is_free = false;
	TAILQ_REMOVE(&p->free[pool_order_for_bytes(b->bytes)], b, link);
}

static int pool_grow_by_segment(struct pool *p)
{
	size_t n = p->segment_bytes / POOL_MIN_BYTES;
	struct pool_segment *s;
	uint16_t id;
	void *mem;

	if (p->limit - p->total < p->segment_bytes)
		return -1;
	s = calloc(1, sizeof(*s) + n * sizeof(s->blocks[0]));
	if (!s)
		return -1;
	if (p->segment_fn(p->ctx, p->segment_bytes, &mem, &id) < 0) {
		free(s);
		return -1;
	}
	for (size_t i = 0; i < n; i++)
		s->blocks[i] = (struct buf){.mem = (char *)mem + i * POOL_MIN_BYTES,
			.offset = i * POOL_MIN_BYTES,
			.segment = id,
			.owner = s};
	s->next = p->segments;
	s->pool = p;
	p->segments = s;
	p->total += p->segment_bytes;
	free_list_add(p, &s->blocks[0], p->segment_bytes);
	return 0;
}

static struct buf *pool_block_at_offset(const struct buf *b, uint64_t offset)
{
	return &b->owner->blocks[offset / POOL_MIN_BYTES];
}

struct buf *pool_get(struct pool *p, size_t bytes)
{
	unsigned want = pool_order_for_bytes(bytes), o = want;
	struct buf *b;

	if (bytes > p->segment_bytes)
		return NULL;
	while (o < ORDERS && TAILQ_EMPTY(&p->free[o]))
		o++;
	if (o == ORDERS) {
		if (pool_grow_by_segment(p) < 0)
			return NULL;
		o = pool_order_for_bytes(p->segment_bytes);
	}
	b = TAILQ_FIRST(&p->free[o]);
	free_list_del(p, b);
	while (o > want) { /* split the block; its upper half becomes free */
		size_t half = (size_t)POOL_MIN_BYTES << --o;

		free_list_add(p, pool_block_at_offset(b, b->offset + half), half);
	}
	b->bytes = (size_t)POOL_MIN_BYTES << want;
	b->is_head = true;
	p->used += b->bytes;
	if (p->used > p->high)
		p->high = p->used;
	return b;
}

struct pool *pool_of_buffer(const struct buf *b)
{
	return b->owner->pool;
}

void pool_put(struct pool *p, struct buf *b)
{
	size_t bytes;

	if (!b)
		return;
	assert(b->is_head && !b->is_free);
	p->used -= b->bytes;
	for (bytes = b->bytes; bytes < p->segment_bytes; bytes *= 2) {
		struct buf *other = pool_block_at_offset(b, b->offset ^ bytes);

		if (!other->is_head || !other->is_free || other->bytes != bytes)
			break;
		free_list_del(p, other);
		if (other->offset < b->offset) {
			b->is_head = false;
			b = other;
		} else {
			other->is_head = false;
		}
	}
	free_list_add(p, b, bytes);
}

size_t pool_used_bytes(const struct pool *p)
{
	return p->used;
}

size_t pool_peak_bytes(const struct pool *p)
{
	return p->high;
}

size_t pool_limit_bytes(const struct pool *p)
{
	return p->limit;
}
