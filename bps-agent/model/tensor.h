#ifndef BPS_AGENT_MODEL_TENSOR_H
#define BPS_AGENT_MODEL_TENSOR_H
/* A tensor of a job on this machine. When all local workers have declared the tensor, the core runs
 * the tensor's rounds. Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "bps-agent/core/core.h"

struct arena;
struct device_tensor;
struct err_text;
struct job;
struct local_decl;
struct ledger_tensor_live;
struct ledger_worker_live;
struct tensor;
struct trainer;

/* A worker's submission of a round. The submission waits until the core can accept it. */
struct pending_submission {
	bool is_set;
	bool abstains; /* the worker adds nothing to the round */
	uint8_t op;
	uint16_t priority;
	uint64_t round;
};

struct tensor_worker {
	struct ledger_worker_live *live; /* set if is_declared is true */
	bool is_declared;
	bool is_declaring; /* the worker's declaration waits for memory */
	uint32_t index;    /* the tensor's index in the trainer's table of tensors */
	struct arena *in_arena;
	struct agt_mem in;
	struct pending_submission pending;
	uint64_t submitted;
	uint64_t since_ns; /* time of the last submission */
	uint8_t op;        /* operation of the last submission */
};

/* A kind of tensor: the memory of its slots, and how its submissions get to the core. Kinds: host
 * memory (trainers/tensor.c, declare.c) and device memory (gpu/device_tensor.c). A new tensor is in
 * host memory until a worker declares it in device memory. */
struct tensor_kind {
	/* The workers' GPU streams wait for rounds of tensors of this kind. A failure must release
	 * these streams. */
	bool has_streams;
	/* Declare the tensor for a worker, and make the memory that the tensor still lacks. Errors:
	 * a negative code, and err gets the text. -EINPROGRESS: the memory is being made, and
	 * declare_resume_waiting is called when the memory is ready. BPS_EMISMATCH: an earlier
	 * worker has declared the tensor in a different kind of memory than this worker. */
	int (*declare)(struct trainer *t, struct tensor *tensor, const struct local_decl *d,
		size_t bytes, struct err_text *err);
	/* Return whether the worker has declared the tensor in the memory that `d` names. */
	bool (*is_declared_at)(
		const struct tensor *tensor, uint32_t worker, const struct local_decl *d);
	/* Add the tensor to the core, after all local workers have declared it. Errors: -ENOMEM. */
	int (*to_core)(struct tensor *tensor);
	/* Submit a round to the core, or queue the round while an earlier round is in progress.
	 * Errors: BPS_EBUSY: too many rounds are queued. */
	int (*submit)(struct tensor *tensor, uint32_t worker, const struct pending_submission *p);
	/* Pass waiting submissions to the core, as far as the core can accept them now. */
	void (*submit_waiting)(struct tensor *tensor);
	/* After a restart, submit again the worker's rounds that follow the round `complete`. */
	void (*resubmit)(struct tensor *tensor, uint32_t worker, uint64_t complete);
	/* End the submitted rounds that the core has not accepted. Their trainers get the error
	 * `code`. */
	void (*fail_waiting)(struct tensor *tensor, int code);
	/* The functions below exist only if has_streams is set. round_over: called when a round is
	 * over. cancel: called when the tensor has failed. poison: called when the worker gets no
	 * more rounds. free: called when the job frees the tensor. */
	void (*round_over)(struct tensor *tensor, int status);
	void (*cancel)(struct tensor *tensor);
	void (*poison)(struct tensor *tensor, uint32_t worker);
	void (*free)(struct tensor *tensor);
};

struct tensor {
	const struct tensor_kind *kind;
	TAILQ_ENTRY(tensor) link;
	struct job *job;
	char *name;
	struct tensor_shape shape;
	/* the worker that declared the tensor first; its declaration may still wait for memory */
	uint32_t first_worker;
	uint32_t n_declared;
	/* index of the tensor in the ledger, or CTL_NO_ID if the ledger does not contain it */
	uint32_t idx;
	struct ledger_tensor_live *live;
	/* state of each partition, in memory that survives a restart; NULL until the tensor has
	 * been planned */
	struct agt_kept_part *parts;
	uint32_t kept_id, part_elems, n_parts; /* valid only if `parts` is not NULL */
	/* failed: error code of the tensor's failure, or 0 if the tensor has not failed. fail_text:
	 * text of the failure. cause_host, cause_rank: its cause (struct ctl_cause). */
	int failed;
	char *fail_text, *cause_host;
	uint32_t cause_rank;
	struct agt_tensor *core; /* set when all local workers have declared the tensor */
	struct arena *out_arena, *staging_arena;
	struct device_tensor *device; /* set for a tensor in device memory, else NULL */
	/* 1 + index of the worker whose stream the round in progress waits for, or 0 if the round
	 * waits for no stream */
	uint32_t awaited_stream;
	/* n_begun: number of rounds that the tensor has begun in the job's step that began at
	 * begun_in_ns, unless the tensor sets the pace of the steps */
	uint64_t begun_in_ns;
	uint32_t n_begun;
	struct agt_mem out[2], staging;
	struct tensor_worker workers[]; /* job->n_workers elements, one for each local worker */
};
#endif
