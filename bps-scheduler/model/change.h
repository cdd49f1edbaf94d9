#ifndef BPS_SCHEDULER_MODEL_CHANGE_H
#define BPS_SCHEDULER_MODEL_CHANGE_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

/* Record that the current event changes durable state. Opens a transaction if none is open.
 * Returns the transaction's view: the number that the state gets when the transaction is
 * durable. */
uint64_t sched_open_transaction_view(struct sched_core *c);
/* Add a changed object to the open transaction. sched_commit writes the object to the state log,
 * then sends it to the servers and agents that need it. */
void sched_member_dirty(struct sched_core *c, struct sched_member *m);
void sched_job_dirty(struct sched_core *c, struct sched_job *j);
#endif
