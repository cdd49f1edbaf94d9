/* The executor's engine: its start and end, its tensors, functions that handle the agent's
 * requests, and failures. engine_stage.c moves partitions through their stages. engine_lane.c
 * detects the end of queued work. No function blocks. Thread: the executor's. */
#include "bps-agent/executor/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/executor/engine_stage.h"
#include "common/base/log.h"
#include "common/base/state.h"

#define WINDOW_DEFAULT (UINT64_C(32) << 20)
#define STALL_DEFAULT  (UINT64_C(30) * 1000000000)
/* Time for which a round waits for a trainer's stream before env->late is called. */
#define LATE_NS UINT64_C(1000000000)
/* If no work has ended during this time, the engine polls the GPUs' queues for errors. */
#define LOOK_NS    UINT64_C(5000000)
#define PAGE_BYTES 4096u

static const struct state_row tensor_states[] = {
	[TENSOR_IDLE] = {"idle", 1u << TENSOR_WAITING | 1u << TENSOR_DEAD},
	[TENSOR_WAITING] = {"waiting", 1u << TENSOR_RUNNING | 1u << TENSOR_DEAD},
	[TENSOR_RUNNING] = {"running", 1u << TENSOR_IDLE | 1u << TENSOR_DEAD},
	[TENSOR_DEAD] = {"dead", 0},
};

/* Set the state. Keeps the list e->waiting and the count e->n_running consistent with the state. */
static void engine_tensor_set_state(struct engine_tensor *t, enum engine_tensor_state state)
{
	struct engine *e = t->e;

	assert(tensor_states[t->state].next >> state & 1);
	log_trace("tensor changes from %s to %s: tensor=%u round=%llu",
		tensor_states[t->state].name, tensor_states[state].name, t->id,
		(unsigned long long)t->round);
	if (t->state == TENSOR_WAITING)
		TAILQ_REMOVE(&e->waiting, t, link);
	if (state == TENSOR_WAITING)
		TAILQ_INSERT_TAIL(&e->waiting, t, link);
	e->n_running -= t->state == TENSOR_RUNNING;
	e->n_running += state == TENSOR_RUNNING;
	t->state = state;
}

/* ---- failure ---- */

static void engine_poison_all_slots(struct engine *e)
{
	for (unsigned i = 0; i < e->route.n_members; i++)
		for (uint32_t s = 0; s < e->members[i].m.n_slots; s++)
			gpu_slot_poison(&e->members[i].m.slots[s]);
}

static void engine_tensor_kill(struct engine_tensor *t)
{
	if (t->state == TENSOR_RUNNING)
		engine_tensor_stop(t);
	if (t->state != TENSOR_DEAD)
		engine_tensor_set_state(t, TENSOR_DEAD);
}

void engine_fail(struct engine *e, int code, const char *fmt, ...)
{
	struct err_text text;

	if (e->failed)
		return;
	format_arguments(text.s, fmt);
	e->failed = code;
	for (unsigned g = 0; g < e->route.n_groups; g++)
		if (e->cliques[g])
			e->ops->clique_abort(e->cliques[g]);
	for (uint32_t i = 0; i < e->n_tensors; i++)
		if (e->tensors[i])
			engine_tensor_kill(e->tensors[i]);
	engine_poison_all_slots(e);
	e->env.failed(e->env.ctx, code, text.s);
}

void engine_device_error(struct engine *e, int rc, const char *what)
{
	engine_fail(e, BPS_EDEVICE, "%s: %s (%s)", what, e->dev->why.s, device_error_name(rc));
}

/* ---- start and end ---- */

static int engine_open_lanes(struct engine *e)
{
	for (unsigned i = 0; i < e->route.n_members; i++)
		for (unsigned k = 0; k < LANES; k++) {
			int rc = 0;

			if (k != LANE_COLL || route_has_cliques(&e->route))
				rc = engine_lane_open(e, i, k);
			if (rc < 0)
				return rc;
		}
	return 0;
}

static int engine_open_clique(struct engine *e, unsigned g)
{
	const struct route_group *group = &e->route.groups[g];
	int gpu[DEVICE_GPUS_MAX], rank[DEVICE_GPUS_MAX], rc;
	uint8_t id[DEVICE_ID_BYTES];

	for (int i = 0; i < group->n; i++) {
		gpu[i] = e->members[group->member[i]].m.gpu;
		rank[i] = i;
	}
	rc = e->ops->clique_id(e->dev, id);
	return rc < 0 ? rc
		      : e->ops->clique_open(
				e->dev, id, group->n, gpu, rank, group->n, &e->cliques[g]);
}

