#ifndef BPS_AGENT_EXECUTOR_PLAN_STRATEGY_H
#define BPS_AGENT_EXECUTOR_PLAN_STRATEGY_H
/* Chooses how a machine sums the gradients of its GPUs, and how it copies sums between the GPUs and
 * host memory. The choice depends on the location of the GPUs (topology.h). The result is a plan,
 * which choose.h converts to a route.
 *
 *   copy        each GPU copies its tensor to host memory; the processor sums; each GPU copies the
 *               sum back
 *   rs_ag       reduce-scatter over all GPUs; each GPU copies its share of the sum to host memory
 *               and back; all-gather
 *   switch_sum  like rs_ag, but among the GPUs of each switch; the processor adds the sums of the
 *               switches
 *   roots       reduce to some GPUs, the roots, below switches without a network card; each root
 *               copies the sum to host memory and back; broadcast
 *   ce          each GPU copies its tensor to host memory; the processor sums; each GPU copies its
 *               share of the sum back, and then gets the shares that it lacks from the other GPUs
 *
 * The rule follows "A Unified Architecture for Accelerating Distributed DNN Training in
 * Heterogeneous GPU/CPU Clusters" (OSDI'20, section 4.2). The rule avoids direct copies across PCI
 * switches, and traffic on an uplink that a network card also uses.
 *
 *   one GPU, or parts of GPUs (MIG)        -> copy
 *   no PCI tree and no NVLink              -> copy
 *   NVLink joins all GPUs                  -> roots, if only some switches with GPUs have a
 *                                             card; the roots are below the other switches
 *                                          -> rs_ag otherwise
 *   NVLink does not join all GPUs          -> rs_ag if there is one group, switch_sum if there are
 *                                             several (GPUs of a group share an uplink or NVLinks)
 *   NCCL is missing, so no collectives     -> where a rule above needs collectives: ce if the GPUs
 *                                             can copy to each other, else copy
 *
 * A plan divides a tensor into n_units equal units, and its steps name ranges of units. Staging
 * memory has n_sources areas of the tensor's size, the sources. Each source receives the tensor of
 * one GPU, or the sum over a group of GPUs. If there are several sources, the processor sums them.
 * Each step belongs to a turn. A plan has one turn per root, or one turn if there are no roots.
 * Successive chunks of a tensor use successive turns. A chunk uses only the steps of its own turn.
 *
 * The functions do no I/O and have no state. Thread: any. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/plan/topology.h"
#include "common/base/error.h"

enum strategy {
	STRATEGY_AUTO, /* a request to apply the rule above; no plan has this value */
	STRATEGY_COPY,
	STRATEGY_RS_AG,
	STRATEGY_SWITCH_SUM,
	STRATEGY_ROOTS,
	STRATEGY_CE,
};
/* The names of the strategies, in the order of the enum and NULL-terminated. The names are the
 * values of the setting gpu-strategy. */
extern const char *const strategy_words[];

enum plan_op {
	/* reduce-scatter in the group, in place; the i-th member gets the sum of the i-th share */
	PLAN_REDUCE_SCATTER,
	PLAN_REDUCE, /* reduce in the group, to the member `gpu` */
	/* the GPU `gpu` copies the step's units to a source on the NUMA node `numa` */
	PLAN_COPY_OUT,
	PLAN_SUM,        /* the processor adds all sources, and the sum is sent to the servers */
	PLAN_COPY_IN,    /* the GPU `gpu` copies the step's units of the sum from host memory */
	PLAN_ALL_GATHER, /* all-gather in the group, in place */
	PLAN_BROADCAST,  /* broadcast in the group, from the member `gpu` */
	/* the GPU `gpu` copies the units that it lacks from the GPUs that have them */
	PLAN_PEER_COPY,
};
/* Return the name of an operation, such as "reduce-scatter". */
const char *plan_op_name(enum plan_op op);

/* A step of a plan. All steps of one op can run in parallel. A step waits for the earlier steps of
 * the list that have another op and use the same units. */
struct plan_step {
	enum plan_op op;
	/* gpu: index in the array `gpus` of the plan. source: index of a source, which is an area
	 * of staging memory. */
	uint8_t group, gpu, turn, source;
	/* NUMA node of the staging memory of a copy; -1: any node */
	int32_t numa;
	/* range of units: the first unit and the number of units */
	uint32_t first, n;
};

#define PLAN_STEPS_MAX 512
#define PLAN_UNITS_MAX 256
#define PLAN_WHY_BYTES 200

struct plan_group {
	unsigned n;
	uint8_t gpus[TOPO_GPUS_MAX];
};

struct transfer_plan {
	enum strategy strategy;
	bool is_forced; /* a setting requires this strategy */
	/* reason for the strategy as a clause: "the 8 GPUs are linked by NVLink" */
	char why[PLAN_WHY_BYTES];
	unsigned n_gpus, n_groups, n_turns, n_sources, n_steps;
	uint32_t n_units;
	uint8_t gpus[TOPO_GPUS_MAX]; /* indexes of GPUs in the topology */
	/* the members of a group are indexes in the array `gpus` */
	struct plan_group groups[TOPO_GPUS_MAX];
	struct plan_step steps[PLAN_STEPS_MAX];
};

struct strategy_ask {
	enum strategy want;   /* requested strategy: STRATEGY_AUTO, or the value of a setting */
	bool has_collectives; /* false only if NCCL is known to be unavailable */
	/* indexes of the job's GPUs in the topology, in the order of the local ranks; the caller
	 * owns the array */
	const unsigned *gpus;
	unsigned n_gpus; /* number of elements of `gpus`; 0: all GPUs of the topology */
};

/* Make the plan. Errors: -EINVAL a GPU does not exist or is named twice; -ENODEV there is no GPU;
 * -EOPNOTSUPP the wanted strategy is not possible on these GPUs. `err` receives the error
 * text. */
int strategy_plan(const struct topology *t, const struct strategy_ask *ask,
	struct transfer_plan *ret, struct err_text *err);
#endif
