/* After a restart of the agent, reads the ledger's records about the job's executor and the job's
 * tensors in device memory. Normally the executor still runs. Thread: the control thread, before
 * the data thread starts. */
#include <string.h>

#include "bps-agent/gpu/executor_link.h"
#include "bps-agent/handover/ledger.h"
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/restore/handover_read_impl.h"

int handover_read_executor(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_executor *k = rec->fixed;
	struct job *job = r->job;

	if (rec->n_fixed != sizeof(*k) || !job->n_workers || job->executor)
		return handover_contradicts(r, "an executor");
	return executor_restore(job, handover_take_fd(r->store, 'j', job->number, 'x'),
		handover_take_fd(r->store, 'j', job->number, 'p'), (pid_t)k->pid, &r->err);
}

int handover_read_route(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_route *k = rec->fixed;

	if (rec->n_fixed != sizeof(*k) || !r->job->executor ||
		!memchr(k->route, 0, sizeof(k->route)) ||
		executor_restore_route(r->job->executor, k) < 0)
		return handover_contradicts(r, "a route");
	return 0;
}

int handover_read_inputs(struct handover_reader *r, const struct ledger_record *rec)
{
	const struct ledger_inputs *k = rec->fixed;
	const struct ledger_range *ranges = (const struct ledger_range *)(k + 1);
	struct device_tensor *d;

	if (rec->n_fixed < sizeof(*k) || k->tensor >= r->n_tensors ||
		!r->tensors[k->tensor]->device)
		return handover_contradicts(r, "inputs");
	d = r->tensors[k->tensor]->device;
	if (k->n != d->executor->n_inputs || rec->n_fixed != sizeof(*k) + k->n * sizeof(*ranges))
		return handover_contradicts(r, "inputs");
	for (uint32_t i = 0; i < k->n; i++)
		if (!handover_place(&d->executor->arenas, ranges[i].arena, ARENA_PRIVATE,
			    ranges[i].offset, handover_tensor_bytes(d->tensor), &d->in_arena[i],
			    &d->in[i]))
			return handover_contradicts(r, "inputs");
	d->has_kept_inputs = true;
	return 0;
}

int handover_check_executor(struct handover_reader *r)
{
	const struct executor_link *g = r->job->executor;

	for (uint32_t i = 0; g && g->state == EXECUTOR_OVER && i < r->n_tensors; i++)
		if (r->tensors[i]->device)
			return err_set(&r->err, g->code, "%s", g->text);
	return 0;
}

void handover_repeat_device_request(struct job *job)
{
	struct trainer *t;

	TAILQ_FOREACH (t, &job->trainers, of_job)
		if (t->live->device_seq)
			executor_ops.ask(t, t->live->device_seq);
}
