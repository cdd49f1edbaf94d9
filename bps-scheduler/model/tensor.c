/* Implements the tensors of a job as a data structure: the states, ids and partitions of tensors,
 * the table that finds a tensor by its name, and the loads that partitions put on servers.
 * core/declare.c handles DECLARE. All functions run on the core's thread. */
#include "bps-scheduler/model/tensor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/model.h"
#include "common/base/log.h"
#include "common/data/pool.h"
#include "common/data/shape.h"
#include "common/wire/name_hash.h"

static const struct {
	const char *name;
	unsigned next;
} tensor_states[TENSOR_STATES] = {
	[TENSOR_COLLECTING] = {"collecting", STATE_BIT(TENSOR_READY) | STATE_BIT(TENSOR_FAILED)},
	[TENSOR_READY] = {"ready", STATE_BIT(TENSOR_PLACED)},
	[TENSOR_PLACED] = {"placed", 0},
	[TENSOR_FAILED] = {"failed", 0},
};

void sched_tensor_set_state(
	struct sched_job *j, struct sched_tensor *t, enum tensor_state to, const char *why)
{
	assert(tensor_states[t->state].next & STATE_BIT(to));
	if (why)
		log_debug("tensor '%s' of job '%s' changes from %s to %s: %s", t->name, j->name,
			tensor_states[t->state].name, tensor_states[to].name, why);
	t->state = to;
}

static void tensors_rehash(struct sched_job *j)
{
	uint32_t n = j->n_buckets ? 4 * j->n_buckets : 16;
	struct sched_tensor **to = sched_alloc(n, sizeof(*to));

	for (uint32_t b = 0; b < j->n_buckets; b++) {
		while (j->buckets[b]) {
			struct sched_tensor *t = j->buckets[b];
			uint32_t h = (uint32_t)(name_hash(t->name) % n);

			j->buckets[b] = t->next_hash;
			t->next_hash = to[h];
			to[h] = t;
		}
	}
	free(j->buckets);
	j->buckets = to;
	j->n_buckets = n;
}

void sched_tensor_add(struct sched_job *j, struct sched_tensor *t)
{
	uint32_t h;

	if (j->n_tensors >= 2 * j->n_buckets)
		tensors_rehash(j);
	h = (uint32_t)(name_hash(t->name) % j->n_buckets);
	t->next_hash = j->buckets[h];
	j->buckets[h] = t;
	j->n_tensors++;
}

struct sched_tensor *sched_tensor_find(const struct sched_job *j, const char *name)
{
	struct sched_tensor *t;

	if (!j->n_buckets)
		return NULL;
	t = j->buckets[name_hash(name) % j->n_buckets];
	while (t && strcmp(t->name, name) != 0)
		t = t->next_hash;
	return t;
}

bool sched_tensor_has_declared(const struct sched_tensor *t, uint32_t member)
{
	return t->declared && t->declared[member / 64] >> (member % 64) & 1;
}

static void job_add_fresh_tensor(struct sched_core *c, struct sched_job *j, struct sched_tensor *t)
{
	sched_tensor_set_state(j, t, TENSOR_READY, "all agents have declared it");
	*j->fresh_tail = t;
	j->fresh_tail = &t->next_fresh;
	sched_job_dirty(c, j);
}

void sched_tensor_check_declared(struct sched_core *c, struct sched_job *j, struct sched_tensor *t)
{
	if (t->n_declared == j->n_members - j->n_left)
		job_add_fresh_tensor(c, j, t);
}

void sched_job_undeclare(struct sched_core *c, struct sched_job *j, uint32_t member)
{
	for (uint32_t b = 0; b < j->n_buckets; b++) {
		for (struct sched_tensor *t = j->buckets[b]; t; t = t->next_hash) {
			if (t->state != TENSOR_COLLECTING)
				continue;
			if (sched_tensor_has_declared(t, member)) {
				t->declared[member / 64] &= ~(UINT64_C(1) << (member % 64));
				t->n_declared--;
			}
			sched_tensor_check_declared(c, j, t);
		}
	}
}

uint64_t sched_part_bytes(const struct sched_tensor *t, uint32_t i)
{
	return shape_part_elems(&t->shape, t->n_shards, t->part_elems, i) *
	       dtype_bytes(t->shape.dtype);
}

uint64_t sched_needed_round(const struct sched_job *j, uint32_t tensor, uint64_t round)
{
	const struct sched_tensor *t = tensor < j->n_placed ? j->placed[tensor] : NULL;

	if (!t || t->shape.mode != MODE_VALUE)
		return round;
	return t->shape.stale == STALE_UNBOUNDED || round <= t->shape.stale + UINT64_C(1)
		       ? 1
		       : round - t->shape.stale;
}

/* A server keeps two result buffers for a partition. For a partition of a value, it also keeps the
 * value. If the accumulator's type and the results' type have different sizes, it also keeps an
 * accumulator. The server rounds the size of each of these buffers up to a power of two. */
uint64_t sched_sums_need(const struct sched_tensor *t, uint64_t n_elems)
{
	uint64_t bytes = dtype_bytes(t->shape.dtype), acc = dtype_acc_bytes(t->shape.dtype);

	return (t->shape.mode == MODE_VALUE ? 3 : 2) * pool_rounded_bytes(n_elems * bytes) +
	       (acc == bytes ? 0 : pool_rounded_bytes(n_elems * acc));
}

