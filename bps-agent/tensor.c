/* Tensors of a job on this machine: what its trainers declare and submit, what of it the scheduler
 * must hear, and where the memory lies. From the moment all local workers have declared it, a
 * tensor's rounds are the core's. */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/agent.h"
#include "common/clock.h"
#include "common/dtype.h"
#include "common/log.h"

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static struct tensor *tensor_find(struct job *job, const char *name)
{
	struct tensor key = {.name = (char *)(uintptr_t)name};
	struct tensor **node = tfind(&key, &job->by_name, by_name);

	return node ? *node : NULL;
}

static struct tensor *tensor_new(struct job *job, const struct local_decl *d)
{
	struct tensor *tensor =
		calloc(1, sizeof(*tensor) + job->n_workers * sizeof(tensor->workers[0]));

	if (!tensor)
		return NULL;
	tensor->job = job;
	tensor->name = strdup(d->name);
	tensor->dtype = d->dtype;
	tensor->n_elems = d->n_elems;
	if (!tensor->name || !tsearch(tensor, &job->by_name, by_name)) {
		free(tensor->name);
		free(tensor);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&job->tensors, tensor, link);
	return tensor;
}

/* Declarations go to the scheduler together: each message costs it a sync of its disk. Flush before
 * the names' memory goes. */
static void flush_declares(struct job *job)
{
	struct ctl_msg m = {.type = CTL_DECLARE,
		.declare = {.job = job->id, .tensors = job->batch, .n_tensors = job->n_batch}};

	if (job->n_batch)
		member_send(job->agent->member,
			&m); /* not up: tensor_declare_unplanned says it again */
	job->n_batch = 0;
}

static void add_declare(
	struct job *job, uint32_t rank, const char *name, uint8_t dtype, uint64_t n_elems)
{
	if (job->n_batch == JOB_BATCH)
		flush_declares(job);
	job->batch[job->n_batch++] =
		(struct ctl_decl){.rank = rank, .name = name, .dtype = dtype, .n_elems = n_elems};
}

static void tensor_refuse(struct tensor *tensor, int code, const char *text)
{
	if (tensor->failed)
		return;
	tensor->failed = code;
	tensor->fail_text = strdup(text);
	log_rated(LOG_AS(LOG_WARN, TENSOR_REFUSED), "tensor refused: job=%s tensor=%s: %s",
		tensor->job->name, tensor->name, text);
	if (tensor->core)
		agt_tensor_fail(tensor->core, code);
	for (uint32_t w = 0; w < tensor->job->n_workers; w++) {
		struct tensor_worker *tw = &tensor->workers[w];

		if (tw->pending.is_set && tensor->job->by_worker[w])
			trainer_done(
				tensor->job->by_worker[w], tw->index, tw->pending.round, code, 0);
		tw->pending.is_set = false;
	}
}

/* All local workers have declared it: from here on it is the core's, and the scheduler hears of
 * it. */
static int tensor_complete(struct tensor *tensor, struct err_text *err)
{
	struct job *job = tensor->job;
	struct agt_mem *in;
	struct ctl_tensor plan;
	int rc;

	in = calloc(job->n_workers, sizeof(*in));
	if (!in)
		return err_set(err, -ENOMEM, "the agent is out of memory");
	for (uint32_t w = 0; w < job->n_workers; w++)
		in[w] = tensor->workers[w].in;
	rc = agt_tensor_new(job->core, tensor->dtype, tensor->n_elems, in,
		tensor->staging.mem ? &tensor->staging : NULL, tensor->out, tensor, &tensor->core);
	free(in);
	if (rc < 0)
		return err_set(err, rc, "the agent is out of memory");
	if (!job->is_local) {
		add_declare(job, job->ranks[0], tensor->name, tensor->dtype, tensor->n_elems);
		return 0;
	}
	plan = (struct ctl_tensor){.tensor = job->n_tensors++,
		.dtype = tensor->dtype,
		.n_elems = tensor->n_elems,
		.part_elems = 1};
	rc = agt_tensor_plan(tensor->core, &plan);
	return rc < 0 ? err_set(err, rc, "the agent is out of memory") : 0;
}

