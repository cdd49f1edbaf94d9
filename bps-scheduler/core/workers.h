#ifndef BPS_SCHEDULER_CORE_WORKERS_H
#define BPS_SCHEDULER_CORE_WORKERS_H
#include "bps-scheduler/model/model.h"

/* Handle JOIN, WORKER or FAIL from member m. The caller remains the owner of msg. An invalid
 * message closes the connection of m. */
void sched_receive_join(struct sched_core *c, struct sched_member *m, const struct ctl_join *msg);
void sched_receive_worker_event(
	struct sched_core *c, struct sched_member *m, const struct ctl_worker *msg);
void sched_receive_fail(struct sched_core *c, struct sched_member *m, const struct ctl_fail *msg);
/* Handle an agent that is dead (is_dead) or has restarted. The running jobs of a dead agent end, or
 * continue without the agent if the jobs may shrink. Whether the agent is dead or restarted, its
 * workers leave the jobs that are still forming. A restarted agent sends JOIN for these workers
 * again. */
void sched_agent_gone(struct sched_core *c, struct sched_member *m, bool is_dead);
#endif
