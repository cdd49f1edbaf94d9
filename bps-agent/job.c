/* The local part of jobs: which trainers are here, which tensors they declared, what of it the scheduler must hear. */
#include <errno.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/agent.h"
#include "common/dtype.h"
#include "common/log.h"

static const char *const job_states[] = {"forming", "running", "ended"};

static void job_set_state(struct job *job, enum job_state state, const char *why)
{
	log_info("job %s to %s: job=%s id=%u why=%s", job_states[job->state], job_states[state],
		job->name, job->id, why);
	job->state = state;
}

struct job *agent_job(struct agent *a, uint32_t id)
{
	struct job *job;

	TAILQ_FOREACH(job, &a->jobs, link)
	if (job->id == id && job->state != JOB_ENDED)
		return job;
	return NULL;
}

static struct job *job_forming(struct agent *a, uid_t uid, const char *name)
{
	struct job *job;

	TAILQ_FOREACH(job, &a->jobs, link)
	if (job->state == JOB_FORMING && job->uid == uid && strcmp(job->name, name) == 0)
		return job;
	return NULL;
}

/* ---- end of a job ---- */

static void no_op(void *node)
{
	(void)node;
}

static void job_free(struct job *job)
{
	struct tensor *tensor;

	arena_set_fini(&job->arenas);
	tdestroy(job->by_name, no_op);
	while ((tensor = TAILQ_FIRST(&job->tensors))) {
		TAILQ_REMOVE(&job->tensors, tensor, link);
		free(tensor->fail_text);
		free(tensor->name);
		free(tensor);
	}
	TAILQ_REMOVE(&job->agent->jobs, job, link);
	free(job->ranks);
	free(job->by_worker);
	free(job);
}

static void job_free_if_unused(struct job *job)
{
	if (!job->is_busy && !job->core && TAILQ_EMPTY(&job->trainers))
		job_free(job);
}

static void job_released(void *ctx)
{
	struct job *job = ctx;

	job->is_busy = false;
	job_free_if_unused(job);
}

static void tell_end(struct job *job, struct trainer *t)
{
	struct local_msg m = {.type = LOCAL_JOB};

	if (t->state == TRAINER_OVER)
		return; /* it was refused */
	if (t->state == TRAINER_FINISHING) {
		m.type = LOCAL_FINISHED;
		m.seq = t->finish_seq;
		m.finished =
			(struct local_finished){.code = (uint32_t)-job->code, .text = job->text};
		trainer_send(t, &m, NULL, 0);
	} else if (job->code < 0 && (t->state == TRAINER_JOINING || t->state == TRAINER_ATTACHED)) {
		m.job = (struct local_job){.code = (uint32_t)-job->code, .text = job->text};
		trainer_send(t, &m, NULL, 0);
	}
	trainer_set_state(t, TRAINER_OVER);
}

/* Rounds that were submitted but never got as far as the core. */
static void fail_pending(struct job *job)
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

static void job_end(struct job *job, int code, const char *text)
{
	struct agt_job *core = job->core;
	struct tensor *tensor;
	struct trainer *t;

	if (job->state == JOB_ENDED)
		return;
	job->code = code;
	snprintf(job->text, sizeof(job->text), "%s", text);
	job_set_state(job, JOB_ENDED, code < 0 ? text : "all have finished");
	if (core) {
		agt_job_fail(core, code < 0 ? code : BPS_ECLOSED);
		TAILQ_FOREACH(tensor, &job->tensors, link)
		tensor->core = NULL;
		fail_pending(job);
		job->is_busy = true;
		job->core = NULL;
	}
	TAILQ_FOREACH(t, &job->trainers, of_job)
	tell_end(job, t);
	if (core)
		agt_job_free(core, job_released, job); /* may free the job */
}

void job_on_end(struct agent *a, uint32_t id, int code, const char *text)
{
	struct job *job = agent_job(a, id);

	if (job)
		job_end(job, code, text);
}

/* ---- joining ---- */

