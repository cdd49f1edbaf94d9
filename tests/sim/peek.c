#include "tests/sim/peek.h"

#include "bps-agent/core_impl.h"

bool peek_has(const struct agt_core *core, const struct peek *p)
{
	const struct agt_job *job;
	const struct part *part;

	TAILQ_FOREACH(job, &core->jobs, link)
	{
		if (job->id != p->job || job->is_closing || job->failed ||
			p->tensor >= job->n_by_id || !job->by_id[p->tensor] ||
			p->part >= job->by_id[p->tensor]->n_parts)
			continue;
		part = &job->by_id[p->tensor]->parts[p->part];
		return part->state == PART_IDLE ? part->round >= p->round : part->round > p->round;
	}
	return false;
}

struct peek peek_read(const struct xport_read *r)
{
	const struct part *part =
		(const struct part *)((const char *)r - offsetof(struct part, read));

	return (struct peek){part->tensor->job->id, part->tensor->id, part->index,
		part->offer.round, part->offer.pgen};
}
