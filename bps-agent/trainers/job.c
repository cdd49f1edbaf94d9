/* Jobs on this machine: trainers that join, finish or are lost, and the scheduler's messages about
 * jobs. Tensors are in tensor.c. Thread: the data thread. */
#include "bps-agent/trainers/job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/handover/handover_write.h"
#include "bps-agent/handover/ledger.h"
#include "bps-agent/steps/job_steps.h"
#include "bps-agent/trainers/barrier.h"
#include "bps-agent/trainers/job_failure.h"
#include "bps-agent/trainers/roster.h"
#include "bps-agent/trainers/tensor.h"
#include "bps-agent/trainers/token.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/key.h"
#include "common/base/log.h"
#include "common/base/state.h"

static const struct state_row job_states[] = {
	[JOB_FORMING] = {"forming", 1u << JOB_RUNNING | 1u << JOB_ENDED},
	[JOB_RUNNING] = {"running", 1u << JOB_ENDED},
	[JOB_ENDED] = {"ended", 0},
};

static void job_set_state(struct job *job, enum job_state state, const char *why)
{
	assert(job_states[job->state].next >> state & 1);
	log_limited(LOG_AS(LOG_INFO, JOB), "job changes from %s to %s: job=%s id=%u why=%s",
		job_states[job->state].name, job_states[state].name, job->name, job->id, why);
	job->state = state;
	if (state == JOB_RUNNING)
		job->running_since_ns = clock_now_ns();
}

/* Find the FORMING job with this name that a trainer may join. `proof` is the proof of the
 * trainer's job token, or NULL if the trainer has no token. With a token, the job and the trainer
 * may have different uids. */
static struct job *job_find_forming(
	struct agent *a, uid_t uid, const char *name, const uint8_t *proof)
{
	struct job *job;

	TAILQ_FOREACH (job, &a->jobs, link) {
		if (job->state != JOB_FORMING || strcmp(job->name, name) != 0 ||
			job->has_token != (proof != NULL))
			continue;
		if (proof ? key_bytes_equal(job->token, proof, CTL_TOKEN_BYTES) : job->uid == uid)
			return job;
	}
	return NULL;
}

/* Return whether the scheduler has assigned the job's id. The answer to JOIN contains the id. So
 * the id is assigned if a trainer of the job has the answer to its last JOIN. */
static bool job_has_id_assigned(const struct job *job)
{
	const struct trainer *t;

	TAILQ_FOREACH (t, &job->trainers, of_job)
		if (t->has_rank)
			return true;
	return false;
}

/* Find the FORMING job that a JOB message describes. The search compares names, because it only
 * considers jobs whose ids this agent has not received (no JOIN of the job has been answered). The
 * search may return another job of the same name. That is harmless, because the workers of the
 * returned job have no ranks yet. */
static struct job *job_unnumbered(struct agent *a, uid_t uid, const char *name)
{
	struct job *job;

	TAILQ_FOREACH (job, &a->jobs, link)
		if (job->state == JOB_FORMING && strcmp(job->name, name) == 0 &&
			(job->has_token || job->uid == uid) && !job_has_id_assigned(job))
			return job;
	return NULL;
}

/* ---- end of a job ---- */

void job_free_keep_records(struct job *job)
{
	arena_set_fini(&job->arenas);
	tensor_free_all(job);
	job->agent->executor_ops->release(job->executor);
	TAILQ_REMOVE(&job->agent->jobs, job, link);
	quota_account_release(job->quota);
	roster_free(job);
	round_log_free(&job->rounds);
	ledger_free(job->ledger);
	free(job->ranks);
	free(job->by_worker);
	free(job->has_finished);
	free(job);
}

static void job_free_and_forget(struct job *job)
{
	handover_forget_job(job);
	job_free_keep_records(job);
}

void job_free_if_unused(struct job *job)
{
	if (!job->is_busy && !job->core && !job->n_making && TAILQ_EMPTY(&job->trainers))
		job_free_and_forget(job);
}

static void on_job_core_released(void *ctx)
{
	struct job *job = ctx;

	job->is_busy = false;
	job_free_if_unused(job);
}