static int engine_open_cliques(struct engine *e)
{
	int rc = 0;

	for (unsigned g = 0; rc == 0 && route_has_cliques(&e->route) && g < e->route.n_groups; g++)
		if (e->route.groups[g].n > 1)
			rc = engine_open_clique(e, g);
	return rc;
}

static int engine_make_counters(struct engine *e)
{
	uint64_t bytes = (uint64_t)e->route.n_members * LANES * GPU_SLOT_BYTES;

	e->counter_bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	e->counter_page = aligned_alloc(PAGE_BYTES, e->counter_bytes);
	if (!e->counter_page)
		return err_set(&e->dev->why, -ENOMEM, "out of memory");
	memset(e->counter_page, 0, e->counter_bytes);
	return e->ops->pin(e->dev, e->counter_page, e->counter_bytes, &e->counters);
}

static void engine_place_members(struct engine *e, const struct engine_config *cfg)
{
	for (uint8_t g = 0; g < e->route.n_groups; g++)
		for (uint8_t i = 0; i < e->route.groups[g].n; i++) {
			struct engine_member *m = &e->members[e->route.groups[g].member[i]];

			m->group = g;
			m->place = i;
		}
	for (unsigned i = 0; i < e->route.n_members; i++)
		e->members[i].m = cfg->members[i];
}

int engine_new(struct device *dev, const struct engine_config *cfg, const struct engine_env *env,
	struct engine **ret, struct err_text *err)
{
	struct engine *e = calloc(1, sizeof(*e));
	int rc;

	if (!e)
		return err_set(err, -ENOMEM, "out of memory");
	e->dev = dev;
	e->ops = dev->ops;
	e->route = cfg->route;
	e->env = *env;
	e->window_bytes = cfg->window_bytes ? cfg->window_bytes : WINDOW_DEFAULT;
	e->stall_ns = cfg->stall_ns ? cfg->stall_ns : STALL_DEFAULT;
	TAILQ_INIT(&e->waiting);
	e->members = calloc(cfg->route.n_members, sizeof(*e->members));
	if (!e->members) {
		rc = err_set(err, -ENOMEM, "out of memory");
		goto failed;
	}
	engine_place_members(e, cfg);
	rc = engine_make_counters(e);
	if (rc == 0)
		rc = engine_open_lanes(e);
	if (rc == 0)
		rc = engine_open_cliques(e);
	if (rc < 0) {
		err_set(err, rc, "%s", dev->why.s);
		goto failed;
	}
	*ret = e;
	return 0;
failed:
	engine_free(e);
	return rc;
}

static void engine_tensor_free(struct engine_tensor *t)
{
	if (!t)
		return;
	free(t->places);
	free(t->in);
	free(t->parts);
	free(t->chunks);
	free(t);
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	for (unsigned g = 0; g < e->route.n_groups; g++)
		if (e->cliques[g])
			e->ops->clique_close(e->cliques[g]);
	for (unsigned i = 0; e->members && i < e->route.n_members; i++)
		for (unsigned k = 0; k < LANES; k++)
			if (e->members[i].lanes[k].e)
				engine_lane_close(&e->members[i].lanes[k]);
	e->ops->drop(e->counters);
	free(e->counter_page);
	for (uint32_t i = 0; i < e->n_tensors; i++)
		engine_tensor_free(e->tensors[i]);
	free(e->tensors);
	heap_fini(&e->reduce);
	heap_fini(&e->gather);
	heap_fini(&e->up);
	heap_fini(&e->down);
	free(e->members);
	free(e);
}

/* ---- tensors ---- */

static struct engine_tensor *engine_tensor_by_id(const struct engine *e, uint32_t id)
{
	return id < e->n_tensors ? e->tensors[id] : NULL;
}

static int engine_reserve_tensor_id(struct engine *e, uint32_t id)
{
	uint32_t n = id + 64;
	struct engine_tensor **v;

	if (id < e->n_tensors)
		return 0;
	v = realloc(e->tensors, n * sizeof(struct engine_tensor *));
	if (!v)
		return -ENOMEM;
	memset(v + e->n_tensors, 0, (n - e->n_tensors) * sizeof(struct engine_tensor *));
	e->tensors = v;
	e->n_tensors = n;
	return 0;
}

static bool range_is_in_memory(const struct engine_range *r, uint64_t bytes)
{
	return r->mem && device_mem_holds(r->mem, r->offset, bytes);
}

