/* Implements tensors in the memory of GPUs. Requests the tensors' staging memory, and exchanges
 * messages about the tensors' rounds with the executor. The executor copies the data. Thread: the
 * data thread. */
#include "bps-agent/gpu/device_tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/gpu/executor_link.h"
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/trainers/declare.h"
#include "bps-agent/trainers/job.h"
#include "bps-agent/trainers/job_failure.h"
#include "bps-agent/trainers/tensor.h"
#include "common/data/shape.h"

/* ---- declaring ---- */

/* Create the tensor's struct device_tensor. `id` is the executor's id of the tensor. After a
 * restart of the agent, smaller ids may be unused, because the previous process refused the tensors
 * with these ids before it wrote ledger records of them. */
static int device_tensor_new(struct executor_link *g, struct tensor *tensor, uint32_t id)
{
	struct device_tensor **v, *d;

	v = realloc(g->tensors, (id + 1) * sizeof(struct device_tensor *));
	if (!v)
		return -ENOMEM;
	g->tensors = v;
	d = calloc(1, sizeof(*d) + g->job->n_workers * sizeof(d->workers[0]));
	if (!d)
		return -ENOMEM;
	while (g->n_tensors < id)
		g->tensors[g->n_tensors++] = NULL;
	d->executor = g;
	d->tensor = tensor;
	d->id = g->n_tensors++;
	g->tensors[d->id] = d;
	tensor->device = d;
	tensor->kind = &device_tensor_kind;
	return 0;
}

int device_tensor_restore(struct executor_link *g, struct tensor *tensor, uint32_t id)
{
	if (id < g->n_tensors || id >= LOCAL_TENSORS_MAX)
		/* The records are invalid: ids must increase from record to record, and must be
		 * less than LOCAL_TENSORS_MAX. */
		return BPS_EPROTO;
	return device_tensor_new(g, tensor, id);
}

/* Handle the end of a memory request: add the new arena, or fail the executor. Then continue the
 * DECLAREs that wait for the arena. */
static void on_staging_memory_made(struct memory_request *m)
{
	struct executor_link *g = m->user;
	struct job *job = g->job;
	struct arena *a;
	int rc = m->rc;

	g->is_making = false;
	if (rc < 0 || g->state != EXECUTOR_RUNNING || !job || job->state == JOB_ENDED) {
		arena_release_charge(&g->arenas, ARENA_PRIVATE, m->bytes);
		if (rc == 0)
			memory_thread_drop(g->agent->memory_thread, &m->memory);
	} else {
		rc = arena_adopt(&g->arenas, ARENA_PRIVATE, &m->memory, &a, &m->err);
	}
	if (rc < 0 && rc != -ECANCELED && g->state == EXECUTOR_RUNNING)
		executor_fail(g, rc, "cannot make staging memory for the GPUs: %s", m->err.s);
	if (job) {
		job->n_making--;
		if (rc != -ECANCELED)
			declare_resume_waiting(job);
		job_free_if_unused(job);
	}
}

/* Allocate staging memory. `node` is the number of the NUMA node plus 1, or 0 for any node. Errors:
 * those of arena_alloc. After -EINPROGRESS, the memory thread makes an arena for this executor, and
 * declare_resume_waiting is called when the arena is ready. */
static int executor_alloc_staging(struct executor_link *g, uint32_t node, size_t bytes,
	struct arena **ret_arena, struct agt_mem *ret, struct err_text *err)
{
	int rc;

	/* If alloc returns -EINPROGRESS and want_bytes is 0, declare_request_memory
	 * (trainers/declare.c) requests no memory, and the DECLARE waits for
	 * declare_resume_waiting. */
	g->job->arenas.want_bytes = 0;
	if (g->is_making)
		return -EINPROGRESS;
	rc = arena_alloc(&g->arenas, ARENA_PRIVATE, arena_newest_on_node(&g->arenas, node), bytes,
		ret_arena, ret, err);
	if (rc != -EINPROGRESS)
		return rc;
	g->request = (struct memory_request){.name = "bps-staging",
		.bytes = g->arenas.want_bytes,
		.more_seals = 0,
		.node = node,
		.uid = g->job->uid,
		.done = on_staging_memory_made,
		.user = g};
	rc = memory_thread_make(g->agent->memory_thread, &g->request);
	if (rc < 0) {
		arena_release_charge(&g->arenas, ARENA_PRIVATE, g->request.bytes);
		return err_set(err, rc, "the agent is stopping");
	}
	g->is_making = true;
	g->job->n_making++;
	return -EINPROGRESS;
}