/* Two workers of this machine want different things of one round: w and one before it. */
static void op_mismatch(struct tensor *tensor, uint32_t w, uint64_t round, uint8_t op)
{
	struct job *job = tensor->job;
	struct err_text text;
	uint32_t other = 0;

	while (other < job->n_workers - 1 &&
		(other == w || tensor->workers[other].submitted != round))
		other++;
	err_set(&text, 0,
		"tensor '%s' round %llu: rank %u (pid %d) submits op %s, rank %u (same host) op %s",
		tensor->name, (unsigned long long)round, job->ranks[w],
		job->by_worker[w] ? (int)job->by_worker[w]->pid : 0, op_name(op), job->ranks[other],
		op_name(tensor->workers[other].op));
	job_core_fail(job->agent, job->id, BPS_EMISMATCH, text.s);
	agt_job_fail(job->core, BPS_EMISMATCH);
}

/* Errors: BPS_EBUSY. Any other failure is the job's, and the round ends with it. */
static int submit_one(struct tensor *tensor, uint32_t w, const struct pending *p)
{
	struct job *job = tensor->job;
	struct trainer *t = job->by_worker[w];
	int rc = job->code;

	if (rc == 0) {
		rc = agt_submit(tensor->core, w, p->round, p->op, p->priority);
		if (rc == BPS_EMISMATCH)
			op_mismatch(tensor, w, p->round, p->op);
	}
	if (rc == BPS_EBUSY)
		return rc;
	if (rc < 0 && t)
		trainer_done(t, tensor->workers[w].index, p->round, rc, 0);
	return 0;
}

static void tensor_submit_pending(struct tensor *tensor)
{
	for (uint32_t w = 0; tensor->core && w < tensor->job->n_workers; w++) {
		struct pending p = tensor->workers[w].pending;

		tensor->workers[w].pending.is_set = false;
		if (p.is_set)
			submit_one(tensor, w, &p);
	}
}

/* A refusal, and of what. Returns rc. */
static int refuse_decl(
	int rc, const struct local_decl *d, const struct err_text *why, struct err_text *err)
{
	return rc < 0 ? err_set(err, rc, "tensor '%s' x %llu: %s", d->name,
				(unsigned long long)d->n_elems, why->s)
		      : rc;
}

/* Memory of the tensor as far as it is missing: its outputs with the first worker, the worker's input,
 * and with the last worker room for the sum of them. Errors: those of arena_alloc; what was there
 * before -EINPROGRESS is found again. */
static int slots_alloc(struct trainer *t, struct tensor *tensor, size_t bytes, struct err_text *err)
{
	struct job *job = t->job;
	struct tensor_worker *tw = &tensor->workers[t->worker];
	bool is_last = tensor->n_declared + 1 == job->n_workers;
	struct agt_mem out;
	size_t each = arena_round(bytes);
	int rc = 0;

	if (!tensor->out_arena) {
		rc = arena_alloc(
			&job->arenas, ARENA_OUTPUT, job->output, 2 * each, &job->output, &out, err);
		if (rc < 0)
			return rc;
		tensor->out_arena = job->output;
		tensor->out[0] = tensor->out[1] = out;
		tensor->out[1].mem = (char *)out.mem + each;
		tensor->out[1].offset += each;
	}
	if (!tw->in.mem) {
		rc = arena_alloc(
			&job->arenas, ARENA_INPUT, t->input, bytes, &t->input, &tw->in, err);
		if (rc < 0)
			return rc;
		tw->in_arena = t->input;
	}
	if (is_last && job->n_workers > 1 && !job->is_local && !tensor->staging.mem)
		rc = arena_alloc(&job->arenas, ARENA_PRIVATE, job->staging, bytes, &job->staging,
			&tensor->staging, err);
	return rc;
}

static void tell_arena(struct trainer *t, const struct arena *a)
{
	struct local_msg m = {.type = LOCAL_ARENA,
		.arena = {.id = a->id, .is_writable = a->kind == ARENA_INPUT, .bytes = a->bytes}};

	trainer_send(t, &m, &a->fd, 1);
}

/* Tell it the output arenas that it does not know: they are the set's newest first. */
static void tell_outputs(struct trainer *t, const struct arena *a)
{
	if (!a || a->id < t->n_told)
		return;
	tell_outputs(t, a->next);
	if (a->kind == ARENA_OUTPUT)
		tell_arena(t, a);
}

static int declare_again(
	struct trainer *t, struct tensor *tensor, const struct local_decl *d, struct err_text *err)
{
	uint32_t other = t->rank;