static int engine_check_tensor_desc(
	const struct engine *e, const struct engine_tensor_desc *d, struct err_text *err)
{
	size_t elem = dtype_bytes(d->shape.dtype);
	bool is_known = shape_check(&d->shape, UINT64_MAX, &(struct err_text){0}) == 0;
	uint64_t bytes = is_known ? shape_bytes(&d->shape) : 0;

	if (d->id >= ENGINE_TENSORS_MAX || engine_tensor_by_id(e, d->id) || !is_known ||
		dtype_is_block(d->shape.dtype) || !d->part_bytes || d->part_bytes % elem ||
		(bytes - 1) / d->part_bytes >= UINT32_MAX)
		return err_set(err, -EINVAL,
			"tensor %u has an invalid description, or exists already", d->id);
	for (unsigned i = 0; i < e->route.n_members; i++)
		if (!range_is_in_memory(&d->places[i].at, bytes) || d->places[i].at.offset % elem ||
			d->places[i].slot >= e->members[i].m.n_slots)
			return err_set(err, -EINVAL,
				"tensor %u of %llu bytes is not inside of the memory that local "
				"rank %u has shared",
				d->id, (unsigned long long)bytes, i);
	for (unsigned g = 0; g < e->route.n_groups; g++)
		if (!range_is_in_memory(&d->in[g], bytes))
			return err_set(err, -EINVAL,
				"tensor %u: input %u is not inside of staging memory", d->id, g);
	if (!range_is_in_memory(&d->out[0], bytes) || !range_is_in_memory(&d->out[1], bytes))
		return err_set(err, -EINVAL, "tensor %u: an output is not inside of staging memory",
			d->id);
	return 0;
}

static uint32_t parts_of_chunk(const struct engine *e, const struct engine_tensor_desc *d)
{
	uint64_t n = e->route.chunk_bytes / d->part_bytes;

	return n < 1 ? 1 : n > UINT16_MAX ? UINT16_MAX : (uint32_t)n;
}

static void engine_tensor_cut_chunks(struct engine_tensor *t, uint32_t parts_each)
{
	for (uint32_t i = 0; i < t->n_chunks; i++) {
		uint32_t first = i * parts_each;

		t->chunks[i].tensor = t;
		t->chunks[i].first = first;
		t->chunks[i].n = t->n_parts - first < parts_each ? t->n_parts - first : parts_each;
	}
	for (uint32_t i = 0; i < t->n_parts; i++) {
		t->parts[i].chunk = &t->chunks[i / parts_each];
		t->parts[i].index = i;
	}
}

static int engine_reserve_heaps(struct engine *e, const struct engine_tensor *t)
{
	int rc = heap_reserve(&e->up, e->n_parts + t->n_parts);

	if (rc == 0)
		rc = heap_reserve(&e->down, e->n_parts + t->n_parts);
	if (rc == 0)
		rc = heap_reserve(&e->reduce, e->n_chunks + t->n_chunks);
	return rc < 0 ? rc : heap_reserve(&e->gather, e->n_chunks + t->n_chunks);
}

static void *memory_duplicate(const void *v, size_t bytes)
{
	void *p = malloc(bytes);

	return p ? memcpy(p, v, bytes) : NULL;
}

int engine_add_tensor(struct engine *e, const struct engine_tensor_desc *d, struct err_text *err)
{
	uint32_t parts_each;
	struct engine_tensor *t;
	int rc = engine_check_tensor_desc(e, d, err);

	if (rc < 0)
		return rc;
	t = calloc(1, sizeof(*t));
	if (!t)
		return err_set(err, -ENOMEM, "out of memory");
	t->e = e;
	t->id = d->id;
	t->shape = d->shape;
	t->bytes = shape_bytes(&d->shape);
	t->part_bytes = d->part_bytes;
	t->n_parts = (uint32_t)((t->bytes - 1) / d->part_bytes + 1);
	parts_each = parts_of_chunk(e, d);
	t->n_chunks = (t->n_parts - 1) / parts_each + 1;
	t->out[0] = d->out[0];
	t->out[1] = d->out[1];
	t->places = memory_duplicate(d->places, e->route.n_members * sizeof(*d->places));
	t->in = memory_duplicate(d->in, e->route.n_groups * sizeof(*d->in));
	t->parts = calloc(t->n_parts, sizeof(*t->parts));
	t->chunks = calloc(t->n_chunks, sizeof(*t->chunks));
	if (!t->places || !t->in || !t->parts || !t->chunks ||
		engine_reserve_tensor_id(e, d->id) < 0 || engine_reserve_heaps(e, t) < 0) {
		engine_tensor_free(t);
		return err_set(err, -ENOMEM, "out of memory");
	}
	engine_tensor_cut_chunks(t, parts_each);
	e->n_parts += t->n_parts;
	e->n_chunks += t->n_chunks;
	e->tensors[d->id] = t;
	return 0;
}

