#ifndef BPS_SCHEDULER_MODEL_FIND_H
#define BPS_SCHEDULER_MODEL_FIND_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

/* NULL: no such member. */
struct sched_member *sched_member(const struct sched_core *c, uint32_t id);
struct sched_member *sched_member_find(
	const struct sched_core *c, enum role role, const char *name);
/* A job that has not ended, or NULL. */
struct sched_job *sched_job(const struct sched_core *c, uint32_t id);
struct sched_job *sched_job_any(const struct sched_core *c, uint32_t id); /* ended ones too */
/* The number of an agent in the job; CTL_NO_ID: not a member of it, or gone. */
uint32_t sched_job_member(const struct sched_job *j, uint32_t agent);
/* The same, also of an agent that is gone. */
uint32_t sched_job_member_ever(const struct sched_job *j, uint32_t agent);
/* The host of that agent; "?" when there is no such agent. */
const char *sched_host_of(const struct sched_core *c, uint32_t agent);
#endif
