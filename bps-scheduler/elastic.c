/* Machines that leave a running job (docs/faults.md, jobs that change).
 *
 *   member of a job:  LIVE --lost, or one of its workers is, job may shrink--> GONE
 *
 * A machine leaves as a whole: its workers' contributions are one. It keeps its number, and its name
 * stays with the job. One transaction has the members without it and a new pgen for every partition,
 * so that nobody can complete a round under the old one, and the rest is the rule for a replaced
 * server: those that are left say what they have, and what one of them has is donated. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bps-scheduler/core_impl.h"
#include "common/log.h"

void sched_member_drop(struct sched_core *c, struct job *j, uint32_t i, const char *why)
{
	struct job_member *m = &j->members[i];

	for (uint32_t r = 0; r < j->n_room; r++) {
		struct worker *w = &j->workers[r];

		if (w->state == WORKER_ABSENT || w->agent != m->agent)
			continue;
		j->n_done -= w->state == WORKER_DONE;
		w->state = WORKER_GONE;
		j->n_joined--;
		j->n_gone++;
	}
	m->is_gone = true;
	m->why = sched_dup(why);
	j->n_left++;
	sched_tensors_undeclare(c, j, i);
}

/* Nobody who is told of the job has to be asked about it: the record, the log, the event and JOB
 * carry who it was. */
static void shrink(struct sched_core *c, struct job *j, uint32_t i, const char *text)
{
	struct job_member *m = &j->members[i];
	const struct member *agent = sched_member(c, m->agent);
	char why[CTL_WHY_GONE_MAX + 1];

	snprintf(why, sizeof(why), "%.*s", CTL_WHY_GONE_MAX, text);
	sched_member_drop(c, j, i, why);
	m->is_untold = true;
	j->view = sched_change(c);
	j->is_changed = true;
	sched_job_refence(c, j);
	log_limited(LOG_AS(LOG_WARN, JOB),
		"job goes on without agent %s: %s job='%s' id=%u host=%s ranks=%u machines=%u/%u",
		agent->name, text, j->name, j->id, agent->host, m->n_ranks,
		j->n_members - j->n_left, j->n_members);
	sched_note(c, EVENT_JOB, "job '%s' goes on without agent %s (host %s): %s", j->name,
		agent->name, agent->host, text);
	sched_job_check_done(c, j);
}

void sched_member_lost(
	struct sched_core *c, struct job *j, uint32_t i, int code, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX + 1];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (j->flags & JOB_SHRINK && j->n_members - j->n_left > 1)
		shrink(c, j, i, text);
	else
		sched_job_over(c, j, code, "%s", text);
}

bool sched_send_evicted(struct sched_core *c, const struct member *m, const struct job *j)
{
	uint32_t i = m->role == ROLE_AGENT ? sched_job_member_ever(j, m->id) : CTL_NO_ID;

	if (i == CTL_NO_ID || !j->members[i].is_gone)
		return false;
	if (!j->members[i].is_untold)
		sched_send_job_end(c, m, j);
	return true;
}
