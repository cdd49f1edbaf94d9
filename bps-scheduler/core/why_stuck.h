#ifndef BPS_SCHEDULER_CORE_WHY_STUCK_H
#define BPS_SCHEDULER_CORE_WHY_STUCK_H
#include "bps-scheduler/core/core.h"
#include "bps-scheduler/model/model.h"

/* Describe, in sentences, what delays job j apart from its workers: its agents, the servers, or a
 * scheduler that cannot write its state. ret is "" if there is no such cause. p: a finished probe
 * of j, or NULL. */
void why_stuck_conditions(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, char ret[CTL_TEXT_MAX + 1]);
/* Handle WHY, with which an agent asks why a call waits, or REPORT, an agent's answer to a probe.
 * msg stays the caller's. */
void sched_why(struct sched_core *c, struct sched_member *m, const struct ctl_why *msg);
void sched_report(struct sched_core *c, struct sched_member *m, const struct ctl_report *msg);
/* Start a probe of a running job for the core itself; stalls_probed gets the answers. Returns false
 * if there are too many probes. */
bool sched_probe_own(struct sched_core *c, struct sched_job *j);
/* End the probes whose time is over, with the answers that have arrived. */
void sched_probe_tick(struct sched_core *c);
void sched_probe_free_all(struct sched_core *c);
#endif
