/* Serves DECLARE: creates the tensors that a trainer declares, and allocates memory for them.
 * Another thread makes the memory (memory_thread.h). Meanwhile no message of the trainer is read.
 * When the memory is ready, the DECLARE continues with the tensor that needs this memory. Thread:
 * the data thread. */
#include "bps-agent/trainers/declare.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "bps-agent/handover/handover_write.h"
#include "bps-agent/trainers/job.h"
#include "bps-agent/trainers/job_failure.h"
#include "bps-agent/trainers/tensor.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/failpoint.h"
#include "common/data/shape.h"

/* A DECLARE that is being handled. */
struct pending_declare {
	TAILQ_ENTRY(pending_declare) link; /* entry in job->waiting, if is_waiting is set */
	/* the DECLARE waits for an output arena that is being made for another worker */
	bool is_waiting;
	struct trainer *trainer;
	struct job *job;
	uint32_t seq, next;
	struct local_declare d;
	void *mem; /* memory that holds the tensor names in d */
	struct local_slot slots[LOCAL_DECLARE_MAX];
	struct err_text errs[LOCAL_DECLARE_MAX];
	struct memory_request request; /* request for the memory of the tensor d.tensors[next] */
	enum arena_kind kind;
	/* The trainer has not read all messages before the answer to this DECLARE. */
	bool has_unread;
	/* arenas whose descriptors this DECLARE has sent again (trainer_resend_arena) */
	const struct arena *again[2 * LOCAL_DECLARE_MAX];
	unsigned n_again;
};

/* If rc is an error, set the error text of a refused declaration: the tensor's name and the reason.
 * Returns rc. */
static int declaration_set_error(
	int rc, const struct local_decl *d, const struct err_text *why, struct err_text *err)
{
	return rc < 0 ? err_set(err, rc, "tensor '%s' (%s): %s", d->name, shape_text(&d->shape).s,
				why->s)
		      : rc;
}

static void trainer_send_arena(struct trainer *t, const struct arena *a)
{
	struct local_msg m = {.type = LOCAL_ARENA,
		.arena = {.id = a->id, .is_writable = a->kind == ARENA_INPUT, .bytes = a->bytes}};

	trainer_send_message(t, &m, &a->fd, 1);
}

/* Send the descriptors of the output arenas that the trainer does not have. The oldest arena is
 * sent first. a: first arena of a list that is sorted from the newest to the oldest arena. */
static void trainer_send_output_arenas(struct trainer *t, const struct arena *a)
{
	if (!a || a->id < t->live->n_told)
		return;
	trainer_send_output_arenas(t, a->next);
	if (a->kind == ARENA_OUTPUT)
		trainer_send_arena(t, a);
}

static int declare_check_shape(
	struct trainer *t, struct tensor *tensor, const struct local_decl *d, struct err_text *err)
{
	uint32_t other = t->job->ranks[tensor->first_worker];

	if (shape_is_equal(&tensor->shape, &d->shape))
		return 0;
	for (uint32_t w = 0; w < t->job->n_workers; w++)
		if (tensor->workers[w].is_declared)
			other = t->job->ranks[w];
	err_set(err, BPS_EMISMATCH,
		"tensor '%s' of job '%s': rank %u declares %s, rank %u (same host) declares %s",
		d->name, t->job->name, other, shape_text(&tensor->shape).s, t->rank,
		shape_text(&d->shape).s);
	/* If this worker has not declared the tensor before, fail the tensor for all workers of the
	 * job. On this machine, tensor_refuse fails the tensor. On the other machines, the
	 * scheduler fails the tensor, because the declarations of rank `other` and of this rank
	 * differ. Send both declarations in one message. The scheduler compares all declarations of
	 * a message before it makes the tensor READY (check_named_tensor_ready in
	 * bps-scheduler/core/declare.c). */
	if (!tensor->workers[t->worker].is_declared) {
		if (t->job->n_batch > JOB_BATCH - 2)
			tensor_flush_declares(t->job);
		tensor_refuse(tensor, BPS_EMISMATCH, err->s,
			&(struct ctl_cause){t->rank, t->agent->cfg.host});
		tensor_add_declare(
			t->job, &(struct ctl_decl){other, tensor->name, tensor->shape, 0});
		tensor_add_declare(t->job, &(struct ctl_decl){t->rank, d->name, d->shape, 0});
	}
	return BPS_EMISMATCH;
}

