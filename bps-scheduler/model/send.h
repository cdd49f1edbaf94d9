#ifndef BPS_SCHEDULER_MODEL_SEND_H
#define BPS_SCHEDULER_MODEL_SEND_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"
#include "bps-scheduler/model/tensor.h"

/* Send to a member. Does nothing if it is not connected: it gets everything when it returns. */
void sched_send(struct sched_core *c, const struct sched_member *m, const struct ctl_msg *msg);
/* Send JOB or JOB_END of j to m. */
void sched_send_job(struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
void sched_send_job_end(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Send PLAN: either what this transaction placed or moved, or everything. */
void sched_send_plan(
	struct sched_core *c, const struct sched_member *m, struct sched_job *j, bool everything);
/* Send PLAN with one tensor and its places to an agent. */
void sched_send_tensor(struct sched_core *c, const struct sched_member *m,
	const struct sched_job *j, const struct sched_tensor *t);
/* Send JOB_END to m if m was put out of j, unless that is not durable yet. Returns false if m was
 * not put out. */
bool sched_send_evicted(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Send JOINED: the ranks of m's workers that this transaction lets in. */
void sched_send_joined(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Send JOB_END for a job that does not run: how it ended, or that it is not known. */
void sched_send_unknown_job(struct sched_core *c, const struct sched_member *m, uint32_t id);
/* Send TENSOR_FAIL. cause: may be without a host. */
void sched_send_tensor_fail(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const char *name, int code, const char *text, const struct ctl_cause *cause);
void sched_send_left(
	struct sched_core *c, const struct sched_member *m, int code, const char *text);
/* Send PEERS with these members of the other role. */
void sched_send_peers(struct sched_core *c, const struct sched_member *to,
	const struct sched_member *const *list, uint32_t n);
/* Send WELCOME and everything that concerns m. */
void sched_send_sync(struct sched_core *c, struct sched_member *m);
#endif
