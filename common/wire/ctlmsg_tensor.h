#ifndef BPS_COMMON_WIRE_CTLMSG_TENSOR_H
#define BPS_COMMON_WIRE_CTLMSG_TENSOR_H
/* Control messages about tensors and the placement of their partitions. See ctlmsg.h. */
#include <stdint.h>

#include "common/wire/codec.h"
#include "common/wire/ctlmsg_cause.h"
#include "common/wire/shape_layout.h"
#include "common/wire/tensor_title.h"

struct ctl_decl {
	uint32_t rank; /* rank of one of this agent's workers that have declared the tensor */
	const char *name;
	struct tensor_shape shape;
	/* Error code, as a positive number, with which the tensor has failed on the agent's machine
	 * before this DECLARE. 0: it has not failed. */
	uint32_t code;
};
struct ctl_declare {
	uint32_t job;
	struct ctl_decl *tensors;
	uint32_t n_tensors;
};

struct ctl_tensor {
	uint32_t tensor;
	const char *name;
	struct tensor_shape shape;
	uint32_t part_elems; /* number of elements in every partition except the last */
};
/* A run: the partitions `first` to `first + n - 1` of a tensor. These partitions are all on one
 * thread of one server. pgen: the view in which they got this placement and their present
 * members. */
struct ctl_run {
	uint32_t tensor;
	uint32_t first;
	uint32_t n;
	/* Id of the server; CTL_NO_ID: no server is left, so the agent waits for another PLAN */
	uint32_t server;
	uint64_t instance;
	uint16_t thread;
	uint64_t pgen;
};
/* New tensors, and the placement of partitions as a list of runs. The receiver applies a run to a
 * partition only if the run's pgen is larger than the pgen that the receiver has for the partition.
 * An agent receives all runs. A server receives the runs of the partitions that it has or had. */
struct ctl_plan {
	uint64_t view;
	uint32_t job;
	struct ctl_tensor *tensors;
	uint32_t n_tensors;
	struct ctl_run *runs;
	uint32_t n_runs;
};
struct ctl_tensor_fail {
	uint32_t job;
	const char *name;
	uint32_t code;
	const char *text;
	/* The worker whose declaration differs from the first declaration */
	struct ctl_cause cause;
};
#endif
