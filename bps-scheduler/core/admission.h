#ifndef BPS_SCHEDULER_CORE_ADMISSION_H
#define BPS_SCHEDULER_CORE_ADMISSION_H
#include "bps-scheduler/model/model.h"
#include "common/base/error.h"

/* Find the job that a JOIN names. *ret is NULL if there is no such job yet. Errors: BPS_EAUTH if
 * the job exists but the token of the JOIN is wrong; err gets a sentence. */
int admission_find_job(const struct sched_core *c, const struct ctl_join *q, struct sched_job **ret,
	struct err_text *err);
/* Check that the user may have one more job. Errors: BPS_EQUOTA; err gets a sentence. */
int admission_check_job(struct sched_core *c, uint32_t uid, struct err_text *err);
/* Rule I12: only users who need little memory may use the reserve (--small-user-reserve). A user
 * needs little memory if the user's sums fit into 1/ADMISSION_SMALL_USERS of the reserve. */
#define ADMISSION_SMALL_USERS 8
/* Check that the job may have one more tensor like t. Errors: BPS_EQUOTA; err gets a sentence. */
int admission_check_tensor(struct sched_core *c, const struct sched_job *j,
	const struct sched_tensor *t, struct err_text *err);
/* Count the memory of t as used by the job. admission_unclaim subtracts this memory. */
void admission_claim(struct sched_core *c, struct sched_job *j, const struct sched_tensor *t);
void admission_unclaim(struct sched_job *j, const struct sched_tensor *t);
/* Check the tensors that were accepted while the cluster had no server. At that time the servers'
 * memory was unknown, so no tensor was refused. Once there are servers, end jobs that wait for
 * servers, the job with the largest sums first. Stop when the sums of all remaining jobs fit into
 * the memory outside the reserve. Do not end jobs of users who need little memory. Call this
 * function before the partitions are placed. */
void admission_check_waiting(struct sched_core *c);
/* Return the memory, in bytes, that the sums of all jobs' declared tensors need. */
uint64_t admission_all_sums(const struct sched_core *c);
/* Return the amounts that quotas limit. The first function returns the number of a user's jobs that
 * have not ended. The others return the bytes that the tensors of a job or a user take on
 * servers. */
uint32_t admission_user_jobs(const struct sched_core *c, uint32_t uid);
uint64_t admission_job_bytes(const struct sched_job *j);
uint64_t admission_user_bytes(const struct sched_core *c, uint32_t uid);
/* Return the memory, in bytes, that all usable servers together have for sums; 0: not known. */
uint64_t admission_servers_bytes(const struct sched_core *c);
uint64_t admission_share(uint64_t all_bytes, uint32_t percent);
#endif
