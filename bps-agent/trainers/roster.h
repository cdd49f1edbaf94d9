#ifndef BPS_AGENT_TRAINERS_ROSTER_H
#define BPS_AGENT_TRAINERS_ROSTER_H
/* Who is in a job: a copy of what JOB said last. The data thread's. */
#include "bps-agent/model/agent.h"

/* Remember who is in the job. Errors: -ENOMEM, and what was known stays. */
int roster_update(struct job *job, const struct ctl_job *m);
/* The ranks let in at that barrier, and the lowest earlier rank; CTL_NO_ID: none. */
void roster_newcomers(
	const struct job *job, uint64_t barrier, uint32_t *ret_n_new, uint32_t *ret_root);
/* Return whether that rank was let in last. */
bool roster_is_new(const struct job *job, uint32_t rank);
/* Answer a trainer that asks who is in its job. */
void roster_ask(struct trainer *t, uint32_t seq, const struct local_ask *q);
/* Free it with the job. */
void roster_free(struct job *job);
#endif
