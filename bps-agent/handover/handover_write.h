#ifndef BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
#define BPS_AGENT_HANDOVER_HANDOVER_WRITE_H
/* What the agent writes down so that its successor can go on: what a trainer, a job, a tensor is,
 * and where it lies. handover_read.c reads it. Rules for partitions: core.h, K1-K4.
 *
 * With the service manager (fdstore.h), N a number that no other has:
 *   tN.s  a trainer's socket       tN.p  pidfd       tN.e  its eventfd       tN.c  its control page
 *   jN.l  a job's ledger           jN.m  its arenas, told apart by their inode numbers
 *   jN.x  its executor's socket    jN.p  the executor's pidfd
 * and the listening socket as "listen" when it is ours, and "cluster" (cluster_identity.h). All else is in the
 * job's ledger.
 *
 * A manager that stands still for a while, as systemd does when it reloads, gets what is kept later,
 * in the same order: until then a restart loses it.
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
#include <stdatomic.h>
#include <stdint.h>

#include "bps-agent/gpu/executor_link.h"
#include "bps-agent/handover/ledger.h"
#include "common/daemon/fdstore.h"

enum ledger_type {
	LEDGER_JOB = 1,
	LEDGER_TRAINER,
	LEDGER_RUNNING,
	LEDGER_ARENA,
	LEDGER_TENSOR,
	LEDGER_DECLARED,
	LEDGER_PARTS,
	LEDGER_REFUSED,
	LEDGER_EXECUTOR,
	LEDGER_ROUTE,
	LEDGER_INPUTS,
	LEDGER_TYPES
};

/* The fixed parts. Numbers are what the names have as N; indices count records of that type. */
struct ledger_job {
	uint64_t number;
	uint32_t uid, size, flags, has_token, backup, grace_ms, max_size;
	uint8_t token[CTL_TOKEN_BYTES];
	char name[CTL_JOB_NAME_MAX + 1];
};
struct ledger_trainer {
	uint64_t number, control_bytes;
	uint32_t hello_seq, asked_rank, part_bytes, join_seq, sq_entries, max_tensors, machine_size,
		unused;
};
struct ledger_running { /* then n_ranks of struct ledger_rank */
	uint32_t id, n_members, my_member, n_ranks;
};
struct ledger_rank {
	uint64_t trainer; /* number */
	uint32_t rank, unused;
};
struct ledger_arena {
	uint64_t bytes, inode;
	uint32_t id;
	uint8_t kind, is_gpu; /* staging memory of the executor: its numbers are of their own */
	uint16_t node;
};
struct ledger_tensor { /* then its name and a zero byte */
	uint64_t n_elems, out_offset[2];
	uint32_t out_arena, gpu_id; /* of a tensor in device memory: the executor's number */
	uint8_t dtype, is_gpu, unused[6];
};
struct ledger_declared {
	uint64_t in_offset; /* is_gpu: in the region that in_arena is then */
	uint32_t tensor, worker, index, in_arena;
};
struct ledger_executor {
	uint32_t pid, unused;
};
struct ledger_route {
	uint32_t n_inputs, sum_node;
	uint16_t input_nodes[LOCAL_GPUS_MAX];
	char route[GPU_WORD_MAX + 1];
};
struct ledger_inputs { /* then n of struct ledger_range */
	uint32_t tensor, n;
};
struct ledger_range {
	uint64_t offset;
	uint32_t arena, unused;
};
struct ledger_parts {
	uint32_t tensor, id, part_elems, n_parts;
};
struct ledger_refused { /* then the sentence and a zero byte */
	uint32_t tensor;
	int32_t code;
};

/* The live parts. */
struct ledger_trainer_live {
	uint32_t sq_head;     /* what is before it has been taken */
	uint32_t handled_seq; /* the last message that was answered */
	uint32_t finish_seq, is_finishing;
	uint32_t n_told, told_input; /* as in struct trainer; told_input: the arena's id + 1 */
	uint64_t barrier;            /* at which it waits */
	uint32_t barrier_seq;        /* of the answer that it waits for, 0: it is at none */
	uint32_t device_seq;         /* the same of its question for the executor */
};
struct ledger_tensor_live {
	uint64_t staging_offset;
	uint32_t staging_arena; /* id + 1, 0: none */
};
/* More than a stream may be ahead (DEVICE_AHEAD), with the round under way and one that is over. */
#define LEDGER_SUBMISSIONS 16
struct ledger_submission {
	uint16_t priority;
	uint8_t op, unused;
};
struct ledger_worker_live { /* of a tensor; submitted is written last */
	struct ledger_submission of[LEDGER_SUBMISSIONS]; /* by round */
	_Atomic uint64_t submitted;
};
static inline struct ledger_submission *ledger_submission_at(
	struct ledger_worker_live *k, uint64_t round)
{
	return &k->of[round % LEDGER_SUBMISSIONS];
}

/* A trainer has said HELLO; who has not may do so again on a new connection. Only once in all lives:
 * a manager may keep two under one name, and a successor would take the second for another one. */
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
/* Its outputs lie somewhere; only once. Errors: -errno. */
int handover_write_tensor(struct tensor *tensor);
/* Of a tensor in device memory: its inputs lie somewhere; only once. Errors: -errno. */
int handover_write_inputs(struct tensor *tensor);
/* There is memory for the sum of its workers. */
void handover_note_staging(struct tensor *tensor);
/* That worker has declared it. Errors: -errno. */
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

/* ---- handover_read.c ---- */
/* What a former life has left, before the thread runs: its jobs and trainers are there again, and
 * wait for the scheduler. What cannot go on is told so and forgotten. Takes descriptors out of
 * s. */
void handover_read(struct agent *a, struct fdstore *s);
#endif
