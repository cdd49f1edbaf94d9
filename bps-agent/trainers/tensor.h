#ifndef BPS_AGENT_TRAINERS_TENSOR_H
#define BPS_AGENT_TRAINERS_TENSOR_H
/* Tensors of a job on this machine: functions that find, submit and refuse tensors. Thread: the
 * data thread. */
#include "bps-agent/model/agent.h"

extern const struct tensor_kind host_tensor_kind;

/* Find the job's tensor with that name. Returns NULL if no worker of this machine has declared
 * it. */
struct tensor *tensor_find(struct job *job, const char *name);
/* Create a tensor. worker: the first worker that declares the tensor. The job owns the tensor.
 * Returns NULL when out of memory. */
struct tensor *tensor_new_in_job(struct job *job, uint32_t worker, const struct local_decl *d);
/* Free a tensor whose declaration was refused, so that its name can be declared again. Arena space
 * of the tensor is freed only with the job. */
void tensor_remove_from_job(struct tensor *tensor);
/* Add the tensor to the core and declare it to the scheduler. Call this function when the tensor's
 * memory has been made and all local workers have declared the tensor. If an error occurs, the
 * tensor is refused. */
void tensor_complete(struct tensor *tensor);
/* Resume a tensor from its records after a restart. Send its trainers the completions that they may
 * have missed. */
void tensor_resume_after_restart(struct tensor *tensor);
/* Make all rounds of the tensor end with the error `code`. `cause` is the worker whose declaration
 * or submission contradicts those of other workers, or NULL if the worker is not known. */
void tensor_refuse(
	struct tensor *tensor, int code, const char *text, const struct ctl_cause *cause);
/* Return whether worker w waits for a round of the tensor now: a thread of its process sleeps in a
 * wait, or a stream waits. The caller has checked that the worker has a round in flight. */
bool tensor_is_awaited(const struct tensor *tensor, uint32_t w);
/* Handle one entry of the trainer's ring. e: a copy of the entry, not checked yet.
 * Returns BPS_EPROTO, with a text in err, if the trainer has violated the protocol. */
int tensor_on_submission(struct trainer *t, const struct local_sqe *e, struct err_text *err);
/* Submit a worker's next round to the core. Returns BPS_EBUSY if the core cannot accept the round
 * now. For any other failure, the function returns 0, and the trainer receives the failure as the
 * end of the round. */
int tensor_to_core(struct tensor *tensor, uint32_t w, const struct pending_submission *p);
/* Report to a worker that a round is over, if its trainer is still connected. After a failure, also
 * release the worker's GPU stream, which waits for the round. */
void tensor_report_done(
	struct tensor *tensor, uint32_t w, uint64_t round, int status, uint32_t workers);
/* Add a declaration to the job's batch for the scheduler. Declarations are sent in batches, because
 * the scheduler syncs its disk for each message. tensor_flush_declares sends the batch, and must be
 * called before the memory of the names is freed. */
void tensor_add_declare(struct job *job, const struct ctl_decl *decl);
void tensor_flush_declares(struct job *job);
/* Declare again the tensors for which the scheduler has sent no plan yet. Also report those of
 * these tensors that have failed. */
void tensor_declare_unplanned(struct job *job);
/* Handle the scheduler's messages PLAN and TENSOR_FAIL. m is valid only during the call. */
void tensor_on_plan(struct agent *a, const struct ctl_plan *m);
void tensor_on_fail(struct agent *a, const struct ctl_tensor_fail *m);
/* The core's callback env->done: report the end of a round to the trainers. */
void tensor_core_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
/* End the rounds that never reached the core, with the error code of the job's end. */
void tensor_fail_pending(struct job *job);
/* Free all tensors, after the core has released the job's memory. */
void tensor_free_all(struct job *job);
#endif
