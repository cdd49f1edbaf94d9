#ifndef BPS_AGENT_TRAINERS_ROSTER_H
#define BPS_AGENT_TRAINERS_ROSTER_H
/* The workers and machines of a job, copied from the last JOB message. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Replace the job's copy by the workers and machines of m. Errors: -ENOMEM; the old copy stays. */
int roster_update(struct job *job, const struct ctl_job *m);
/* Report the effect of a barrier. *ret_n_new: how many ranks were let in there. *ret_root: the
 * lowest rank still in the job that was in it before the barrier; CTL_NO_ID: there is none. */
void roster_newcomers(
	const struct job *job, uint64_t barrier, uint32_t *ret_n_new, uint32_t *ret_root);
/* Return whether that rank was let in at the last barrier at which workers joined. */
bool roster_is_new(const struct job *job, uint32_t rank);
/* Answer a trainer that asks for the members of its job. */
void roster_ask(struct trainer *t, uint32_t seq, const struct local_ask *q);
/* Free the copy. Called when the job is freed. */
void roster_free(struct job *job);
#endif
