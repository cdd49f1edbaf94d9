#ifndef BPS_AGENT_RESTORE_HANDOVER_READ_IMPL_H
#define BPS_AGENT_RESTORE_HANDOVER_READ_IMPL_H
/* Declarations that handover_read.c, handover_trainers.c and handover_read_gpu.c share.
 * handover_read.c reads the ledgers. handover_trainers.c restores trainers. handover_read_gpu.c
 * reads the records of device memory. Functions that return int return
 * 0, BPS_EPROTO, -ENOMEM or the error of an executor that has ended. For an error, r->err gets the
 * text. */
#include "bps-agent/handover/ledger.h"
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/model/agent.h"
#include "common/daemon/fdstore.h"

struct handover_reader {
	struct agent *a;
	struct fdstore *store;
	struct job *job;
	struct quota_account *user;
	struct tensor **tensors; /* indexed by the tensors' ledger index */
	uint32_t n_tensors, tensors_room;
	struct ledger_running running;
	uint64_t *left; /* numbers of the trainers that had finished and have left */
	uint32_t n_left;
	struct err_text err;
};

/* ---- handover_read.c ---- */
/* Set r->err to a text which states that a record contradicts itself or other records. what: the
 * name of the record. Returns BPS_EPROTO. */
int handover_contradicts(struct handover_reader *r, const char *what);
/* Take a descriptor out of the store. The caller then owns the descriptor. -1: the store has no
 * such descriptor. */
int handover_take_fd(struct fdstore *s, char kind, uint64_t number, char what);
/* Find n_bytes at `offset` in the arena with the number `id`. Returns false if no arena of this
 * kind has the number, if the arena is too small, or if `offset` is not a multiple of
 * LOCAL_ALIGN. */
bool handover_place(const struct arena_set *set, uint32_t id, enum arena_kind kind, uint64_t offset,
	uint64_t n_bytes, struct arena **ret_arena, struct agt_mem *ret);
uint64_t handover_tensor_bytes(const struct tensor *tensor);

/* ---- handover_trainers.c ---- */
/* Read LEDGER_TRAINER. */
int handover_read_trainer(struct handover_reader *r, const struct ledger_record *rec);
/* Create a trainer for a socket of the previous process. If memory is exhausted, or if the peer's
 * user cannot be determined, close sock and pidfd, and return NULL. */
struct trainer *handover_restore_trainer(struct agent *a, int sock, int pidfd, uint64_t number);
/* Set *ret to the text for the trainers of a job that cannot continue. */
void handover_describe_lost_job(const char *why, struct err_text *ret);
/* Send the trainer this failure of its job, and disconnect it. */
void handover_drop_trainer(struct trainer *t, const char *text);
/* Remove descriptors from the store. parts: a letter for each descriptor. */
void handover_drop_stored_fds(char kind, uint64_t number, const char *parts);

/* ---- handover_read_gpu.c ---- */
/* Read LEDGER_EXECUTOR, LEDGER_ROUTE and LEDGER_INPUTS. */
int handover_read_executor(struct handover_reader *r, const struct ledger_record *rec);
int handover_read_route(struct handover_reader *r, const struct ledger_record *rec);
int handover_read_inputs(struct handover_reader *r, const struct ledger_record *rec);
/* Return an error if the job has tensors on GPUs and the job's executor has ended. */
int handover_check_executor(struct handover_reader *r);
/* Request the executor again for each of the job's trainers that waits for an answer to DEVICE. */
void handover_repeat_device_request(struct job *job);
#endif
