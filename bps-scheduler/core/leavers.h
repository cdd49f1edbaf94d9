#ifndef BPS_SCHEDULER_CORE_LEAVERS_H
#define BPS_SCHEDULER_CORE_LEAVERS_H
/* Finds workers that have finished (bps_close) while other workers still wait for something that
 * only they could do: submit a round, declare its tensor, or reach a barrier (rule J15). Such a
 * wait would never end, so the worker counts as lost. The agent does the same for the workers of
 * its own machine (bps-agent/trainers/job_failure.c).
 *
 * Waits for rounds are known from the answers to probes (stalls.c). While some workers have
 * finished and others have not, the scheduler probes the job more often. A job with backup machines
 * is left alone, because its rounds may complete without some workers.
 *
 * All functions run on the core's thread. */
#include "bps-scheduler/model/model.h"

/* Return whether some workers of the job have finished and others have not, so that the job must be
 * probed. */
bool leavers_has_any(const struct sched_job *j);
/* Look for a barrier that waits for a worker that has finished. */
void leavers_tick(struct sched_core *c, struct sched_job *j);
/* Look for rounds that wait for a worker that has finished, to submit them or to declare their
 * tensor, in the answers to p, a finished probe of j. */
void leavers_probed(struct sched_core *c, struct sched_job *j, const struct sched_probe *p);
#endif
