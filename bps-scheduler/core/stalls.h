#ifndef BPS_SCHEDULER_CORE_STALLS_H
#define BPS_SCHEDULER_CORE_STALLS_H
/* Jobs whose round stands still: the scheduler probes their agents by itself, and keeps what it found
 * until a round completes. Status, metrics, events and /healthz show these findings. Nothing durable,
 * nothing decides by them.
 *
 *   MOVING --no round for stall_ms / 2--> STANDING --one of the places is free--> PROBING
 *     ^                                      ^                                       |
 *     |                                      `---stall_ms / 2--- PROBED <--answers, or their bound
 *     `--a round completes: from every state; findings are dropped
 *
 * A round completes when the servers' heartbeats count more (ctl_beat_job.rounds), or, of a job that
 * they do not report (its workers are on one machine, or a server has too many jobs), when a probe
 * finds more completed calls than the one before. A job that is not running has no state.
 *
 * Same thread as the core. */
#include <stdint.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/model/model.h"

#define STALLS_PROBES_MAX 16 /* at a time */

const char *sched_stall_state_name(enum stall_state s);
/* Look at all jobs when that is due; start probes. */
void stalls_tick(struct sched_core *c);
/* The probe p of j that stalls_tick started is over. */
void stalls_probed(struct sched_core *c, struct sched_job *j, const struct sched_probe *p);
/* What the answers show, at most SCHED_FINDINGS_MAX; returns how many. p: a probe without a tensor,
 * over. */
uint32_t stalls_find(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct sched_finding *ret);
/* 0, or -EINVAL and what is broken in j's state. */
int stalls_check(const struct sched_core *c, const struct sched_job *j, struct err_text *err);
#endif