int engine_match_tensor(const struct engine *e, const struct engine_tensor_desc *d)
{
	const struct engine_tensor *t = engine_tensor_by_id(e, d->id);

	if (!t)
		return -ENOENT;
	return shape_is_equal(&t->shape, &d->shape) && t->part_bytes == d->part_bytes ? 0 : -EINVAL;
}

void engine_mute_reports(struct engine *e)
{
	for (uint32_t i = 0; i < e->n_tensors; i++)
		if (e->tensors[i])
			e->tensors[i]->is_mute = true;
}

/* Repeat the reports about a round that has already started, because a restarted agent may not have
 * received the first reports. */
static int tensor_repeat_reports(struct engine_tensor *t, uint64_t round)
{
	struct engine *e = t->e;

	if (round < t->round || t->is_done) {
		t->is_mute = round < t->round;
		e->env.done(e->env.ctx, t->id, round);
		return 0;
	}
	if (t->state == TENSOR_DEAD)
		return -EINVAL;
	t->is_mute = false;
	t->reported_late = -1;
	for (uint32_t i = 0; i < t->n_parts; i++)
		if (t->parts[i].state == PART_STAGED)
			e->env.staged(e->env.ctx, t->id, i, round);
	return 0;
}

int engine_submit_round(
	struct engine *e, uint32_t id, uint64_t round, enum op op, uint16_t priority)
{
	struct engine_tensor *t = engine_tensor_by_id(e, id);

	if (t && t->is_mute && round && round <= t->round)
		return tensor_repeat_reports(t, round);
	if (!t || t->state != TENSOR_IDLE || round != t->round + 1)
		return -EINVAL;
	t->is_mute = t->is_done = false;
	t->round = round;
	t->op = op;
	t->priority = priority;
	t->run_seq = e->n_runs++;
	t->run_ns = 0;
	t->reported_late = -1;
	engine_tensor_set_state(t, TENSOR_WAITING);
	for (unsigned i = 0; i < e->route.n_members; i++)
		if (e->members[i].is_gone)
			engine_fail(e, BPS_EWORKER_LOST, "local rank %u has left", i);
	return 0;
}

int engine_accept_landed_sum(struct engine *e, uint32_t id, uint32_t part, uint64_t round)
{
	struct engine_tensor *t = engine_tensor_by_id(e, id);

	if (t && t->state == TENSOR_DEAD)
		return 0;
	if (!t || part >= t->n_parts || round > t->round)
		return -EINVAL;
	if (round < t->round || t->is_done || engine_part_has_landed(&t->parts[part]))
		return 0;
	if (t->parts[part].state != PART_STAGED)
		return -EINVAL;
	engine_part_landed(&t->parts[part]);
	return 0;
}

static struct gpu_slot *tensor_member_slot(const struct engine_tensor *t, unsigned member)
{
	return &t->e->members[member].m.slots[t->places[member].slot];
}

void engine_tensor_done(struct engine_tensor *t)
{
	struct engine *e = t->e;

	engine_tensor_set_state(t, TENSOR_IDLE);
	t->is_done = true;
	for (unsigned i = 0; i < e->route.n_members; i++)
		gpu_slot_finish(tensor_member_slot(t, i), t->round);
	if (!t->is_mute)
		e->env.done(e->env.ctx, t->id, t->round);
}

void engine_cancel_tensor(struct engine *e, uint32_t id)
{
	struct engine_tensor *t = engine_tensor_by_id(e, id);

	if (!t || t->state == TENSOR_DEAD)
		return;
	engine_tensor_kill(t);
	for (unsigned i = 0; i < e->route.n_members; i++)
		gpu_slot_poison(tensor_member_slot(t, i));
}

static bool tensor_is_in_memory(const struct engine_tensor *t, const struct device_mem *mem)
{
	for (unsigned i = 0; i < t->e->route.n_members; i++)
		if (t->places[i].at.mem == mem)
			return true;
	return false;
}

int engine_cancel_tensors_of_memory(struct engine *e, const struct device_mem *mem)
{
	for (uint32_t i = 0; i < e->n_tensors; i++) {
		struct engine_tensor *t = e->tensors[i];

		if (t && tensor_is_in_memory(t, mem) &&
			(t->state == TENSOR_WAITING || t->state == TENSOR_RUNNING || t->n_tickets))
			return -EBUSY;
	}
	for (uint32_t i = 0; i < e->n_tensors; i++)
		if (e->tensors[i] && tensor_is_in_memory(e->tensors[i], mem))
			engine_cancel_tensor(e, i);
	return 0;
}

