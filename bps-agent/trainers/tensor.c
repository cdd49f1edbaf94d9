/* Handles the tensors of a job on this machine: submissions by trainers, messages from and to the
 * scheduler about tensors, and the memory of those tensors that are in host memory. declare.c
 * handles declarations. When all local workers have declared a tensor, the core runs the tensor's
 * rounds. Thread: the data thread. */
#include "bps-agent/trainers/tensor.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/handover/handover_write.h"
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/trainers/barrier.h"
#include "bps-agent/trainers/job_failure.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/data/shape.h"

static int compare_by_name(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

struct tensor *tensor_find(struct job *job, const char *name)
{
	struct tensor key = {.name = (char *)(uintptr_t)name};
	struct tensor **node = tfind(&key, &job->by_name, compare_by_name);

	return node ? *node : NULL;
}

struct tensor *tensor_new_in_job(struct job *job, uint32_t worker, const struct local_decl *d)
{
	struct tensor *tensor =
		calloc(1, sizeof(*tensor) + job->n_workers * sizeof(tensor->workers[0]));

	if (!tensor)
		return NULL;
	tensor->kind = &host_tensor_kind;
	tensor->job = job;
	tensor->idx = CTL_NO_ID;
	tensor->name = strdup(d->name);
	tensor->shape = d->shape;
	tensor->first_worker = worker;
	if (!tensor->name || !tsearch(tensor, &job->by_name, compare_by_name)) {
		free(tensor->name);
		free(tensor);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&job->tensors, tensor, link);
	return tensor;
}

static void tensor_unlink_and_free(struct tensor *tensor)
{
	TAILQ_REMOVE(&tensor->job->tensors, tensor, link);
	if (tensor->kind->has_streams)
		tensor->kind->free(tensor);
	free(tensor->fail_text);
	free(tensor->cause_host);
	free(tensor->name);
	free(tensor);
}

void tensor_remove_from_job(struct tensor *tensor)
{
	tdelete(tensor, &tensor->job->by_name, compare_by_name);
	quota_give(tensor->job->quota, QUOTA_TENSORS, 1);
	tensor_unlink_and_free(tensor);
}

void tensor_flush_declares(struct job *job)
{
	struct ctl_msg m = {.type = CTL_DECLARE,
		.declare = {.job = job->id, .tensors = job->batch, .n_tensors = job->n_batch}};

	if (job->n_batch)
		member_send(job->agent->member,
			/* Without a connection to the scheduler, the message is lost. After the
			 * reconnect, tensor_declare_unplanned sends it again. */
			&m);
	job->n_batch = 0;
}

void tensor_add_declare(struct job *job, const struct ctl_decl *decl)
{
	if (job->n_batch == JOB_BATCH)
		tensor_flush_declares(job);
	job->batch[job->n_batch++] = *decl;
}

void tensor_report_done(
	struct tensor *tensor, uint32_t w, uint64_t round, int status, uint32_t workers)
{
	struct trainer *t = tensor->job->by_worker[w];

	if (t)
		trainer_report_round_done(t, tensor->workers[w].index, round, status, workers);
	if (status < 0 && tensor->kind->has_streams)
		tensor->kind->poison(tensor, w);
}

/* Store in the entry of the worker's trainer whose values are in the sum of a complete round. */
static void tensor_report_contributors(
	struct tensor *tensor, uint32_t w, uint64_t round, const struct agt_contributors *c)
{
	const struct tensor_worker *tw = &tensor->workers[w];
	struct trainer *t = tensor->job->by_worker[w];
	bool abstained = ledger_submission_at(tw->live, round)->flags & LOCAL_ABSTAINS;

	if (t)
		local_set_contributors(t->control, t->sq_entries, tw->index, c->most,
			abstained || !c->has_mine, c->is_late);
}

void tensor_refuse(struct tensor *tensor, int code, const char *text, const struct ctl_cause *cause)
{
	if (tensor->failed)
		return;
	tensor->failed = code;
	tensor->fail_text = strdup(text);
	if (cause && ctl_has_cause(cause)) {
		tensor->cause_rank = cause->rank;
		tensor->cause_host = strdup(cause->host);
	}
	handover_write_refused(tensor);
	log_rated(LOG_AS(LOG_WARN, TENSOR_REFUSED), "tensor refused: job=%s tensor=%s: %s",
		tensor->job->name, tensor->name, text);
	if (tensor->core)
		agt_tensor_fail(tensor->core, code);
	tensor->kind->fail_waiting(tensor, code);
}

/* Plan a tensor of a job whose workers are all on this machine. Such a tensor needs no placement by
 * the scheduler. */
static int tensor_plan_locally(struct tensor *tensor, uint32_t id)
{
	struct ctl_tensor plan = {.tensor = id, .shape = tensor->shape, .part_elems = 1};

	return agt_tensor_plan(tensor->core, &plan);
}

/* Fail the job, because two workers of this machine have submitted the same round with different
 * operations. w: the second of these workers. op: the operation of that worker. */
static void job_fail_op_mismatch(struct tensor *tensor, uint32_t w, uint64_t round, uint8_t op)
{
	struct job *job = tensor->job;
	struct err_text text;
	uint32_t other = 0;

	while (other < job->n_workers - 1 &&
		(other == w || tensor->workers[other].submitted != round))
		other++;
	err_set(&text, 0,
		"tensor '%s' round %llu: rank %u (pid %d) submits op %s, but rank %u (same host) "
		"submits op %s",
		tensor->name, (unsigned long long)round, job->ranks[w],
		job->by_worker[w] ? (int)job->by_worker[w]->pid : 0, op_name(op), job->ranks[other],
		op_name(tensor->workers[other].op));
	job_report_failure(job->agent, job->id, BPS_EMISMATCH, text.s,
		&(struct ctl_cause){job->ranks[w], job->agent->cfg.host});
	agt_job_fail(job->core, BPS_EMISMATCH);
}

int tensor_to_core(struct tensor *tensor, uint32_t w, const struct pending_submission *p)
{
	struct job *job = tensor->job;
	struct trainer *t = job->by_worker[w];
	int rc = job->code;

	if (rc == 0) {
		rc = agt_tensor_submit(tensor->core, w, p->round, p->op, p->priority, p->abstains);
		if (rc == BPS_EMISMATCH)
			job_fail_op_mismatch(tensor, w, p->round, p->op);
	}
	if (rc == BPS_EBUSY)
		return rc;
	if (rc < 0 && t)
		tensor_report_done(tensor, w, p->round, rc, 0);
	return 0;
}

/* ---- in host memory ---- */

/* Check that the quota has room for the tensor's outputs and for the input of worker `t`. Without
 * this check, the outputs could be allocated although the input is then refused. Memory of a
 * refused declaration stays allocated until the job ends. Errors: BPS_EQUOTA; err gets the text. */
static int tensor_check_quota_room(
	const struct trainer *t, size_t each, size_t bytes, struct err_text *err)
{
	struct job *job = t->job;
	size_t more =
		arena_bytes_to_grow(job->output, 2 * each) + arena_bytes_to_grow(t->input, bytes);
	int rc = quota_take(job->quota, QUOTA_MEMORY, more, err);

	if (rc == 0)
		quota_give(job->quota, QUOTA_MEMORY, more);
	return rc;
}

/* Allocate the memory that the tensor still lacks. The first declaration of the tensor needs the
 * outputs, and each declaration needs the input of its worker. The declaration that comes last
 * needs staging memory for the sum of the inputs. Memory that the tensor had before a restart is
 * used again. While an output arena is being made for one worker, the job's other workers request
 * none, because the new arena may suffice for all workers. Errors: the errors of arena_alloc.
 * -EINPROGRESS with want_bytes 0: the caller must wait for the output arena that is being made. */
static int host_declare(struct trainer *t, struct tensor *tensor, const struct local_decl *d,
	size_t bytes, struct err_text *err)
{
	struct job *job = t->job;
	struct tensor_worker *tw = &tensor->workers[t->worker];
	bool is_last = tensor->n_declared + 1 == job->n_workers;
	struct agt_mem out;
	size_t each = arena_round_up_bytes(bytes);
	int rc = 0;

	(void)d;
	if (tensor->kind != &host_tensor_kind)
		return err_set(err, BPS_EMISMATCH,
			"another worker of this machine has declared the tensor on a GPU");
	if (!tensor->out_arena && job->makes_output) {
		job->arenas.want_bytes = 0;
		return -EINPROGRESS;
	}
	if (!tensor->out_arena) {
		rc = tensor_check_quota_room(t, each, bytes, err);
		if (rc < 0)
			return rc;
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
	if (rc == 0 && !tensor->staging_arena && tensor->staging.mem)
		tensor->staging_arena = job->staging;
	return rc;
}

static bool host_is_declared_at(
	const struct tensor *tensor, uint32_t worker, const struct local_decl *d)
{
	(void)tensor;
	(void)worker;
	return !d->region;
}

static int host_to_core(struct tensor *tensor)
{
	struct job *job = tensor->job;
	struct agt_mem *in;
	int rc;

	in = calloc(job->n_workers, sizeof(*in));
	if (!in)
		return -ENOMEM;
	for (uint32_t w = 0; w < job->n_workers; w++)
		in[w] = tensor->workers[w].in;
	rc = agt_tensor_new(job->core, &tensor->shape, in,
		tensor->staging.mem ? &tensor->staging : NULL, tensor->out, tensor, &tensor->core);
	free(in);
	return rc;
}

static void host_submit_waiting(struct tensor *tensor)
{
	for (uint32_t w = 0; tensor->core && w < tensor->job->n_workers; w++) {
		struct pending_submission p = tensor->workers[w].pending;

		tensor->workers[w].pending.is_set = false;
		if (p.is_set)
			tensor_to_core(tensor, w, &p);
	}
}

/* Submit the worker's last round again after a restart, unless that round is complete. Also report
 * the last complete round to the trainer again, because the trainer may not have received the
 * report. */
static void host_resubmit(struct tensor *tensor, uint32_t w, uint64_t complete)
{
	struct tensor_worker *tw = &tensor->workers[w];
	struct trainer *t = tensor->job->by_worker[w];
	const struct ledger_submission *last = ledger_submission_at(tw->live, tw->submitted);

	if (complete && t) {
		struct agt_contributors c = agt_tensor_contributors(tensor->core);

		tensor_report_contributors(tensor, w, complete, &c);
		trainer_report_round_done(t, tw->index, complete, 0, c.least);
		/* trainer_report_round_done has counted only the last complete round, so add the
		 * rounds before it */
		t->completed += complete - 1;
	}
	if (tw->submitted > complete)
		tw->pending = (struct pending_submission){.is_set = true,
			.abstains = last->flags & LOCAL_ABSTAINS,
			.op = last->op,
			.priority = last->priority,
			.round = tw->submitted};
}

static int host_submit(struct tensor *tensor, uint32_t w, const struct pending_submission *p)
{
	if (tensor->core || tensor->job->code)
		return tensor_to_core(tensor, w, p);
	tensor->workers[w].pending = *p;
	return 0;
}

static void host_fail_waiting(struct tensor *tensor, int code)
{
	for (uint32_t w = 0; w < tensor->job->n_workers; w++) {
		struct tensor_worker *tw = &tensor->workers[w];

		if (tw->pending.is_set)
			tensor_report_done(tensor, w, tw->pending.round, code, 0);
		tw->pending.is_set = false;
	}
}

const struct tensor_kind host_tensor_kind = {.declare = host_declare,
	.is_declared_at = host_is_declared_at,
	.to_core = host_to_core,
	.submit = host_submit,
	.submit_waiting = host_submit_waiting,
	.resubmit = host_resubmit,
	.fail_waiting = host_fail_waiting};

/* ---- to the core ---- */

static void declare_to_scheduler(struct tensor *tensor)
{
	tensor_add_declare(tensor->job, &(struct ctl_decl){tensor->job->ranks[0], tensor->name,
						tensor->shape, (uint32_t)-tensor->failed});
}

void tensor_complete(struct tensor *tensor)
{
	struct job *job = tensor->job;
	int rc = tensor->kind->to_core(tensor);

	if (rc == 0 && job->is_local)
		rc = tensor_plan_locally(tensor, job->n_tensors++);
	if (rc < 0)
		tensor_refuse(tensor, rc, "the agent is out of memory", NULL);
	if (!job->is_local)
		declare_to_scheduler(tensor);
	tensor->kind->submit_waiting(tensor);
}

/* ---- after a restart ---- */

/* If the tensor had a plan before the restart, apply that plan again. A tensor that had no plan
 * gets one here only if all workers of its job are on this machine. */
static int tensor_restore_plan(struct tensor *tensor)
{
	struct ctl_tensor plan = {.tensor = tensor->kept_id,
		.shape = tensor->shape,
		.part_elems = tensor->part_elems};

	if (tensor->job->is_local) {
		uint32_t id = tensor->parts ? tensor->kept_id : tensor->job->n_tensors;

		if (id >= tensor->job->n_tensors)
			tensor->job->n_tensors = id + 1;
		return tensor_plan_locally(tensor, id);
	}
	return tensor->parts ? agt_tensor_plan(tensor->core, &plan) : 0;
}

void tensor_resume_after_restart(struct tensor *tensor)
{
	int rc = tensor->n_declared == tensor->job->n_workers && !tensor->failed
			 ? tensor->kind->to_core(tensor)
			 : 0;
	uint64_t complete = 0;

	if (rc == 0 && tensor->core)
		rc = tensor_restore_plan(tensor);
	if (rc < 0)
		tensor_refuse(tensor, rc,
			"the agent's records of this tensor from before the restart are "
			"inconsistent",
			NULL);
	if (tensor->core)
		complete = agt_tensor_round(tensor->core);
	if (tensor->failed && tensor->kind->has_streams)
		/* the executor may not have received CANCEL from the agent's previous process */
		tensor->kind->cancel(tensor);
	for (uint32_t w = 0; w < tensor->job->n_workers; w++) {
		struct tensor_worker *tw = &tensor->workers[w];
		struct trainer *t = tensor->job->by_worker[w];

		if (tensor->failed && t && tw->submitted) {
			tensor_report_done(tensor, w, tw->submitted, tensor->failed, 0);
			t->completed += tw->submitted - 1;
		} else if (!tensor->failed && tw->is_declared)
			tensor->kind->resubmit(tensor, w, complete);
	}
	tensor->kind->submit_waiting(tensor);
}

bool tensor_is_awaited(const struct tensor *tensor, uint32_t w)
{
	const struct trainer *t = tensor->job->by_worker[w];

	return t && tensor->workers[w].is_declared &&
	       local_is_awaited(t->control, t->sq_entries, tensor->workers[w].index);
}

/* ---- submissions ---- */

/* Return whether this submission has already been recorded. After a restart, one such submission
 * can arrive. In that case the previous process recorded the submission, but ended before it could
 * record that the submission's ring entry was taken. */
static bool submission_is_repeated(
	struct trainer *t, const struct tensor_worker *tw, uint64_t round)
{
	bool may = t->may_repeat_submission;

	t->may_repeat_submission = false;
	return may && round == tw->submitted;
}

static void note_submission(struct tensor_worker *tw, const struct local_sqe *e)
{
	tw->submitted = e->round;
	tw->op = e->op;
	*ledger_submission_at(tw->live, e->round) =
		(struct ledger_submission){.priority = e->priority, .op = e->op, .flags = e->flags};
	/* The release store pairs with the acquire load in handover_read.c, which the next process
	 * executes. */
	atomic_store_explicit(&tw->live->submitted, e->round, memory_order_release);
}

int tensor_on_submission(struct trainer *t, const struct local_sqe *e, struct err_text *err)
{
	struct tensor *tensor = e->tensor < t->n_tensors ? t->tensors[e->tensor] : NULL;
	struct job *job = t->job;
	struct pending_submission p = {.is_set = true,
		.abstains = e->flags & LOCAL_ABSTAINS,
		.op = e->op,
		.priority = e->priority,
		.round = e->round};
	struct tensor_worker *tw;
	int rc;

	if (!tensor || !op_is_valid_for_dtype(e->op, tensor->shape.dtype) ||
		(tensor->shape.mode == MODE_VALUE && e->op != OP_SUM) ||
		(tensor->kind->has_streams && (op_is_bitwise(e->op) || p.abstains)) ||
		e->flags & ~LOCAL_ABSTAINS || t->state == TRAINER_FINISHING ||
		t->state == TRAINER_JOINING || !barrier_is_over(t))
		return err_set(err, BPS_EPROTO,
			"a submission of tensor %u, op %u, flags %u is invalid", e->tensor, e->op,
			e->flags);
	tw = &tensor->workers[t->worker];
	if (submission_is_repeated(t, tw, e->round))
		return 0;
	if (tw->pending.is_set || e->round != tw->submitted + 1)
		return err_set(err, BPS_EPROTO,
			"tensor '%s': unexpected submission of round %llu: the last submitted "
			"round is %llu",
			tensor->name, (unsigned long long)e->round,
			(unsigned long long)tw->submitted);
	note_submission(tw, e);
	tw->since_ns = t->quiet_since_ns = clock_now_ns();
	t->calls++;
	if (job->state == JOB_ENDED || tensor->failed) {
		/* Report the tensor's own failure rather than the job's end, because the tensor's
		 * failure describes the cause more precisely. */
		tensor_report_done(tensor, t->worker, e->round,
			tensor->failed  ? tensor->failed
			: job->code < 0 ? job->code
					: BPS_ECLOSED,
			0);
		return 0;
	}
	rc = tensor->kind->submit(tensor, t->worker, &p);
	return rc < 0 ? err_set(err, rc,
				"tensor '%s': round %llu was submitted while too many rounds are "
				"in flight",
				tensor->name, (unsigned long long)e->round)
		      : 0;
}

/* ---- answers of the core and the scheduler ---- */

void tensor_fail_pending(struct job *job)
{
	struct tensor *tensor;

	TAILQ_FOREACH (tensor, &job->tensors, link)
		tensor->kind->fail_waiting(tensor, job->code);
}

void tensor_core_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers)
{
	struct tensor *tensor = tensor_user;
	struct agt_contributors c = {.least = workers, .most = workers};

	(void)ctx;
	if (tensor->core)
		c = agt_tensor_contributors(tensor->core);
	for (uint32_t w = 0; w < tensor->job->n_workers; w++) {
		tensor_report_contributors(tensor, w, round, &c);
		tensor_report_done(tensor, w, round, status, workers);
	}
	/* Without a core, the job has ended before the last task of the round, and so has its
	 * executor. */
	if (tensor->kind->has_streams && tensor->core)
		tensor->kind->round_over(tensor, status);
}

static void tensor_refuse_part_size(struct tensor *tensor, const struct ctl_tensor *plan)
{
	const struct agent *a = tensor->job->agent;
	struct err_text text;

	err_set(&text, BPS_EQUOTA,
		"tensor '%s' of job '%s' has partitions of %llu bytes, but a job may have only "
		"%llu bytes in flight on %s; raise bps-agent's --job-inflight, or request smaller "
		"partitions",
		tensor->name, tensor->job->name,
		(unsigned long long)plan->part_elems * dtype_bytes(tensor->shape.dtype),
		(unsigned long long)a->cfg.limits.quotas.of[QUOTA_JOB][QUOTA_INFLIGHT],
		a->cfg.host);
	tensor_refuse(tensor, BPS_EQUOTA, text.s, NULL);
}

void tensor_on_plan(struct agent *a, const struct ctl_plan *m)
{
	struct job *job = job_find(a, m->job);

	if (!job || !job->core)
		return;
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		struct tensor *tensor = tensor_find(job, m->tensors[i].name);
		int rc = tensor && tensor->core ? agt_tensor_plan(tensor->core, &m->tensors[i]) : 0;

		if (rc == BPS_EQUOTA)
			tensor_refuse_part_size(tensor, &m->tensors[i]);
		else if (rc < 0)
			tensor_refuse(
				tensor, rc, "the scheduler's plan does not fit the tensor", NULL);
	}
	agt_job_apply_placement(job->core, m->runs, m->n_runs);
}