/* Allocate the staging memory that the tensor still lacks. A tensor that was restored after a
 * restart has its memory already. */
static int tensor_alloc_staging(
	struct job *job, struct tensor *tensor, size_t bytes, struct err_text *err)
{
	struct device_tensor *d = tensor->device;
	struct executor_link *g = d->executor;
	size_t each = arena_round_up_bytes(bytes);
	struct agt_mem out;
	int rc = 0;

	if (!d->out_arena) {
		rc = executor_alloc_staging(g, g->sum_node, 2 * each, &d->out_arena, &out, err);
		if (rc < 0)
			return rc;
		tensor->out[0] = tensor->out[1] = out;
		tensor->out[1].mem = (char *)out.mem + each;
		tensor->out[1].offset += each;
		tensor->out_arena = d->out_arena;
	}
	for (uint32_t i = 0; i < g->n_inputs && rc == 0; i++)
		if (!d->in_arena[i])
			rc = executor_alloc_staging(
				g, g->input_nodes[i], bytes, &d->in_arena[i], &d->in[i], err);
	if (rc == 0 && g->n_inputs > 1 && !job->is_local && !tensor->staging.mem)
		rc = executor_alloc_staging(
			g, g->sum_node, bytes, &tensor->staging_arena, &tensor->staging, err);
	return rc;
}

static int device_declare(struct trainer *t, struct tensor *tensor, const struct local_decl *d,
	size_t bytes, struct err_text *err)
{
	struct job *job = t->job;
	struct executor_link *g = job->executor;
	int rc = 0;

	if (g && g->state == EXECUTOR_MEETING)
		/* The trainer may already have received a route that this agent has not read yet,
		 * so read the route now. */
		executor_receive_messages(g);
	if (!g || g->state != EXECUTOR_RUNNING)
		return err_set(err, BPS_EDEVICE, "%s",
			g && *g->text
				? g->text
				: "the job has no executor for its GPUs; call bps_gpu_open first");
	if (!tensor->device && tensor->n_declared)
		return err_set(err, BPS_EMISMATCH,
			"another worker of this machine has declared the tensor in host memory");
	if (d->shape.mode != MODE_SUM || d->shape.owner != OWNER_ALL)
		return err_set(
			err, -EINVAL, "a value or a tensor in shards cannot lie in device memory");
	if (dtype_is_block(d->shape.dtype))
		return err_set(err, -EINVAL, "a tensor of type %s cannot lie in device memory",
			dtype_name(d->shape.dtype));
	if (d->region_offset % dtype_bytes(d->shape.dtype))
		return err_set(err, -EINVAL,
			"the tensor's address is not a multiple of the size of an element");
	if (!tensor->device && device_tensor_new(g, tensor, g->n_tensors) < 0)
		rc = err_set(err, -ENOMEM, "the agent is out of memory");
	if (rc == 0)
		rc = tensor_alloc_staging(job, tensor, bytes, err);
	if (rc < 0)
		return rc;
	tensor->device->workers[t->worker].region = d->region;
	tensor->device->workers[t->worker].offset = d->region_offset;
	return 0;
}

static bool device_is_declared_at(
	const struct tensor *tensor, uint32_t worker, const struct local_decl *d)
{
	const struct device_worker *gw = &tensor->device->workers[worker];

	return gw->region == d->region && gw->offset == d->region_offset;
}

static int device_to_core(struct tensor *tensor)
{
	struct device_tensor *d = tensor->device;

	return agt_tensor_new_device(tensor->job->core, &tensor->shape, d->in,
		d->executor->input_workers, d->executor->n_inputs,
		tensor->staging.mem ? &tensor->staging : NULL, tensor->out, tensor, &tensor->core);
}

