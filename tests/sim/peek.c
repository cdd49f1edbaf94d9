#include "tests/sim/peek.h"

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/link.h"

bool peek_has(const struct agt_core *core, const struct peek *p)
{
	const struct agt_job *job;
	const struct agt_part *part;

	TAILQ_FOREACH (job, &core->jobs, link) {
		if (job->id != p->job || job->is_closing || job->failed ||
			p->tensor >= job->n_by_id || !job->by_id[p->tensor] ||
			p->part >= job->by_id[p->tensor]->n_parts)
			continue;
		part = &job->by_id[p->tensor]->parts[p->part];
		return part->state == PART_IDLE ? part->round - part->kept->base >= p->round
						: part->round - part->kept->base > p->round;
	}
	return false;
}

bool peek_is_settled(const struct agt_job *job, unsigned n_tensors)
{
	const struct agt_tensor *t;
	unsigned n = 0;

	if (job->is_local || job->is_closing || job->failed)
		return false;
	TAILQ_FOREACH (t, &job->tensors, link) {
		n += t->is_planned;
		for (uint32_t i = 0; i < t->n_parts; i++)
			if (!t->parts[i].link || t->parts[i].link->state != LINK_UP)
				return false;
	}
	return n == n_tensors;
}

bool peek_has_task(const struct agt_tensor *t)
{
	for (uint32_t i = 0; i < t->n_parts; i++)
		if (t->parts[i].is_working)
			return true;
	return false;
}

struct peek peek_read(const struct xport_read *r)
{
	const struct agt_part *part =
		(const struct agt_part *)((const char *)r - offsetof(struct agt_part, read));

	return (struct peek){part->tensor->job->id, part->tensor->id, part->index,
		part->offer.round, part->offer.pgen};
}

bool peek_contributors(const struct agt_tensor *t, uint32_t part, uint32_t *ret_first,
	uint32_t *ret_n, uint32_t *ret_members)
{
	const struct agt_part *p = part < t->n_parts ? &t->parts[part] : NULL;

	if (!p)
		return false;
	*ret_first = (uint32_t)shape_part_first(&t->shape, t->n_shards, t->part_elems, part);
	*ret_n = (uint32_t)part_elems(p);
	*ret_members = (uint32_t)p->kept->contributors[p->round & 1].w[0];
	return true;
}
