#include <stdio.h>

#include "bps-scheduler/status/status_impl.h"

static void add_no_answer_problem(
	const struct sched_core *c, const struct sched_finding *f, json_t *list)
{
	const struct sched_member *m = sched_member_by_id(c, f->agent);
	char subject[CTL_NAME_MAX + 16];

	snprintf(subject, sizeof(subject), "agent %s", m->name);
	/* an agent without connection is reported as CONTROL_SILENT */
	if (m->conn && !status_has_problem(list, "NO_ANSWER", subject))
		status_add_problem(list, "NO_ANSWER", false, "agent", m->name, NULL,
			"agent %.60s on %.60s: no answer to a probe within %.1f s", m->name,
			m->host, c->cfg.probe_ms / 1e3);
}

static void add_late_worker_problem(const struct sched_core *c, const struct status_info *info,
	const struct sched_job *j, const struct sched_finding *f, json_t *list)
{
	const char *host = sched_host_of_member(c, f->agent);
	char subject[CTL_JOB_NAME_MAX + 32], others[32] = "", effect[96], call[128];
	char title[TENSOR_TITLE_BYTES];

	snprintf(subject, sizeof(subject), "%s rank %u", j->name, f->rank);
	if (f->n_more)
		snprintf(others, sizeof(others), " and %u more", f->n_more);
	if (f->tensor < j->n_placed)
		snprintf(call, sizeof(call), "%.62s, round %llu",
			tensor_title(j->placed[f->tensor]->name, title),
			(unsigned long long)f->round);
	else
		snprintf(call, sizeof(call), "its call number %llu", (unsigned long long)f->round);
	snprintf(effect, sizeof(effect), "%u other worker%s waited for it for %.0f ms",
		f->n_waiting, f->n_waiting == 1 ? " has" : "s have",
		1e3 * status_seconds_since(info, f->since_ns));
	status_add_problem(list, f->kind == FINDING_STALLED ? "TRAINER_STALLED" : "STRAGGLER",
		false, "job", subject, effect,
		"job %.60s: rank %u (host %.40s, pid %u)%s has not submitted %s", j->name, f->rank,
		host, f->pid, others, call);
}

void status_findings(const struct sched_core *c, const struct status_info *info,
	const struct sched_job *j, const struct sched_finding *f, uint32_t n, json_t *list)
{
	for (uint32_t i = 0; i < n; i++)
		if (f[i].kind == FINDING_NO_ANSWER)
			add_no_answer_problem(c, &f[i], list);
		else
			add_late_worker_problem(c, info, j, &f[i], list);
}