static void trainer_send_finished(struct trainer *t)
{
	struct local_msg m = {.type = LOCAL_FINISHED, .seq = t->live->finish_seq};
	struct err_text text;

	m.finished.code = (uint32_t)-job_reason_of_end(t, &text, &m.finished.cause);
	m.finished.text = text.s;
	trainer_send_message(t, &m, NULL, 0);
}

static void trainer_send_job_end(struct job *job, struct trainer *t)
{
	struct err_text text;
	struct ctl_cause cause;
	int code = job_reason_of_end(t, &text, &cause);

	if (t->state == TRAINER_OVER)
		return; /* the trainer has been refused already */
	barrier_answer_job_end(t, code, text.s, &cause);
	if (t->state == TRAINER_FINISHING) {
		trainer_send_finished(t);
	} else if (job->code < 0 && (t->state == TRAINER_JOINING || t->state == TRAINER_ATTACHED)) {
		trainer_send_job_failure(t, code, text.s, &cause);
	}
	trainer_set_state(t, TRAINER_OVER);
}

/* Start reading the messages of a resumed job's trainers. Called when the scheduler has reported
 * the job's state, or when the job has ended. */
static void job_resume_reading_trainers(struct job *job)
{
	struct trainer *t;

	if (!job->is_resumed)
		return;
	job->is_resumed = false;
	TAILQ_FOREACH (t, &job->trainers, of_job)
		trainer_set_held(t, false);
}

static void job_end_with_cause(
	struct job *job, int code, const char *text, const struct ctl_cause *cause)
{
	struct agt_job *core = job->core;
	struct tensor *tensor;
	struct trainer *t;

	if (job->state == JOB_ENDED)
		return;
	FAILPOINT(AGENT_JOB_END);
	job->code = code;
	snprintf(job->text, sizeof(job->text), "%s", text);
	job_set_cause(job, cause);
	job_set_state(job, JOB_ENDED, code < 0 ? text : "all workers have finished");
	job_steps_log_end(job, code);
	if (core) {
		agt_job_fail(core, code < 0 ? code : BPS_ECLOSED);
		TAILQ_FOREACH (tensor, &job->tensors, link)
			tensor->core = NULL;
		tensor_fail_pending(job);
		job->is_busy = true;
		job->core = NULL;
	}
	job->agent->executor_ops->end(job->executor, code, text);
	TAILQ_FOREACH (t, &job->trainers, of_job)
		trainer_send_job_end(job, t);
	job_resume_reading_trainers(job);
	if (core)
		agt_job_free(core, on_job_core_released, job); /* this call may free the job */
}

void job_on_end_message(struct agent *a, const struct ctl_job_end *m)
{
	struct job *job = job_find(a, m->job);

	if (job)
		job_end_with_cause(job, -(int)m->code, m->text, &m->cause);
}

/* ---- joining ---- */

void trainer_send_join(struct trainer *t)
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
		.part_bytes = t->part_bytes,
		.backup = t->job->backup,
		.grace_ms = t->job->grace_ms,
		.max_size = t->job->max_size,
		.local_size = t->machine_size};
	if (t->job->has_token)
		m.join.token = (struct blob){t->job->token, CTL_TOKEN_BYTES};
	/* Without a connection to the scheduler, the message is lost. After the next WELCOME,
	 * job_resync_begin sends the message again. */
	member_send(t->agent->member, &m);
}

static int job_admit_memory(void *ctx, size_t bytes, unsigned n_fds, struct err_text *err)
{
	return quota_take_fds(((struct job *)ctx)->quota, QUOTA_MEMORY, bytes, n_fds, err);
}

static void release_memory(void *ctx, size_t bytes, unsigned n_fds)
{
	struct job *job = ctx;

	quota_give(job->quota, QUOTA_MEMORY, bytes);
	quota_give(job->quota, QUOTA_DESCRIPTORS, n_fds);
}

static void job_discard_memory(void *ctx, const struct memory *m)
{
	memory_thread_drop(((struct job *)ctx)->agent->memory_thread, m);
}

static size_t job_memory_quota_left(void *ctx)
{
	return quota_room(((struct job *)ctx)->quota, QUOTA_MEMORY);
}

static const struct arena_owner memory_owner = {.admit = job_admit_memory,
	.release = release_memory,
	.room = job_memory_quota_left,
	.drop = job_discard_memory};

