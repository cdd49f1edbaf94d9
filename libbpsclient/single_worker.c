#include "libbpsclient/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int single_worker_declare(struct bps_tensor *t)
{
	size_t slot = (t->bytes + LOCAL_ALIGN - 1) / LOCAL_ALIGN * LOCAL_ALIGN;
	char *slots = aligned_alloc(LOCAL_ALIGN, 3 * slot);

	if (!slots)
		return -ENOMEM;
	memset(slots, 0, slot); /* inputs begin as zeros, as in the agent's shared memory */
	t->own_slots = slots;
	t->in = slots;
	t->out[0] = slots + slot;
	t->out[1] = slots + 2 * slot;
	t->entry = &t->own_entry;
	return 0;
}

static void single_worker_add(const struct bps_tensor *t, void *out)
{
	if (t->shape.dtype == DTYPE_F32)
		for (uint64_t i = 0; i < t->shape.n_values; i++)
			((float *)out)[i] += ((const float *)t->in)[i];
	else
		for (uint64_t i = 0; i < t->shape.n_values; i++)
			((double *)out)[i] += ((const double *)t->in)[i];
}

void single_worker_submit(struct bps_tensor *t, bool abstains)
{
	void *out = (void *)(uintptr_t)t->out[t->round & 1];
	uint32_t n;

	if (t->shape.mode == MODE_VALUE && t->round > 1)
		memcpy(out, t->out[(t->round - 1) & 1], t->bytes);
	else
		memset(out, 0, t->bytes);
	if (!abstains && t->shape.mode == MODE_VALUE)
		single_worker_add(t, out);
	else if (!abstains)
		memcpy(out, t->in, t->bytes);
	n = !abstains || t->shape.mode == MODE_VALUE; /* a value has the deltas of all workers */
	atomic_store_explicit(&t->entry->workers, n, memory_order_relaxed);
	atomic_store_explicit(&t->entry->workers_most, n, memory_order_relaxed);
	atomic_store_explicit(&t->entry->is_mine_missing, abstains, memory_order_relaxed);
	atomic_store_explicit(&t->entry->done_order, ++t->b->n_done, memory_order_relaxed);
	atomic_store_explicit(&t->entry->done_round, t->round, memory_order_release);
}
