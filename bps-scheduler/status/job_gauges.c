/* Writes metrics of each job separately. The number of jobs that have metrics is limited, to limit
 * the number of labels. */
#include <stdio.h>

#include "bps-scheduler/status/status_impl.h"
#include "common/daemon/metrics.h"

/* largest number of jobs with metrics; only the newest running jobs have metrics */
#define JOBS_MAX 64

typedef double (*job_value_fn)(const struct status_info *info, const struct sched_job *j);

static double job_round_value(const struct status_info *info, const struct sched_job *j)
{
	(void)info;
	return (double)j->progress.round;
}

static double job_steps_value(const struct status_info *info, const struct sched_job *j)
{
	(void)info;
	return j->progress.steps_s;
}

static double job_stalled_value(const struct status_info *info, const struct sched_job *j)
{
	return status_seconds_since(
		info, j->stall.moved_ns > j->since_ns ? j->stall.moved_ns : j->since_ns);
}

static double job_workers_value(const struct status_info *info, const struct sched_job *j)
{
	(void)info;
	return j->n_joined;
}

static void write_job_gauge(const struct sched_core *c, const struct status_info *info,
	struct evbuffer *out, const char *name, const char *help, job_value_fn value)
{
	unsigned n = 0;
	char id[16];

	metric_append_header(out, name, "gauge", help);
	for (const struct sched_job *j = c->jobs; j && n < JOBS_MAX; j = j->next) {
		if (j->state != JOB_RUNNING)
			continue;
		n++;
		snprintf(id, sizeof(id), "%u", j->id);
		metric_append_value(out, name, value(info, j), "bps_job", j->name, "id", id, NULL);
	}
}

void status_job_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out)
{
	write_job_gauge(c, info, out, "bps_job_round",
		"largest round of the job that is complete at a server", job_round_value);
	write_job_gauge(c, info, out, "bps_job_steps_per_second",
		"recent rounds of the job per second", job_steps_value);
	write_job_gauge(c, info, out, "bps_job_stalled_seconds",
		"seconds since a round of the job last completed", job_stalled_value);
	write_job_gauge(c, info, out, "bps_job_workers", "workers of the job", job_workers_value);
}
