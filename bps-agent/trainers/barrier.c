/* Serves trainers that wait at a barrier of their job (bps_checkpoint_barrier). The scheduler
 * counts the workers that wait. A JOB message contains the number of the last barrier that all
 * workers have passed. The message also lists the newcomers that were let in. The agent reports its
 * waiting workers to the scheduler again after each WELCOME, and after each JOB message with the
 * number of an earlier barrier. So a lost report delays no worker for long.
 * Thread: the data thread. */
#include "bps-agent/trainers/barrier.h"

#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/trainers/roster.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/failpoint.h"

static void barrier_report_worker(struct trainer *t)
{
	struct ctl_msg m = {.type = CTL_WORKER,
		.worker = {.job = t->job->id,
			.rank = t->rank,
			.event = WORKER_AT_BARRIER,
			.text = "",
			.barrier = t->live->barrier}};

	member_send(t->agent->member, &m);
}

static void barrier_answer_worker(
	struct trainer *t, int code, const char *text, const struct ctl_cause *cause)
{
	struct local_msg m = {.type = LOCAL_PASSED, .seq = t->live->barrier_seq};

	m.passed = (struct local_passed){
		.code = (uint32_t)-code, .text = text, .barrier = t->live->barrier};
	if (cause)
		m.passed.cause = *cause;
	roster_newcomers(t->job, t->live->barrier, &m.passed.n_new, &m.passed.root);
	trainer_send_message(t, &m, NULL, 0);
	/* Clear barrier_seq last. If the process ends before this store, the next process repeats
	 * the answer, which is harmless. */
	t->live->barrier_seq = 0;
}

/* Return whether the trainer has received the answer to its BARRIER, although the agent's previous
 * process did not record that answer. Call this function when the trainer has sent a message or a
 * submission. A trainer that waits at a barrier sends neither. */
static bool barrier_has_been_passed(struct trainer *t)
{
	bool may = t->may_have_passed;

	t->may_have_passed = false;
	return may && t->live->barrier_seq;
}

bool barrier_is_over(struct trainer *t)
{
	if (t->live && barrier_has_been_passed(t))
		t->live->barrier_seq = 0;
	return !t->live || !t->live->barrier_seq;
}

void barrier_report_again(struct trainer *t)
{
	if (t->state == TRAINER_ATTACHED && t->live && t->live->barrier_seq)
		barrier_report_worker(t);
}

void barrier_answer_or_report(struct job *job)
{
	struct trainer *t;

	TAILQ_FOREACH (t, &job->trainers, of_job) {
		if (t->state != TRAINER_ATTACHED || !t->live || !t->live->barrier_seq)
			continue;
		if (job->barrier >= t->live->barrier)
			barrier_answer_worker(t, 0, "", NULL);
		else
			barrier_report_worker(t);
	}
}

void barrier_answer_job_end(
	struct trainer *t, int code, const char *text, const struct ctl_cause *cause)
{
	if (t->live && t->live->barrier_seq)
		barrier_answer_worker(t, code < 0 ? code : BPS_ECLOSED, text, cause);
}

/* Return whether all rounds that the trainer has submitted are over. The trainer then has nothing
 * in flight (J11 in docs/reference/faults.md). Without backup machines, no worker of the job can
 * have completed a round that this trainer has not submitted. */
static bool trainer_has_no_open_round(const struct trainer *t)
{
	for (uint32_t i = 0; i < t->n_tensors; i++) {
		const struct tensor *tensor = t->tensors[i];
		const struct tensor_worker *tw = &tensor->workers[t->worker];

		if (!tensor->failed &&
			(tw->pending.is_set ||
				(tensor->core && tw->submitted > agt_tensor_round(tensor->core))))
			return false;
	}
	return true;
}

/* Return whether `number` is the number of the next barrier, or of a barrier that has been
 * passed. */
static bool barrier_is_next_or_passed(struct trainer *t, uint64_t number)
{
	uint64_t passed = t->job->barrier;

	if (barrier_has_been_passed(t) && passed < t->live->barrier)
		/* the JOB message about this barrier has not arrived yet */
		passed = t->live->barrier;
	return number <= passed + 1;
}

void barrier_accept_request(struct trainer *t, uint32_t seq, uint64_t number)
{
	struct job *job = t->job;

	if (t->state == TRAINER_OVER) {
		struct local_msg m = {.type = LOCAL_PASSED,
			.seq = seq,
			.passed = {.code = (uint32_t) - (job->code < 0 ? job->code : BPS_ECLOSED),
				.text = job->text,
				.cause = job_failure_cause(job)}};

		trainer_send_message(t, &m, NULL, 0);
		return;
	}
	if (t->state != TRAINER_ATTACHED || !t->live || !seq ||
		!barrier_is_next_or_passed(t, number) || !trainer_has_no_open_round(t)) {
		trainer_disconnect(t, true,
			"the trainer sent BARRIER out of order, or before all rounds were "
			"complete");
		return;
	}
	t->live->barrier = number;
	/* An earlier call of the trainer may have timed out. The agent answers only the latest
	 * call. */
	t->live->barrier_seq = seq;
	FAILPOINT(AGENT_TRAINER_BARRIER);
	/* Record at once that the message was handled. If the process ends now, the next process
	 * finds the message in the socket again. It must not handle it again, because the trainer
	 * may have passed the barrier and submitted its next round by then. */
	t->live->handled_seq = seq;
	if (job->barrier >= number)
		barrier_answer_worker(t, 0, "", NULL);
	else
		barrier_report_worker(t);
}