/* Find the declared tensor, or create it. Errors: BPS_EMISMATCH, BPS_EQUOTA, -ENOMEM; err gets the
 * text. */
static int tensor_find_or_create(
	struct trainer *t, const struct local_decl *d, struct tensor **ret, struct err_text *err)
{
	struct job *job = t->job;
	struct tensor *tensor = tensor_find(job, d->name);
	int rc = tensor ? declare_check_shape(t, tensor, d, err) : 0;
	struct err_text why = {0};

	if (rc < 0)
		return rc;
	if (t->n_tensors >= t->max_tensors && !(tensor && tensor->workers[t->worker].is_declared))
		return err_set(err, BPS_EQUOTA,
			"tensor '%s': this worker has declared %u tensors, and the limit is %u per "
			"worker; see --max-tensors of bps-agent on host %s",
			d->name, t->n_tensors, t->max_tensors, t->agent->cfg.host);
	if (!tensor) {
		rc = quota_take(job->quota, QUOTA_TENSORS, 1, &why);
		if (rc < 0)
			return declaration_set_error(rc, d, &why, err);
		tensor = tensor_new_in_job(job, t->worker, d);
	}
	if (!tensor) {
		quota_give(job->quota, QUOTA_TENSORS, 1);
		return err_set(err, -ENOMEM, "the agent is out of memory");
	}
	*ret = tensor;
	return 0;
}

/* Send the descriptor of the input arena if the trainer does not have this descriptor yet. */
static void trainer_send_input_arena(struct trainer *t, struct arena *a)
{
	if (a != t->told_input)
		trainer_send_arena(t, a);
	t->told_input = a;
	t->live->told_input = a->id + 1;
}

/* Write the location of the tensor's memory to *slot. */
static void declare_fill_slot(
	const struct trainer *t, const struct tensor *tensor, struct local_slot *slot)
{
	const struct tensor_worker *tw = &tensor->workers[t->worker];

	*slot = (struct local_slot){.text = "", .tensor = tw->index};
	if (tensor->kind != &host_tensor_kind)
		return;
	assert(tw->in_arena && tensor->out_arena);
	slot->in_arena = tw->in_arena->id;
	slot->out_arena = tensor->out_arena->id;
	slot->in_offset = tw->in.offset;
	slot->out_offset[0] = tensor->out[0].offset;
	slot->out_offset[1] = tensor->out[1].offset;
}

/* Send the descriptor of the arena, which the trainer may have lost, at most once for each DECLARE.
 * A descriptor that was sent and not received counts against a limit of the kernel that all
 * trainers share. So send none while messages of the trainer are unread: such descriptors may be
 * among them. If they are not, the trainer may declare the tensor once more. */
static void trainer_resend_arena(struct pending_declare *x, const struct arena *a)
{
	for (unsigned i = 0; i < x->n_again; i++)
		if (x->again[i] == a)
			return;
	if (x->has_unread)
		return;
	x->again[x->n_again++] = a;
	trainer_send_arena(x->trainer, a);
}

/* Answer a worker that declares a tensor again. The worker may have lost the first answer, or the
 * descriptors that came with it, for instance because its process had too many files open. So send
 * the descriptors of the tensor's arenas again. Errors: BPS_EMISMATCH; err gets the text. */
