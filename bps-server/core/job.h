#ifndef BPS_SERVER_CORE_JOB_H
#define BPS_SERVER_CORE_JOB_H
/* Look-ups of jobs and partitions, and the failure of a job. */
#include "bps-server/core/core_impl.h"

/* Find a job by its id. Returns NULL if this server has no such job. */
struct srv_job *srv_job_find(struct srv_core *core, uint32_t id);
/* Find a partition. Returns NULL if the partition is not on this server, or if it belongs to
 * another data thread of this server. */
struct srv_part *srv_part_find(const struct srv_job *job, uint32_t tensor, uint32_t part);
/* Fail a job: record the error and report it by env->fail. Afterwards nothing is summed for the
 * job. Only the first failure counts. */
void srv_job_fail(struct srv_core *core, struct srv_job *job, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#endif
