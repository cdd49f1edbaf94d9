#ifndef BPS_SCHEDULER_CORE_STALLS_H
#define BPS_SCHEDULER_CORE_STALLS_H
/* Finds jobs whose round makes no progress. The scheduler probes their agents by itself and keeps
 * the findings until a round completes. Status, metrics, events and /healthz show these findings.
 * They are not durable, and no decision depends on them. The answers to the same probes show rounds
 * that wait for a worker that has finished (leavers.h).
 *
 * MOVING --no round for stall_ms / 2--> STANDING --a probe is allowed to run--> PROBING
 *   ^                                      ^                                       |
 *   |                                      `---stall_ms / 2--- PROBED <--answers, or timeout
 *   `--a round completes: from every state; findings are dropped
 *
 * At most STALLS_PROBES_MAX jobs are in PROBING at a time. The other jobs wait in STANDING.
 *
 * A round completes when the servers' heartbeats count more rounds (ctl_beat_job.rounds). Servers
 * do not report a job whose workers are all on one machine. A server with too many jobs leaves some
 * of them out of its heartbeats. For a job without such reports, a round counts as completed when a
 * probe finds more completed calls than the previous probe. A job that is not running has no state.
 *
 * All functions run on the core's thread. */
#include <stdint.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/model/model.h"

/* most probes that stalls_tick has started and that still run */
#define STALLS_PROBES_MAX 16

const char *sched_stall_state_name(enum stall_state s);
/* Check all jobs at regular times, and start probes of the jobs without progress. */
void stalls_tick(struct sched_core *c);
/* Probe the job soon again, because one of its workers has finished. */
void stalls_hurry(struct sched_core *c, struct sched_job *j);
/* Handle the end of p, a probe of j that stalls_tick started. */
void stalls_probed(struct sched_core *c, struct sched_job *j, const struct sched_probe *p);
/* Derive findings from the answers to probe p. The probe must be finished, and must ask about the
 * whole job, not about one tensor. Store at most SCHED_FINDINGS_MAX findings in ret, and return the
 * number of findings. */
uint32_t stalls_find(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct sched_finding *ret);
/* Check the consistency of j's state. Returns 0, or -EINVAL; err then names the violated rule. */
int stalls_check(const struct sched_core *c, const struct sched_job *j, struct err_text *err);
#endif