struct job *job_new(struct agent *a, struct quota_account *user, uid_t uid, const char *name,
	uint32_t size, uint32_t flags)
{
	struct job *job = calloc(1, sizeof(*job));

	if (job)
		job->quota = quota_new_job_account(user, name);
	if (!job || !job->quota) {
		free(job);
		return NULL;
	}
	snprintf(job->name, sizeof(job->name), "%s", name);
	job->agent = a;
	job->uid = uid;
	job->size = size;
	job->flags = flags;
	job->id = CTL_NO_ID;
	job->arenas.x = a->x;
	job->arenas.owner = &memory_owner;
	job->arenas.owner_ctx = job;
	job->arenas.adopted = handover_write_arena;
	job->arenas.keeps_outputs_writable = a->cfg.can_hand_over;
	TAILQ_INIT(&job->trainers);
	TAILQ_INIT(&job->tensors);
	TAILQ_INIT(&job->waiting);
	TAILQ_INSERT_TAIL(&a->jobs, job, link);
	return job;
}

/* Create the job that the trainer's HELLO describes, and write the job's handover records.
 * Errors: -ENOMEM, -errno; err gets the text. */
static int job_create_for_trainer(struct trainer *t, const struct local_hello *h,
	const uint8_t *proof, struct job **ret, struct err_text *err)
{
	struct job *job = job_new(t->agent, t->user, t->uid, h->job, h->size, h->flags);
	int rc;

	if (!job)
		return err_set(err, -ENOMEM, "the agent is out of memory");
	job->number = t->agent->next_number++;
	job->backup = h->backup;
	job->grace_ms = h->grace_ms;
	job->max_size = h->flags & JOB_ELASTIC ? h->max_size : 0;
	if (proof) {
		job->has_token = true;
		memcpy(job->token, proof, CTL_TOKEN_BYTES);
	}
	rc = handover_write_job(job, err);
	if (rc < 0) {
		job_free_and_forget(job);
		return rc;
	}
	*ret = job;
	return 0;
}

int job_attach_trainer(struct trainer *t, const struct local_hello *h, struct err_text *err)
{
	uint8_t token[CTL_TOKEN_BYTES];
	const uint8_t *proof;
	struct agent *a = t->agent;
	struct job *job;
	int rc;

	if (!*h->job || h->size == 0 || h->size > CTL_WORKERS_MAX ||
		(h->rank != CTL_NO_ID && h->rank >= h->size &&
			(!(h->flags & JOB_ELASTIC) || h->rank >= h->max_size)) ||
		(h->flags & ~(uint32_t)JOB_FLAGS_KNOWN))
		return err_set(err, -EINVAL,
			"a job needs a name, a size of 1 to %u and ranks below its size; got job "
			"'%s', rank %d of %u",
			CTL_WORKERS_MAX, h->job, (int)h->rank, h->size);
	if (h->token.bytes && (rc = token_compute_proof(&h->token, h->job, token)) < 0)
		return err_set(
			err, rc, "job '%s': the job token cannot be used: %s", h->job, err_str(rc));
	proof = h->token.bytes ? token : NULL;
	job = job_find_forming(a, t->uid, h->job, proof);
	if (!job && (rc = job_create_for_trainer(t, h, proof, &job, err)) < 0)
		return rc;
	if (job->size != h->size || job->flags != h->flags || job->backup != h->backup ||
		job->grace_ms != h->grace_ms)
		return err_set(err, BPS_EMISMATCH,
			"job '%s': pid %d requests %u workers and flags %u, but another worker of "
			"this machine requests %u workers and flags %u: give all workers the same "
			"options",
			h->job, (int)t->pid, h->size, h->flags, job->size, job->flags);
	t->job = job;
	t->asked_rank = t->rank = h->rank;
	t->part_bytes = h->part_bytes;
	t->machine_size = h->machine_size;
	t->join_seq = ++a->next_seq;
	TAILQ_INSERT_TAIL(&job->trainers, t, of_job);
	trainer_set_state(t, TRAINER_JOINING);
	return 0;
}

static void job_send_worker_event(
	struct agent *a, uint32_t id, uint32_t rank, enum worker_event event, const char *text)
{
	struct ctl_msg m = {.type = CTL_WORKER,
		.worker = {.job = id, .rank = rank, .event = (uint8_t)event, .text = text}};

	if (id != CTL_NO_ID)
		member_send(a->member, &m);
}