void engine_member_gone(struct engine *e, unsigned member)
{
	e->members[member].is_gone = true;
	if (e->n_running || !TAILQ_EMPTY(&e->waiting))
		engine_fail(e, BPS_EWORKER_LOST,
			"local rank %u has left while tensors were in flight", member);
}

/* ---- time ---- */

int engine_missing(const struct engine *e, uint32_t id)
{
	const struct engine_tensor *t = engine_tensor_by_id(e, id);

	if (!t || t->state != TENSOR_WAITING)
		return -1;
	for (unsigned i = 0; i < e->route.n_members; i++)
		/* Acquire: pairs with the write of `ready` by the trainer's stream. The stream
		 * writes the gradient before `ready`. */
		if (!gpu_slot_reached(atomic_load_explicit(&tensor_member_slot(t, i)->ready,
					      memory_order_acquire),
			    t->round))
			return (int)i;
	return -1;
}

/* Report that t's round waits for the stream of the given member. Does nothing if the round has
 * waited for less than LATE_NS nanoseconds, or if the previous report for this round named the same
 * member. */
static void tensor_report_late_stream(struct engine_tensor *t, int member)
{
	struct engine *e = t->e;

	if (!t->run_ns)
		t->run_ns = e->now_ns;
	if (e->now_ns - t->run_ns < LATE_NS || member == t->reported_late || t->is_mute)
		return;
	t->reported_late = member;
	e->env.late(e->env.ctx, t->id, (unsigned)member);
}

static bool engine_begin_ready_tensors(struct engine *e)
{
	struct engine_tensor *t, *next;
	bool any = false;

	for (t = TAILQ_FIRST(&e->waiting); t; t = next) {
		int missing = engine_missing(e, t->id);

		next = TAILQ_NEXT(t, link);
		if (missing >= 0) {
			tensor_report_late_stream(t, missing);
			continue;
		}
		engine_tensor_set_state(t, TENSOR_RUNNING);
		engine_tensor_begin(t);
		any = true;
	}
	return any;
}

static bool engine_poll_lanes(struct engine *e)
{
	bool any = false;

	for (unsigned i = 0; i < e->route.n_members; i++)
		for (unsigned k = 0; k < LANES; k++)
			any |= engine_lane_poll(&e->members[i].lanes[k]);
	return any;
}

/* Return whether the engine waits for the GPUs: either queued work has not ended, or a collective
 * waits until its clique is ready. */
static bool engine_is_awaiting_gpus(const struct engine *e)
{
	return e->n_tickets || e->reduce.n || e->gather.n;
}

/* Check the GPUs for errors and for a stall. Called when no work has ended for LOOK_NS. */
static void engine_check_gpus(struct engine *e)
{
	for (unsigned i = 0; i < e->route.n_members && !e->failed; i++)
		for (unsigned k = 0; k < LANES && !e->failed; k++)
			engine_lane_check_queue(&e->members[i].lanes[k]);
	for (unsigned g = 0; g < e->route.n_groups && !e->failed; g++) {
		int rc = e->cliques[g] ? e->ops->clique_poll(e->cliques[g]) : 0;

		if (rc < 0 && rc != DEVICE_AGAIN)
			engine_device_error(e, rc, "communication between the GPUs has failed");
	}
	if (engine_is_awaiting_gpus(e) && e->now_ns - e->moved_ns > e->stall_ns)
		engine_fail(e, BPS_EDEVICE,
			e->n_tickets ? "the GPUs have completed no work for %.0f s"
				     : "communication between the GPUs is not ready after %.0f s",
			(double)e->stall_ns / 1e9);
}

bool engine_poll(struct engine *e, uint64_t now_ns)
{
	bool any;

	if (!engine_is_awaiting_gpus(e))
		e->moved_ns = now_ns;
	e->now_ns = now_ns;
	any = engine_poll_lanes(e);
	if (e->failed)
		return any;
	any |= engine_begin_ready_tensors(e);
	any |= engine_issue_work(e);
	if (any)
		e->moved_ns = now_ns;
	else if (now_ns - e->moved_ns > LOOK_NS)
		engine_check_gpus(e);
	return any;
}

bool engine_is_busy(const struct engine *e)
{
	return e->n_tickets || !TAILQ_EMPTY(&e->waiting) || e->up.n || e->down.n || e->reduce.n ||
	       e->gather.n;
}

unsigned engine_count_inputs(const struct engine *e)
{
	return e->route.n_groups;
}

bool engine_is_quiet(const struct engine *e)
{
	return !e->n_tickets;
}
