/* Restores the state that the previous process has left. The state consists of descriptors, and of
 * ledgers that describe the descriptors (handover_write.h). Only agents write ledgers, but the
 * content of the ledgers is checked nevertheless. If a job's ledger contains a contradiction, the
 * job cannot continue, and the job's trainers receive the reason. Thread: runs before the data
 * thread starts. */
#include "bps-agent/restore/handover_read.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bps-agent/gpu/device_tensor.h"
#include "bps-agent/gpu/executor_link.h"
#include "bps-agent/handover/ledger.h"
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/restore/handover_read_impl.h"
#include "bps-agent/trainers/accept.h"
#include "bps-agent/trainers/job.h"
#include "bps-agent/trainers/tensor.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/data/shape.h"

int handover_contradicts(struct handover_reader *r, const char *what)
{
	return err_set(
		&r->err, BPS_EPROTO, "the record of %s contradicts itself or other records", what);
}

int handover_take_fd(struct fdstore *s, char kind, uint64_t number, char what)
{
	char name[FDSTORE_NAME_BYTES];

	snprintf(name, sizeof(name), "%c%" PRIu64 ".%c", kind, number, what);
	return fdstore_take(s, name);
}

/* Return the string that follows the first n bytes of the record's fixed part. NULL: no zero byte
 * ends the string within the record. */
static const char *ledger_record_text_after(const struct ledger_record *rec, size_t n)
{
	const char *text = (const char *)rec->fixed + n;

	return rec->n_fixed > n && memchr(text, 0, rec->n_fixed - n) ? text : NULL;
}

/* ---- memory ---- */

static int handover_read_arena(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_arena *k = rec->fixed;
	struct job *job = r->job;
	struct arena_set *set;
	char name[FDSTORE_NAME_BYTES];
	struct stat st;
	int rc = 0;

	set = k->is_gpu && job->executor ? &job->executor->arenas : &job->arenas;
	if (rec->n_fixed != sizeof(*k) || rec->n_live != sizeof(uint64_t) ||
		k->kind > ARENA_PRIVATE || (k->is_gpu && !job->executor) || arena_find(set, k->id))
		return handover_contradicts(r, "memory");
	snprintf(name, sizeof(name), "j%" PRIu64 ".m", job->number);
	for (size_t i = 0; i < r->store->n; i++) {
		struct fdstore_fd *f = &r->store->fds[i];

		if (f->fd < 0 || strcmp(f->name, name) != 0 || fstat(f->fd, &st) < 0 ||
			st.st_ino != k->inode)
			continue;
		if (k->is_gpu && job->executor->state != EXECUTOR_OVER)
			rc = executor_send_arena(job->executor, k->id, k->bytes, f->fd);
		if (rc < 0)
			return err_set(
				&r->err, BPS_EDEVICE, "the executor of the job's GPUs has ended");
		rc = arena_restore(set, (enum arena_kind)k->kind, k->id, k->node, f->fd, k->bytes,
			rec->live, &r->err);
		if (rc < 0)
			return rc;
		f->fd = -1;
		quota_charge(job->quota, QUOTA_MEMORY, k->bytes);
		quota_charge(job->quota, QUOTA_DESCRIPTORS, k->kind != ARENA_PRIVATE);
		if (k->is_gpu)
			return 0;
		if (k->kind == ARENA_OUTPUT)
			job->output = job->arenas.head;
		else if (k->kind == ARENA_PRIVATE)
			job->staging = job->arenas.head;
		return 0;
	}
	return err_set(&r->err, BPS_ENOTFOUND,
		"the service manager has lost %" PRIu64
		" bytes of shared memory (see FileDescriptorStoreMax=)",
		k->bytes);
}

bool handover_place(const struct arena_set *set, uint32_t id, enum arena_kind kind, uint64_t offset,
	uint64_t n_bytes, struct arena **ret_arena, struct agt_mem *ret)
{
	struct arena *a = arena_find(set, id);

	if (!a || a->kind != kind || n_bytes > a->bytes || offset > a->bytes - n_bytes ||
		offset % LOCAL_ALIGN)
		return false;
	*ret_arena = a;
	*ret = (struct agt_mem){.mem = a->mem + offset, .offset = offset, .segment = a->segment};
	return true;
}

/* ---- jobs and tensors ---- */

