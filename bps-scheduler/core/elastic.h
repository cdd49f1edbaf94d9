#ifndef BPS_SCHEDULER_CORE_ELASTIC_H
#define BPS_SCHEDULER_CORE_ELASTIC_H
#include "bps-scheduler/model/model.h"
#include "common/base/error.h"

/* That rank of m waits at barrier n. */
void sched_at_barrier(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	uint32_t rank, uint64_t n);
/* A worker wants to join j, which runs; it is let in at the next barrier. Errors: BPS_EDUP with a
 * sentence. */
int sched_newcomer(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const struct ctl_join *q, struct err_text *err);
/* The worker of m's JOIN seq has left. No effect when it does not wait: it has been let in, and is
 * lost as any other, or was never heard of. */
void sched_unjoin(struct sched_core *c, const struct sched_member *m, uint32_t seq);
#endif