static void send_join(struct trainer *t)
{
	struct ctl_msg m = {.type = CTL_JOIN};

	t->has_rank = false;
	m.join = (struct ctl_join){.seq = t->join_seq,
		.uid = t->uid,
		.job = t->job->name,
		.rank = t->asked_rank,
		.size = t->job->size,
		.flags = t->job->flags,
		.pid = (uint32_t)t->pid,
		.part_bytes = t->part_bytes};
	member_send(t->agent->member, &m); /* not up: job_resend_all says it again */
}

static void beat(void *ctx)
{
	dataloop_beat(ctx);
}

static struct job *job_new(struct agent *a, uid_t uid, const struct local_hello *h)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	snprintf(job->name, sizeof(job->name), "%s", h->job);
	job->agent = a;
	job->uid = uid;
	job->size = h->size;
	job->flags = h->flags;
	job->id = CTL_NO_ID;
	job->arenas.x = a->x;
	job->arenas.progress = beat;
	job->arenas.progress_ctx = a->loop;
	TAILQ_INIT(&job->trainers);
	TAILQ_INIT(&job->tensors);
	TAILQ_INSERT_TAIL(&a->jobs, job, link);
	return job;
}

int job_attach(struct trainer *t, const struct local_hello *h, struct err_text *err)
{
	struct agent *a = t->agent;
	struct job *job;

	if (!*h->job || h->size == 0 || h->size > CTL_WORKERS_MAX ||
		(h->rank != CTL_NO_ID && h->rank >= h->size) ||
		(h->flags & ~(uint32_t)JOB_FLAGS_KNOWN))
		return err_set(err, -EINVAL,
			"a job needs a name, a size of 1 to %u and ranks below it; got job '%s', "
			"rank %d of %u",
			CTL_WORKERS_MAX, h->job, (int)h->rank, h->size);
	job = job_forming(a, t->uid, h->job);
	if (!job)
		job = job_new(a, t->uid, h);
	if (!job)
		return err_set(err, -ENOMEM, "the agent is out of memory");
	if (job->size != h->size || job->flags != h->flags)
		return err_set(err, BPS_EMISMATCH,
			"job '%s': pid %d wants %u workers, flags %u, another worker of this "
			"machine %u, flags %u",
			h->job, (int)t->pid, h->size, h->flags, job->size, job->flags);
	t->job = job;
	t->asked_rank = t->rank = h->rank;
	t->part_bytes = h->part_bytes;
	t->join_seq = ++a->next_seq;
	TAILQ_INSERT_TAIL(&job->trainers, t, of_job);
	trainer_set_state(t, TRAINER_JOINING);
	send_join(t);
	return 0;
}

static void send_worker(
	struct agent *a, uint32_t id, uint32_t rank, enum worker_event event, const char *text)
{
	struct ctl_msg m = {.type = CTL_WORKER,
		.worker = {.job = id, .rank = rank, .event = (uint8_t)event, .text = text}};

	if (id != CTL_NO_ID)
		member_send(a->member, &m);
}

void job_on_joined(struct agent *a, const struct ctl_joined *m)
{
	struct local_msg reply = {.type = LOCAL_JOB};
	struct trainer *t;

	TAILQ_FOREACH(t, &a->trainers, link)
	if (t->join_seq == m->seq)
		break;
	if (!t && m->code == 0) /* it has left meanwhile: only now it is known as which rank */
		send_worker(a, m->job, m->rank, WORKER_LOST, "it left before it had joined");
	if (!t || t->state != TRAINER_JOINING)
		return;
	if (m->code == 0) {
		t->rank = m->rank;
		t->has_rank = true;
		t->job->id = m->job;
		return;
	}
	reply.job = (struct local_job){.code = m->code, .text = m->text};
	trainer_send(t, &reply, NULL, 0);
	trainer_set_state(t, TRAINER_OVER);
}

static struct trainer *job_trainer(const struct job *job, uint32_t rank)
{
	struct trainer *t;

	TAILQ_FOREACH(t, &job->trainers, of_job)
	if (t->rank == rank && t->has_rank && t->state == TRAINER_JOINING)
		return t;
	return NULL;
}

