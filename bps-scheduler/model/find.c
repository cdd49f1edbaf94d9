/* Finds members and jobs. */
#include "bps-scheduler/model/find.h"

#include <string.h>

#include "bps-scheduler/model/model.h"

struct sched_member *sched_member_by_id(const struct sched_core *c, uint32_t id)
{
	return id && id <= c->n_members ? c->members[id] : NULL;
}

struct sched_member *sched_member_find(const struct sched_core *c, enum role role, const char *name)
{
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role == role && strcmp(c->members[i]->name, name) == 0)
			return c->members[i];
	return NULL;
}

struct sched_job *sched_job_by_id(const struct sched_core *c, uint32_t id)
{
	for (struct sched_job *j = c->jobs; j; j = j->next)
		if (j->id == id)
			return j;
	return NULL;
}

struct sched_job *sched_job_any_by_id(const struct sched_core *c, uint32_t id)
{
	for (struct sched_job *j = c->ended; j; j = j->next)
		if (j->id == id)
			return j;
	return sched_job_by_id(c, id);
}

uint32_t sched_job_member_ever(const struct sched_job *j, uint32_t agent)
{
	for (uint32_t i = 0; i < j->n_members; i++)
		if (j->members[i].agent == agent)
			return i;
	return CTL_NO_ID;
}

uint32_t sched_job_member(const struct sched_job *j, uint32_t agent)
{
	uint32_t i = sched_job_member_ever(j, agent);

	return i == CTL_NO_ID || j->members[i].is_gone ? CTL_NO_ID : i;
}

const char *sched_host_of_member(const struct sched_core *c, uint32_t agent)
{
	const struct sched_member *m = sched_member_by_id(c, agent);

	return m ? m->host : "?";
}