/* ---- rounds ---- */

static void device_send_entry(struct device_tensor *d, struct ring_pair_entry e)
{
	e.id = d->id;
	executor_send_entry(d->executor, &e);
}

static void device_send_description(struct device_tensor *d)
{
	const struct tensor *tensor = d->tensor;

	d->is_told = true;
	device_send_entry(d, (struct ring_pair_entry){.type = RING_PAIR_TENSOR,
				     .a = tensor->shape.dtype,
				     .x = tensor->shape.n_values,
				     .y = agt_tensor_part_bytes(tensor->core)});
	for (uint16_t i = 0; i < 2; i++)
		device_send_entry(d, (struct ring_pair_entry){.type = RING_PAIR_BUFFER,
					     .a = RING_PAIR_OUT,
					     .b = i,
					     .x = d->out_arena->id,
					     .y = tensor->out[i].offset});
	for (uint32_t i = 0; i < d->executor->n_inputs; i++)
		device_send_entry(d, (struct ring_pair_entry){.type = RING_PAIR_BUFFER,
					     .a = RING_PAIR_IN,
					     .b = (uint16_t)i,
					     .x = d->in_arena[i]->id,
					     .y = d->in[i].offset});
	for (uint32_t w = 0; w < tensor->job->n_workers; w++)
		device_send_entry(d, (struct ring_pair_entry){.type = RING_PAIR_PLACE,
					     .b = (uint16_t)w,
					     .x = d->workers[w].region,
					     .y = d->workers[w].offset,
					     .z = tensor->workers[w].index});
}

void device_tensor_stage(
	void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority)
{
	struct device_tensor *d = ((struct tensor *)tensor_user)->device;

	(void)ctx;
	if (!d->is_told)
		device_send_description(d);
	d->tensor->awaited_stream = 0;
	device_send_entry(d, (struct ring_pair_entry){
				     .type = RING_PAIR_RUN, .a = op, .b = priority, .x = round});
}

void device_tensor_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round)
{
	struct device_tensor *d = ((struct tensor *)tensor_user)->device;

	(void)ctx;
	device_send_entry(
		d, (struct ring_pair_entry){.type = RING_PAIR_LANDED, .x = round, .y = part});
}

static void device_submit_waiting(struct tensor *tensor)
{
	struct device_tensor *d = tensor->device;

	for (uint32_t w = 0; tensor->core && w < tensor->job->n_workers; w++) {
		struct device_worker *gw = &d->workers[w];
		struct pending_submission p = gw->ahead[0];

		if (!gw->n_ahead || tensor_to_core(tensor, w, &p) == BPS_EBUSY || !gw->n_ahead)
			continue;
		gw->n_ahead--;
		memmove(gw->ahead, gw->ahead + 1, gw->n_ahead * sizeof(gw->ahead[0]));
	}
}

static void device_resubmit(struct tensor *tensor, uint32_t worker, uint64_t complete)
{
	struct tensor_worker *tw = &tensor->workers[worker];
	struct device_worker *gw = &tensor->device->workers[worker];
	struct trainer *t = tensor->job->by_worker[worker];
	unsigned room = sizeof(gw->ahead) / sizeof(gw->ahead[0]);

	if (t)
		t->completed += complete;
	for (uint64_t r = complete + 1; r <= tw->submitted && gw->n_ahead < room; r++) {
		const struct ledger_submission *s = ledger_submission_at(tw->live, r);

		gw->ahead[gw->n_ahead++] = (struct pending_submission){
			.is_set = true, .op = s->op, .priority = s->priority, .round = r};
	}
}

static int device_submit(struct tensor *tensor, uint32_t worker, const struct pending_submission *p)
{
	struct device_worker *gw = &tensor->device->workers[worker];

	if (gw->n_ahead >= DEVICE_AHEAD)
		return BPS_EBUSY;
	gw->ahead[gw->n_ahead++] = *p;
	device_submit_waiting(tensor);
	return 0;
}