static int handover_read_job(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_job *k = rec->fixed;

	if (r->job || rec->n_fixed != sizeof(*k) || !memchr(k->name, 0, sizeof(k->name)) ||
		!k->size || k->size > CTL_WORKERS_MAX)
		return handover_contradicts(r, "a job");
	r->user = quota_get_user_account(r->a->quota, k->uid);
	r->job = r->user ? job_new(r->a, r->user, k->uid, k->name, k->size, k->flags) : NULL;
	if (!r->job)
		return err_set(&r->err, -ENOMEM, "the agent is out of memory");
	trainer_name_user(r->a, r->user, k->uid);
	r->job->number = k->number;
	r->job->has_token = k->has_token;
	r->job->backup = (uint16_t)k->backup;
	r->job->grace_ms = k->grace_ms;
	r->job->max_size = k->max_size;
	memcpy(r->job->token, k->token, sizeof(k->token));
	return 0;
}

static struct trainer *trainer_numbered(const struct job *job, uint64_t number)
{
	struct trainer *t;

	TAILQ_FOREACH (t, &job->trainers, of_job)
		if (t->number == number)
			return t;
	return NULL;
}

/* Return whether a trainer with this number had finished, and has left since. */
static bool has_finished_and_left(const struct handover_reader *r, uint64_t number)
{
	for (uint32_t i = 0; i < r->n_left; i++)
		if (r->left[i] == number)
			return true;
	return false;
}

static int handover_read_running(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_running *k = rec->fixed;
	const struct ledger_rank *ranks = (const struct ledger_rank *)(k + 1);
	struct job *job = r->job;

	if (rec->n_fixed < sizeof(*k) || job->n_workers || !k->n_ranks ||
		(k->n_ranks > job->size && k->n_ranks > job->max_size) ||
		k->my_member >= k->n_members || k->n_members > WIRE_MEMBERS_MAX ||
		rec->n_fixed != sizeof(*k) + k->n_ranks * sizeof(*ranks))
		return handover_contradicts(r, "a job's members");
	job->ranks = calloc(k->n_ranks, sizeof(*job->ranks));
	job->by_worker = calloc(k->n_ranks, sizeof(struct trainer *));
	job->has_finished = calloc(k->n_ranks, sizeof(bool));
	if (!job->ranks || !job->by_worker || !job->has_finished)
		return err_set(&r->err, -ENOMEM, "the agent is out of memory");
	job->n_workers = k->n_ranks;
	for (uint32_t w = 0; w < k->n_ranks; w++) {
		job->ranks[w] = ranks[w].rank;
		job->by_worker[w] = trainer_numbered(job, ranks[w].trainer);
		job->has_finished[w] = has_finished_and_left(r, ranks[w].trainer);
	}
	r->running = *k;
	return 0;
}

static int handover_add_tensor(struct handover_reader *r, struct tensor *tensor)
{
	if (r->n_tensors == r->tensors_room) {
		uint32_t room = 2 * r->tensors_room + 64;
		struct tensor **v = realloc(r->tensors, room * sizeof(struct tensor *));

		if (!v)
			return err_set(&r->err, -ENOMEM, "the agent is out of memory");
		r->tensors = v;
		r->tensors_room = room;
	}
	tensor->idx = r->n_tensors;
	r->tensors[r->n_tensors++] = tensor;
	r->job->n_kept = r->n_tensors;
	return 0;
}

uint64_t handover_tensor_bytes(const struct tensor *tensor)
{
	return shape_bytes(&tensor->shape);
}

/* Return the arena set that contains the tensor's memory. */
static const struct arena_set *tensor_arena_set(const struct tensor *tensor)
{
	return tensor->device ? &tensor->device->executor->arenas : &tensor->job->arenas;
}

static int handover_read_tensor(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_tensor *k = rec->fixed;
	const char *name = ledger_record_text_after(rec, sizeof(*k));
	struct local_decl d = {.name = name};
	struct ledger_tensor_live *live = rec->live;
	struct tensor *tensor;
	struct err_text why;

	if (!name || rec->n_live != sizeof(*live) || !r->job->n_workers ||
		shape_check(&k->shape, SIZE_MAX / 8, &why) < 0 || tensor_find(r->job, name))
		return handover_contradicts(r, "a tensor");
	d.shape = k->shape;
	tensor = tensor_new_in_job(r->job, 0, &d);
	if (!tensor)
		return err_set(&r->err, -ENOMEM, "the agent is out of memory");
	quota_charge(r->job->quota, QUOTA_TENSORS, 1);
	tensor->live = live;
	if (k->is_gpu && (!r->job->executor ||
				 device_tensor_restore(r->job->executor, tensor, k->gpu_id) < 0))
		return handover_contradicts(r, "a tensor on GPUs");
	for (unsigned i = 0; i < 2; i++)
		if (!handover_place(tensor_arena_set(tensor), k->out_arena,
			    k->is_gpu ? ARENA_PRIVATE : ARENA_OUTPUT, k->out_offset[i],
			    handover_tensor_bytes(tensor), &tensor->out_arena, &tensor->out[i]))
			return handover_contradicts(r, "a tensor's output");
	if (k->is_gpu)
		tensor->device->out_arena = tensor->out_arena;
	return handover_add_tensor(r, tensor);
}

