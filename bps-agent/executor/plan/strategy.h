#ifndef BPS_AGENT_EXECUTOR_PLAN_STRATEGY_H
#define BPS_AGENT_EXECUTOR_PLAN_STRATEGY_H
/* Chooses how the gradients of a machine's GPUs get to the network and back, by where the GPUs are
 * (topology.h). The result is a plan that the executor carries out.
 *
 *   copy        each GPU copies all to host memory, the processor sums; each copies all back
 *   rs_ag       reduce-scatter over all GPUs, each copies its share; all-gather
 *   switch_sum  reduce-scatter among the GPUs of each switch, the processor adds the switches'
 *               sums; all-gather
 *   roots       reduce to GPUs whose switch has no network card, they copy; broadcast
 *   ce          each GPU copies all to host memory, the processor sums; each copies a share back,
 *               then copies among GPUs
 *
 * The rule, after "A Unified Architecture for Accelerating Distributed DNN Training in
 * Heterogeneous GPU/CPU Clusters" (OSDI'20, section 4.2): no direct copies across PCI switches, and
 * as little as possible on an uplink that the network card uses, too.
 *
 *   one GPU -> copy. Parts of GPUs (MIG), or no PCI tree and no NVLink -> copy.
 *   NVLink between all: some switches with GPUs have a card and some have none -> roots, under the
 *                       latter; else -> rs_ag.
 *   no NVLink:          one group -> rs_ag; several -> switch_sum. (A group shares an uplink, or
 *                       is linked by NVLink.)
 *   no collectives (NCCL is missing): ce where GPUs reach each other, else copy, in place of every
 *                       strategy that needs them.
 *
 * A tensor is divided into n_units equal units (padded by its owner); steps name ranges of them.
 * Staging memory holds n_sources times the tensor; the processor sums the sources. Steps of one
 * turn concern only every n_turns-th tensor: so the roots share the work.
 *
 * Pure: no I/O, no state. Thread: any. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/executor/plan/topology.h"
#include "common/base/error.h"

enum strategy {
	STRATEGY_AUTO, /* apply the rule above; never in a plan */
	STRATEGY_COPY,
	STRATEGY_RS_AG,
	STRATEGY_SWITCH_SUM,
	STRATEGY_ROOTS,
	STRATEGY_CE,
};
/* Names of the strategies, in this order and NULL-terminated, for a setting. */
extern const char *const strategy_words[];

enum plan_op {
	PLAN_REDUCE_SCATTER, /* of group, in place: its i-th member then has the i-th share */
	PLAN_REDUCE,         /* of group, to gpu */
	PLAN_COPY_OUT,       /* gpu: these units to source, on node numa */
	PLAN_SUM,            /* the processor: all sources into one; the network follows */
	PLAN_COPY_IN,        /* gpu: copies these units of the sum */
	PLAN_ALL_GATHER,     /* of group, in place */
	PLAN_BROADCAST,      /* of group, from gpu */
	PLAN_PEER_COPY,      /* gpu: copies the units that it lacks from the GPUs that have them */
};
/* Return "reduce-scatter" and so on. */
const char *plan_op_name(enum plan_op op);

/* A step of a plan. All steps of one op can run in parallel. A step starts when the steps before it
 * in the list that use its units have ended. */
struct plan_step {
	enum plan_op op;
	uint8_t group, gpu, turn, source; /* gpu: index in the plan's own list */
	int32_t numa;                     /* of staging memory for copies, -1: any */
	uint32_t first, n;                /* units */
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
	bool is_forced;           /* a setting requires it */
	char why[PLAN_WHY_BYTES]; /* a clause: "the 8 GPUs are linked by NVLink" */
	unsigned n_gpus, n_groups, n_turns, n_sources, n_steps;
	uint32_t n_units;
	uint8_t gpus[TOPO_GPUS_MAX];             /* of the topology */
	struct plan_group groups[TOPO_GPUS_MAX]; /* members by index in gpus */
	struct plan_step steps[PLAN_STEPS_MAX];
};

struct strategy_ask {
	enum strategy want;   /* STRATEGY_AUTO, or the value of a setting */
	bool has_collectives; /* NCCL is available, or may be */
	const unsigned *gpus; /* of the topology, in the order of the local ranks; lent */
	unsigned n_gpus;      /* 0: all of them */
};

/* Make the plan. Errors: -EINVAL a GPU that does not exist, or twice; -ENODEV no GPU; -EOPNOTSUPP
 * the wanted strategy is not possible on these GPUs; with a text. */
int strategy_plan(const struct topology *t, const struct strategy_ask *ask,
	struct transfer_plan *ret, struct err_text *err);
#endif