void job_on_joined_message(struct agent *a, const struct ctl_joined *m)
{
	struct trainer *t;

	TAILQ_FOREACH (t, &a->trainers, link)
		if (t->join_seq == m->seq)
			break;
	/* The worker left before this answer arrived. The agent could not report the loss earlier,
	 * because this answer is the first message with the worker's rank. */
	if (!t && m->code == 0 && m->job != CTL_NO_ID)
		job_send_worker_event(
			a, m->job, m->rank, WORKER_LOST, "the worker left before it had joined");
	if (!t || t->state != TRAINER_JOINING)
		return;
	t->is_waiting = m->code == 0 && m->job == CTL_NO_ID;
	if (t->is_waiting)
		return;
	if (m->code == 0) {
		t->rank = m->rank;
		t->has_rank = true;
		t->job->id = m->job;
		return;
	}
	trainer_send_job_failure(t, -(int)m->code, m->text, NULL);
	trainer_set_state(t, TRAINER_OVER);
}

static struct trainer *job_joining_trainer(const struct job *job, uint32_t rank)
{
	struct trainer *t;

	TAILQ_FOREACH (t, &job->trainers, of_job)
		if (t->rank == rank && t->has_rank && t->state == TRAINER_JOINING)
			return t;
	return NULL;
}

/* Return whether each rank of this machine has its trainer. If a JOIN of the job has not been
 * answered yet, a missing rank may still get its trainer. In this case do not report the rank as
 * lost, because another JOB message follows. Otherwise the trainer of a missing rank has left. In
 * this case report the rank to the scheduler, which then ends the job. */
static bool job_has_all_trainers(
	struct job *job, const struct ctl_job *m, const struct ctl_job_member *me)
{
	const struct trainer *t;
	uint32_t n_missing = 0;

	for (uint32_t i = 0; i < me->n_ranks; i++)
		n_missing += !job_joining_trainer(job, me->ranks[i].rank);
	if (!n_missing)
		return true;
	TAILQ_FOREACH (t, &job->trainers, of_job)
		if (t->state == TRAINER_JOINING && !t->has_rank)
			return false;
	for (uint32_t i = 0; i < me->n_ranks; i++)
		if (!job_joining_trainer(job, me->ranks[i].rank))
			job_send_worker_event(job->agent, m->job, me->ranks[i].rank, WORKER_LOST,
				"the worker left while the job formed");
	return false;
}

static int job_init_members_and_core(struct job *job, const struct ctl_job *m, uint16_t my_member)
{
	const struct ctl_job_member *me = &m->members[my_member];
	int rc;

	FAILPOINT(AGENT_JOB_START);
	job->ranks = calloc(me->n_ranks, sizeof(*job->ranks));
	job->by_worker = calloc(me->n_ranks, sizeof(struct trainer *));
	job->has_finished = calloc(me->n_ranks, sizeof(bool));
	if (!job->ranks || !job->by_worker || !job->has_finished)
		return -ENOMEM;
	for (uint32_t w = 0; w < me->n_ranks; w++) {
		job->ranks[w] = me->ranks[w].rank;
		job->by_worker[w] = job_joining_trainer(job, me->ranks[w].rank);
	}
	rc = roster_update(job, m);
	if (rc == 0)
		rc = agt_job_new(job->agent->core, m, my_member, &job->core);
	if (rc < 0)
		return rc;
	job->view = m->view;
	job->barrier = m->barrier;
	job->size = m->size;
	job->n_workers = me->n_ranks;
	job->is_local = job_is_local(m->n_members, m->flags);
	return 0;
}

static void worker_has_finished(struct trainer *t)
{
	trainer_set_state(t, TRAINER_FINISHING);
	t->job->has_finished[t->worker] = true;
	t->job->n_finished++;
}

static void job_attach_worker(struct job *job, uint32_t w)
{
	job->by_worker[w]->worker = w;
	trainer_set_state(job->by_worker[w], TRAINER_ATTACHED);
}

