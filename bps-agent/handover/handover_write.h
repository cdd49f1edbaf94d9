#ifndef BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
#define BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
/* Records that the agent writes so that the next process can continue: what a trainer, a job or a
 * tensor is, and where it lies. handover_read.c reads them. Rules for partitions: core.h, K1-K4.
 *
 * Names with the service manager (fdstore.h), N a unique number:
 *   tN.s  a trainer's socket       tN.p  pidfd       tN.e  its eventfd       tN.c  its control page
 *   jN.l  a job's ledger           jN.m  its arenas, distinguished by their inode numbers
 *   jN.x  its executor's socket    jN.p  the executor's pidfd
 * and the listening socket as "listen" when it is the agent's, and "cluster" (cluster_identity.h).
 * All other state is in the job's ledger.
 *
 * A manager that pauses, as systemd does when it reloads, gets the descriptors later, in the same
 * order. A restart in between loses them.
 *
 * Order: store the descriptor, then write the record, then notify the processes that rely on it. So
 * the manager has lost the descriptor of a record without one, and the record's object ends. A
 * descriptor without a record belongs to a trainer that has received no answer. A trainer's message
 * stays in its socket until it is answered (trainer.c), so the next process finds it there.
 *
 * An executor keeps running across an agent restart. It is no child of the next process, and the
 * ring entries about it are sent once more (executor/exec.h). It ends when no process holds its
 * socket.
 *
 * Thread: the data thread's. All names above fit into FDSTORE_NAME_BYTES. */
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/model/agent.h"
#include "common/daemon/fdstore.h"

/* Record a trainer that has sent HELLO; a trainer that has not may do so again on a new connection.
 * Call it only once, also across restarts: a manager may keep two descriptors under one name, and
 * the next process would take the second for another trainer. */
void handover_write_socket(struct trainer *t);
/* Record a new job. Errors: -errno with a text. */
int handover_write_job(struct job *job, struct err_text *err);
/* Record that the trainer has joined that job, with its control page. Errors: -errno with a
 * text. */
int handover_write_trainer(
	struct trainer *t, uint32_t hello_seq, int control_fd, struct err_text *err);
/* Record that all workers are there. Errors: -errno. */
int handover_write_running(struct job *job, const struct ctl_job *m, uint16_t my_member);
/* Record an arena: the adopted callback of struct arena_set; ctx is the job. */
int handover_write_arena(void *ctx, struct arena *arena);
/* Record staging memory of the job's executor. */
int handover_write_staging(struct job *job, struct arena *arena);
/* Record the job's executor, or its route. Errors: -errno. */
int handover_write_executor(struct executor_link *g);
int handover_write_route(const struct executor_link *g);
/* Forget an executor that is not needed any more. */
void handover_forget_executor(struct executor_link *g);
/* Record that a worker has declared the tensor: where its own input, the tensor's outputs and its
 * staging memory lie. Existing records are not written again. Errors: -errno. */
int handover_write_declared(struct tensor *tensor, uint32_t worker);
/* The core's keep callback. */
struct agt_kept_part *handover_write_parts(
	void *ctx, void *tensor_user, uint32_t id, uint32_t part_elems, uint32_t n_parts);
void handover_write_refused(const struct tensor *tensor);

/* Forget a trainer or a job that is gone for good, not only with the process. */
void handover_forget_trainer(const struct trainer *t);
void handover_forget_job(const struct job *job);

/* Offer again what a slow manager has not accepted; returns when to be called next. */
uint64_t handover_write_tick(struct agent *a, uint64_t now_ns);
/* Offer the unsent descriptors a last time for the next process; later nothing is kept. */
void handover_write_end(struct agent *a);
#endif