static bool handover_place_input(struct tensor *tensor, const struct ledger_declared *k)
{
	struct tensor_worker *tw = &tensor->workers[k->worker];

	if (!tensor->device)
		return handover_place(&tensor->job->arenas, k->in_arena, ARENA_INPUT, k->in_offset,
			handover_tensor_bytes(tensor), &tw->in_arena, &tw->in);
	/* the input is in a region of device memory, which the executor still has */
	tensor->device->workers[k->worker].region = k->in_arena;
	tensor->device->workers[k->worker].offset = k->in_offset;
	return tensor->device->has_kept_inputs;
}

static int handover_read_declared(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_declared *k = rec->fixed;
	struct job *job = r->job;
	struct tensor_worker *tw;
	struct tensor *tensor;
	struct trainer *t;

	if (rec->n_fixed != sizeof(*k) || rec->n_live != sizeof(struct ledger_worker_live) ||
		k->tensor >= r->n_tensors || k->worker >= job->n_workers)
		return handover_contradicts(r, "a declaration");
	tensor = r->tensors[k->tensor];
	tw = &tensor->workers[k->worker];
	t = job->by_worker[k->worker];
	if (tw->is_declared || !handover_place_input(tensor, k))
		return handover_contradicts(r, "a tensor's input");
	if (t && (k->index != t->n_tensors || k->index >= t->max_tensors))
		return handover_contradicts(r, "a trainer's tensors");
	tw->live = rec->live;
	tw->submitted = atomic_load_explicit(&tw->live->submitted, memory_order_acquire);
	tw->op = ledger_submission_at(tw->live, tw->submitted)->op;
	if (!op_is_valid_for_dtype(tw->op, tensor->shape.dtype))
		return handover_contradicts(r, "a submission");
	tw->since_ns = clock_now_ns();
	tw->is_declared = true;
	tw->index = k->index;
	tensor->n_declared++;
	if (!t)
		return 0;
	t->tensors[t->n_tensors++] = tensor;
	t->calls += tw->submitted;
	if (tensor->device)
		return 0;
	t->input = tw->in_arena;
	t->told_input =
		t->live->told_input ? arena_find(&job->arenas, t->live->told_input - 1) : NULL;
	return 0;
}

static int handover_read_parts(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_parts *k = rec->fixed;
	struct tensor *tensor;

	if (rec->n_fixed != sizeof(*k) || k->tensor >= r->n_tensors || !k->n_parts ||
		rec->n_live != k->n_parts * sizeof(struct agt_kept_part) ||
		r->tensors[k->tensor]->parts)
		return handover_contradicts(r, "a plan");
	tensor = r->tensors[k->tensor];
	tensor->parts = rec->live;
	tensor->kept_id = k->id;
	tensor->part_elems = k->part_elems;
	tensor->n_parts = k->n_parts;
	return 0;
}

static int handover_read_refused(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_refused *k = rec->fixed;
	const char *text = ledger_record_text_after(rec, sizeof(*k));
	struct tensor *tensor;

	if (!text || k->tensor >= r->n_tensors || k->code >= 0)
		return handover_contradicts(r, "a refusal");
	tensor = r->tensors[k->tensor];
	tensor->failed = k->code;
	free(tensor->fail_text);
	tensor->fail_text = strdup(text);
	return 0;
}

static int handover_read_record(struct handover_reader *r, const struct ledger_record *rec)
{
	static int (*const readers[])(struct handover_reader *, const struct ledger_record *) = {
		[LEDGER_JOB] = handover_read_job,
		[LEDGER_TRAINER] = handover_read_trainer,
		[LEDGER_RUNNING] = handover_read_running,
		[LEDGER_ARENA] = handover_read_arena,
		[LEDGER_TENSOR] = handover_read_tensor,
		[LEDGER_DECLARED] = handover_read_declared,
		[LEDGER_PARTS] = handover_read_parts,
		[LEDGER_REFUSED] = handover_read_refused,
		[LEDGER_EXECUTOR] = handover_read_executor,
		[LEDGER_ROUTE] = handover_read_route,
		[LEDGER_INPUTS] = handover_read_inputs,
	};

	if (rec->type < LEDGER_JOB || rec->type >= LEDGER_TYPES ||
		(!r->job && rec->type != LEDGER_JOB))
		return handover_contradicts(r, "an unknown type");
	return readers[rec->type](r, rec);
}

