/* Tensors of a job: declared by every agent, compared, numbered. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/core_impl.h"
#include "common/data/dtype.h"
#include "common/base/log.h"

static const struct {
	const char *name;
	unsigned next;
} tensor_states[TENSOR_STATES] = {
	[TENSOR_COLLECTING] = {"collecting", STATE_BIT(TENSOR_READY) | STATE_BIT(TENSOR_FAILED)},
	[TENSOR_READY] = {"ready", STATE_BIT(TENSOR_PLACED)},
	[TENSOR_PLACED] = {"placed", 0},
	[TENSOR_FAILED] = {"failed", 0},
};

static void tensor_set_state(
	struct sched_job *j, struct sched_tensor *t, enum tensor_state to, const char *why)
{
	assert(tensor_states[t->state].next & STATE_BIT(to));
	log_debug("tensor '%s' of job '%s': %s -> %s, %s", t->name, j->name,
		tensor_states[t->state].name, tensor_states[to].name, why);
	t->state = to;
}

static uint32_t name_hash(const char *s)
{
	uint32_t h = 2166136261u; /* FNV-1a */

	while (*s)
		h = (h ^ (uint8_t)*s++) * 16777619u;
	return h;
}

static void tensors_rehash(struct sched_job *j)
{
	uint32_t n = j->n_buckets ? 4 * j->n_buckets : 16;
	struct sched_tensor **to = sched_alloc(n, sizeof(*to));

	for (uint32_t b = 0; b < j->n_buckets; b++) {
		while (j->buckets[b]) {
			struct sched_tensor *t = j->buckets[b];
			uint32_t h = name_hash(t->name) % n;

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
	h = name_hash(t->name) % j->n_buckets;
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

uint64_t sched_part_bytes(const struct sched_tensor *t, uint32_t i)
{
	uint64_t first = (uint64_t)i * t->part_elems;
	uint64_t elems = t->n_elems - first < t->part_elems ? t->n_elems - first : t->part_elems;

	return elems * dtype_bytes(t->dtype);
}

void sched_part_set(struct sched_core *c, struct sched_job *j, struct sched_tensor *t, uint32_t i,
	struct sched_member *server, uint16_t thread, uint64_t pgen)
{
	struct sched_part *p = &t->parts[i];
	struct sched_member *old = sched_member(c, p->server);
	uint64_t bytes = sched_part_bytes(t, i);
	uint32_t former = p->former;

	if (old) {
		old->thread_bytes[p->thread] -= bytes;
		old->scaled_bytes -= bytes * j->n_members;
		j->loads[old->id] -= bytes;
	} else {
		j->n_orphans--;
	}
	/* Moved twice in one transaction: who had it before is who has to hear of it. */
	if (old && (!c->tx_view || p->pgen != c->tx_view))
		former = old->id;
	*p = (struct sched_part){.pgen = pgen, .server = CTL_NO_ID, .former = former};
	if (server) {
		j->loads = sched_grow(j->loads, &j->n_loads, server->id + 1, sizeof(*j->loads));
		server->thread_bytes[thread] += bytes;
		server->scaled_bytes += bytes * j->n_members;
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
	tensor_set_state(j, t, TENSOR_PLACED, "numbered");
	j->placed = sched_grow(j->placed, &j->placed_room, j->n_placed + 1, sizeof(*j->placed));
	t->id = j->n_placed;
	j->placed[j->n_placed++] = t;
	j->bytes += t->n_elems * dtype_bytes(t->dtype);
	t->n_parts = (uint32_t)((t->n_elems + t->part_elems - 1) / t->part_elems);
	if (job_is_local(j->n_members, j->flags))
		return;
	t->parts = sched_alloc(t->n_parts, sizeof(*t->parts));
	for (uint32_t i = 0; i < t->n_parts; i++)
		t->parts[i].server = CTL_NO_ID;
	j->n_orphans += t->n_parts;
}

static void tensor_free(struct sched_tensor *t)
{
	free(t->parts);
	free(t->declared);
	free(t->name);
	free(t->fail_text);
	free(t);
}

void sched_job_drop_tensors(struct sched_core *c, struct sched_job *j)
{
	for (uint32_t i = 0; i < j->n_placed; i++)
		for (uint32_t k = 0; j->placed[i]->parts && k < j->placed[i]->n_parts; k++)
			sched_part_set(c, j, j->placed[i], k, NULL, 0, 0);
	for (uint32_t b = 0; b < j->n_buckets; b++) {
		while (j->buckets[b]) {
			struct sched_tensor *t = j->buckets[b];

			j->buckets[b] = t->next_hash;
			tensor_free(t);
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
	j->bytes = j->claimed_bytes = 0;
	j->has_moved = false;
}

/* ---- DECLARE ---- */

struct declare_request {
	struct sched_core *c;
	struct sched_member *m;
	struct sched_job *j;
	uint32_t member; /* number in the job */
};

static void tensor_fail_send(struct sched_core *c, const struct sched_member *m,
	const struct sched_job *j, const char *name, int code, const char *text)
{
	struct ctl_msg msg = {
		.type = CTL_TENSOR_FAIL, .tensor_fail = {j->id, name, (uint32_t)-code, text}};

	sched_send(c, m, &msg);
}

static void mismatch_text(const struct declare_request *in, const struct sched_tensor *t,
	const struct ctl_decl *d, char *ret, size_t n)
{
	const struct sched_worker *w = &in->j->workers[t->first_rank];

	snprintf(ret, n,
		"tensor '%s' of job '%s': rank %u (host %s) declares %s x %llu, rank %u (host %s)"
		" %s x %llu",
		t->name, in->j->name, t->first_rank, sched_host_of(in->c, w->agent),
		dtype_name(t->dtype), (unsigned long long)t->n_elems, d->rank, in->m->host,
		dtype_name(d->dtype), (unsigned long long)d->n_elems);
}

static bool has_declared(const struct sched_tensor *t, uint32_t member)
{
	return t->declared && t->declared[member / 64] >> (member % 64) & 1;
}

static void tensor_mismatch(
	const struct declare_request *in, struct sched_tensor *t, const struct ctl_decl *d)
{
	char text[CTL_TEXT_MAX + 1];

	mismatch_text(in, t, d, text, sizeof(text));
	if (t->state != TENSOR_COLLECTING) { /* the others agreed long ago */
		tensor_fail_send(in->c, in->m, in->j, t->name, BPS_EMISMATCH, text);
		return;
	}
	log_rated(LOG_AS(LOG_WARN, TENSOR_REFUSED), "%s job='%s' id=%u", text, in->j->name,
		in->j->id);
	t->fail_text = sched_dup(text);
	t->fail_code = BPS_EMISMATCH;
	in->j->claimed_bytes -= t->n_elems * dtype_bytes(t->dtype);
	t->declared[in->member / 64] |= UINT64_C(1) << (in->member % 64);
	for (uint32_t i = 0; i < in->j->n_members; i++)
		if (has_declared(t, i))
			tensor_fail_send(in->c, sched_member(in->c, in->j->members[i].agent), in->j,
				t->name, BPS_EMISMATCH, text);
	tensor_set_state(in->j, t, TENSOR_FAILED, "workers disagree");
}

static void fresh_add(struct sched_core *c, struct sched_job *j, struct sched_tensor *t)
{
	tensor_set_state(j, t, TENSOR_READY, "all agents have declared it");
	*j->fresh_tail = t;
	j->fresh_tail = &t->next_fresh;
	sched_job_dirty(c, j);
}

static void check_declared(struct sched_core *c, struct sched_job *j, struct sched_tensor *t)
{
	if (t->n_declared == j->n_members - j->n_left)
		fresh_add(c, j, t);
}

void sched_tensors_undeclare(struct sched_core *c, struct sched_job *j, uint32_t member)
{
	for (uint32_t b = 0; b < j->n_buckets; b++) {
		for (struct sched_tensor *t = j->buckets[b]; t; t = t->next_hash) {
			if (t->state != TENSOR_COLLECTING)
				continue;
			if (has_declared(t, member)) {
				t->declared[member / 64] &= ~(UINT64_C(1) << (member % 64));
				t->n_declared--;
			}
			check_declared(c, j, t);
		}
	}
}

static struct sched_tensor *tensor_new(const struct declare_request *in, const struct ctl_decl *d)
{
	struct sched_tensor *t = sched_alloc(1, sizeof(*t));

	t->id = CTL_NO_ID;
	t->dtype = d->dtype;
	t->n_elems = d->n_elems;
	t->name = sched_dup(d->name);
	t->first_rank = d->rank;
	t->since_ns = in->c->now_ns;
	t->declared = sched_alloc((in->j->n_members + 63) / 64, sizeof(uint64_t));
	sched_tensor_add(in->j, t);
	return t;
}

static bool is_decl_sound(const struct declare_request *in, const struct ctl_decl *d)
{
	struct sched_core *c = in->c;
	size_t bytes = dtype_bytes(d->dtype);

	if (!d->name[0] || d->rank >= in->j->n_room || in->j->workers[d->rank].agent != in->m->id)
		sched_kick(c, in->m, "a declaration that is not sound");
	else if (!bytes || !d->n_elems)
		tensor_fail_send(c, in->m, in->j, d->name, -EINVAL, "unknown type or no elements");
	else if (d->n_elems > SCHED_TENSOR_BYTES_MAX / bytes)
		tensor_fail_send(
			c, in->m, in->j, d->name, BPS_EQUOTA, "a tensor has at most 1 TiB");
	else
		return true;
	return false;
}

static void resend_plan(const struct declare_request *in, struct sched_tensor *t)
{
	struct ctl_msg msg = {.type = CTL_PLAN, .plan = {.view = in->c->view, .job = in->j->id}};
	struct ctl_tensor def = {t->id, t->name, t->dtype, t->n_elems, t->part_elems};
	uint32_t at = 0;

	if (in->c->tx_view) { /* what it has by then may not be durable yet */
		in->j->owes_plans = in->j->members[in->member].is_owed_plan = true;
		return;
	}
	msg.plan.tensors = &def;
	msg.plan.n_tensors = 1;
	msg.plan.runs = sched_alloc(CTL_LIST_MAX, sizeof(struct ctl_run));
	do {
		msg.plan.n_runs = 0;
		while (msg.plan.n_runs < CTL_LIST_MAX &&
			sched_run_next(t, &at, 0, SERVER_ANY, &msg.plan.runs[msg.plan.n_runs]))
			msg.plan.n_runs++;
		sched_send(in->c, in->m, &msg);
	} while (msg.plan.n_runs == CTL_LIST_MAX);
	free(msg.plan.runs);
}

static bool has_room(const struct declare_request *in, const struct ctl_decl *d)
{
	uint32_t max = in->c->cfg.job_tensors;
	struct err_text err;

	if (!max || max > SCHED_TENSORS_MAX)
		max = SCHED_TENSORS_MAX;
	if (in->j->n_tensors < max)
		return true;
	in->c->refused[QUOTA_JOB_TENSORS]++;
	err_set(&err, BPS_EQUOTA,
		"tensor '%s': job '%s' has %u of %u tensors; see bps-scheduler's --job-tensors",
		d->name, in->j->name, in->j->n_tensors, max);
	tensor_fail_send(in->c, in->m, in->j, d->name, BPS_EQUOTA, err.s);
	return false;
}

/* The tensor is there all the same when the servers' memory is not enough: all agents must get the
 * same answer, also when there is more by then. */
static void claim(const struct declare_request *in, struct sched_tensor *t)
{
	uint64_t bytes = t->n_elems * dtype_bytes(t->dtype);
	struct err_text why, err;
	int rc = sched_admit_tensor(in->c, in->j, bytes, &why);

	if (rc == 0) {
		in->j->claimed_bytes += bytes;
		return;
	}
	err_set(&err, rc, "tensor '%s' of job '%s': %s", t->name, in->j->name, why.s);
	t->fail_text = sched_dup(err.s);
	t->fail_code = rc;
	tensor_set_state(in->j, t, TENSOR_FAILED, "over a quota");
}

static void declare_one(const struct declare_request *in, const struct ctl_decl *d)
{
	struct sched_job *j = in->j;
	struct sched_tensor *t = sched_tensor_find(j, d->name);

	if (!t) {
		if (!has_room(in, d))
			return;
		t = tensor_new(in, d);
		claim(in, t);
	}
	if (t->state == TENSOR_FAILED) {
		tensor_fail_send(in->c, in->m, j, t->name, t->fail_code, t->fail_text);
	} else if (t->dtype != d->dtype || t->n_elems != d->n_elems) {
		tensor_mismatch(in, t, d);
	} else if (t->state == TENSOR_PLACED) {
		resend_plan(in, t);
	} else if (t->state == TENSOR_COLLECTING && !has_declared(t, in->member)) {
		t->declared[in->member / 64] |= UINT64_C(1) << (in->member % 64);
		t->n_declared++;
	}
}

/* Behind all of a message: two declarations of one tensor in it are of workers who disagree, and that
 * must be known before the tensor is taken for agreed on. */
static void check_named(const struct declare_request *in, const char *name)
{
	struct sched_tensor *t = sched_tensor_find(in->j, name);

	if (t && t->state == TENSOR_COLLECTING)
		check_declared(in->c, in->j, t);
}

void sched_declare(struct sched_core *c, struct sched_member *m, const struct ctl_declare *msg)
{
	struct declare_request in = {c, m, sched_job(c, msg->job), 0};

	if (!in.j) {
		sched_job_unknown(c, m, msg->job);
		return;
	}
	if (sched_send_evicted(c, m, in.j))
		return;
	in.member = sched_job_member(in.j, m->id);
	if (in.member == CTL_NO_ID || in.j->state != JOB_RUNNING) {
		sched_kick(c, m, "DECLARE in a job that is not its or has not formed");
		return;
	}
	for (uint32_t i = 0; i < msg->n_tensors && m->conn; i++)
		if (is_decl_sound(&in, &msg->tensors[i]))
			declare_one(&in, &msg->tensors[i]);
	for (uint32_t i = 0; i < msg->n_tensors && m->conn; i++)
		check_named(&in, msg->tensors[i].name);
}
