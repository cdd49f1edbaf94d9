#ifndef BPS_AGENT_MODEL_TENSOR_H
#define BPS_AGENT_MODEL_TENSOR_H
/* A tensor of a job on this machine. From the moment all local workers have declared it, its rounds are
 * the core's. The data thread's. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "bps-agent/core/core.h"

struct agt_kept_part;
struct agt_tensor;
struct arena;
struct device_tensor;
struct job;
struct ledger_tensor_live;
struct ledger_worker_live;

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
	uint32_t index; /* in its trainer's tensors */
	struct arena *in_arena;
	struct agt_mem in;
	struct pending_submission pending;
	uint64_t submitted;
	uint64_t since_ns; /* of the last submission */
	uint8_t op;        /* of the last submission */
};

struct tensor {
	TAILQ_ENTRY(tensor) link;
	struct job *job;
	char *name;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t first_worker; /* who asked for it first; it may still wait for memory */
	uint32_t n_declared;
	uint32_t idx; /* among those that are kept; CTL_NO_ID: not kept yet */
	struct ledger_tensor_live *live;
	struct agt_kept_part *parts;           /* of a former life, or once planned */
	uint32_t kept_id, part_elems, n_parts; /* with parts */
	int failed;
	char *fail_text;
	struct agt_tensor *core; /* once all local workers have declared it */
	struct arena *out_arena, *staging_arena;
	struct device_tensor *device; /* it lies in device memory */
	struct agt_mem out[2], staging;
	struct tensor_worker workers[]; /* job->n_workers */
};
#endif