/* All ranks of this machine are there. Those that have left are reported (again), and the scheduler will end the job;
 * while it has not answered every JOIN a rank may still come, and JOB once more behind it. */
static bool has_all_ranks(struct job *job, const struct ctl_job *m, const struct ctl_job_member *me)
{
	const struct trainer *t;
	uint32_t n_missing = 0;

	for (uint32_t i = 0; i < me->n_ranks; i++)
		n_missing += !job_trainer(job, me->ranks[i].rank);
	if (!n_missing)
		return true;
	TAILQ_FOREACH(t, &job->trainers, of_job)
	if (t->state == TRAINER_JOINING && !t->has_rank)
		return false;
	for (uint32_t i = 0; i < me->n_ranks; i++)
		if (!job_trainer(job, me->ranks[i].rank))
			send_worker(job->agent, m->job, me->ranks[i].rank, WORKER_LOST,
				"it left while the job formed");
	return false;
}

static int job_start(struct job *job, const struct ctl_job *m, uint16_t my_member)
{
	const struct ctl_job_member *me = &m->members[my_member];
	int rc;

	job->ranks = calloc(me->n_ranks, sizeof(*job->ranks));
	job->by_worker = calloc(me->n_ranks, sizeof(struct trainer *));
	if (!job->ranks || !job->by_worker)
		return -ENOMEM;
	for (uint32_t w = 0; w < me->n_ranks; w++) {
		job->ranks[w] = me->ranks[w].rank;
		job->by_worker[w] = job_trainer(job, me->ranks[w].rank);
	}
	rc = agt_job_new(job->agent->core, m, my_member, &job->core);
	if (rc < 0)
		return rc;
	job->n_workers = me->n_ranks;
	job->is_local = job_is_local(m->n_members, m->flags);
	return 0;
}

static void welcome_workers(struct job *job)
{
	for (uint32_t w = 0; w < job->n_workers; w++) {
		struct trainer *t = job->by_worker[w];
		struct local_msg m = {.type = LOCAL_JOB};

		t->worker = w;
		trainer_set_state(t, TRAINER_ATTACHED);
		m.job = (struct local_job){.rank = t->rank,
			.size = job->size,
			.local_rank = w,
			.local_size = job->n_workers,
			.text = ""};
		trainer_send(t, &m, NULL, 0);
	}
}

/* A job of which nothing is known here: a former life of this agent had it. */
static void disown(struct agent *a, const struct ctl_job *m, const struct ctl_job_member *me)
{
	for (uint32_t i = 0; i < me->n_ranks; i++) {
		struct ctl_msg msg = {.type = CTL_WORKER,
			.worker = {.job = m->job,
				.rank = me->ranks[i].rank,
				.event = WORKER_LOST,
				.text = "its bps-agent was restarted"}};

		member_send(a->member, &msg);
	}
}

void job_on_job(struct agent *a, const struct ctl_job *m)
{
	struct job *job = agent_job(a, m->job);
	uint32_t i = 0;
	int rc;

	while (i < m->n_members && m->members[i].agent != a->cfg.id)
		i++;
	if (job)
		job->is_told = true;
	if (i == m->n_members || m->n_members > WIRE_MEMBERS_MAX ||
		(job && job->state == JOB_RUNNING))
		return;
	if (!job)
		job = job_forming(a, m->uid, m->name);
	if (!job) {
		disown(a, m, &m->members[i]);
		return;
	}
	if (!has_all_ranks(job, m, &m->members[i]))
		return;
	job->id = m->job;
	job->is_told = true;
	rc = job_start(job, m, (uint16_t)i);
	if (rc < 0) {
		job_core_fail(a, job->id, rc, "the agent is out of memory");
		job_end(job, rc, "the agent is out of memory");
		return;
	}
	job_set_state(job, JOB_RUNNING, "all workers are there");
	welcome_workers(job);
}