/* Send JOB to a worker. */
static void job_send_job_to_worker(struct job *job, uint32_t w)
{
	struct trainer *t = job->by_worker[w];
	struct local_msg m = {.type = LOCAL_JOB};
	uint32_t n_new;

	m.job = (struct local_job){.rank = t->rank,
		.size = job->size,
		.local_rank = w,
		.local_size = job->n_workers,
		.text = "",
		.barrier = job->barrier,
		.is_new = roster_is_new(job, t->rank)};
	roster_newcomers(job, job->barrier, &n_new, &m.job.root);
	trainer_send_message(t, &m, NULL, 0);
}

int job_resume_after_restart(struct job *job, const struct ctl_job *m, uint16_t my_member)
{
	int rc = agt_job_new(job->agent->core, m, my_member, &job->core);

	if (rc < 0)
		return rc;
	job->id = m->job;
	job->is_local = job_is_local(m->n_members, m->flags);
	job_set_state(job, JOB_RUNNING, "the job ran before the restart of bps-agent");
	job->is_resumed = true;
	for (uint32_t w = 0; w < job->n_workers; w++) {
		struct trainer *t = job->by_worker[w];

		job->n_finished += job->has_finished[w];
		if (!t)
			continue;
		t->rank = job->ranks[w];
		t->has_rank = true;
		job_attach_worker(job, w);
		trainer_set_held(t, true);
		if (t->live->is_finishing)
			worker_has_finished(t);
	}
	return 0;
}

/* Apply a JOB message that changes a running job: workers have left or joined, or all workers have
 * passed a barrier. */
static void job_apply_change(struct job *job, const struct ctl_job *m)
{
	if (m->view <= job->view || !job->core)
		return;
	job->view = m->view;
	agt_job_members(job->core, m);
	job_steps_forget_members(job);
	if (roster_update(job, m) < 0)
		log_rated(LOG_WARN,
			"out of memory: trainers of job %s receive an outdated list of members",
			job->name);
	job->barrier = m->barrier;
	job->size = m->size;
}

/* Handle the first JOB message for a resumed job. A worker may not have received the JOB message of
 * the agent's previous process, so send JOB to all workers. Only now does this process know the
 * job's size and barrier. A worker that has received JOB before keeps what it has. */
static void job_welcome_workers_again(struct job *job)
{
	for (uint32_t w = 0; w < job->n_workers; w++)
		if (job->by_worker[w] && job->by_worker[w]->state == TRAINER_ATTACHED)
			job_send_job_to_worker(job, w);
}

void job_on_job_message(struct agent *a, const struct ctl_job *m)
{
	struct job *job = job_find(a, m->job);
	uint32_t i = 0;
	int rc;

	while (i < m->n_members && m->members[i].agent != a->cfg.id)
		i++;
	if (job)
		job->is_told = true;
	if (i == m->n_members || m->n_members > WIRE_MEMBERS_MAX)
		return;
	if (job && job->state == JOB_RUNNING) {
		job_apply_change(job, m);
		if (job->is_resumed)
			job_welcome_workers_again(job);
		barrier_answer_or_report(job);
		job_resume_reading_trainers(job);
		return;
	}
	if (!job)
		job = job_unnumbered(a, m->uid, m->name);
	if (!job) {
		/* A previous process of this agent had the job, but left no record of the job.
		 * Report the workers of this machine as lost. */
		for (uint32_t r = 0; r < m->members[i].n_ranks; r++)
			job_send_worker_event(a, m->job, m->members[i].ranks[r].rank, WORKER_LOST,
				"its bps-agent was restarted and has no record of the job");
		return;
	}
	if (!job_has_all_trainers(job, m, &m->members[i]))
		return;
	job->id = m->job;
	job->is_told = true;
	rc = job_init_members_and_core(job, m, (uint16_t)i);
	if (rc == 0)
		rc = handover_write_running(job, m, (uint16_t)i);
	if (rc < 0) {
		on_core_job_failure(a, job->id, rc, "the agent is out of memory");
		job_end_with_cause(job, rc, "the agent is out of memory", NULL);
		return;
	}
	job_set_state(job, JOB_RUNNING, "all workers have joined");
	FAILPOINT(AGENT_JOB_WELCOME);
	for (uint32_t w = 0; w < job->n_workers; w++) {
		job_attach_worker(job, w);
		job_send_job_to_worker(job, w);
	}
}

