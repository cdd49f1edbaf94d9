/* Writes metrics of each job separately. The number of jobs that have metrics is limited, to limit
 * the number of labels. */
#include <stdio.h>

#include "bps-scheduler/status/status_impl.h"
#include "common/daemon/metrics.h"

/* largest number of jobs with metrics; only the newest running jobs have metrics */
#define JOBS_MAX 64

enum job_gauge { GAUGE_ROUND, GAUGE_STEPS, GAUGE_STALLED, GAUGE_WORKERS };

static double job_gauge_value(
	const struct status_info *info, const struct sched_job *j, enum job_gauge which)
{
	switch (which) {
	case GAUGE_ROUND:
		return (double)j->progress.round;
	case GAUGE_STEPS:
		return j->progress.steps_s;
	case GAUGE_STALLED:
		return status_seconds_since(
			info, j->stall.moved_ns > j->since_ns ? j->stall.moved_ns : j->since_ns);
	case GAUGE_WORKERS:
		return j->n_joined;
	}
	return 0;
}

static void write_job_gauge(const struct sched_core *c, const struct status_info *info,
	struct evbuffer *out, const char *name, const char *help, enum job_gauge which)
{
	unsigned n = 0;
	char id[16];

	metric_append_header(out, name, help);
	for (const struct sched_job *j = c->jobs; j && n < JOBS_MAX; j = j->next) {
		if (j->state != JOB_RUNNING)
			continue;
		n++;
		snprintf(id, sizeof(id), "%u", j->id);
		metric_append_value(out, name, job_gauge_value(info, j, which), "bps_job", j->name,
			"id", id, NULL);
	}
}

void status_job_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
	write_job_gauge(c, info, out, "bps_job_round",
		"largest round of the job that is complete at a server", GAUGE_ROUND);
	write_job_gauge(c, info, out, "bps_job_steps_per_second",
		"recent rounds of the job per second", GAUGE_STEPS);
	write_job_gauge(c, info, out, "bps_job_stalled_seconds",
		"seconds since a round of the job last completed", GAUGE_STALLED);
	write_job_gauge(c, info, out, "bps_job_workers", "workers of the job", GAUGE_WORKERS);
}
