/* Makes the trace of a job (trace.h). Thread: the data thread, unless a comment names another. */
#include "bps-agent/steps/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bps-agent/model/agent.h"
#include "bps-agent/steps/trace_file.h"
#include "common/base/clock.h"
#include "common/data/shape.h"

struct trace {
	uv_work_t work;
	struct agent *agent;
	uint64_t job_number;
	struct trace_content content;
	char job[CTL_JOB_NAME_MAX + 1];
	struct trace_machine here;
	int fd; /* the memory file, or a negative error code */
	void (*done)(void *arg, int fd);
	void *arg;
};

static void trace_job_free(struct trace *t)
{
	struct trace_content *c = &t->content;

	for (size_t i = 0; i < c->n_tensors; i++)
		free(c->tensors[i].name);
	for (size_t i = 0; i < c->n_servers; i++)
		free(c->servers[i].name);
	free(c->tensors);
	free(c->servers);
	free(c->records);
	free(c->machines);
	free(t);
}

/* Copy the names and sizes of the job's tensors. Errors: -ENOMEM. */
static int trace_copy_tensors(struct trace_content *c, const struct job *job)
{
	const struct tensor *tensor;
	size_t n = 0;

	TAILQ_FOREACH (tensor, &job->tensors, link)
		n++;
	c->tensors = calloc(n + 1, sizeof(*c->tensors));
	if (!c->tensors)
		return -ENOMEM;
	TAILQ_FOREACH (tensor, &job->tensors, link) {
		struct trace_tensor *to = &c->tensors[c->n_tensors];

		if (!tensor->core)
			continue;
		*to = (struct trace_tensor){.id = agt_tensor_id(tensor->core),
			.name = strdup(tensor->name),
			.bytes = shape_bytes(&tensor->shape)};
		if (!to->name)
			return -ENOMEM;
		c->n_tensors++;
	}
	return 0;
}

/* Copy the names of the servers that the agent knows. Errors: -ENOMEM. */
static int trace_copy_servers(struct trace_content *c, const struct agent *a)
{
	struct member_peer p;

	c->servers = calloc(a->n_servers + 1, sizeof(*c->servers));
	if (!c->servers)
		return -ENOMEM;
	for (uint32_t i = 0; i < a->n_servers; i++) {
		struct trace_server *to = &c->servers[c->n_servers];

		if (member_find_peer(a->member, a->servers[i].id, &p) < 0)
			continue;
		*to = (struct trace_server){.id = p.id, .name = strdup(p.name)};
		if (!to->name)
			return -ENOMEM;
		c->n_servers++;
	}
	return 0;
}

static int64_t realtime_offset_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - (int64_t)clock_now_ns();
}

/* Write the memory file. Thread: one of libuv's pool. */
static void trace_run(uv_work_t *work)
{
	struct trace *t = work->data;
	int fd = memfd_create("bps-trace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0), rc;
	FILE *out = copy < 0 ? NULL : fdopen(copy, "w");

	rc = out ? trace_file_write(out, &t->content) : -errno;
	if (out)
		fclose(out);
	else if (copy >= 0)
		close(copy);
	if (rc < 0 && fd >= 0)
		close(fd);
	t->fd = rc < 0 ? rc : fd;
}

static void trace_over(uv_work_t *work, int status)
{
	struct trace *t = work->data;
	struct job *job;

	TAILQ_FOREACH (job, &t->agent->jobs, link)
		if (job->number == t->job_number)
			job->n_traces--;
	t->done(t->arg, status < 0 ? -ECANCELED : t->fd);
	trace_job_free(t);
}

int trace_start(struct job *job, const struct round_choice *choice, struct trace_machine *machines,
	size_t n_machines, void (*done)(void *arg, int fd), void *arg)
{
	struct agent *a = job->agent;
	struct trace *t = calloc(1, sizeof(*t));
	struct trace_content *c;
	int rc;

	if (!t) {
		free(machines);
		return -ENOMEM;
	}
	*t = (struct trace){.work = {.data = t},
		.agent = a,
		.job_number = job->number,
		.done = done,
		.arg = arg};
	c = &t->content;
	snprintf(t->job, sizeof(t->job), "%s", job->name);
	snprintf(t->here.host, sizeof(t->here.host), "%s", a->cfg.host);
	snprintf(t->here.agent, sizeof(t->here.agent), "%s", a->cfg.name);
	*c = (struct trace_content){.job = t->job,
		.here = &t->here,
		.pid = (uint32_t)getpid(),
		.epoch_ns = realtime_offset_ns(),
		.machines = machines,
		.n_machines = n_machines};
	rc = trace_copy_tensors(c, job);
	if (rc == 0)
		rc = trace_copy_servers(c, a);
	if (rc == 0)
		rc = round_log_copy(&job->rounds, choice, &c->records, &c->n_records, &c->n_lost);
	if (rc < 0) {
		trace_job_free(t);
		return rc;
	}
	job->n_traces++;
	uv_queue_work(dataloop_uv(a->loop), &t->work, trace_run, trace_over);
	return 0;
}
