#ifndef BPS_AGENT_RESTORE_HANDOVER_READ_IMPL_H
#define BPS_AGENT_RESTORE_HANDOVER_READ_IMPL_H
/* What handover_read.c, which reads the ledgers, shares with handover_read_gpu.c, which knows the records of
 * device memory. Errors are BPS_EPROTO, and what an executor that is gone says, with a sentence in
 * r->err. */
#include "bps-agent/handover/handover_write.h"

struct restoring {
	struct agent *a;
	struct fdstore *store;
	struct job *job;
	struct quota_account *user;
	struct tensor **tensors; /* by index */
	uint32_t n_tensors, tensors_room;
	struct keep_running running;
	struct err_text err;
};

/* handover_read.c */
/* That record contradicts itself, or others. */
int restore_wrong(struct restoring *r, const char *what);
/* A descriptor out of the store; -1: it is not there. Owns: the caller's. */
int restore_take(struct fdstore *s, char kind, uint64_t number, char what);
/* n_bytes at that place of that arena. False: they are not in it. */
bool restore_place(const struct arena_set *set, uint32_t id, enum arena_kind kind, uint64_t offset,
	uint64_t n_bytes, struct arena **ret_arena, struct agt_mem *ret);
uint64_t restore_bytes(const struct tensor *tensor);

/* handover_read_gpu.c */
/* Readers of KEEP_GPU, KEEP_ROUTE, KEEP_INPUTS. */
int restore_gpu(struct restoring *r, const struct ledger_record *rec);
int restore_route(struct restoring *r, const struct ledger_record *rec);
int restore_inputs(struct restoring *r, const struct ledger_record *rec);
/* The job's tensors on GPUs cannot go on without their executor. */
int restore_check_executor(struct restoring *r);
/* Trainers that ask for the executor and have no answer. */
void restore_ask_again(struct job *job);
#endif
