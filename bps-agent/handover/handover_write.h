#ifndef BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
#define BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
/* What the agent writes down so that its successor can go on: what a trainer, a job, a tensor is,
 * and where it lies. handover_read.c reads it. Rules for partitions: core.h, K1-K4.
 *
 * With the service manager (fdstore.h), N a number that no other has:
 *   tN.s  a trainer's socket       tN.p  pidfd       tN.e  its eventfd       tN.c  its control page
 *   jN.l  a job's ledger           jN.m  its arenas, told apart by their inode numbers
 *   jN.x  its executor's socket    jN.p  the executor's pidfd
 * and the listening socket as "listen" when it is ours, and "cluster" (cluster_identity.h).
 * All else is in the job's ledger.
 *
 * A manager that stands still for a while, as systemd does when it reloads, gets what is kept
 * later, in the same order: until then a restart loses it.
 *
 * Order: descriptor, then record, then whoever relies on it is told. So a record without descriptor
 * was lost by the manager, and ends what it is about; a descriptor without record is of somebody
 * who was told nothing, and who has not been answered. A trainer's message stays in its socket
 * until it is answered (trainer.c), so a successor finds it there.
 *
 * An executor lives on: it is no child of the successor, and what of it went through rings is said
 * once more (executor/exec.h). It ends when nobody has its socket any more.
 *
 * Thread: the data thread's. All names below fit into FDSTORE_NAME_BYTES. */
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/model/agent.h"
#include "common/daemon/fdstore.h"

/* A trainer has said HELLO; who has not may do so again on a new connection. Only once in all
 * lives: a manager may keep two under one name, and a successor would take the second for another
 * one. */
void handover_write_socket(struct trainer *t);
/* A new job. Errors: -errno with a sentence. */
int handover_write_job(struct job *job, struct err_text *err);
/* The trainer has joined that job, with its control page. Errors: -errno with a sentence. */
int handover_write_trainer(
	struct trainer *t, uint32_t hello_seq, int control_fd, struct err_text *err);
/* All workers are there. Errors: -errno. */
int handover_write_running(struct job *job, const struct ctl_job *m, uint16_t my_member);
/* The adopted callback of struct arena_set: ctx is the job. */
int handover_write_arena(void *ctx, struct arena *arena);
/* The same for staging memory of the job's executor. */
int handover_write_staging(struct job *job, struct arena *arena);
/* The job has an executor; it has a route. Errors: -errno. */
int handover_write_executor(struct executor_link *g);
int handover_write_route(const struct executor_link *g);
/* It is of no more use. */
void handover_forget_executor(struct executor_link *g);
/* That worker has declared it: where its own input, the tensor's outputs and its staging memory
 * lie. What is written already is not written again. Errors: -errno. */
int handover_write_declared(struct tensor *tensor, uint32_t worker);
/* The core's keep callback. */
struct agt_kept_part *handover_write_parts(
	void *ctx, void *tensor_user, uint32_t id, uint32_t part_elems, uint32_t n_parts);
void handover_write_refused(const struct tensor *tensor);

/* Gone for good, not with the process. */
void handover_forget_trainer(const struct trainer *t);
void handover_forget_job(const struct job *job);

/* Offer again what a slow manager has not taken; returns when to be called next. */
uint64_t handover_write_tick(struct agent *a, uint64_t now_ns);
/* A last offer of it, for which a successor may be grateful; from then on nothing is kept. */
void handover_write_end(struct agent *a);
#endif
