#ifndef BPS_SCHEDULER_CORE_ADMISSION_H
#define BPS_SCHEDULER_CORE_ADMISSION_H
#include "bps-scheduler/model/model.h"
#include "common/base/error.h"

/* Find the job that a JOIN names; *ret is NULL if there is none yet. Errors: BPS_EAUTH the job
 * exists and the token is wrong; with a sentence. */
int admission_find_job(const struct sched_core *c, const struct ctl_join *q, struct sched_job **ret,
	struct err_text *err);
/* Check that the user may have one more job. Errors: BPS_EQUOTA with a sentence. */
int admission_check_job(struct sched_core *c, uint32_t uid, struct err_text *err);
/* I12: SMALL_USERS users may have this part each of the small reserve (--small-user-reserve). What
 * others take never goes into the reserve, so a declaration of theirs leaves room for these. */
#define ADMISSION_SMALL_USERS 8
/* Check that the job may have one more tensor like t. Errors: BPS_EQUOTA with a sentence. */
int admission_check_tensor(struct sched_core *c, const struct sched_job *j,
	const struct sched_tensor *t, struct err_text *err);
/* Count t among the tensors that the job has memory for on servers, or not any more. */
void admission_claim(struct sched_core *c, struct sched_job *j, const struct sched_tensor *t);
void admission_unclaim(struct sched_job *j, const struct sched_tensor *t);
/* While no server is there, its memory is unknown, so nothing is refused. When partitions can get a
 * server at last, end the largest jobs of users with more than little that do not fit beside the
 * reserve. Runs before the partitions are placed. */
void admission_check_waiting(struct sched_core *c);
/* Return the memory for sums that all jobs take, by the tensors that they have declared. */
uint64_t admission_all_sums(const struct sched_core *c);
/* Usage that counts against the quotas: jobs that have not ended, and bytes of their tensors on
 * servers. */
uint32_t admission_user_jobs(const struct sched_core *c, uint32_t uid);
uint64_t admission_job_bytes(const struct sched_job *j);
uint64_t admission_user_bytes(const struct sched_core *c, uint32_t uid);
/* Return the memory of all usable servers for sums; 0: not known. */
uint64_t admission_servers_bytes(const struct sched_core *c);
uint64_t admission_share(uint64_t all_bytes, uint32_t percent);
#endif
