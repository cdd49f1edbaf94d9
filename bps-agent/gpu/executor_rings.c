/* Exchanges ring entries with the executors in each iteration of the loop (executor_link.h).
 * Thread: the data thread. */
#include <errno.h>

#include "bps-agent/gpu/device_tensor.h"
#include "bps-agent/gpu/executor_link.h"

#define BATCH 1024 /* maximum number of ring entries that one iteration of the loop handles */

uint32_t executors_count_in_use(const struct agent *a)
{
	const struct executor_link *g;
	uint32_t n = 0;

	TAILQ_FOREACH (g, &a->executors, link)
		n += g->n_handles > 0;
	return n;
}

void executor_send_entry(struct executor_link *g, const struct ring_pair_entry *e)
{
	if (g->state == EXECUTOR_RUNNING && ring_pair_push(&g->pipe, e) < 0)
		executor_fail(g, -ENOMEM, "the agent is out of memory");
}

static bool executor_submit_waiting(struct executor_link *g)
{
	struct device_tensor *d;
	bool any = false;

	while ((d = TAILQ_FIRST(&g->again))) {
		TAILQ_REMOVE(&g->again, d, again);
		d->is_again = false;
		d->tensor->kind->submit_waiting(d->tensor);
		any = true;
	}
	return any;
}

bool executor_poll_rings(struct agent *a)
{
	struct executor_link *g;
	bool any = false;

	TAILQ_FOREACH (g, &a->executors, link) {
		struct ring_pair_entry e;

		for (unsigned i = 0;
			g->state == EXECUTOR_RUNNING && i < BATCH && ring_pair_pop(&g->pipe, &e);
			i++) {
			device_tensor_on_entry(g, &e);
			any = true;
		}
		any |= executor_submit_waiting(g);
		if (g->page.mem)
			any |= ring_pair_flush(&g->pipe);
	}
	return any;
}

bool executors_prepare_sleep(struct agent *a)
{
	struct executor_link *g;
	bool may = true;

	TAILQ_FOREACH (g, &a->executors, link)
		if (g->state == EXECUTOR_RUNNING) {
			ring_pair_flush(&g->pipe);
			may &= TAILQ_EMPTY(&g->again) && ring_pair_sleep(&g->pipe);
		}
	return may;
}

void executors_end_sleep(struct agent *a)
{
	struct executor_link *g;

	TAILQ_FOREACH (g, &a->executors, link)
		if (g->state == EXECUTOR_RUNNING)
			ring_pair_awake(&g->pipe);
}
