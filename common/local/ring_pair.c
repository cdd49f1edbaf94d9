#include "common/local/ring_pair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MASK (PIPE_ENTRIES - 1)

void pipe_init(struct pipe *p, struct pipe_page *page, int wake_fd, bool is_agent)
{
	*p = (struct pipe){.page = page, .wake_fd = wake_fd, .out = is_agent ? 0 : 1};
}

void pipe_fini(struct pipe *p)
{
	free(p->late);
	p->late = NULL;
}

static bool put(struct pipe *p, const struct pipe_entry *e)
{
	struct pipe_ring *r = &p->page->rings[p->out];
	/* Acquire: partner is the store in pipe_pop, which has copied the entry before. */
	uint32_t used = p->tail - atomic_load_explicit(&r->head, memory_order_acquire);

	if (used >= PIPE_ENTRIES) /* full, or its reader writes nonsense */
		return false;
	r->entries[p->tail++ & MASK] = *e;
	/* Release: partner is the load in pipe_pop. */
	atomic_store_explicit(&r->tail, p->tail, memory_order_release);
	return true;
}

static int keep(struct pipe *p, const struct pipe_entry *e)
{
	struct pipe_entry *v;

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

int pipe_push(struct pipe *p, const struct pipe_entry *e)
{
	if (p->n_late || !put(p, e))
		return keep(p, e);
	p->is_dirty = true;
	return 0;
}

bool pipe_flush(struct pipe *p)
{
	struct pipe_ring *r = &p->page->rings[p->out];
	uint64_t one = 1;

	while (p->n_late && put(p, &p->late[p->first_late])) {
		p->first_late++;
		p->n_late--;
		p->is_dirty = true;
	}
	if (!p->n_late)
		p->first_late = 0;
	if (!p->is_dirty)
		return p->n_late;
	p->is_dirty = false;
	/* The reader's pair is "store sleeps, load tail". Both seq_cst: one sees the other's. */
	atomic_fetch_add(&r->tail, 0);
	if (atomic_load(&r->sleeps))
		(void)!write(p->wake_fd, &one, sizeof(one)); /* fails only when it is being woken */
	return p->n_late;
}

bool pipe_pop(struct pipe *p, struct pipe_entry *ret)
{
	struct pipe_ring *r = &p->page->rings[!p->out];
	uint32_t n = atomic_load_explicit(&r->tail, memory_order_acquire) - p->head;

	if (n == 0 || n > PIPE_ENTRIES)
		return false;
	*ret = r->entries[p->head++ & MASK];
	atomic_store_explicit(&r->head, p->head, memory_order_release);
	return true;
}

bool pipe_sleep(struct pipe *p)
{
	struct pipe_ring *r = &p->page->rings[!p->out];

	atomic_store(&r->sleeps, 1);
	if (atomic_load(&r->tail) == p->head && !p->n_late)
		return true;
	pipe_awake(p);
	return false;
}

void pipe_awake(struct pipe *p)
{
	atomic_store_explicit(&p->page->rings[!p->out].sleeps, 0, memory_order_relaxed);
}
