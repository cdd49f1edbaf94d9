#ifndef BPS_AGENT_HANDOVER_LEDGER_RECORDS_H
#define BPS_AGENT_HANDOVER_LEDGER_RECORDS_H
/* Records of a job's ledger: fixed parts, which are written once, and live parts, which are
 * updated. handover_write.c writes the records, handover_read.c reads them. */
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

/* The fixed part of each kind of record. The field `number` is the number in the name under which
 * the service manager stores the descriptor (handover_write.h). A tensor's index is its position
 * among the records of tensors. */
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
struct ledger_running { /* the record continues with n_ranks elements of struct ledger_rank */
	uint32_t id, n_members, my_member, n_ranks;
};
struct ledger_rank {
	uint64_t trainer; /* number of the trainer that has this rank */
	uint32_t rank, unused;
};
struct ledger_arena {
	uint64_t bytes, inode;
	uint32_t id;
	/* is_gpu: 1 if the arena is staging memory of the executor. The ids of such arenas form a
	 * separate sequence. */
	uint8_t kind, is_gpu;
	uint16_t node;
};
struct ledger_tensor { /* the record continues with the tensor's name and a zero byte */
	struct tensor_shape shape;
	uint64_t out_offset[2];
	/* gpu_id: the executor's id of a tensor in device memory */
	uint32_t out_arena, gpu_id;
	uint8_t is_gpu, unused[7];
};
struct ledger_declared {
	/* for a tensor in device memory: offset in the region with the id `in_arena` */
	uint64_t in_offset;
	uint32_t tensor, worker, index, in_arena;
};
struct ledger_executor {
	uint32_t pid, unused;
};
struct ledger_route {
	uint32_t n_inputs, sum_node;
	uint16_t input_nodes[LOCAL_GPUS_MAX], input_workers[LOCAL_GPUS_MAX];
	char route[GPU_WORD_MAX + 1];
};
struct ledger_inputs { /* the record continues with n elements of struct ledger_range */
	uint32_t tensor, n;
};
struct ledger_range {
	uint64_t offset;
	uint32_t arena, unused;
};
struct ledger_parts {
	uint32_t tensor, id, part_elems, n_parts;
};
struct ledger_refused { /* the record continues with the error text and a zero byte */
	uint32_t tensor;
	int32_t code;
};

/* Live parts. */
struct ledger_trainer_live {
	uint32_t sq_head;     /* the agent has taken all ring entries before this position */
	uint32_t handled_seq; /* sequence number of the last handled message */
	uint32_t finish_seq, is_finishing;
	/* the output arenas with ids below this number were sent to the trainer */
	uint32_t n_told;
	/* id, plus 1, of the last input arena that was sent to the trainer; 0: none */
	uint32_t told_input;
	uint64_t barrier; /* number of the barrier at which the trainer waits */
	/* sequence number of the trainer's BARRIER message that is not answered yet, 0: none */
	uint32_t barrier_seq;
	/* sequence number of the trainer's DEVICE message that is not answered yet, 0: none */
	uint32_t device_seq;
};
struct ledger_tensor_live {
	uint64_t staging_offset;
	uint32_t staging_arena; /* id of the arena, plus 1; 0: none */
};
/* Number of submissions that are kept per worker and tensor. There must be room for DEVICE_AHEAD
 * waiting submissions, the round under way and a finished round. */
#define LEDGER_SUBMISSIONS 16
struct ledger_submission {
	uint16_t priority;
	uint8_t op;
	uint8_t flags; /* enum local_sqe_flags */
};
/* element for a worker of a tensor; the field `submitted` is written last */
struct ledger_worker_live {
	/* the last submissions, see ledger_submission_at */
	struct ledger_submission of[LEDGER_SUBMISSIONS];
	_Atomic uint64_t submitted;
};
static inline struct ledger_submission *ledger_submission_at(
	struct ledger_worker_live *k, uint64_t round)
{
	return &k->of[round % LEDGER_SUBMISSIONS];
}
#endif
