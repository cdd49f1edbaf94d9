/* A trainer: the accelerators of one machine compute in step. A layer's forward pass begins when
 * the sums of its tensors of the step before are on all of them; after its backward pass its
 * gradients are reduced inside the machine, one layer after the other, and then submitted. */
#include "tests/scale/scale.h"

#include "common/data/dtype.h"

#define PRIORITY_FIRST 60000 /* as the library's: what was declared first */
#define START_NS       (10 * MS)

static void go(struct agent *a);

/* A ring inside the machine passes on all but one of its parts. */
static uint64_t machine_ns(const struct scale_options *o, uint64_t bytes)
{
	if (o->gpus < 2 || o->gpu_gbs <= 0)
		return 0;
	return (uint64_t)((double)bytes / o->gpu_gbs * (o->gpus - 1) / o->gpus);
}

/* ---- gradients out ---- */

static void item_submit(struct node *n, struct item *it)
{
	struct agent_tensor *t = it->p;
	const struct scale_options *o = &n->w->o;
	/* What is submitted first is what was declared last. */
	uint16_t priority = (uint16_t)(o->is_fifo ? t->idx : PRIORITY_FIRST - t->idx);

	if (agt_submit(t->t, 0, it->a, OP_AVG, priority) < 0)
		fatal("tensor %u cannot be submitted", t->idx);
	item_free(n->w, it);
}

static void on_reduced(struct world *w, void *p, uint64_t a)
{
	struct agent_tensor *t = p;
	struct item *it = item_new(w, item_submit, NULL);

	it->p = t;
	it->a = a;
	node_post(&t->agent->node, it);
}

static void reduce(struct agent *a, const struct layer *layer)
{
	struct world *w = a->w;

	if (a->reduce_free < w->now)
		a->reduce_free = w->now;
	for (uint32_t i = layer->first; i < layer->first + layer->n; i++) {
		a->reduce_free += machine_ns(&w->o, w->trace->tensors[i].bytes);
		post(w, a->reduce_free, on_reduced, &a->tensors[i], a->step);
	}
}

/* ---- sums in ---- */

static void on_copied(struct world *w, void *p, uint64_t a)
{
	struct agent_tensor *t = p;

	(void)w;
	t->here = a;
	if (!t->agent->is_waiting)
		return;
	t->agent->is_waiting = false;
	go(t->agent);
}

void trainer_sum(struct agent_tensor *t, uint64_t round)
{
	struct agent *a = t->agent;
	struct world *w = a->w;

	if (a->copy_free < w->now)
		a->copy_free = w->now;
	a->copy_free += machine_ns(&w->o, w->trace->tensors[t->idx].bytes);
	post(w, a->copy_free, on_copied, t, round);
}

/* ---- computing ---- */

static bool has_sums(const struct agent *a, const struct layer *layer)
{
	for (uint32_t i = layer->first; i < layer->first + layer->n; i++)
		if (a->tensors[i].here < a->step)
			return false;
	return true;
}

/* All sums of the step before have been used: here one step ends for those who measure. */
static void start_backward(struct agent *a)
{
	struct world *w = a->w;
	uint32_t last = w->o.steps + STEP_WARMUP;

	if (a->step <= last)
		a->starts[a->step] = w->now;
	if (a->step == last)
		w->n_done++;
	a->is_backward = true;
	a->step++;
}

static void on_computed(struct world *w, void *p, uint64_t n)
{
	struct agent *a = p;
	const struct trace *t = w->trace;

	(void)n;
	if (!a->is_backward) {
		if (++a->layer < t->n_layers) {
			go(a);
			return;
		}
		start_backward(a);
	} else {
		reduce(a, &t->layers[a->layer]);
	}
	if (a->layer-- > 0) {
		go(a);
		return;
	}
	a->layer = 0;
	a->is_backward = false;
	go(a);
}

static void go(struct agent *a)
{
	struct world *w = a->w;
	const struct layer *layer = &w->trace->layers[a->layer];

	if (!a->is_backward && !has_sums(a, layer)) {
		a->is_waiting = true;
		return;
	}
	post(w, w->now + (uint64_t)((a->is_backward ? 2 : 1) * layer->forward_ns), on_computed, a,
		0);
}

static void on_start(struct world *w, void *p, uint64_t a)
{
	(void)w, (void)a;
	go(p);
}

void trainer_start(struct agent *a)
{
	post(a->w, START_NS, on_start, a, 0);
}
