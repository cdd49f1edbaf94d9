#ifndef BPS_SCHEDULER_MODEL_FIND_H
#define BPS_SCHEDULER_MODEL_FIND_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

/* Find a member by id. NULL: no such member. */
struct sched_member *sched_member_by_id(const struct sched_core *c, uint32_t id);
struct sched_member *sched_member_find(
	const struct sched_core *c, enum role role, const char *name);
/* Find a job that has not ended, or return NULL. */
struct sched_job *sched_job_by_id(const struct sched_core *c, uint32_t id);
/* Find a job, even if the job has ended, or return NULL. */
struct sched_job *sched_job_any_by_id(const struct sched_core *c, uint32_t id);
/* Return the member number of an agent in the job. CTL_NO_ID: the agent is not a member of the job,
 * or has left it. */
uint32_t sched_job_member(const struct sched_job *j, uint32_t agent);
/* Return the agent's member number as sched_job_member does, but also if the agent has left the
 * job. */
uint32_t sched_job_member_ever(const struct sched_job *j, uint32_t agent);
/* Return the name of the agent's host, or "?" if there is no such agent. */
const char *sched_host_of_member(const struct sched_core *c, uint32_t agent);
#endif