void job_detach(struct trainer *t, const char *why)
{
	struct job *job = t->job;
	struct err_text text;

	t->job = NULL;
	TAILQ_REMOVE(&job->trainers, t, of_job);
	for (uint32_t w = 0; w < job->n_workers; w++)
		if (job->by_worker[w] == t)
			job->by_worker[w] = NULL;
	if (job->state != JOB_ENDED && t->has_rank && /* else: behind JOINED */
		(t->state == TRAINER_JOINING || t->state == TRAINER_ATTACHED)) {
		err_set(&text, 0, "pid %d: %s", (int)t->pid, why);
		send_worker(job->agent, job->id, t->rank, WORKER_LOST, text.s);
	}
	if (TAILQ_EMPTY(&job->trainers) && job->state == JOB_RUNNING)
		job_end(job, BPS_EWORKER_LOST,
			"all workers of this machine have left"); /* frees it */
	else
		job_free_if_unused(job);
}

void job_finish(struct trainer *t, uint32_t seq)
{
	struct job *job = t->job;

	if (t->state == TRAINER_OVER) {
		struct local_msg m = {.type = LOCAL_FINISHED,
			.seq = seq,
			.finished = {.code = (uint32_t)-job->code, .text = job->text}};

		trainer_send(t, &m, NULL, 0);
		return;
	}
	if (t->state != TRAINER_ATTACHED) {
		trainer_drop(t, true, "FINISH without a running job");
		return;
	}
	t->finish_seq = seq;
	trainer_set_state(t, TRAINER_FINISHING);
	send_worker(job->agent, job->id, t->rank, WORKER_FINISHED, "");
}

/* ---- tensors ---- */

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

static void send_declare(
	struct job *job, uint32_t rank, const char *name, uint8_t dtype, uint64_t n_elems)
{
	struct ctl_decl d = {.rank = rank, .name = name, .dtype = dtype, .n_elems = n_elems};
	struct ctl_msg m = {
		.type = CTL_DECLARE, .declare = {.job = job->id, .tensors = &d, .n_tensors = 1}};

	member_send(job->agent->member, &m);
}

static void tensor_refuse(struct tensor *tensor, int code, const char *text)
{
	if (tensor->failed)
		return;
	tensor->failed = code;
	tensor->fail_text = strdup(text);
	log_warn("tensor refused: job=%s tensor=%s: %s", tensor->job->name, tensor->name, text);
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

/* All local workers have declared it: from here on it is the core's, and the scheduler hears of it. */
static int tensor_complete(struct tensor *tensor, struct err_text *err)
{
	struct job *job = tensor->job;
	size_t bytes = tensor->n_elems * dtype_bytes(tensor->dtype);
	struct agt_mem staging, *in, *has_staging = NULL;
	struct ctl_tensor plan;
	int rc;

	if (job->n_workers > 1 && !job->is_local) {
		rc = arena_alloc(&job->arenas, ARENA_PRIVATE, job->staging, bytes, &job->staging,
			&staging, err);
		if (rc < 0)
			return rc;
		has_staging = &staging;
	}
	in = calloc(job->n_workers, sizeof(*in));
	if (!in)
		return err_set(err, -ENOMEM, "the agent is out of memory");
	for (uint32_t w = 0; w < job->n_workers; w++)
		in[w] = tensor->workers[w].in;
	rc = agt_tensor_new(job->core, tensor->dtype, tensor->n_elems, in, has_staging, tensor->out,
		tensor, &tensor->core);
	free(in);
	if (rc < 0)
		return err_set(err, rc, "the agent is out of memory");
	if (!job->is_local) {
		send_declare(job, job->ranks[0], tensor->name, tensor->dtype, tensor->n_elems);
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
static int tensor_submit(struct tensor *tensor, uint32_t w, const struct pending *p)
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
			tensor_submit(tensor, w, &p);
	}
}

static int check_quota(
	struct trainer *t, const struct local_decl *d, size_t bytes, struct err_text *err)
{
	struct agent *a = t->agent;
	uint64_t use = 0;
	struct job *job;

	TAILQ_FOREACH(job, &a->jobs, link)
	use += job->arenas.bytes;
	if (bytes > a->cfg.max_bytes || use > a->cfg.max_bytes - bytes)
		return err_set(err, BPS_EQUOTA,
			"tensor '%s' needs %zu bytes of shared memory; %llu of %llu are in use on "
			"this machine "
			"(bps-agent's setting 'memory')",
			d->name, bytes, (unsigned long long)use,
			(unsigned long long)a->cfg.max_bytes);
	if (t->n_tensors >= a->cfg.max_tensors)
		return err_set(err, BPS_EQUOTA,
			"this worker has declared %u tensors, which is the limit (bps-agent's "
			"setting 'max-tensors')",
			t->n_tensors);
	return 0;
}

static int slots_alloc(struct trainer *t, struct tensor *tensor, size_t bytes,
	struct arena **ret_in, struct err_text *err)
{
	struct job *job = t->job;
	struct tensor_worker *tw = &tensor->workers[t->worker];
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
	rc = arena_alloc(&job->arenas, ARENA_INPUT, t->input, bytes, &t->input, &tw->in, err);
	*ret_in = t->input;
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
		send_declare(t->job, other, tensor->name, tensor->dtype, tensor->n_elems);
		send_declare(t->job, t->rank, d->name, d->dtype, d->n_elems);
	}
	return BPS_EMISMATCH;
}

