/* Finds jobs and partitions by the numbers in messages, and records the failure of a job. */
#include "bps-server/core/job.h"

#include <string.h>

struct srv_job *srv_job_find(struct srv_core *core, uint32_t id)
{
	struct srv_job *job;

	if (core->last_job && core->last_job->id == id)
		return core->last_job;
	TAILQ_FOREACH (job, &core->jobs, link)
		if (job->id == id)
			return core->last_job = job;
	return NULL;
}

struct srv_part *srv_part_find(const struct srv_job *job, uint32_t tensor, uint32_t part)
{
	if (tensor >= job->n_tensors || part >= job->tensors[tensor].n_parts)
		return NULL;
	return job->tensors[tensor].parts[part];
}

void srv_job_fail(struct srv_core *core, struct srv_job *job, int code, const char *fmt, ...)
{
	struct err_text err;

	if (job->has_failed)
		return;
	job->has_failed = true;
	format_arguments(err.s, fmt);
	job->fail_code = code;
	job->fail_text = strdup(err.s);
	core->env.fail(core->env.ctx, job->id, code, err.s);
}
