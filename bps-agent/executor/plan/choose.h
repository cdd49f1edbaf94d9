#ifndef BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
#define BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
/* Chooses the route (route.h) of a job's members by the location of their GPUs. Reads the locations
 * from sysfs and from the open device (topology.h). Applies the rule of strategy.h. Runs in the
 * executor, once per job. */
#include "bps-agent/executor/device/device.h"
#include "bps-agent/executor/plan/route.h"
#include "bps-agent/executor/plan/strategy.h"

/* Describe the device's GPUs for topology_refine, in the order of their indices in the device.
 * Returns the number of GPUs. If the device reports an error, the function returns the code of the
 * error and writes the device's error text to err. */
int choose_reports(struct device *dev, struct topo_report ret[TOPO_GPUS_MAX], struct err_text *err);

/* The route that was chosen for a job's members. */
struct choice {
	struct route route;
	char why[PLAN_WHY_BYTES]; /* reason for this choice, for display */
	/* The host memory between GPUs and network is placed on NUMA nodes. Each value is the
	 * number of a node plus 1. The value 0 allows any node.
	 *
	 * The input of a group is on the node of the group's GPUs. If these GPUs are on several
	 * nodes, the input is on sum_node.
	 *
	 * The memory on sum_node receives the sums from the network, and all GPUs read the sums.
	 * If all the job's GPUs are on one node, sum_node is that node. Otherwise sum_node is the
	 * node of the fastest network cards that are up, or 0 if these cards are on several
	 * nodes. */
	uint16_t input_nodes[DEVICE_GPUS_MAX]; /* indexed by group of the route */
	uint16_t sum_node;
};

/* Choose the route.
 *   sysfs  mount point of sysfs. Without sysfs, the locations of the GPUs on the buses are not
 *          known, and NUMA nodes come from the device alone.
 *   gpus   for each member, the index of its GPU in the device
 *   want   a word of strategy_words
 * Errors, with a text in err: the errors of strategy_plan, and
 *   -EINVAL      `want` is not a word of strategy_words
 *   -EOPNOTSUPP  two members are on one GPU, and `want` is neither "auto" nor "copy" */
int choose_route(const char *sysfs, struct device *dev, const int *gpus, unsigned n_members,
	const char *want, struct choice *ret, struct err_text *err);
#endif