uint64_t sched_part_need(const struct sched_tensor *t, uint32_t i)
{
	return sched_sums_need(t, shape_part_elems(&t->shape, t->n_shards, t->part_elems, i));
}

bool sched_part_next(const struct sched_job *j, uint32_t server, struct sched_part_ref *ref)
{
	uint32_t at = ref->t ? ref->t->id : 0, i = ref->t ? ref->i + 1 : 0;

	for (; at < j->n_placed; at++, i = 0) {
		struct sched_tensor *t = j->placed[at];

		for (; t->parts && i < t->n_parts; i++) {
			if (server != SERVER_ANY && t->parts[i].server != server)
				continue;
			*ref = (struct sched_part_ref){t, i};
			return true;
		}
	}
	return false;
}

void sched_part_set(struct sched_core *c, struct sched_job *j, struct sched_tensor *t, uint32_t i,
	struct sched_member *server, uint16_t thread, uint64_t pgen)
{
	struct sched_part *p = &t->parts[i];
	struct sched_member *old = sched_member_by_id(c, p->server);
	uint64_t bytes = sched_part_bytes(t, i);
	uint32_t former = p->former;

	if (old) {
		old->thread_bytes[p->thread] -= bytes;
		old->scaled_bytes -= bytes * j->n_members;
		old->sums_bytes -= sched_part_need(t, i);
		j->loads[old->id] -= bytes;
	} else {
		j->n_orphans--;
	}
	/* A partition may move twice in one transaction. Only the server that had it before the
	 * transaction must be notified of the move. */
	if (old && (!c->tx_view || p->pgen != c->tx_view))
		former = old->id;
	*p = (struct sched_part){.pgen = pgen, .server = CTL_NO_ID, .former = former};
	if (server) {
		j->loads =
			sched_grow_array(j->loads, &j->n_loads, server->id + 1, sizeof(*j->loads));
		server->thread_bytes[thread] += bytes;
		server->scaled_bytes += bytes * j->n_members;
		server->sums_bytes += sched_part_need(t, i);
		j->loads[server->id] += bytes;
		p->server = server->id;
		p->instance = server->instance;
		p->thread = thread;
	} else {
		j->n_orphans++;
	}
}

void sched_tensor_publish(struct sched_job *j, struct sched_tensor *t)
{
	sched_tensor_set_state(j, t, TENSOR_PLACED, "numbered");
	j->placed =
		sched_grow_array(j->placed, &j->placed_room, j->n_placed + 1, sizeof(*j->placed));
	t->id = j->n_placed;
	j->placed[j->n_placed++] = t;
	j->bytes += shape_bytes(&t->shape);
	t->n_parts = (uint32_t)shape_partition_count(&t->shape, t->n_shards, t->part_elems);
	if (job_is_local(j->n_members, j->flags))
		return;
	t->parts = sched_alloc(t->n_parts, sizeof(*t->parts));
	for (uint32_t i = 0; i < t->n_parts; i++)
		t->parts[i].server = CTL_NO_ID;
	j->n_orphans += t->n_parts;
}

static void sched_tensor_free(struct sched_tensor *t)
{
	free(t->parts);
	free(t->declared);
	free(t->name);
	free(t->fail_text);
	free(t->cause_host);
	free(t);
}

void sched_job_drop_tensors(struct sched_core *c, struct sched_job *j)
{
	struct sched_part_ref p = {NULL, 0};

	while (sched_part_next(j, SERVER_ANY, &p))
		sched_part_set(c, j, p.t, p.i, NULL, 0, 0);
	for (uint32_t b = 0; b < j->n_buckets; b++) {
		while (j->buckets[b]) {
			struct sched_tensor *t = j->buckets[b];

			j->buckets[b] = t->next_hash;
			sched_tensor_free(t);
		}
	}
	free(j->buckets);
	free(j->placed);
	free(j->loads);
	j->buckets = j->placed = NULL;
	j->loads = NULL;
	j->n_buckets = j->n_tensors = j->n_placed = j->placed_room = j->n_loads = j->n_orphans = 0;
	j->fresh = NULL;
	j->fresh_tail = &j->fresh;
	j->bytes = j->claimed_bytes = j->claimed_sums = 0;
	j->has_moved = false;
}

/* Return whether a message to the server must contain the place of partition p. The parameters
 * `pgen` and `server` mean the same as those of sched_run_next. If the server lost p in the view
 * `pgen`, the message must contain the new place of p. Without the new place, the server would not
 * free the memory of p's sums. */
static bool is_part_place_needed(const struct sched_part *p, uint64_t pgen, uint32_t server)
{
	return (!pgen || p->pgen == pgen) &&
	       (server == SERVER_ANY || p->server == server || (pgen && p->former == server));
}

bool sched_run_next(const struct sched_tensor *t, uint32_t *at, uint64_t pgen, uint32_t server,
	struct ctl_run *ret)
{
	const struct sched_part *p = t->parts, *first;
	uint32_t i = *at;

	while (p && i < t->n_parts && !is_part_place_needed(&p[i], pgen, server))
		i++;
	if (!p || i >= t->n_parts)
		return false;
	first = &p[i];
	*ret = (struct ctl_run){
		t->id, i, 1, first->server, first->instance, first->thread, first->pgen};
	for (i++; i < t->n_parts && p[i].server == first->server && p[i].pgen == first->pgen &&
		  p[i].instance == first->instance && p[i].thread == first->thread &&
		  is_part_place_needed(&p[i], pgen, server);
		i++)
		ret->n++;
	*at = i;
	return true;
}
