#ifndef BPS_SCHEDULER_CORE_WHY_STUCK_H
#define BPS_SCHEDULER_CORE_WHY_STUCK_H
#include "bps-scheduler/core/core.h"
#include "bps-scheduler/model/model.h"

/* Describe, in sentences, what delays job j, apart from the job's workers. The cause can be an
 * agent of j, the servers, or a scheduler that cannot write its state. Without such a cause, ret is
 * "". p: a finished probe of j, or NULL. */
void why_stuck_conditions(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, char ret[CTL_TEXT_MAX + 1]);
/* Handle a message from an agent. WHY asks for the reason that a call waits. REPORT answers a
 * probe. The caller keeps msg. */
void sched_receive_why(struct sched_core *c, struct sched_member *m, const struct ctl_why *msg);
void sched_receive_report(
	struct sched_core *c, struct sched_member *m, const struct ctl_report *msg);
/* Start a probe of a running job. No agent has requested this probe, and its answers are passed to
 * stalls_finish_probe. Returns false if there are too many probes. */
bool sched_probe_own(struct sched_core *c, struct sched_job *j);
/* End the probes whose time is over, and use the answers that have arrived. */
void sched_probe_tick(struct sched_core *c);
void sched_probe_free_all(struct sched_core *c);
#endif