static int declare_repeat_answer(struct trainer *t, const struct tensor *tensor,
	const struct local_decl *d, struct local_slot *slot, struct err_text *err)
{
	const struct tensor_worker *tw = &tensor->workers[t->worker];

	if (!tensor->kind->is_declared_at(tensor, t->worker, d))
		return err_set(err, BPS_EMISMATCH,
			"rank %u declares tensor '%s' again, but in other memory: use another name",
			t->rank, d->name);
	declare_fill_slot(t, tensor, slot);
	if (tensor->kind != &host_tensor_kind)
		return 0;
	if (tw->in_arena->id >= t->live->told_input)
		trainer_send_input_arena(
			t, tw->in_arena); /* the previous process has not sent it */
	else
		trainer_resend_arena(t->declaring, tw->in_arena);
	trainer_resend_arena(t->declaring, tensor->out_arena);
	return 0;
}

/* Fail the tensor and its job, because one worker of this machine declares the tensor in host
 * memory and another in GPU memory. No round of the tensor is possible, and the workers of other
 * machines would wait forever. */
static void declare_fail_tensor_and_job(struct trainer *t, struct tensor *tensor,
	const struct err_text *why, const struct ctl_cause *cause)
{
	struct err_text text;

	err_set(&text, 0, "tensor '%s' of job '%s', rank %u: %s", tensor->name, t->job->name,
		t->rank, why->s);
	tensor_refuse(tensor, BPS_EMISMATCH, text.s, cause);
	job_report_failure(t->agent, t->job->id, BPS_EMISMATCH, text.s, cause);
}

/* Undo the refused declaration of the worker. Also free the tensor, because the scheduler must
 * never get a shape for which this machine has no memory. The worker may then declare the name
 * again with a smaller shape. Do not free the tensor if another worker has declared it or waits for
 * its memory. A tensor that has failed or is in the ledger is not freed either. */
static void forget_refused(struct tensor *tensor, uint32_t worker)
{
	tensor->workers[worker].is_declaring = false;
	if (tensor->n_declared || tensor->failed || tensor->idx != CTL_NO_ID)
		return;
	for (uint32_t w = 0; w < tensor->job->n_workers; w++)
		if (tensor->workers[w].is_declaring)
			return;
	tensor_remove_from_job(tensor);
}

static int declare_single_tensor(struct trainer *t, const struct local_decl *d,
	struct local_slot *slot, struct err_text *err)
{
	struct job *job = t->job;
	struct err_text why = {"its name is empty"};
	const struct tensor_kind *kind;
	struct tensor *tensor = NULL;
	struct tensor_worker *tw;
	int rc;

	if (!*d->name || shape_check(&d->shape, SIZE_MAX / 4, &why) < 0)
		return err_set(err, -EINVAL, "cannot declare tensor '%s': %s", d->name, why.s);
	rc = tensor_find_or_create(t, d, &tensor, err);
	if (rc == BPS_EMISMATCH)
		slot->cause = (struct ctl_cause){t->rank, t->agent->cfg.host};
	if (rc < 0)
		return rc;
	tw = &tensor->workers[t->worker];
	if (tw->is_declared)
		return declare_repeat_answer(t, tensor, d, slot, err);
	kind = d->region ? t->agent->executor_ops->tensors : &host_tensor_kind;
	rc = kind->declare(t, tensor, d, (size_t)shape_bytes(&d->shape), &why);
	if (rc == -EINPROGRESS) {
		tw->is_declaring = true;
		return rc;
	}
	if (rc == BPS_EMISMATCH) {
		slot->cause = (struct ctl_cause){t->rank, t->agent->cfg.host};
		declare_fail_tensor_and_job(t, tensor, &why, &slot->cause);
	}
	if (rc < 0) {
		forget_refused(tensor, t->worker);
		return declaration_set_error(rc, d, &why, err);
	}
	tw->index = t->n_tensors;
	rc = handover_write_declared(tensor, t->worker);
	if (rc < 0) {
		forget_refused(tensor, t->worker);
		return err_set(err, rc, "the agent is out of memory");
	}
	tw->is_declaring = false;
	tw->is_declared = true;
	t->tensors[t->n_tensors++] = tensor;
	declare_fill_slot(t, tensor, slot);
	if (kind == &host_tensor_kind)
		trainer_send_input_arena(t, tw->in_arena);
	if (++tensor->n_declared == job->n_workers && !tensor->failed)
		tensor_complete(tensor);
	return 0;
}

