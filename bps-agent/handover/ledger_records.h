#ifndef BPS_AGENT_HANDOVER_LEDGER_RECORDS_H
#define BPS_AGENT_HANDOVER_LEDGER_RECORDS_H
/* Records of a job's ledger: fixed parts, which are written once, and live parts, which are kept up
 * to date. handover_write.c writes them, handover_read.c reads them. */
#include <stdatomic.h>
#include <stdint.h>

#include "common/local/local_gpu.h"
#include "common/wire/ctlmsg.h"

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
	uint32_t n_told;      /* output arenas below this id are known to it */
	uint32_t told_input;  /* the input arena that it knows: its id + 1 */
	uint64_t barrier;     /* at which it waits */
	uint32_t barrier_seq; /* of the answer that it waits for, 0: it is at none */
	uint32_t device_seq;  /* the same of its question for the executor */
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
#endif