void tensor_on_fail(struct agent *a, const struct ctl_tensor_fail *m)
{
	struct job *job = job_find(a, m->job);
	struct tensor *tensor = job ? tensor_find(job, m->name) : NULL;

	if (tensor)
		tensor_refuse(tensor, -(int)m->code, m->text, &m->cause);
}

/* ---- for the job ---- */

/* Return whether the scheduler must get the tensor's declaration again. A tensor that failed before
 * it had a place is declared again with its error code, so that the scheduler fails it for the
 * other machines too. */
static bool tensor_is_unplanned(const struct tensor *tensor)
{
	if (tensor->core ? agt_tensor_id(tensor->core) != CTL_NO_ID : tensor->parts != NULL)
		return false;
	return tensor->core || tensor->failed;
}

void tensor_declare_unplanned(struct job *job)
{
	struct tensor *tensor;

	if (job->is_local)
		return;
	TAILQ_FOREACH (tensor, &job->tensors, link)
		if (tensor_is_unplanned(tensor))
			declare_to_scheduler(tensor);
	tensor_flush_declares(job);
}

static void tree_node_free_nothing(void *node)
{
	(void)node;
}

void tensor_free_all(struct job *job)
{
	struct tensor *next;

	tdestroy(job->by_name, tree_node_free_nothing);
	for (struct tensor *tensor = TAILQ_FIRST(&job->tensors); tensor; tensor = next) {
		next = TAILQ_NEXT(tensor, link);
		tensor_unlink_and_free(tensor);
	}
}
