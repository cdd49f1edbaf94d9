#ifndef BPS_AGENT_TRAINERS_TENSOR_H
#define BPS_AGENT_TRAINERS_TENSOR_H
/* Tensors of a job on this machine: found, submitted, refused. The data thread's. */
#include "bps-agent/model/agent.h"

extern const struct tensor_kind host_tensor_kind;

/* NULL: not declared by anybody here. */
struct tensor *tensor_find(struct job *job, const char *name);
/* Declared by nobody yet, asked for by that worker. NULL: out of memory. Owns: the job has it. */
struct tensor *tensor_new(struct job *job, uint32_t worker, const struct local_decl *d);
/* Forget a tensor that no worker has declared after all; its name is free. Memory of it that is
 * there already comes back with the job. */
void tensor_forget(struct tensor *tensor);
/* All local workers have declared it, and its memory is there: from here on it is the core's, and
 * the scheduler hears of it. If that fails it is refused. */
void tensor_complete(struct tensor *tensor);
/* Resume a tensor from its records, and tell its trainers what they may have missed. */
void tensor_resume(struct tensor *tensor);
/* Fail it: every round ends with code. */
void tensor_refuse(struct tensor *tensor, int code, const char *text);
/* One entry of the trainer's ring, copied and not checked yet.
 * Errors: negative, with a sentence: the trainer broke the rules. */
int tensor_on_submission(struct trainer *t, const struct local_sqe *e, struct err_text *err);
/* A worker's next round. Errors: BPS_EBUSY. Any other failure is the job's and ends the round. */
int tensor_to_core(struct tensor *tensor, uint32_t w, const struct pending_submission *p);
/* Tell a worker, if it is there, that a round is over; a failure lets its stream go, too. */
void tensor_tell_done(
	struct tensor *tensor, uint32_t w, uint64_t round, int status, uint32_t workers);
/* Declarations go to the scheduler together: each message costs it a sync of its disk. Flush before
 * the names' memory goes. */
void tensor_add_declare(
	struct job *job, uint32_t rank, const char *name, uint8_t dtype, uint64_t n_elems);
void tensor_flush_declares(struct job *job);
/* Declare again what the scheduler has not answered. */
void tensor_declare_unplanned(struct job *job);
/* What the scheduler says; m is lent. */
void tensor_on_plan(struct agent *a, const struct ctl_plan *m);
void tensor_on_fail(struct agent *a, const struct ctl_tensor_fail *m);
/* The core's done callback. */
void tensor_core_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
/* The job has ended: end with its code the rounds that never reached the core. */
void tensor_fail_pending(struct job *job);
/* After the core has released the job's memory. */
void tensor_free_all(struct job *job);
#endif
