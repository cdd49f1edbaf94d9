/* Implements the executor's tensors. Collects the ring entries with which the agent describes a
 * tensor. Adds the tensor to the engine when its description is complete. The engine copies the
 * data. Thread: the executor's. */
#include <errno.h>
#include <string.h>

#include "bps-agent/executor/exec.h"
#include "common/base/log.h"
#include "common/data/shape.h"

static void exec_report_bad_tensor(struct exec *x, uint32_t id, int rc, const char *why)
{
	struct ring_pair_entry e = {.type = RING_PAIR_BAD, .id = id, .x = (uint64_t)-rc};

	log_warn("a tensor cannot be used on the GPUs: job=%s tensor=%u why=%s", x->job, id, why);
	ring_pair_push(&x->pipe, &e);
}

static void tensor_desc_begin(struct exec *x, const struct ring_pair_entry *e)
{
	struct exec_making *m = &x->making;

	memset(m, 0, sizeof(*m));
	m->is_open = true;
	m->t = (struct engine_tensor_desc){.id = e->id,
		.shape = shape_from_dtype_and_count(e->a, e->x),
		.part_bytes = e->y,
		.places = m->places,
		.in = m->in};
}

static void tensor_desc_add_buffer(struct exec *x, const struct ring_pair_entry *e)
{
	struct exec_making *m = &x->making;
	struct engine_range r = {exec_arena_memory(x, (uint32_t)e->x), e->y};

	if (!r.mem) {
		/* the agent has sent the arena on the socket before it wrote this entry */
		exec_read_agent(x);
		r.mem = exec_arena_memory(x, (uint32_t)e->x);
	}
	if (e->a == RING_PAIR_IN && e->b < DEVICE_GPUS_MAX) {
		m->in[e->b] = r;
		m->n_in++;
	} else if (e->a == RING_PAIR_OUT && e->b < 2) {
		m->t.out[e->b] = r;
		m->n_out++;
	} else {
		m->is_bad = true;
	}
}

static void tensor_desc_add_place(struct exec *x, const struct ring_pair_entry *e)
{
	struct exec_making *m = &x->making;

	if (e->b >= x->n_workers || e->x > UINT32_MAX || e->z >= x->n_slots) {
		m->is_bad = true;
		return;
	}
	m->places[e->b] = (struct engine_place){
		{exec_region_memory(x, e->b, (uint32_t)e->x), e->y}, (uint32_t)e->z};
	m->n_places++;
}

/* Add the complete tensor to the engine, which checks the ranges. After a restart of the agent, the
 * tensor may exist already. */
static void tensor_desc_finish(struct exec *x)
{
	struct exec_making *m = &x->making;
	struct err_text err = {"the agent's description is invalid"};
	int rc = m->is_bad ? -EINVAL : engine_match_tensor(x->engine, &m->t);

	if (rc == -ENOENT)
		rc = engine_add_tensor(x->engine, &m->t, &err);
	m->is_open = false;
	if (rc < 0)
		exec_report_bad_tensor(x, m->t.id, rc, err.s);
}

static void tensor_desc_add_entry(struct exec *x, const struct ring_pair_entry *e)
{
	struct exec_making *m = &x->making;

	if (e->type == RING_PAIR_TENSOR) {
		tensor_desc_begin(x, e);
		return;
	}
	if (!m->is_open || e->id != m->t.id)
		return;
	if (e->type == RING_PAIR_BUFFER)
		tensor_desc_add_buffer(x, e);
	else
		tensor_desc_add_place(x, e);
	/* The description may have been discarded, because exec_read_agent found that the agent was
	 * restarted. The next agent process describes the tensor again. */
	if (!m->is_open)
		return;
	if (m->n_places == x->n_workers && m->n_out == 2 &&
		m->n_in == engine_count_inputs(x->engine))
		tensor_desc_finish(x);
}

void exec_entries_end(struct exec *x)
{
	x->making.is_open = false;
}

void exec_entry_forget(struct exec *x, const struct device_mem *mem)
{
	for (uint32_t w = 0; w < x->n_workers; w++)
		if (x->making.places[w].at.mem == mem)
			/* the engine rejects a tensor without memory */
			x->making.places[w].at.mem = NULL;
}

static void exec_poison_slot(struct exec *x, const struct ring_pair_entry *e)
{
	if (e->b < x->n_workers && x->trainers[e->b].slots && e->z < x->n_slots)
		gpu_slot_poison(&x->trainers[e->b].slots[e->z]);
}

void exec_apply_ring_entry(struct exec *x, const struct ring_pair_entry *e)
{
	int rc = 0;

	if (e->type == RING_PAIR_POISON) {
		exec_poison_slot(x, e);
		return;
	}
	if (!x->engine || x->state != EXEC_RUNNING)
		return; /* the job has failed, so ignore the entry */
	switch (e->type) {
	case RING_PAIR_TENSOR:
	case RING_PAIR_BUFFER:
	case RING_PAIR_PLACE:
		tensor_desc_add_entry(x, e);
		break;
	case RING_PAIR_RUN:
		rc = e->a < OP_COUNT && !op_is_bitwise(e->a)
			     ? engine_submit_round(x->engine, e->id, e->x, e->a, e->b)
			     : -EINVAL;
		if (rc < 0)
			exec_report_bad_tensor(x, e->id, rc,
				"the agent has named a wrong round or an invalid operation");
		break;
	case RING_PAIR_LANDED:
		rc = engine_accept_landed_sum(x->engine, e->id, (uint32_t)e->y, e->x);
		break;
	case RING_PAIR_CANCEL:
		engine_cancel_tensor(x->engine, e->id);
		break;
	default:
		rc = -EINVAL;
	}
	if (rc < 0 && e->type != RING_PAIR_RUN)
		log_rated(LOG_WARN,
			"ignoring an invalid ring entry from the agent: type=%u tensor=%u",
			(unsigned)e->type, e->id);
}
