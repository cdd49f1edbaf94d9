/* The pair of rings between the agent and an executor: push, pop, and wake-ups. Entries that do not
 * fit into a ring stay in the sender's memory. The functions do not interpret the entries. Each
 * side uses one thread. */
#include "common/local/ring_pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MASK (RING_PAIR_ENTRIES - 1)

void ring_pair_init(struct ring_pair *p, struct ring_pair_page *page, int wake_fd, bool is_agent)
{
	*p = (struct ring_pair){.page = page, .wake_fd = wake_fd, .out = is_agent ? 0 : 1};
}

void ring_pair_fini(struct ring_pair *p)
{
	free(p->late);
	p->late = NULL;
}

static bool ring_pair_try_push(struct ring_pair *p, const struct ring_pair_entry *e)
{
	struct ring_pair_ring *r = &p->page->rings[p->out];
	/* Acquire: pairs with the store in ring_pair_pop. The reader copies an entry before it
	 * frees the entry's place in the ring. */
	uint32_t used = p->tail - atomic_load_explicit(&r->head, memory_order_acquire);

	/* the ring is full, or the reader has written an invalid head */
	if (used >= RING_PAIR_ENTRIES)
		return false;
	r->entries[p->tail++ & MASK] = *e;
	/* Release: pairs with the load in ring_pair_pop. The entry must be written before the
	 * tail. */
	atomic_store_explicit(&r->tail, p->tail, memory_order_release);
	return true;
}

static int ring_pair_append_late(struct ring_pair *p, const struct ring_pair_entry *e)
{
	struct ring_pair_entry *v;

	if (p->first_late + p->n_late == p->cap_late) {
		size_t cap = p->n_late ? 2 * p->n_late : 256;

		v = malloc(cap * sizeof(*v));
		if (!v)
			return -ENOMEM;
		if (p->n_late)
			memcpy(v, p->late + p->first_late, p->n_late * sizeof(*v));
		free(p->late);
		p->late = v;
		p->cap_late = cap;
		p->first_late = 0;
	}
	p->late[p->first_late + p->n_late++] = *e;
	return 0;
}

int ring_pair_push(struct ring_pair *p, const struct ring_pair_entry *e)
{
	if (p->n_late || !ring_pair_try_push(p, e))
		return ring_pair_append_late(p, e);
	p->is_dirty = true;
	return 0;
}

bool ring_pair_flush(struct ring_pair *p)
{
	struct ring_pair_ring *r = &p->page->rings[p->out];
	uint64_t one = 1;

	while (p->n_late && ring_pair_try_push(p, &p->late[p->first_late])) {
		p->first_late++;
		p->n_late--;
		p->is_dirty = true;
	}
	if (!p->n_late)
		p->first_late = 0;
	if (!p->is_dirty)
		return p->n_late;
	p->is_dirty = false;
	/* The reader sets the flag `sleeps`, then loads `tail` (ring_pair_sleep). This side adds 0
	 * to `tail`, then loads `sleeps`. All four accesses are seq_cst, so at least
	 * one side reads the other side's store. */
	atomic_fetch_add(&r->tail, 0);
	if (atomic_load(&r->sleeps))
		/* Ignore the result: write fails only when a wake-up is already pending */
		(void)!write(p->wake_fd, &one, sizeof(one));
	return p->n_late;
}

bool ring_pair_pop(struct ring_pair *p, struct ring_pair_entry *ret)
{
	struct ring_pair_ring *r = &p->page->rings[!p->out];
	uint32_t n = atomic_load_explicit(&r->tail, memory_order_acquire) - p->head;

	if (n == 0 || n > RING_PAIR_ENTRIES)
		return false;
	*ret = r->entries[p->head++ & MASK];
	atomic_store_explicit(&r->head, p->head, memory_order_release);
	return true;
}

bool ring_pair_sleep(struct ring_pair *p)
{
	struct ring_pair_ring *r = &p->page->rings[!p->out];

	atomic_store(&r->sleeps, 1);
	if (atomic_load(&r->tail) == p->head && !p->n_late)
		return true;
	ring_pair_awake(p);
	return false;
}

void ring_pair_awake(struct ring_pair *p)
{
	atomic_store_explicit(&p->page->rings[!p->out].sleeps, 0, memory_order_relaxed);
}