static void device_round_over(struct tensor *tensor, int status)
{
	struct device_tensor *d = tensor->device;

	if (status < 0 && d->is_told)
		device_send_entry(d, (struct ring_pair_entry){.type = RING_PAIR_CANCEL});
	/* Do not submit the next round inside this callback of the core. executor_submit_waiting
	 * submits the round later. */
	if (!d->is_again)
		TAILQ_INSERT_TAIL(&d->executor->again, d, again);
	d->is_again = true;
}

static void device_fail_waiting(struct tensor *tensor, int code)
{
	for (uint32_t w = 0; w < tensor->job->n_workers; w++) {
		struct device_worker *gw = &tensor->device->workers[w];
		unsigned n = gw->n_ahead;

		gw->n_ahead = 0;
		for (unsigned i = 0; i < n; i++)
			tensor_report_done(tensor, w, gw->ahead[i].round, code, 0);
	}
}

static void device_poison(struct tensor *tensor, uint32_t worker)
{
	device_send_entry(tensor->device, (struct ring_pair_entry){.type = RING_PAIR_POISON,
						  .b = (uint16_t)worker,
						  .z = tensor->workers[worker].index});
}

static void device_cancel(struct tensor *tensor)
{
	device_send_entry(tensor->device, (struct ring_pair_entry){.type = RING_PAIR_CANCEL});
}

static void device_free(struct tensor *tensor)
{
	struct device_tensor *d = tensor->device;

	if (d->is_again)
		TAILQ_REMOVE(&d->executor->again, d, again);
	d->executor->tensors[d->id] = NULL;
	free(d);
}

const struct tensor_kind device_tensor_kind = {.has_streams = true,
	.declare = device_declare,
	.is_declared_at = device_is_declared_at,
	.to_core = device_to_core,
	.submit = device_submit,
	.submit_waiting = device_submit_waiting,
	.resubmit = device_resubmit,
	.fail_waiting = device_fail_waiting,
	.round_over = device_round_over,
	.cancel = device_cancel,
	.poison = device_poison,
	.free = device_free};

/* ---- messages from the executor ---- */

static void on_bad_tensor_report(
	struct executor_link *g, struct device_tensor *d, const struct ring_pair_entry *e)
{
	struct tensor *tensor = d->tensor;
	struct err_text text;

	err_set(&text, -EINVAL,
		"tensor '%s' of job '%s': the executor cannot use the tensor (%s); check that it "
		"is in device memory that its workers have shared",
		tensor->name, tensor->job->name, err_str(-(int)(e->x & 0xfff)));
	tensor_refuse(tensor, -EINVAL, text.s, NULL);
	/* Fail the whole job, because other machines would wait for this tensor in GPU streams,
	 * which have no time-out. */
	on_core_job_failure(g->agent, tensor->job->id, -EINVAL, text.s);
}

void device_tensor_on_entry(struct executor_link *g, const struct ring_pair_entry *e)
{
	struct device_tensor *d = e->id < g->n_tensors ? g->tensors[e->id] : NULL;
	struct agt_tensor *core = d ? d->tensor->core : NULL;
	int rc = 0;

	if (!core)
		return; /* the tensor's job has ended */
	switch (e->type) {
	case RING_PAIR_STAGED:
		d->tensor->awaited_stream = 0;
		/* Ignore an error, because the round may have failed meanwhile. */
		agt_part_staged(core, (uint32_t)e->y, e->x);
		break;
	case RING_PAIR_DONE:
		rc = agt_tensor_unstaged(core, e->x);
		break;
	case RING_PAIR_LATE:
		d->tensor->awaited_stream = e->b < d->tensor->job->n_workers ? e->b + 1u : 0;
		break;
	case RING_PAIR_BAD:
		on_bad_tensor_report(g, d, e);
		break;
	default:
		rc = -EINVAL;
	}
	if (rc < 0 && !d->tensor->failed && d->tensor->job->code == 0)
		executor_fail(g, BPS_EPROTO,
			"the executor sent report %u for tensor '%s' round %llu, which is "
			"invalid in the present state of the tensor",
			(unsigned)e->type, d->tensor->name, (unsigned long long)e->x);
}
