#ifndef BPS_SCHEDULER_CORE_STALLS_H
#define BPS_SCHEDULER_CORE_STALLS_H
/* Finds jobs whose round makes no progress. The scheduler probes their agents by itself and keeps
 * the findings until a round completes. Status, metrics, events and /healthz show these findings.
 * They are not durable, and no decision depends on the findings. leavers.c decides from the answers
 * to the same probes that a worker is lost.
 *
 * MOVING --no round for T--> STANDING --a probe is allowed to run--> PROBING
 *   ^                          ^                                        |
 *   |                          `---T--- PROBED <--answers, or timeout---'
 *   `--a round completes: from every state; findings are dropped
 *
 * T is stall_ms / 2, but at most LEAVER_NS while some workers have finished and others have not.
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
/* Bring the next probe of a job in PROBED forward, because one of its workers has finished. Does
 * nothing in other states. */
void stalls_probe_sooner(struct sched_core *c, struct sched_job *j);
/* Handle the end of p, a probe of j that stalls_tick started. */
void stalls_finish_probe(struct sched_core *c, struct sched_job *j, const struct sched_probe *p);
/* Derive findings from the answers to probe p. The probe must be finished, and must ask about the
 * whole job, not about one tensor. Store at most SCHED_FINDINGS_MAX findings in ret, and return the
 * number of findings. */
uint32_t stalls_list_findings(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct sched_finding *ret);
/* Check the consistency of j's state. Returns 0, or -EINVAL; err then names the violated rule. */
int stalls_check(const struct sched_core *c, const struct sched_job *j, struct err_text *err);
#endif
