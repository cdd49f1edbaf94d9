/* The trainer of a machine. Its accelerators compute in lockstep. The forward pass of a layer waits
 * until the sums of the layer's tensors from the previous training step are on all accelerators.
 * After the backward pass of a layer, the accelerators of the machine reduce the layer's gradients.
 * Then the trainer submits these gradients. Layers are reduced one after the other. */
#include "tests/scale/scale.h"

#include "common/data/dtype.h"

#define PRIORITY_FIRST 60000 /* priority of the first declared tensor, as in the library */
#define START_NS       (10 * MS)

static void go(struct scale_agent *a);

/* Return the time that the machine's accelerators need to reduce or copy `bytes` bytes in a ring.
 * Each of n accelerators sends n - 1 of the n parts of the data. */
static uint64_t machine_ns(const struct scale_options *o, uint64_t bytes)
{
	if (o->gpus < 2 || o->gpu_gbs <= 0)
		return 0;
	return (uint64_t)((double)bytes / o->gpu_gbs * (o->gpus - 1) / o->gpus);
}

/* ---- gradients out ---- */

static void item_submit(struct scale_node *n, struct scale_item *it)
{
	struct scale_tensor *t = it->p;
	const struct scale_options *o = &n->w->o;
	/* The backward pass submits tensors in the reverse order of their declaration, and the
	 * agent sends high priorities first. So with t->idx as the priority, the tensors are sent
	 * in the order of submission. */
	uint16_t priority = (uint16_t)(o->is_fifo ? t->idx : PRIORITY_FIRST - t->idx);

	if (agt_tensor_submit(t->t, 0, it->a, OP_AVG, priority, false) < 0)
		fatal("the agent rejects the submission of tensor %u", t->idx);
	item_free(n->w, it);
}

static void on_reduced(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_tensor *t = p;
	struct scale_item *it = item_new(w, item_submit, NULL);

	it->p = t;
	it->a = a;
	scale_node_post(&t->agent->node, it);
}

static void reduce(struct scale_agent *a, const struct scale_layer *layer)
{
	struct scale_world *w = a->w;

	if (a->reduce_free < w->now)
		a->reduce_free = w->now;
	for (uint32_t i = layer->first; i < layer->first + layer->n; i++) {
		a->reduce_free += machine_ns(&w->o, w->trace->tensors[i].bytes);
		scale_post(w, a->reduce_free, on_reduced, &a->tensors[i], a->step);
	}
}

/* ---- sums in ---- */

static void on_copied(struct scale_world *w, void *p, uint64_t a)
{
	struct scale_tensor *t = p;

	(void)w;
	t->here = a;
	if (!t->agent->is_waiting)
		return;
	t->agent->is_waiting = false;
	go(t->agent);
}

void scale_trainer_sum(struct scale_tensor *t, uint64_t round)
{
	struct scale_agent *a = t->agent;
	struct scale_world *w = a->w;

	if (a->copy_free < w->now)
		a->copy_free = w->now;
	a->copy_free += machine_ns(&w->o, w->trace->tensors[t->idx].bytes);
	scale_post(w, a->copy_free, on_copied, t, round);
}

/* ---- computing ---- */

static bool has_sums(const struct scale_agent *a, const struct scale_layer *layer)
{
	for (uint32_t i = layer->first; i < layer->first + layer->n; i++)
		if (a->tensors[i].here < a->step)
			return false;
	return true;
}

/* Start the backward pass, after the forward pass has used all sums of the previous step. A
 * measured step ends here. */
static void start_backward(struct scale_agent *a)
{
	struct scale_world *w = a->w;
	uint32_t last = w->o.steps + STEP_WARMUP;

	if (a->step <= last)
		a->starts[a->step] = w->now;
	if (a->step == last)
		w->n_done++;
	a->is_backward = true;
	a->step++;
}

static void on_computed(struct scale_world *w, void *p, uint64_t n)
{
	struct scale_agent *a = p;
	const struct scale_trace *t = w->trace;

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

static void go(struct scale_agent *a)
{
	struct scale_world *w = a->w;
	const struct scale_layer *layer = &w->trace->layers[a->layer];

	if (!a->is_backward && !has_sums(a, layer)) {
		a->is_waiting = true;
		return;
	}
	scale_post(w, w->now + (uint64_t)((a->is_backward ? 2 : 1) * layer->forward_ns),
		on_computed, a, 0);
}

static void on_start(struct scale_world *w, void *p, uint64_t a)
{
	(void)w, (void)a;
	go(p);
}

void scale_trainer_start(struct scale_agent *a)
{
	scale_post(a->w, START_NS, on_start, a, 0);
}
