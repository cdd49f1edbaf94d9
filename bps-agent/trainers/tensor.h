#ifndef BPS_AGENT_TRAINERS_TENSOR_H
#define BPS_AGENT_TRAINERS_TENSOR_H
/* Tensors of a job on this machine: find, submit, refuse. The data thread's. */
#include "bps-agent/model/agent.h"

extern const struct tensor_kind host_tensor_kind;

/* Returns NULL if no worker here has declared it. */
struct tensor *tensor_find(struct job *job, const char *name);
/* Create a tensor that no worker has declared yet, for that worker. NULL: out of memory. Owns: the
 * job has it. */
struct tensor *tensor_new(struct job *job, uint32_t worker, const struct local_decl *d);
/* Forget a tensor whose declaration was refused; its name is free. Memory that it already has is
 * freed with the job. */
void tensor_forget(struct tensor *tensor);
/* Give the tensor to the core and report it to the scheduler: all local workers have declared it,
 * and its memory is there. If that fails it is refused. */
void tensor_complete(struct tensor *tensor);
/* Resume a tensor from its records, and send its trainers what they may have missed. */
void tensor_resume(struct tensor *tensor);
/* Fail it: every round ends with code. */
void tensor_refuse(struct tensor *tensor, int code, const char *text);
/* Handle one entry of the trainer's ring, copied and not checked yet. Errors: negative, with a
 * text: the trainer broke the rules. */
int tensor_on_submission(struct trainer *t, const struct local_sqe *e, struct err_text *err);
/* Submit a worker's next round. Errors: BPS_EBUSY. Any other failure is the job's and ends the
 * round. */
int tensor_to_core(struct tensor *tensor, uint32_t w, const struct pending_submission *p);
/* Report to a worker, if it is there, that a round is over; a failure also releases its stream. */
void tensor_tell_done(
	struct tensor *tensor, uint32_t w, uint64_t round, int status, uint32_t workers);
/* Add a declaration to the batch for the scheduler: each message costs the scheduler a sync of its
 * disk. Flush before the names' memory is freed. */
void tensor_add_declare(
	struct job *job, uint32_t rank, const char *name, uint8_t dtype, uint64_t n_elems);
void tensor_flush_declares(struct job *job);
/* Declare again the tensors that the scheduler has not answered. */
void tensor_declare_unplanned(struct job *job);
/* Handle a plan of the scheduler; m is lent. */
void tensor_on_plan(struct agent *a, const struct ctl_plan *m);
void tensor_on_fail(struct agent *a, const struct ctl_tensor_fail *m);
/* Handle the end of a round: the core's done callback. */
void tensor_core_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
/* End, with the code of the job's end, the rounds that never reached the core. */
void tensor_fail_pending(struct job *job);
/* Free all tensors, after the core has released the job's memory. */
void tensor_free_all(struct job *job);
#endif