static int declare_one(struct trainer *t, const struct local_decl *d, struct local_slot *slot,
	struct err_text *err)
{
	struct job *job = t->job;
	size_t elem = dtype_bytes(d->dtype), bytes;
	struct arena *in_arena, *known = t->input;
	struct tensor *tensor;
	struct tensor_worker *tw;
	int rc;

	if (!elem || !d->n_elems || !*d->name ||
		__builtin_mul_overflow((size_t)d->n_elems, elem, &bytes) || bytes > SIZE_MAX / 4)
		return err_set(err, -EINVAL, "tensor '%s' cannot be %s x %llu", d->name,
			dtype_name(d->dtype), (unsigned long long)d->n_elems);
	tensor = tensor_find(job, d->name);
	rc = tensor ? declare_again(t, tensor, d, err) : 0;
	if (rc == 0)
		rc = check_quota(t, d, 3 * bytes, err);
	if (rc < 0)
		return rc;
	if (!tensor && !(tensor = tensor_new(job, d)))
		return err_set(err, -ENOMEM, "the agent is out of memory");
	tw = &tensor->workers[t->worker];
	if (tw->is_declared)
		return err_set(
			err, BPS_EDUP, "tensor '%s' is declared twice by one worker", d->name);
	rc = slots_alloc(t, tensor, bytes, &in_arena, err);
	if (rc < 0)
		return rc;
	tw->is_declared = true;
	tw->index = t->n_tensors;
	t->tensors[t->n_tensors++] = tensor;
	if (in_arena != known)
		tell_arena(t, in_arena);
	*slot = (struct local_slot){.text = "",
		.tensor = tw->index,
		.in_arena = in_arena->id,
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

void job_declare(struct trainer *t, uint32_t seq, const struct local_declare *d)
{
	struct local_slot slots[LOCAL_DECLARE_MAX];
	struct err_text errs[LOCAL_DECLARE_MAX];
	struct local_msg m = {.type = LOCAL_DECLARED, .seq = seq};

	if (t->state != TRAINER_ATTACHED && t->state != TRAINER_OVER) {
		trainer_drop(t, true, "DECLARE without a running job");
		return;
	}
	for (uint32_t i = 0; i < d->n_tensors; i++) {
		int rc = t->state == TRAINER_OVER
				 ? err_set(&errs[i], t->job->code < 0 ? t->job->code : BPS_ECLOSED,
					   "%s",
					   t->job->code < 0 ? t->job->text : "the job has ended")
				 : declare_one(t, &d->tensors[i], &slots[i], &errs[i]);

		if (rc < 0)
			slots[i] = (struct local_slot){.code = (uint32_t)-rc, .text = errs[i].s};
	}
	if (t->job) {
		tell_outputs(t, t->job->arenas.head);
		t->n_told = t->job->arenas.next_id;
	}
	m.declared = (struct local_declared){.slots = slots, .n_slots = d->n_tensors};
	trainer_send(t, &m, NULL, 0);
}

int job_submit(struct trainer *t, const struct local_sqe *e, struct err_text *err)
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
	tw->since_ns = t->quiet_since_ns = dataloop_now_ns();
	t->calls++;
	if (job->state == JOB_ENDED || tensor->failed) {
		/* The tensor's own reason says more than the end of the job that may follow from it. */
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
	rc = tensor_submit(tensor, t->worker, &p);
	return rc < 0 ? err_set(err, rc,
				"tensor '%s': round %llu submitted while another is in flight",
				tensor->name, (unsigned long long)e->round)
		      : 0;
}

/* ---- the core's and the scheduler's answers ---- */

void job_core_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers)
{
	struct tensor *tensor = tensor_user;

	(void)ctx;
	for (uint32_t w = 0; w < tensor->job->n_workers; w++)
		if (tensor->job->by_worker[w])
			trainer_done(tensor->job->by_worker[w], tensor->workers[w].index, round,
				status, workers);
}

void job_core_fail(void *ctx, uint32_t job, int code, const char *text)
{
	struct agent *a = ctx;
	struct ctl_msg m = {
		.type = CTL_FAIL, .fail = {.job = job, .code = (uint32_t)-code, .text = text}};
	struct job *j = agent_job(a, job);

	if (j && !*j->text) {
		j->code = code;
		snprintf(j->text, sizeof(j->text), "%s", text);
	}
	member_send(a->member, &m);
}

void job_on_plan(struct agent *a, const struct ctl_plan *m)
{
	struct job *job = agent_job(a, m->job);

	if (!job || !job->core)
		return;
	for (uint32_t i = 0; i < m->n_tensors; i++) {
		struct tensor *tensor = tensor_find(job, m->tensors[i].name);
		int rc = tensor && tensor->core ? agt_tensor_plan(tensor->core, &m->tensors[i]) : 0;

		if (rc < 0)
			tensor_refuse(tensor, rc, "the scheduler's plan does not fit the tensor");
	}
	agt_job_runs(job->core, m->runs, m->n_runs);
}

void job_on_tensor_fail(struct agent *a, const struct ctl_tensor_fail *m)
{
	struct job *job = agent_job(a, m->job);
	struct tensor *tensor = job ? tensor_find(job, m->name) : NULL;

	if (tensor)
		tensor_refuse(tensor, -(int)m->code, m->text);
}

void job_resync_begin(struct agent *a)
{
	struct tensor *tensor;
	struct trainer *t;
	struct job *job;

	TAILQ_FOREACH(t, &a->trainers, link)
	{
		if (t->state == TRAINER_JOINING)
			send_join(t);
		else if (t->state == TRAINER_FINISHING)
			send_worker(a, t->job->id, t->rank, WORKER_FINISHED, "");
	}
	TAILQ_FOREACH(job, &a->jobs, link)
	{
		job->is_told = false;
		if (job->state != JOB_RUNNING)
			continue;
		if (job->code < 0)
			job_core_fail(a, job->id, job->code, job->text);
		for (uint32_t w = 0; w < job->n_workers; w++)
			if (!job->by_worker[w])
				send_worker(a, job->id, job->ranks[w], WORKER_LOST, "it left");
		TAILQ_FOREACH(tensor, &job->tensors, link)
		if (tensor->core && !job->is_local && agt_tensor_id(tensor->core) == CTL_NO_ID)
			send_declare(
				job, job->ranks[0], tensor->name, tensor->dtype, tensor->n_elems);
	}
}

void job_resync_end(struct agent *a)
{
	struct job *job, *next;

	for (job = TAILQ_FIRST(&a->jobs); job; job = next) {
		next = TAILQ_NEXT(job, link);
		if (job->state == JOB_RUNNING && !job->is_told)
			job_end(job, BPS_EJOB_FAILED,
				"the scheduler has lost its state and does not know this job any "
				"more");
	}
}

void job_forget_all(struct agent *a)
{
	struct job *job;

	TAILQ_FOREACH(job, &a->jobs, link)
	job->is_told = false;
	job_resync_end(a);
}