void declare_free(struct trainer *t)
{
	if (t->declaring)
		free(t->declaring->mem);
	free(t->declaring);
	t->declaring = NULL;
}

static void declare_send_answer(struct trainer *t)
{
	struct pending_declare *x = t->declaring;
	struct local_msg m = {.type = LOCAL_DECLARED, .seq = x->seq};

	if (t->job) {
		tensor_flush_declares(t->job);
		trainer_send_output_arenas(t, t->job->arenas.head);
		t->live->n_told = t->job->arenas.next_id;
	}
	m.declared = (struct local_declared){.slots = x->slots, .n_slots = x->d.n_tensors};
	trainer_send_message(t, &m, NULL, 0);
	declare_free(t);
	trainer_answered(t);
}

/* Undo the declaration of tensor x->next, for which memory could not be made. */
static void declare_memory_refused(struct pending_declare *x)
{
	struct tensor *tensor = tensor_find(x->job, x->d.tensors[x->next].name);

	if (tensor && tensor->workers[x->trainer->worker].is_declaring)
		forget_refused(tensor, x->trainer->worker);
}

static void declare_refused(struct pending_declare *x, int rc)
{
	struct local_slot *slot = &x->slots[x->next];

	*slot = (struct local_slot){
		.code = (uint32_t)-rc, .text = x->errs[x->next].s, .cause = slot->cause};
	x->next++;
}

static void on_declare_memory_made(struct memory_request *m);

static void wait_for_outputs(struct pending_declare *x)
{
	x->is_waiting = true;
	/* Send the batch now, because its names may be freed while the DECLARE waits. */
	tensor_flush_declares(x->job);
	TAILQ_INSERT_TAIL(&x->job->waiting, x, link);
	trainer_set_held(x->trainer, true);
}

void declare_cancel(struct trainer *t)
{
	struct pending_declare *x = t->declaring;

	if (!x || !x->is_waiting)
		return;
	TAILQ_REMOVE(&x->job->waiting, x, link);
	x->is_waiting = false;
}

/* Request the arena that arena_alloc needs, and stop reading the trainer's messages until the arena
 * has been made. */
static int declare_request_memory(struct pending_declare *x, struct err_text *err)
{
	struct arena_set *set = &x->job->arenas;
	int rc;

	if (!set->want_bytes) {
		wait_for_outputs(x);
		return 0;
	}
	x->kind = set->want_kind;
	x->request = (struct memory_request){.name = "bps-arena",
		.bytes = set->want_bytes,
		.more_seals = arena_seals_of_kind(set, set->want_kind),
		.uid = x->trainer->uid,
		.done = on_declare_memory_made,
		.user = x};
	rc = memory_thread_make(x->trainer->agent->memory_thread, &x->request);
	if (rc < 0) {
		arena_release_charge(set, x->kind, x->request.bytes);
		return err_set(err, rc, "the agent is stopping");
	}
	x->job->n_making++;
	if (x->kind == ARENA_OUTPUT)
		x->job->makes_output = true;
	/* Send the batch now, because its names may be freed while the DECLARE waits. */
	tensor_flush_declares(x->job);
	trainer_ref(x->trainer);
	trainer_set_held(x->trainer, true);
	return 0;
}

/* Declare the remaining tensors of the trainer's DECLARE. Returns early if memory must be made
 * first. After the last tensor, sends the answer. */
