#ifndef BPS_AGENT_MODEL_TENSOR_H
#define BPS_AGENT_MODEL_TENSOR_H
/* A tensor of a job on this machine. From the moment all local workers have declared it, its rounds
 * are the core's. The data thread's. */
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

/* A round submitted before the tensor's way was known. */
struct pending_submission {
	bool is_set;
	uint8_t op;
	uint16_t priority;
	uint64_t round;
};

struct tensor_worker {
	struct ledger_worker_live *live; /* when is_declared */
	bool is_declared;
	bool is_declaring; /* it waits for memory */
	uint32_t index;    /* in its trainer's tensors */
	struct arena *in_arena;
	struct agt_mem in;
	struct pending_submission pending;
	uint64_t submitted;
	uint64_t since_ns; /* of the last submission */
	uint8_t op;        /* of the last submission */
};

/* Where a tensor's slots lie, and how its submissions get to the core: host memory
 * (trainers/tensor.c, declare.c) or device memory (gpu/device_tensor.c). A new tensor is the host's
 * until a worker declares it in device memory. */
struct tensor_kind {
	bool has_streams; /* rounds wait for workers' streams, too, which a failure has to let go */
	/* A worker declares it: memory for it, as far as it is missing. Errors: with a sentence;
	 * -EINPROGRESS it is being made, declare_wake follows. BPS_EMISMATCH: another worker has it
	 * in the other kind of memory. */
	int (*declare)(struct trainer *t, struct tensor *tensor, const struct local_decl *d,
		size_t bytes, struct err_text *err);
	/* All workers have declared it: give it to the core. Errors: -ENOMEM. */
	int (*to_core)(struct tensor *tensor);
	/* Submit: now, or when its turn has come. Errors: BPS_EBUSY too far ahead. */
	int (*submit)(struct tensor *tensor, uint32_t worker, const struct pending_submission *p);
	/* What waits may go to the core. */
	void (*submit_waiting)(struct tensor *tensor);
	/* After a restart: what that worker has submitted since round complete. */
	void (*resubmit)(struct tensor *tensor, uint32_t worker, uint64_t complete);
	/* The rounds that wait are over with code. */
	void (*fail_waiting)(struct tensor *tensor, int code);
	/* With has_streams only. A round is over; the tensor has failed; nothing will come for that
	 * worker; the job frees the tensor. */
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
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t first_worker; /* who asked for it first; it may still wait for memory */
	uint32_t n_declared;
	uint32_t idx; /* among those that are kept; CTL_NO_ID: not kept yet */
	struct ledger_tensor_live *live;
	struct agt_kept_part *parts;           /* once planned, also before a restart */
	uint32_t kept_id, part_elems, n_parts; /* with parts */
	int failed;
	char *fail_text;
	struct agt_tensor *core; /* once all local workers have declared it */
	struct arena *out_arena, *staging_arena;
	struct device_tensor *device; /* of the device's kind */
	uint32_t awaited_stream;      /* worker + 1 whose stream the round under way waits for */
	struct agt_mem out[2], staging;
	struct tensor_worker workers[]; /* job->n_workers */
};
#endif
