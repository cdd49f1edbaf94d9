/* Maintains the open transaction: the list of objects that have changed and are not durable yet. */
#include "bps-scheduler/model/change.h"

#include "bps-scheduler/model/model.h"

uint64_t sched_open_transaction_view(struct sched_core *c)
{
	if (!c->tx_view)
		c->tx_view = c->view + 1;
	return c->tx_view;
}

void sched_member_dirty(struct sched_core *c, struct sched_member *m)
{
	sched_open_transaction_view(c);
	if (m->is_dirty)
		return;
	m->is_dirty = true;
	m->next_dirty = c->dirty_members;
	c->dirty_members = m;
}

void sched_job_dirty(struct sched_core *c, struct sched_job *j)
{
	sched_open_transaction_view(c);
	if (j->is_dirty)
		return;
	j->is_dirty = true;
	j->next_dirty = c->dirty_jobs;
	c->dirty_jobs = j;
}
