#ifndef BPS_SCHEDULER_CORE_ELASTIC_H
#define BPS_SCHEDULER_CORE_ELASTIC_H
#include "bps-scheduler/model/model.h"
#include "common/base/error.h"

/* Handle the report from agent m that its worker with this rank waits at barrier n. */
void sched_at_barrier(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	uint32_t rank, uint64_t n);
/* Register a worker that wants to join the running job j. The worker is let in at a barrier,
 * together with all other workers of its machine. Errors: BPS_EDUP, BPS_EQUOTA; err gets a
 * sentence. */
int sched_newcomer(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const struct ctl_join *q, struct err_text *err);
/* Handle the message UNJOIN of agent m: a worker withdraws its request to be let in. `seq` is the
 * number in that worker's JOIN. If the JOIN never arrived, or the worker was already let in, the
 * scheduler has no such request, and the call has no effect. If a worker that was let in is lost
 * later, its loss is reported like the loss of any other worker. */
void sched_receive_unjoin(struct sched_core *c, const struct sched_member *m, uint32_t seq);
#endif