static void declare_remaining_tensors(struct trainer *t)
{
	struct pending_declare *x = t->declaring;

	while (x->next < x->d.n_tensors) {
		struct err_text *err = &x->errs[x->next];
		int rc;

		x->slots[x->next] = (struct local_slot){.text = ""};
		if (t->state != TRAINER_OVER)
			rc = declare_single_tensor(
				t, &x->d.tensors[x->next], &x->slots[x->next], err);
		else if (t->job->code < 0)
			rc = job_reason_of_end(t, err, &x->slots[x->next].cause);
		else
			rc = err_set(err, BPS_ECLOSED, "the job has ended");
		if (rc == -EINPROGRESS) {
			rc = declare_request_memory(x, err);
			if (rc == 0)
				return;
			declare_memory_refused(x);
		}
		if (rc < 0)
			declare_refused(x, rc);
		else
			x->next++;
	}
	declare_send_answer(t);
}

static struct arena **declare_newest_arena(struct pending_declare *x)
{
	return x->kind == ARENA_INPUT    ? &x->trainer->input
	       : x->kind == ARENA_OUTPUT ? &x->job->output
					 : &x->job->staging;
}

/* Continue the waiting DECLAREs. Empty the list first, because a DECLARE may start to wait
 * again. */
void declare_resume_waiting(struct job *job)
{
	TAILQ_HEAD(, pending_declare) all = TAILQ_HEAD_INITIALIZER(all);
	struct pending_declare *x;

	TAILQ_CONCAT(&all, &job->waiting, link);
	while ((x = TAILQ_FIRST(&all))) {
		TAILQ_REMOVE(&all, x, link);
		x->is_waiting = false;
		trainer_set_held(x->trainer, false);
		declare_remaining_tensors(x->trainer);
	}
}

static void on_declare_memory_made(struct memory_request *m)
{
	struct pending_declare *x = m->user;
	struct trainer *t = x->trainer;
	struct job *job = x->job;
	bool is_wanted = t->state != TRAINER_GONE && job->state != JOB_ENDED;
	bool was_output = x->kind == ARENA_OUTPUT;
	int rc = m->rc;

	if (rc < 0 || !is_wanted) {
		arena_release_charge(&job->arenas, x->kind, m->bytes);
		if (rc == 0)
			memory_thread_drop(job->agent->memory_thread, &m->memory);
	} else {
		rc = arena_adopt(
			&job->arenas, x->kind, &m->memory, declare_newest_arena(x), &m->err);
	}
	if (was_output)
		job->makes_output = false;
	if (rc != -ECANCELED && t->state != TRAINER_GONE) {
		if (rc < 0) {
			declare_memory_refused(x);
			declare_refused(x, declaration_set_error(rc, &x->d.tensors[x->next],
						   &m->err, &x->errs[x->next]));
		}
		trainer_set_held(t, false);
		declare_remaining_tensors(t);
	}
	if (rc != -ECANCELED && was_output)
		declare_resume_waiting(job);
	job->n_making--;
	trainer_unref(t);
	job_free_if_unused(job);
}

void declare_begin(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem)
{
	struct pending_declare *x;
	int n_unread = 0;

	FAILPOINT(AGENT_TRAINER_DECLARE);
	if (t->state != TRAINER_ATTACHED && t->state != TRAINER_OVER) {
		trainer_disconnect(t, true, "the trainer sent DECLARE without a running job");
		return;
	}
	x = malloc(sizeof(*x));
	if (!x) {
		trainer_disconnect(t, false, "the agent is out of memory");
		return;
	}
	x->trainer = t;
	x->is_waiting = false;
	x->job = t->job;
	x->seq = seq;
	x->next = 0;
	x->has_unread = ioctl(t->sock, TIOCOUTQ, &n_unread) == 0 && n_unread > 0;
	x->n_again = 0;
	x->d = *d;
	x->mem = *mem;
	*mem = NULL;
	t->declaring = x;
	declare_remaining_tensors(t);
}
