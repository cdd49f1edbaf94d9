#include <stdio.h>
#include <string.h>

#include "bps-scheduler/status/status_impl.h"

/* Return whether `list` already contains a problem whose code is `code` and whose subject is
 * `subject`. If an agent has several jobs, their findings may lead to the same problem. */
static bool has_problem_of(json_t *list, const char *code, const char *subject)
{
	json_t *p;
	size_t i;

	json_array_foreach (list, i, p)
		if (strcmp(json_string_value(json_object_get(p, "code")), code) == 0 &&
			strcmp(json_string_value(json_object_get(p, "subject")), subject) == 0)
			return true;
	return false;
}

static void add_no_answer_problem(
	const struct sched_core *c, const struct sched_finding *f, json_t *list)
{
	const struct sched_member *m = sched_member_by_id(c, f->agent);
	struct problem_lines l;
	char subject[CTL_NAME_MAX + 16];

	snprintf(subject, sizeof(subject), "agent %s", m->name);
	/* an agent without connection is reported as CONTROL_SILENT */
	if (!m->conn || has_problem_of(list, "NO_ANSWER", subject))
		return;
	snprintf(l.what, sizeof(l.what), "agent %.60s on %.60s: no answer to a probe within %.1f s",
		m->name, m->host, c->cfg.probe_ms / 1e3);
	snprintf(l.effect, sizeof(l.effect),
		"it is not known what its workers wait for; the agent may hang");
	snprintf(l.action, sizeof(l.action),
		"run `systemctl status bps-agent` on %.60s; a silent agent is declared dead "
		"automatically",
		m->host);
	status_problem(list, "NO_ANSWER", false, subject, &l);
}

static void add_late_worker_problem(const struct sched_core *c, const struct status_info *info,
	const struct sched_job *j, const struct sched_finding *f, json_t *list)
{
	const char *host = sched_host_of_member(c, f->agent);
	char subject[CTL_JOB_NAME_MAX + 32], others[32] = "";
	struct problem_lines l;
	int n;

	snprintf(subject, sizeof(subject), "job %s rank %u", j->name, f->rank);
	if (f->n_more)
		snprintf(others, sizeof(others), " and %u more", f->n_more);
	n = snprintf(l.what, sizeof(l.what),
		"job %.60s: rank %u (host %.40s, pid %u)%s has not submitted ", j->name, f->rank,
		host, f->pid, others);
	if (f->tensor < j->n_placed)
		snprintf(l.what + n, sizeof(l.what) - (size_t)n, "'%.60s', round %llu",
			j->placed[f->tensor]->name, (unsigned long long)f->round);
	else
		snprintf(l.what + n, sizeof(l.what) - (size_t)n, "its call number %llu",
			(unsigned long long)f->round);
	snprintf(l.effect, sizeof(l.effect), "%u other workers have waited for it for %.0f ms",
		f->n_waiting, 1e3 * status_seconds_since(info, f->since_ns));
	snprintf(l.action, sizeof(l.action), "check that process on %.40s; see `bpsctl job %.60s`",
		host, j->name);
	status_problem(list, f->kind == FINDING_STALLED ? "TRAINER_STALLED" : "STRAGGLER", false,
		subject, &l);
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