	if (tensor->dtype == d->dtype && tensor->n_elems == d->n_elems)
		return 0;
	for (uint32_t w = 0; w < t->job->n_workers; w++)
		if (tensor->workers[w].is_declared)
			other = t->job->ranks[w];
	err_set(err, BPS_EMISMATCH,
		"tensor '%s' of job '%s': rank %u declares %s x %llu, rank %u (same host) %s x "
		"%llu",
		d->name, t->job->name, other, dtype_name(tensor->dtype),
		(unsigned long long)tensor->n_elems, t->rank, dtype_name(d->dtype),
		(unsigned long long)d->n_elems);
	if (other != t->rank) { /* all workers of the job must hear of it */
		tensor_refuse(tensor, BPS_EMISMATCH, err->s);
		add_declare(t->job, other, tensor->name, tensor->dtype, tensor->n_elems);
		add_declare(t->job, t->rank, d->name, d->dtype, d->n_elems);
	}
	return BPS_EMISMATCH;
}

static int declare_one(struct trainer *t, const struct local_decl *d, struct local_slot *slot,
	struct err_text *err)
{
	struct job *job = t->job;
	size_t elem = dtype_bytes(d->dtype), bytes;
	struct err_text why = {0};
	struct tensor *tensor;
	struct tensor_worker *tw;
	int rc;

	if (!elem || !d->n_elems || !*d->name ||
		__builtin_mul_overflow((size_t)d->n_elems, elem, &bytes) || bytes > SIZE_MAX / 4)
		return err_set(err, -EINVAL, "tensor '%s' cannot be %s x %llu", d->name,
			dtype_name(d->dtype), (unsigned long long)d->n_elems);
	tensor = tensor_find(job, d->name);
	rc = tensor ? declare_again(t, tensor, d, err) : 0;
	if (rc < 0)
		return rc;
	if (t->n_tensors >= t->max_tensors)
		return err_set(err, BPS_EQUOTA,
			"tensor '%s': this worker has declared %u of %u tensors on %s; see "
			"bps-agent's --max-tensors",
			d->name, t->n_tensors, t->max_tensors, t->agent->cfg.host);
	if (!tensor) {
		rc = quota_take(job->quota, QUOTA_TENSORS, 1, &why);
		if (rc < 0)
			return refuse_decl(rc, d, &why, err);
		tensor = tensor_new(job, d);
	}
	if (!tensor) {
		quota_give(job->quota, QUOTA_TENSORS, 1);
		return err_set(err, -ENOMEM, "the agent is out of memory");
	}
	tw = &tensor->workers[t->worker];
	if (tw->is_declared)
		return err_set(
			err, BPS_EDUP, "tensor '%s' is declared twice by one worker", d->name);
	rc = slots_alloc(t, tensor, bytes, &why);
	if (rc == -EINPROGRESS)
		return rc;
	if (rc < 0)
		return refuse_decl(rc, d, &why, err);
	tw->is_declared = true;
	tw->index = t->n_tensors;
	t->tensors[t->n_tensors++] = tensor;
	if (tw->in_arena != t->told_input)
		tell_arena(t, tw->in_arena);
	t->told_input = tw->in_arena;
	*slot = (struct local_slot){.text = "",
		.tensor = tw->index,
		.in_arena = tw->in_arena->id,
		.out_arena = tensor->out_arena->id,
		.in_offset = tw->in.offset,
		.out_offset = {tensor->out[0].offset, tensor->out[1].offset}};
	if (++tensor->n_declared == job->n_workers && !tensor->failed) {
		rc = tensor_complete(tensor, err);
		if (rc < 0)
			tensor_refuse(tensor, rc, err->s);
		tensor_submit_pending(tensor);
	}
	return 0;
}

/* ---- DECLARE ---- */

/* One that is being answered. */
struct declaring {
	struct trainer *trainer;
	struct job *job;
	uint32_t seq, next;
	struct local_declare d;
	void *mem; /* of its names */
	struct local_slot slots[LOCAL_DECLARE_MAX];
	struct err_text errs[LOCAL_DECLARE_MAX];
	struct making making; /* memory for the next one */
	enum arena_kind kind;
};

void tensor_declaring_free(struct trainer *t)
{
	if (t->declaring)
		free(t->declaring->mem);
	free(t->declaring);
	t->declaring = NULL;
}

static void declared(struct trainer *t)
{
	struct declaring *x = t->declaring;
	struct local_msg m = {.type = LOCAL_DECLARED, .seq = x->seq};

	if (t->job) {
		flush_declares(t->job);
		tell_outputs(t, t->job->arenas.head);
		t->n_told = t->job->arenas.next_id;
	}
	m.declared = (struct local_declared){.slots = x->slots, .n_slots = x->d.n_tensors};
	trainer_send(t, &m, NULL, 0);
	tensor_declaring_free(t);
}

