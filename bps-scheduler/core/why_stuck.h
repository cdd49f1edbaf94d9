#ifndef BPS_SCHEDULER_CORE_WHY_STUCK_H
#define BPS_SCHEDULER_CORE_WHY_STUCK_H
#include "bps-scheduler/core/core.h"
#include "bps-scheduler/model/model.h"

/* Describe conditions other than its workers that delay j, as sentences; "" if there are none. p:
 * NULL, or the probe with the answers. */
void why_stuck_conditions(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, char ret[CTL_TEXT_MAX + 1]);
/* Handle a WHY message of an agent; msg is borrowed. */
void sched_why(struct sched_core *c, struct sched_member *m, const struct ctl_why *msg);
void sched_report(struct sched_core *c, struct sched_member *m, const struct ctl_report *msg);
/* Probe a running job for the core itself; stalls_probed gets the answers. False: too many
 * probes. */
bool sched_probe_own(struct sched_core *c, struct sched_job *j);
/* End the probes whose time is over. */
void sched_probe_tick(struct sched_core *c);
void sched_probe_free_all(struct sched_core *c);
#endif
