#ifndef BPS_AGENT_TRAINERS_ROSTER_H
#define BPS_AGENT_TRAINERS_ROSTER_H
/* The members of a job: a copy of the last JOB. The data thread's. */
#include "bps-agent/model/agent.h"

/* Update the copy. Errors: -ENOMEM, and the old copy stays. */
int roster_update(struct job *job, const struct ctl_job *m);
/* Return the ranks let in at that barrier, and the lowest earlier rank; CTL_NO_ID: none. */
void roster_newcomers(
	const struct job *job, uint64_t barrier, uint32_t *ret_n_new, uint32_t *ret_root);
/* Return whether that rank was let in last. */
bool roster_is_new(const struct job *job, uint32_t rank);
/* Answer a trainer that asks for the members of its job. */
void roster_ask(struct trainer *t, uint32_t seq, const struct local_ask *q);
/* Free it with the job. */
void roster_free(struct job *job);
#endif