static void declare_refused(struct declaring *x, int rc)
{
	x->slots[x->next] = (struct local_slot){.code = (uint32_t)-rc, .text = x->errs[x->next].s};
	x->next++;
}

static void made(struct making *m);

/* Have the wanted arena made, and the trainer wait for it. */
static int make_wanted(struct declaring *x, struct err_text *err)
{
	struct arena_set *set = &x->job->arenas;
	int rc;

	x->kind = set->want_kind;
	x->making = (struct making){.name = "bps-arena",
		.bytes = set->want_bytes,
		.more_seals = arena_seals(set->want_kind),
		.done = made,
		.user = x};
	rc = maker_make(x->trainer->agent->maker, &x->making);
	if (rc < 0) {
		arena_forgo(set, x->kind, x->making.bytes);
		return err_set(err, rc, "the agent stops");
	}
	x->job->n_making++;
	flush_declares(x->job); /* the names' memory lasts, but others declare meanwhile */
	trainer_keep(x->trainer);
	trainer_hold(x->trainer, true);
	return 0;
}

/* Go on with the next one. */
static void declare_run(struct trainer *t)
{
	struct declaring *x = t->declaring;

	while (x->next < x->d.n_tensors) {
		struct err_text *err = &x->errs[x->next];
		int rc = t->state == TRAINER_OVER
				 ? err_set(err, t->job->code < 0 ? t->job->code : BPS_ECLOSED, "%s",
					   t->job->code < 0 ? t->job->text : "the job has ended")
				 : declare_one(t, &x->d.tensors[x->next], &x->slots[x->next], err);

		if (rc == -EINPROGRESS) {
			rc = make_wanted(x, err);
			if (rc == 0)
				return;
		}
		if (rc < 0)
			declare_refused(x, rc);
		else
			x->next++;
	}
	declared(t);
}

static struct arena **newest(struct declaring *x)
{
	return x->kind == ARENA_INPUT    ? &x->trainer->input
	       : x->kind == ARENA_OUTPUT ? &x->job->output
					 : &x->job->staging;
}

static void made(struct making *m)
{
	struct declaring *x = m->user;
	struct trainer *t = x->trainer;
	struct job *job = x->job;
	bool is_wanted = t->state != TRAINER_GONE && job->state != JOB_ENDED;
	int rc = m->rc;

	if (rc < 0 || !is_wanted) {
		arena_forgo(&job->arenas, x->kind, m->bytes);
		if (rc == 0)
			maker_drop(job->agent->maker, &m->memory);
	} else {
		rc = arena_adopt(&job->arenas, x->kind, &m->memory, newest(x), &m->err);
	}
	if (t->state != TRAINER_GONE) {
		if (rc < 0)
			declare_refused(x, refuse_decl(rc, &x->d.tensors[x->next], &m->err,
						   &x->errs[x->next]));
		trainer_hold(t, false);
		declare_run(t);
	}
	job->n_making--;
	trainer_put(t);
	job_free_if_unused(job);
}

void tensor_declare(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem)
{
	struct declaring *x;

	if (t->state != TRAINER_ATTACHED && t->state != TRAINER_OVER) {
		trainer_drop(t, true, "DECLARE without a running job");
		return;
	}
	x = malloc(sizeof(*x));
	if (!x) {
		trainer_drop(t, false, "the agent is out of memory");
		return;
	}
	x->trainer = t;
	x->job = t->job;
	x->seq = seq;
	x->next = 0;
	x->d = *d;
	x->mem = *mem;
	*mem = NULL;
	t->declaring = x;
	declare_run(t);
}

/* ---- submissions ---- */