void job_detach_trainer(struct trainer *t, const char *why)
{
	const struct ctl_msg unjoin = {.type = CTL_UNJOIN, .unjoin = {t->join_seq}};
	struct job *job = t->job;
	struct err_text text;

	t->job = NULL;
	TAILQ_REMOVE(&job->trainers, t, of_job);
	if (!why)
		return;
	for (uint32_t w = 0; w < job->n_workers; w++)
		if (job->by_worker[w] == t)
			job->by_worker[w] = NULL;
	/* If the rank is not known yet, job_on_joined_message reports the loss later. */
	if (job->state != JOB_ENDED && t->has_rank &&
		(t->state == TRAINER_JOINING || t->state == TRAINER_ATTACHED)) {
		err_set(&text, 0, "pid %d: %s", (int)t->pid, why);
		job_send_worker_event(job->agent, job->id, t->rank, WORKER_LOST, text.s);
	}
	if (t->state == TRAINER_JOINING && !t->has_rank)
		/* withdraw the JOIN, so that the other workers do not wait for this worker */
		member_send(job->agent->member, &unjoin);
	/* If all of them have finished, the job lasts until the scheduler ends it: the agent still
	 * answers for their rounds. */
	if (TAILQ_EMPTY(&job->trainers) && job->state == JOB_RUNNING &&
		job->n_finished < job->n_workers)
		job_end_with_cause(job, BPS_EWORKER_LOST, "all workers of this machine have left",
			NULL); /* this call may free the job */
	else
		job_free_if_unused(job);
}

void job_finish_worker(struct trainer *t, uint32_t seq)
{
	struct job *job = t->job;

	FAILPOINT(AGENT_TRAINER_FINISH);
	/* Handle the submissions that are still in the ring. A worker may submit a round and finish
	 * without waiting for the round's sum, but the other workers need this worker's bytes. */
	trainer_empty_ring(t);
	if (t->state == TRAINER_GONE)
		return;
	if (t->state == TRAINER_OVER || t->state == TRAINER_FINISHING) {
		/* In FINISHING, the trainer repeats FINISH after a time-out or a restart. Only its
		 * last FINISH gets the answer. */
		t->live->finish_seq = seq;
		if (t->state == TRAINER_OVER)
			trainer_send_finished(t);
		return;
	}
	if (t->state != TRAINER_ATTACHED) {
		trainer_disconnect(t, true, "the trainer sent FINISH without a running job");
		return;
	}
	t->live->finish_seq = seq;
	t->live->is_finishing = 1;
	worker_has_finished(t);
	job_send_worker_event(job->agent, job->id, t->rank, WORKER_FINISHED, "");
}

void job_resync_begin(struct agent *a)
{
	struct trainer *t;
	struct job *job;

	/* Report losses before joins. If this machine has left a job and joins it again, the
	 * scheduler would otherwise count an old loss against the new membership. */
	TAILQ_FOREACH (job, &a->jobs, link) {
		const struct ctl_cause cause = job_failure_cause(job);

		job->is_told = false;
		if (job->state != JOB_RUNNING)
			continue;
		if (job->code < 0)
			job_report_failure(a, job->id, job->code, job->text, &cause);
		for (uint32_t w = 0; w < job->n_workers; w++)
			if (job->has_finished[w])
				job_send_worker_event(
					a, job->id, job->ranks[w], WORKER_FINISHED, "");
			else if (!job->by_worker[w])
				job_send_worker_event(
					a, job->id, job->ranks[w], WORKER_LOST, "the worker left");
	}
	TAILQ_FOREACH (t, &a->trainers, link) {
		if (t->state == TRAINER_JOINING)
			trainer_send_join(t);
		barrier_report_again(t);
	}
	TAILQ_FOREACH (job, &a->jobs, link)
		if (job->state == JOB_RUNNING)
			tensor_declare_unplanned(job);
}

void job_resync_end(struct agent *a)
{
	struct job *job, *next;

	for (job = TAILQ_FIRST(&a->jobs); job; job = next) {
		next = TAILQ_NEXT(job, link);
		if (job->state == JOB_RUNNING && !job->is_told)
			job_end_with_cause(job, BPS_EJOB_FAILED,
				"the scheduler has lost its state and no longer has this job",
				NULL);
	}
}

void job_forget_all(struct agent *a)
{
	struct job *job;

	TAILQ_FOREACH (job, &a->jobs, link)
		job->is_told = false;
	job_resync_end(a);
}
