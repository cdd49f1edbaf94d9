#ifndef BPS_SCHEDULER_CORE_ELASTIC_H
#define BPS_SCHEDULER_CORE_ELASTIC_H
#include "bps-scheduler/model/model.h"
#include "common/base/error.h"

/* Handle a report of m that the worker of this rank waits at barrier n. */
void sched_at_barrier(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	uint32_t rank, uint64_t n);
/* Register a worker that wants to join j, which runs. It is let in at the next barrier. Errors:
 * BPS_EDUP with a sentence. */
int sched_newcomer(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const struct ctl_join *q, struct err_text *err);
/* Handle the departure of the worker of m's JOIN seq. No effect if it does not wait: it has been
 * let in and is lost as any other worker, or the JOIN never arrived. */
void sched_unjoin(struct sched_core *c, const struct sched_member *m, uint32_t seq);
#endif
