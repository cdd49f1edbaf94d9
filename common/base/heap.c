#include "common/base/heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int heap_reserve(struct heap *h, size_t cap)
{
	struct heap_node **v;
	size_t want = h->cap ? h->cap : 16;

	while (want < cap)
		want *= 2;
	if (want == h->cap)
		return 0;
	v = realloc(h->v, want * sizeof(struct heap_node *));
	if (!v)
		return -ENOMEM;
	h->v = v;
	h->cap = want;
	return 0;
}

void heap_fini(struct heap *h)
{
	free(h->v);
	*h = (struct heap){0};
}

static void heap_place_node(struct heap *h, size_t i, struct heap_node *n)
{
	h->v[i] = n;
	n->pos = i + 1;
}

static void sift_up(struct heap *h, size_t i, struct heap_node *n)
{
	for (; i > 0 && h->v[(i - 1) / 2]->key > n->key; i = (i - 1) / 2)
		heap_place_node(h, i, h->v[(i - 1) / 2]);
	heap_place_node(h, i, n);
}

static void sift_down(struct heap *h, size_t i, struct heap_node *n)
{
	for (;;) {
		size_t c = 2 * i + 1;

		if (c >= h->n)
			break;
		if (c + 1 < h->n && h->v[c + 1]->key < h->v[c]->key)
			c++;
		if (h->v[c]->key >= n->key)
			break;
		heap_place_node(h, i, h->v[c]);
		i = c;
	}
	heap_place_node(h, i, n);
}

void heap_push(struct heap *h, struct heap_node *n)
{
	assert(!heap_node_is_queued(n) && h->n < h->cap);
	sift_up(h, h->n++, n);
}

void heap_remove(struct heap *h, struct heap_node *n)
{
	struct heap_node *last;
	size_t i = n->pos - 1;

	assert(heap_node_is_queued(n) && h->v[i] == n);
	n->pos = 0;
	last = h->v[--h->n];
	if (last == n)
		return;
	if (i > 0 && h->v[(i - 1) / 2]->key > last->key)
		sift_up(h, i, last);
	else
		sift_down(h, i, last);
}

bool heap_is_valid(const struct heap *h)
{
	bool is_valid = h->n <= h->cap;

	for (size_t i = 0; is_valid && i < h->n; i++)
		is_valid =
			h->v[i]->pos == i + 1 && (i == 0 || h->v[(i - 1) / 2]->key <= h->v[i]->key);
	return is_valid;
}
