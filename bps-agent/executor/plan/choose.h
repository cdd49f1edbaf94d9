#ifndef BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
#define BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
/* The route (route.h) of a job's members by where their GPUs are: sysfs and the open device are
 * asked (topology.h), the rule decides (strategy.h). In the executor, once per job. */
#include "bps-agent/executor/device/device.h"
#include "bps-agent/executor/plan/route.h"
#include "bps-agent/executor/plan/strategy.h"

/* What the device says of its GPUs, for topology_refine; in its order. Returns how many, or the
 * device's error, with a sentence. */
int choose_reports(struct device *dev, struct topo_report ret[TOPO_GPUS_MAX], struct err_text *err);

/* What is chosen for a job's members. */
struct choice {
	struct route route;
	char why[PLAN_WHY_BYTES]; /* for people */
	/* NUMA nodes, plus 1, of the host memory between GPUs and network; 0: anywhere. An input lies
	 * where the GPUs of its group are; where a group has no one node, with the sums when the
	 * GPUs are on several nodes, else anywhere. Sums, which all GPUs read and the network
	 * writes, lie where all GPUs are, or else where the fastest network cards that are up are;
	 * anywhere when those are on several nodes. */
	uint16_t input_nodes[DEVICE_GPUS_MAX]; /* by group of the route */
	uint16_t sum_node;
};

/* sysfs: where it is mounted; without it the GPUs have no place, and the device's word on nodes
 * alone counts. gpus: per member, an index of the device's. want: a word of strategy_words.
 * Errors: as strategy_plan, -EINVAL no such word, -EOPNOTSUPP two members on one GPU when something
 * else than copy is wanted; with a sentence. */
int choose_route(const char *sysfs, struct device *dev, const int *gpus, unsigned n_members,
	const char *want, struct choice *ret, struct err_text *err);
#endif