/* Find the staging memory of each tensor. Staging memory is allocated after the tensor is recorded,
 * so the live part of the tensor's record contains the offset of the memory. */
static int handover_find_staging(struct handover_reader *r)
{
	for (uint32_t i = 0; i < r->n_tensors; i++) {
		struct tensor *tensor = r->tensors[i];
		const struct ledger_tensor_live *live = tensor->live;

		if (live->staging_arena &&
			!handover_place(tensor_arena_set(tensor), live->staging_arena - 1,
				ARENA_PRIVATE, live->staging_offset, handover_tensor_bytes(tensor),
				&tensor->staging_arena, &tensor->staging))
			return handover_contradicts(r, "a tensor's staging");
	}
	return 0;
}

/* Resume the job when all its records have been read. A job that is still forming needs no work. */
static int handover_resume_job(struct handover_reader *r)
{
	struct ctl_job_member *members;
	struct job *job = r->job;
	struct ctl_rank *ranks;
	struct ctl_job m;
	int rc = -ENOMEM;

	if (!job->n_workers)
		return 0;
	if (handover_find_staging(r) < 0)
		return BPS_EPROTO;
	rc = handover_check_executor(r);
	if (rc < 0)
		return rc;
	rc = -ENOMEM;
	members = calloc(r->running.n_members, sizeof(*members));
	ranks = calloc(job->n_workers, sizeof(*ranks));
	if (members && ranks) {
		for (uint32_t w = 0; w < job->n_workers; w++)
			ranks[w].rank = job->ranks[w];
		members[r->running.my_member] =
			(struct ctl_job_member){.ranks = ranks, .n_ranks = job->n_workers};
		m = (struct ctl_job){.job = r->running.id,
			.name = job->name,
			/* the job may have grown; the scheduler's JOB message has its size */
			.size = job->max_size > job->size ? job->max_size : job->size,
			.flags = job->flags,
			.members = members,
			.n_members = r->running.n_members};
		rc = job_resume_after_restart(job, &m, (uint16_t)r->running.my_member);
	}
	free(ranks);
	free(members);
	if (rc < 0)
		return err_set(&r->err, rc, "the agent is out of memory");
	for (uint32_t i = 0; i < r->n_tensors; i++)
		tensor_resume_after_restart(r->tensors[i]);
	handover_repeat_device_request(job);
	return 0;
}

/* ---- jobs and trainers that cannot continue ---- */

static void handover_abandon_job(struct handover_reader *r, uint64_t number)
{
	struct job *job = r->job;
	struct err_text text;
	struct trainer *t;

	handover_describe_lost_job(r->err.s, &text);
	log_error("cannot continue a job of the previous process: job=%s why=%s",
		job ? job->name : "?", r->err.s);
	handover_drop_stored_fds('j', number, "lmxp");
	if (!job)
		return;
	executor_ops.end(job->executor, BPS_ENOAGENT, text.s);
	while ((t = TAILQ_FIRST(&job->trainers))) {
		TAILQ_REMOVE(&job->trainers, t, of_job);
		t->job = NULL;
		handover_drop_trainer(t, text.s);
	}
	if (job->core)
		agt_job_free(job->core, NULL, NULL);
	job_free_keep_records(job);
}

/* Jobs that cannot continue. Some of their trainers may not be named in any ledger that was read.
 * why: the reason of the last job whose ledger could not be used; "": there is none. */
struct failed_jobs {
	unsigned n;
	struct err_text why;
};

/* Continue the job of a ledger, or add the job to `failed`. */
static void handover_restore_job(
	struct agent *a, struct fdstore *s, int fd, uint64_t number, struct failed_jobs *failed)
{
	struct handover_reader r = {.a = a, .store = s};
	struct ledger_record rec;
	struct ledger *l = NULL;
	size_t at = 0;
	int rc = ledger_open(fd, &l, &r.err);

