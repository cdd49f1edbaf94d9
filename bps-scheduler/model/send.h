#ifndef BPS_SCHEDULER_MODEL_SEND_H
#define BPS_SCHEDULER_MODEL_SEND_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"
#include "bps-scheduler/model/tensor.h"

/* Send msg to a member. Does nothing if the member is not connected, because a member gets the
 * whole state when it connects again (sched_send_sync). */
void sched_send_message(
	struct sched_core *c, const struct sched_member *m, const struct ctl_msg *msg);
/* Send JOB, the description of j, to m. sched_send_job_end sends JOB_END. */
void sched_send_job(struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
void sched_send_job_end(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Send PLAN to m. PLAN assigns j's partitions to servers. If `everything` is true, PLAN contains
 * all partitions. Otherwise PLAN contains the partitions that the present transaction placed or
 * moved. */
void sched_send_plan(
	struct sched_core *c, const struct sched_member *m, struct sched_job *j, bool everything);
/* Send PLAN with one tensor and the places of its partitions to an agent. */
void sched_send_tensor(struct sched_core *c, const struct sched_member *m,
	const struct sched_job *j, const struct sched_tensor *t);
/* If m was removed from j, send JOB_END to m and return true. JOB_END waits until the removal is
 * durable. Returns false if m was not removed. */
bool sched_send_evicted(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Send JOINED, which contains the worker's rank, for each worker of m that this transaction
 * admits. */
void sched_send_joined(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Send JOB_END as the answer to a message about a job that does not run. JOB_END reports how the
 * job ended, or that there is no such job. Send nothing if the end of the job is not durable
 * yet. */
void sched_send_unknown_job(struct sched_core *c, const struct sched_member *m, uint32_t id);
/* Send TENSOR_FAIL, which reports that the tensor `name` is refused with the error `code` and
 * `text`. `cause` names the worker or host that caused the error. If there is none, cause->host is
 * NULL. */
void sched_send_tensor_fail(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const char *name, int code, const char *text, const struct ctl_cause *cause);
void sched_send_left(
	struct sched_core *c, const struct sched_member *m, int code, const char *text);
/* Send PEERS with the addresses and states of the members in the list. The members must be agents
 * if `to` is a server, and servers if `to` is an agent. */
void sched_send_peers(struct sched_core *c, const struct sched_member *to,
	const struct sched_member *const *list, uint32_t n);
/* Send WELCOME and then all members, jobs and partitions that concern m, in the order that core.h
 * describes. */
void sched_send_sync(struct sched_core *c, struct sched_member *m);
#endif
