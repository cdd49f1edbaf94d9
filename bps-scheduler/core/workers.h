#ifndef BPS_SCHEDULER_CORE_WORKERS_H
#define BPS_SCHEDULER_CORE_WORKERS_H
#include "bps-scheduler/model/model.h"

/* Handle messages of a member; msg is borrowed. An invalid message closes its connection. */
void sched_join(struct sched_core *c, struct sched_member *m, const struct ctl_join *msg);
void sched_worker(struct sched_core *c, struct sched_member *m, const struct ctl_worker *msg);
void sched_fail(struct sched_core *c, struct sched_member *m, const struct ctl_fail *msg);
/* Handle an agent that is dead or has restarted. Death ends its jobs, or takes it out of them.
 * After a restart the agent joins its waiting workers again. */
void sched_agent_gone(struct sched_core *c, struct sched_member *m, bool is_dead);
#endif