int tensor_submit(struct trainer *t, const struct local_sqe *e, struct err_text *err)
{
	struct tensor *tensor = e->tensor < t->n_tensors ? t->tensors[e->tensor] : NULL;
	struct job *job = t->job;
	struct pending p = {true, e->op, e->priority, e->round};
	struct tensor_worker *tw;
	int rc;

	if (!tensor || e->op >= OP_COUNT || e->flags || t->state == TRAINER_FINISHING ||
		t->state == TRAINER_JOINING)
		return err_set(err, BPS_EPROTO,
			"a submission of tensor %u, op %u, flags %u makes no sense", e->tensor,
			e->op, e->flags);
	tw = &tensor->workers[t->worker];
	if (tw->pending.is_set || e->round != tw->submitted + 1)
		return err_set(err, BPS_EPROTO, "tensor '%s': round %llu submitted after %llu",
			tensor->name, (unsigned long long)e->round,
			(unsigned long long)tw->submitted);
	tw->submitted = e->round;
	tw->op = e->op;
	tw->since_ns = t->quiet_since_ns = clock_now_ns();
	t->calls++;
	if (job->state == JOB_ENDED || tensor->failed) {
		/* The tensor's own reason says more than the end of the job that may follow from
		 * it. */
		trainer_done(t, e->tensor, e->round,
			tensor->failed  ? tensor->failed
			: job->code < 0 ? job->code
					: BPS_ECLOSED,
			0);
		return 0;
	}
	if (!tensor->core && job->code == 0) {
		tw->pending = p;
		return 0;
	}
	rc = submit_one(tensor, t->worker, &p);
	return rc < 0 ? err_set(err, rc,
				"tensor '%s': round %llu submitted while another is in flight",
				tensor->name, (unsigned long long)e->round)
		      : 0;
}

/* ---- the core's and the scheduler's answers ---- */

void tensor_fail_pending(struct job *job)
{
	struct tensor *tensor;

	TAILQ_FOREACH(tensor, &job->tensors, link)
	for (uint32_t w = 0; w < job->n_workers; w++) {
		struct tensor_worker *tw = &tensor->workers[w];

		if (!tw->pending.is_set)
			continue;
		tw->pending.is_set = false;
		if (job->by_worker[w])
			trainer_done(job->by_worker[w], tw->index, tw->pending.round, job->code, 0);
	}
}

void tensor_core_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers)
{
	struct tensor *tensor = tensor_user;

	(void)ctx;
	for (uint32_t w = 0; w < tensor->job->n_workers; w++)
		if (tensor->job->by_worker[w])
			trainer_done(tensor->job->by_worker[w], tensor->workers[w].index, round,
				status, workers);
}

static void refuse_parts(struct tensor *tensor, const struct ctl_tensor *plan)
{
	const struct agent *a = tensor->job->agent;
	struct err_text text;

	err_set(&text, BPS_EQUOTA,
		"tensor '%s' of job '%s' has partitions of %llu bytes, and a job may have %llu in "
		"flight on %s; see bps-agent's --job-inflight, or ask for smaller partitions",
		tensor->name, tensor->job->name,
		(unsigned long long)plan->part_elems * dtype_bytes(tensor->dtype),
		(unsigned long long)a->cfg.limits.quotas.of[QUOTA_JOB][QUOTA_INFLIGHT],
		a->cfg.host);
	tensor_refuse(tensor, BPS_EQUOTA, text.s);
}

void tensor_on_plan(struct agent *a, const struct ctl_plan *m)
{
	struct job *job = agent_job(a, m->job);

	if (!job || !job->core)
		return;
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		struct tensor *tensor = tensor_find(job, m->tensors[i].name);
		int rc = tensor && tensor->core ? agt_tensor_plan(tensor->core, &m->tensors[i]) : 0;

		if (rc == BPS_EQUOTA)
			refuse_parts(tensor, &m->tensors[i]);
		else if (rc < 0)
			tensor_refuse(tensor, rc, "the scheduler's plan does not fit the tensor");
	}
	agt_job_runs(job->core, m->runs, m->n_runs);
}

void tensor_on_fail(struct agent *a, const struct ctl_tensor_fail *m)
{
	struct job *job = agent_job(a, m->job);
	struct tensor *tensor = job ? tensor_find(job, m->name) : NULL;

	if (tensor)
		tensor_refuse(tensor, -(int)m->code, m->text);
}

/* ---- for the job ---- */

void tensor_declare_unplanned(struct job *job)
{
	struct tensor *tensor;

	TAILQ_FOREACH(tensor, &job->tensors, link)
	if (tensor->core && !job->is_local && agt_tensor_id(tensor->core) == CTL_NO_ID)
		add_declare(job, job->ranks[0], tensor->name, tensor->dtype, tensor->n_elems);
	flush_declares(job);
}

static void no_op(void *node)
{
	(void)node;
}

void tensor_free_all(struct job *job)
{
	struct tensor *tensor;

	tdestroy(job->by_name, no_op);
	while ((tensor = TAILQ_FIRST(&job->tensors))) {
		TAILQ_REMOVE(&job->tensors, tensor, link);
		free(tensor->fail_text);
		free(tensor->name);
		free(tensor);
	}
}