	while (rc == 0 && (rc = ledger_next(l, &at, &rec, &r.err)) > 0)
		rc = handover_read_record(&r, &rec);
	if (rc == 0 && (!r.job || r.job->number != number))
		rc = handover_contradicts(&r, "a job");
	if (r.job)
		r.job->ledger = l;
	if (rc == 0)
		rc = handover_resume_job(&r);
	if (rc < 0) {
		failed->n++;
		failed->why = r.err;
		handover_abandon_job(&r, number);
	} else if (TAILQ_EMPTY(&r.job->trainers) && r.job->state == JOB_FORMING) {
		job_free_if_unused(r.job);
	} else {
		log_limited(LOG_AS(LOG_INFO, JOB),
			"continuing a job of the previous process: job=%s id=%u tensors=%u",
			r.job->name, r.job->id, r.n_tensors);
	}
	if (!r.job)
		ledger_free(l);
	quota_account_release(r.user);
	free(r.tensors);
	free(r.left);
}

/* Parse a name such as t12.s or j3.l. Returns whether the name is valid. */
static bool fdstore_parse_name(
	const char *name, char ret_kind[2], uint64_t *ret_number, char *ret_what)
{
	int n = 0;

	return sscanf(name, "%1[tj]%" SCNu64 ".%c%n", ret_kind, ret_number, ret_what, &n) == 3 &&
	       !name[n] && *ret_number && *ret_number < UINT64_MAX / 2;
}

/* Return whether the trainer has sent HELLO without receiving an answer. */
static bool is_waiting_for_welcome(const struct trainer *t)
{
	struct local_msg m;
	struct err_text err;
	void *mem = NULL;
	bool is = local_peek(t->sock, &m, &mem, &err) == 1 && m.type == LOCAL_HELLO;

	free(mem);
	return is;
}

/* Return whether the store had the ledger of a job at the start. */
static bool fdstore_has_ledger(const struct fdstore *s, uint64_t number)
{
	char name[FDSTORE_NAME_BYTES];

	snprintf(name, sizeof(name), "j%" PRIu64 ".l", number);
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->fds[i].name, name) == 0)
			return true;
	return false;
}

/* Return the reason for a trainer whose job is not known. If several jobs cannot continue, the
 * trainer may belong to any of them. */
static const char *failed_jobs_reason(const struct failed_jobs *failed)
{
	return failed->n == 1 && failed->why.s[0] ? failed->why.s
						  : "its records are lost or cannot be read";
}

/* Restore a trainer that no ledger has named. Either the trainer has sent HELLO and has no answer
 * yet, or its job cannot be continued. In the second case the trainer gets an error. */
static void handover_restore_unnamed(struct agent *a, struct fdstore *s, struct fdstore_fd *f,
	uint64_t number, const struct failed_jobs *failed)
{
	struct trainer *t =
		handover_restore_trainer(a, f->fd, handover_take_fd(s, 't', number, 'p'), number);
	struct err_text text;

	f->fd = -1;
	if (!t) {
		handover_drop_stored_fds('t', number, "sp");
	} else if (!is_waiting_for_welcome(t)) {
		handover_describe_lost_job(failed_jobs_reason(failed), &text);
		handover_drop_trainer(t, text.s);
	}
}

void handover_restore_all(struct agent *a, struct fdstore *s)
{
	struct failed_jobs failed = {.why = {""}};
	uint64_t number;
	char kind[2], what;

	for (size_t i = 0; i < s->n; i++) {
		if (!fdstore_parse_name(s->fds[i].name, kind, &number, &what))
			continue;
		if (number >= a->next_number)
			a->next_number = number + 1;
		/* a job without a ledger may count several times, which changes nothing */
		if (*kind == 'j' && !fdstore_has_ledger(s, number))
			failed.n++;
	}
	for (size_t i = 0; i < s->n; i++) {
		struct fdstore_fd *f = &s->fds[i];
		int fd = f->fd;

		if (fd < 0 || !fdstore_parse_name(f->name, kind, &number, &what) || *kind != 'j' ||
			what != 'l')
			continue;
		f->fd = -1;
		handover_restore_job(a, s, fd, number, &failed);
	}
	for (size_t i = 0; i < s->n; i++) {
		struct fdstore_fd *f = &s->fds[i];

		if (f->fd < 0 || !fdstore_parse_name(f->name, kind, &number, &what))
			continue;
		if (*kind == 't' && what == 's')
			handover_restore_unnamed(a, s, f, number, &failed);
	}
	/* Nothing uses the remaining descriptors. Make the service manager forget them;
	 * fdstore_fini closes them. */
	for (size_t i = 0; i < s->n; i++)
		if (s->fds[i].fd >= 0 && fdstore_parse_name(s->fds[i].name, kind, &number, &what))
			fdstore_remove(s->fds[i].name);
	a->has_dirty = true;
}
