#ifndef BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
#define BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
/* Writes records about trainers, jobs and tensors, so that the next process of the agent can
 * continue them after a restart. restore/handover_read.c reads the records. Rules for partitions:
 * core.h, K1-K6.
 *
 * The service manager keeps descriptors under these names (fdstore.h), with N a unique number:
 *   tN.s  a trainer's socket       tN.p  pidfd       tN.e  its eventfd       tN.c  its control page
 *   jN.l  a job's ledger           jN.m  its arenas, distinguished by their inode numbers
 *   jN.x  its executor's socket    jN.p  the executor's pidfd
 * "listen" is the listening socket, if the agent has opened it; "cluster" is explained in
 * cluster_identity.h. All other state is in the job's ledger.
 *
 * While the manager accepts no descriptors (systemd pauses during a reload), the descriptors wait
 * in a queue and are sent later, in the same order. If the agent is killed before the queue is
 * empty, the descriptors in the queue are lost.
 *
 * Order: first store the descriptor, then write the record, then answer the processes that rely on
 * the record. If the next process finds a record without its descriptor, the manager has lost the
 * descriptor, and the trainer or job ends. If the next process finds a descriptor without a record,
 * the trainer has received no answer yet. A trainer's message stays in the trainer's socket until
 * the agent has answered the message (trainer.c), so the next process finds the message there.
 *
 * An executor keeps running across a restart of the agent, but is not a child of the next process.
 * The next process sends the entries of the executor's ring again (executor/exec.h). An executor
 * ends when no process holds the other end of its socket.
 *
 * All names fit into FDSTORE_NAME_BYTES. Thread: the data thread. */
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/model/agent.h"
#include "common/daemon/fdstore.h"

/* Store the socket and the pidfd of a trainer that has sent HELLO. Before HELLO, storing is not
 * necessary, because the trainer can connect again. Each descriptor is stored only once, even
 * across restarts. If a descriptor were stored twice, the service manager would hold both copies
 * under one name, and the next process would treat the second copy as another trainer. */
void handover_write_socket(struct trainer *t);
/* Record a new job. Errors: -errno, and err gets the text. */
int handover_write_job(struct job *job, struct err_text *err);
/* Record that the trainer has joined its job, and store the descriptor of the trainer's control
 * page. Errors: -errno, and err gets the text. */
int handover_write_trainer(
	struct trainer *t, uint32_t hello_seq, int control_fd, struct err_text *err);
/* Record that the job runs. The record lists the job's workers on this machine. Errors: -errno. */
int handover_write_running(struct job *job, const struct ctl_job *m, uint16_t my_member);
/* The callback `adopted` of struct arena_set: record an arena of the job. ctx is the job. Errors:
 * -errno. */
int handover_write_arena(void *ctx, struct arena *arena);
/* Record an arena of staging memory for the job's executor. */
int handover_write_staging(struct job *job, struct arena *arena);
/* Record the job's executor, and store its descriptors. Errors: -errno. */
int handover_write_executor(struct executor_link *g);
/* Record the executor's route. Errors: -errno. */
int handover_write_route(const struct executor_link *g);
/* Remove the descriptors of an executor from the service manager, because the executor has
 * ended. */
void handover_forget_executor(struct executor_link *g);
/* Record that a worker has declared the tensor. Also record the places of the worker's input, of
 * the tensor's outputs and of the tensor's staging memory. Existing records are not written again.
 * Errors: -errno. */
int handover_write_declared(struct tensor *tensor, uint32_t worker);
/* The core's callback env->keep. Returns the memory for the state of a tensor's partitions. Returns
 * NULL when out of memory, or if the state from before the restart belongs to a different plan. */
struct agt_kept_part *handover_write_parts(
	void *ctx, void *tensor_user, uint32_t id, uint32_t part_elems, uint32_t n_parts);
void handover_write_refused(const struct tensor *tensor);

/* Remove the descriptors of a trainer or job from the service manager, because the trainer or job
 * has ended and must not be restored. */
void handover_forget_trainer(const struct trainer *t);
void handover_forget_job(const struct job *job);

/* Try again to store the descriptors that the service manager has not accepted. Returns the time at
 * which the caller must call again, or UINT64_MAX if no descriptors are left. */
uint64_t handover_write_tick(struct agent *a, uint64_t now_ns);
/* At the end of the process, try a last time to store the unsent descriptors. */
void handover_write_end(struct agent *a);
#endif
