#ifndef BPS_AGENT_TRAINERS_ROSTER_H
#define BPS_AGENT_TRAINERS_ROSTER_H
/* The workers and machines of a job, copied from the last JOB message. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Replace the copy by that of m. Errors: -ENOMEM, and the old copy stays. */
int roster_update(struct job *job, const struct ctl_job *m);
/* Return how many ranks were let in at that barrier (*ret_n_new), and the lowest remaining rank
 * that was in the job before (*ret_root, CTL_NO_ID: none). */
void roster_newcomers(
	const struct job *job, uint64_t barrier, uint32_t *ret_n_new, uint32_t *ret_root);
/* Return whether that rank was let in at the last barrier at which workers joined. */
bool roster_is_new(const struct job *job, uint32_t rank);
/* Answer a trainer that asks for the members of its job. */
void roster_ask(struct trainer *t, uint32_t seq, const struct local_ask *q);
/* Free the copy together with its job. */
void roster_free(struct job *job);
#endif
