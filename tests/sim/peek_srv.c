#include "bps-server/core/core_impl.h"
#include "bps-server/core/job.h"
#include "tests/sim/peek.h"

unsigned peek_server_jobs(const struct srv_core *core)
{
	const struct srv_job *job;
	unsigned n = 0;

	TAILQ_FOREACH (job, &core->jobs, link)
		n++;
	return n;
}

enum peek_slot peek_slot_of(const struct srv_core *core, const struct peek *p)
{
	struct srv_job *job = srv_job_find((struct srv_core *)core, p->job);
	const struct srv_part *part = job ? srv_part_find(job, p->tensor, p->part) : NULL;
	const struct slot *slot = part ? &part->slots[p->round & 1] : NULL;

	if (!part || part->pgen != p->pgen || slot->round != p->round || slot->state == SLOT_EMPTY)
		return PEEK_ELSEWHERE;
	return slot->state == SLOT_OPEN ? PEEK_OPEN : PEEK_OVER;
}

bool peek_is_late(const struct srv_core *core, const struct peek *p, uint16_t member)
{
	struct srv_job *job = srv_job_find((struct srv_core *)core, p->job);
	const struct srv_part *part = job ? srv_part_find(job, p->tensor, p->part) : NULL;

	return part && part->pgen == p->pgen && member < part->n_seats &&
	       part->seats[member].late_round == p->round;
}
