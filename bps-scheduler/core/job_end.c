/* Ends a job, or lets it continue without a lost machine (docs/reference/faults.md, jobs that
 * change).
 *
 *   machine of a job:  LIVE --the machine or one of its workers is lost--> GONE
 *                        ^                (if the job may shrink)           |
 *                        `------ its workers join again, at a barrier ------'
 *
 * A machine leaves as a whole, because the contributions of its workers are summed into one
 * contribution. The machine keeps its member number in the job. One transaction removes the machine
 * and gives every partition a new pgen (the view of its placement), so that no round can complete
 * with the old members. Then the rule for a replaced server applies (S4). The remaining members
 * report which results they have. If one of these members has the result of a round, it sends that
 * result to the server, and all other members get the same result. All functions run on the core's
 * thread. */
#include "bps-scheduler/core/job_end.h"

#include <stdio.h>
#include <string.h>

#include "bps-scheduler/placement/place_apply.h"
#include "common/base/log.h"

/* If a tensor of the job has failed, job_continue_without_member() cuts the direct reason of the
 * loss to this number of bytes. The short text of the loss (`why`) then has room for the failed
 * tensor's text after this reason. */
#define WHY_ITSELF_MAX 64

/* Append the error text of the job's first failed tensor to `text`, which reports an event. That
 * failure is the first cause of the event. */
static void add_first_failure(const struct sched_job *j, char *text, size_t room)
{
	size_t n = strlen(text);

	if (j->first_failure && !strstr(text, j->first_failure))
		snprintf(text + n, room - n, "; first: %s", j->first_failure);
}

/* Append the first machine that the job has lost. If a tensor has failed, the failure of the tensor
 * is the first cause, and nothing is appended. */
static void add_first_loss(const struct sched_job *j, char *text, size_t room)
{
	size_t n = strlen(text);

	if (j->first_loss && !j->first_failure)
		snprintf(text + n, room - n, "; first cause: it went on without %s", j->first_loss);
}

void sched_job_end(struct sched_core *c, struct sched_job *j, int code,
	const struct ctl_cause *cause, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX + 1];

	format_arguments(text, fmt);
	if (code)
		add_first_failure(j, text, sizeof(text));
	sched_job_set_state(c, j, JOB_ENDED, text[0] ? text : "all workers have finished");
	sched_job_drop_tensors(c, j);
	sched_newcomers_drop(c, j, CTL_NO_ID);
	j->code = (uint32_t)-code;
	j->end_text = sched_dup_string(text);
	if (cause && ctl_has_cause(cause)) {
		j->cause_rank = cause->rank;
		j->cause_host = sched_dup_string(cause->host);
	}
	j->is_changed = true;
	sched_job_dirty(c, j);
	sched_job_unlink(c, j);
	sched_job_link(c, j);
}

void sched_job_check_done(struct sched_core *c, struct sched_job *j)
{
	if (j->n_done == j->n_joined)
		sched_job_end(c, j, 0, NULL, "%s", "");
}

void sched_job_abort(struct sched_core *c, struct sched_job *j, const char *text)
{
	struct ctl_msg msg = {.type = CTL_JOB_END,
		.job_end = {j->id, (uint32_t)-BPS_EJOB_FAILED, text, {0, NULL}}};

	if (j->state == JOB_RUNNING) {
		sched_job_end(c, j, BPS_EJOB_FAILED, NULL, "%s", text);
		return;
	}
	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		if (m)
			sched_send_message(c, m, &msg);
	}
	sched_report_event(c, EVENT_JOB,
		"job '%s' (%u worker%s, uid %u) has ended before it had formed: %s", j->name,
		j->size, plural_suffix_of(j->size), j->uid, text);
	sched_job_unlink(c, j);
	sched_job_free(c, j);
}

/* Forget which workers wait at the next barrier. All workers must reach a barrier in the same view,
 * so they report again after they have received the new view. */
static void job_reset_barrier_waiters(struct sched_job *j)
{
	for (uint32_t r = 0; r < j->n_room; r++)
		if (j->workers[r].barrier == j->barrier + 1)
			j->workers[r].barrier = 0;
	j->n_at_barrier = 0;
}

static void note_first_loss(struct sched_job *j, const char *agent, const char *why)
{
	char text[CTL_TEXT_MAX + CTL_NAME_MAX + 16];

	if (j->first_loss)
		return;
	snprintf(text, sizeof(text), "agent %s: %s", agent, why);
	j->first_loss = sched_dup_string(text);
}

/* Continue the job without member i. The argument `itself` is the direct reason why the member was
 * lost. The state log, the program's log, the event and the message JOB all name the machine that
 * left and this reason. */
static void job_continue_without_member(
	struct sched_core *c, struct sched_job *j, uint32_t i, const char *itself)
{
	struct sched_job_member *m = &j->members[i];
	const struct sched_member *agent = sched_member_by_id(c, m->agent);
	char text[CTL_TEXT_MAX + 1], why[CTL_WHY_GONE_MAX + 1];

	snprintf(why, sizeof(why), "%.*s", j->first_failure ? WHY_ITSELF_MAX : CTL_WHY_GONE_MAX,
		itself);
	add_first_failure(j, why, sizeof(why));
	snprintf(text, sizeof(text), "%s", itself);
	add_first_failure(j, text, sizeof(text));
	note_first_loss(j, agent->name, itself);
	sched_job_member_drop(c, j, i, why);
	m->is_untold = true;
	j->view = sched_open_transaction_view(c);
	j->is_changed = true;
	job_reset_barrier_waiters(j);
	place_renew_part_pgens(c, j);
	log_limited(LOG_AS(LOG_WARN, JOB),
		"job goes on without agent %s: %s job='%s' id=%u host=%s lost_ranks=%u "
		"remaining_machines=%u/%u",
		agent->name, text, j->name, j->id, agent->host, m->n_ranks,
		j->n_members - j->n_left, j->n_members);
	sched_report_event(c, EVENT_JOB, "job '%s' goes on without agent %s (host %s): %s", j->name,
		agent->name, agent->host, text);
	sched_job_check_done(c, j);
}

void sched_machine_lost(struct sched_core *c, struct sched_job *j, uint32_t i, uint32_t rank,
	int code, const char *fmt, ...)
{
	struct ctl_cause cause = {rank, sched_host_of_member(c, j->members[i].agent)};
	char text[CTL_TEXT_MAX + 1];

	format_arguments(text, fmt);
	if (j->flags & JOB_SHRINK && j->n_members - j->n_left > 1) {
		job_continue_without_member(c, j, i, text);
		return;
	}
	add_first_loss(j, text, sizeof(text));
	sched_job_end(c, j, code, &cause, "%s", text);
}
