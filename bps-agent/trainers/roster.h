#ifndef BPS_AGENT_TRAINERS_ROSTER_H
#define BPS_AGENT_TRAINERS_ROSTER_H
/* List of the workers and machines of a job, copied from the last JOB message. Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

struct trace_machine;

/* Replace the job's list by the workers and machines of the message m. Errors: -ENOMEM; the job
 * keeps its list. */
int roster_update(struct job *job, const struct ctl_job *m);
/* Report the effect of a barrier. *ret_n_new: number of ranks that were let in at the barrier.
 * *ret_root: lowest rank that was in the job before the barrier and is still in the job, or
 * CTL_NO_ID if no such rank exists. */
void roster_newcomers(
	const struct job *job, uint64_t barrier, uint32_t *ret_n_new, uint32_t *ret_root);
/* Return whether the rank was let in at the last barrier at which workers joined. */
bool roster_is_new(const struct job *job, uint32_t rank);
/* Answer the message ASK, in which a trainer requests the members of its job. */
void roster_answer_request(struct trainer *t, uint32_t seq, const struct local_ask *q);
/* Copy the names of the machines, by member number. Owns: the caller frees the array. Returns NULL
 * if there is no memory or the job has no list; *ret_n is then 0. */
struct trace_machine *roster_copy_machines(const struct job *job, size_t *ret_n);
/* Free the list. Called when the job is freed. */
void roster_free(struct job *job);
#endif
