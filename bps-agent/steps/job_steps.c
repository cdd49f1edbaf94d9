/* Where the time of a job's steps goes (job_steps.h). Thread: the data thread. */
#include "bps-agent/steps/job_steps.h"

#include <string.h>

#include "bps-agent/model/agent.h"
#include "common/base/log.h"

/* A tensor that begins this number of rounds in one step sets the pace from then on. */
#define ROUNDS_OF_STEP_MAX 8

/* Return whether all waits of the job's workers are known. The waits of GPU streams are not. */
static bool job_waits_are_known(const struct job *job)
{
	return job->n_workers && !job->executor;
}

/* Return when the trainer's wait in progress began, or now_ns if the trainer does not wait. The
 * trainer may have written anything. */
static uint64_t trainer_wait_began_ns(const struct trainer *t, uint64_t now_ns)
{
	uint64_t ns = atomic_load_explicit(&t->control->wait_began_ns, memory_order_relaxed);

	return ns && ns < now_ns ? ns : now_ns;
}

/* Return the time that the workers have waited so far, summed over the workers. */
static uint64_t job_waited_ns(const struct job *job, uint64_t now_ns)
{
	uint64_t sum_ns = 0;

	for (uint32_t w = 0; w < job->n_workers; w++) {
		const struct trainer *t = job->by_worker[w];

		if (t)
			sum_ns +=
				atomic_load_explicit(&t->control->waited_ns, memory_order_relaxed) +
				now_ns - trainer_wait_began_ns(t, now_ns);
	}
	return sum_ns;
}

/* Return whether the tensors that set the pace of the steps rest, because this tensor has begun
 * many rounds in the step in progress. */
static bool pace_is_lost(struct tensor *tensor)
{
	const struct step_log *steps = &tensor->job->steps;

	if (tensor->begun_in_ns != steps->began_ns)
		tensor->n_begun = 0;
	tensor->begun_in_ns = steps->began_ns;
	return ++tensor->n_begun >= ROUNDS_OF_STEP_MAX;
}

bool job_steps_on_begun(void *ctx, void *tensor_user, uint64_t round, uint64_t now_ns)
{
	struct tensor *tensor = tensor_user;
	struct job *job = tensor->job;

	(void)ctx;
	if (round <= job->steps.round && pace_is_lost(tensor))
		step_log_restart(&job->steps);
	if (round <= job->steps.round)
		return false;
	step_log_round_begins(
		&job->steps, round, now_ns, job_waited_ns(job, now_ns), job->n_workers);
	return true;
}

static uint32_t to_us(uint64_t ns)
{
	return ns / 1000 < UINT32_MAX ? (uint32_t)(ns / 1000) : UINT32_MAX;
}

void job_steps_on_record(void *ctx, void *tensor_user, const struct round_record *record)
{
	const struct tensor *tensor = tensor_user;
	struct job *job = tensor->job;
	uint64_t now_ns = record->began_ns + UINT64_C(1000) * record->done_us;
	struct round_record kept = *record;

	(void)ctx;
	for (uint32_t w = 0; w < job->n_workers; w++) {
		struct trainer *t = job->by_worker[w];
		uint64_t from_ns = t ? trainer_wait_began_ns(t, now_ns) : now_ns;

		if (t && from_ns < t->divided_until_ns)
			from_ns = t->divided_until_ns;
		/* Two rounds may end in one turn, and times are in whole microseconds. */
		if (from_ns >= now_ns)
			continue;
		t->divided_until_ns = now_ns;
		step_log_divide_wait(&job->steps, record, from_ns);
		if (to_us(now_ns - from_ns) > kept.waited_us)
			kept.waited_us = to_us(now_ns - from_ns);
	}
	step_log_round_ends(&job->steps, shape_bytes(&tensor->shape));
	round_log_add(&job->rounds, &kept);
}

void job_steps_report(const struct job *job, struct ctl_steps *ret)
{
	struct step_summary s;

	*ret = (struct ctl_steps){0};
	if (!job_waits_are_known(job))
		return;
	step_log_sum_up(&job->steps, &s);
	*ret = (struct ctl_steps){.n_steps = s.n_steps,
		.length_us = to_us(s.sum.length_ns),
		.exposed_us = to_us(s.sum.exposed_ns),
		.last_member = s.sum.last_member,
		.n_last = s.n_last,
		.bytes = s.sum.bytes};
	for (int p = 0; p < N_PHASES; p++)
		ret->phase_us[p] = to_us(s.sum.phase_ns[p]);
}

void job_steps_forget_members(struct job *job)
{
	step_log_forget_members(&job->steps);
	round_log_forget_members(&job->rounds);
}

void job_steps_log_end(const struct job *job, int code)
{
	struct ctl_steps s;
	char phases[128];
	size_t at = 0;
	double n;

	job_steps_report(job, &s);
	if (code == 0 || !s.n_steps)
		return;
	n = 1e3 * s.n_steps;
	for (int p = 0; p < N_PHASES; p++)
		at += (size_t)snprintf(phases + at, sizeof(phases) - at, " %s=%.1f",
			round_phase_name(p), s.phase_us[p] / n);
	log_rated(LOG_WARN,
		"last steps of the failed job, in ms: job=%s steps=%u step=%.1f computing=%.1f "
		"exposed=%.1f%s",
		job->name, s.n_steps, s.length_us / n, (s.length_us - s.exposed_us) / n,
		s.exposed_us / n, phases);
}

uint32_t job_steps_totals(const struct agent *a, struct agent_job_steps ret[AGENT_STEP_JOBS])
{
	const struct job *job;
	uint32_t n = 0;

	TAILQ_FOREACH (job, &a->jobs, link) {
		if (n == AGENT_STEP_JOBS)
			break;
		/* The totals stay when the kept steps are forgotten. */
		if (!job->steps.computing_ns || !job_waits_are_known(job))
			continue;
		ret[n] = (struct agent_job_steps){
			.id = job->id, .computing_ns = job->steps.computing_ns};
		memcpy(ret[n].name, job->name, sizeof(ret[n].name));
		memcpy(ret[n++].phase_ns, job->steps.total_ns, sizeof(ret[0].phase_ns));
	}
	return n;
}
