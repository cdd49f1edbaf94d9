/* Records and reports why a job fails, and finds workers that have left a job too early. job.c ends
 * the job when the scheduler sends JOB_END. Thread: the data thread. */
#include "bps-agent/trainers/job_failure.h"

#include <stdio.h>
#include <string.h>

#include "bps-agent/trainers/tensor.h"
#include "bps-agent/trainers/trainer.h"

/* interval of the checks for workers that have finished */
#define LEAVERS_LOOK_NS (200 * UINT64_C(1000000))

struct job *job_find(struct agent *a, uint32_t id)
{
	struct job *job;

	TAILQ_FOREACH (job, &a->jobs, link)
		if (job->id == id && job->state != JOB_ENDED)
			return job;
	return NULL;
}

/* Find a tensor that has failed because workers disagree about it. Skip each tensor of which this
 * trainer has submitted a round, because a call of the trainer has already reported that tensor's
 * failure. Return NULL if there is no such tensor. */
static const struct tensor *unheard_mismatch(const struct job *job, const struct trainer *t)
{
	const struct tensor *tensor;

	TAILQ_FOREACH (tensor, &job->tensors, link)
		if (tensor->failed == BPS_EMISMATCH && tensor->fail_text &&
			!tensor->workers[t->worker].submitted)
			return tensor;
	return NULL;
}

void job_set_cause(struct job *job, const struct ctl_cause *cause)
{
	if (!cause || !ctl_has_cause(cause))
		return;
	job->cause_rank = cause->rank;
	snprintf(job->cause_host, sizeof(job->cause_host), "%s", cause->host);
}

int job_reason_of_end(const struct trainer *t, struct err_text *ret, struct ctl_cause *ret_cause)
{
	const struct job *job = t->job;
	const struct tensor *cause =
		job->code == BPS_EWORKER_LOST ? unheard_mismatch(job, t) : NULL;

	*ret_cause = cause ? (struct ctl_cause){cause->cause_rank, cause->cause_host}
			   : job_failure_cause(job);
	if (cause && strstr(job->text, cause->fail_text))
		return err_set(ret, BPS_EMISMATCH, "%s", job->text);
	if (cause)
		return err_set(ret, BPS_EMISMATCH, "%s; then %s", cause->fail_text, job->text);
	return err_set(ret, job->code, "%s", job->text);
}

/* Report the job's failure to its trainers before any round ends with an error. When the library
 * receives the failure, it protects the inputs from later writes (libbpsclient/session.h), because
 * servers of this host may still read the inputs. */
static void job_report_to_trainers(struct job *job)
{
	const struct ctl_cause cause = job_failure_cause(job);
	struct trainer *t;

	TAILQ_FOREACH (t, &job->trainers, of_job)
		if (t->state == TRAINER_ATTACHED)
			trainer_send_job_failure(t, job->code, job->text, &cause);
}

void job_report_failure(
	struct agent *a, uint32_t job, int code, const char *text, const struct ctl_cause *cause)
{
	struct ctl_msg m = {
		.type = CTL_FAIL, .fail = {.job = job, .code = (uint32_t)-code, .text = text}};
	struct job *j = job_find(a, job);

	if (cause)
		m.fail.cause = *cause;
	if (j && !*j->text) {
		j->code = code;
		snprintf(j->text, sizeof(j->text), "%s", text);
		job_set_cause(j, cause);
		job_report_to_trainers(j);
	}
	member_send(a->member, &m);
}

void on_core_job_failure(void *ctx, uint32_t job, int code, const char *text)
{
	job_report_failure(ctx, job, code, text, NULL);
}

/* ---- workers that have finished (rule J15) ---- */

static bool job_may_have_leavers(const struct job *job)
{
	return job->state == JOB_RUNNING && job->n_finished > 0 &&
	       job->n_finished < job->n_workers && !job->backup && job->code >= 0;
}

/* Return the last round of the tensor for which a worker waits that has not finished. 0: none. */
static uint64_t tensor_awaited_round(const struct tensor *tensor)
{
	uint64_t done = tensor->core ? agt_tensor_round(tensor->core) : 0, round = 0;

	for (uint32_t w = 0; w < tensor->job->n_workers; w++) {
		const struct trainer *t = tensor->job->by_worker[w];
		uint64_t submitted = tensor->workers[w].submitted;

		if (t && t->state == TRAINER_ATTACHED && submitted > done && submitted > round &&
			tensor_is_awaited(tensor, w))
			round = submitted;
	}
	return round;
}

/* Fail the job if a worker of this machine has finished without submitting the round. Returns
 * whether it did. */
static bool fail_job_if_left(const struct tensor *tensor, uint64_t round)
{
	struct job *job = tensor->job;
	char title[TENSOR_TITLE_BYTES];

	for (uint32_t w = 0; w < job->n_workers; w++) {
		const struct ctl_cause cause = {job->ranks[w], job->agent->cfg.host};
		struct err_text err;

		if (!job->has_finished[w] || tensor->workers[w].submitted >= round)
			continue;
		err_set(&err, BPS_EWORKER_LOST,
			"rank %u (host %s) has left job '%s' (it has closed the job or exited), "
			"but another worker of its machine waits for %.200s, round %llu; "
			"let all workers make the same number of steps before they close the job",
			job->ranks[w], job->agent->cfg.host, job->name,
			tensor_title(tensor->name, title), (unsigned long long)round);
		job_report_failure(job->agent, job->id, BPS_EWORKER_LOST, err.s, &cause);
		return true;
	}
	return false;
}

/* Return whether a worker that has not finished may wait. If none does, no tensor is read. */
static bool job_may_have_waiting_worker(const struct job *job)
{
	for (uint32_t w = 0; w < job->n_workers; w++) {
		const struct trainer *t = job->by_worker[w];

		if (t && t->state == TRAINER_ATTACHED && t->calls > t->completed)
			return true;
	}
	return false;
}

static void job_check_leavers(const struct job *job)
{
	const struct tensor *tensor;

	if (!job_may_have_waiting_worker(job))
		return;
	TAILQ_FOREACH (tensor, &job->tensors, link)
		if (!tensor->failed && fail_job_if_left(tensor, tensor_awaited_round(tensor)))
			return;
}

uint64_t leaver_check_jobs(struct agent *a, uint64_t now_ns)
{
	const struct job *job;
	bool is_any = false;

	TAILQ_FOREACH (job, &a->jobs, link)
		is_any |= job_may_have_leavers(job);
	if (!is_any)
		return UINT64_MAX;
	if (now_ns < a->leavers_ns)
		return a->leavers_ns;
	TAILQ_FOREACH (job, &a->jobs, link)
		if (job_may_have_leavers(job))
			job_check_leavers(job);
	return a->leavers_ns = now_ns + LEAVERS_LOOK_NS;
}
