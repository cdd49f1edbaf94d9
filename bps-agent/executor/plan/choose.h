#ifndef BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
#define BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
/* Chooses the route (route.h) of a job's members by the location of their GPUs. Reads the locations
 * from sysfs and from the open device (topology.h). Applies the rule of strategy.h. Runs in the
 * executor, once per job. */
#include "bps-agent/executor/device/device.h"
#include "bps-agent/executor/plan/route.h"
#include "bps-agent/executor/plan/strategy.h"

/* Describe the device's GPUs for topology_refine, in the order of the device. Returns the number of
 * GPUs, or the device's error; then err gets the text. */
int choose_reports(struct device *dev, struct topo_report ret[TOPO_GPUS_MAX], struct err_text *err);

/* The route that was chosen for a job's members. */
struct choice {
	struct route route;
	char why[PLAN_WHY_BYTES]; /* reason for this choice, for display */
	/* Number of a NUMA node plus 1, for each piece of host memory between GPUs and network; 0:
	 * any node. The input of a group is on the node of the group's GPUs, or on sum_node if
	 * these GPUs are on several nodes. The memory at sum_node receives the sums from the
	 * network, and all GPUs read the sums. If all the job's GPUs are on one node, sum_node is
	 * that node. Otherwise sum_node is the node of the fastest network cards that are up. If
	 * these cards are on several nodes, too, sum_node is 0. */
	uint16_t input_nodes[DEVICE_GPUS_MAX]; /* indexed by group of the route */
	uint16_t sum_node;
};

/* Choose the route. sysfs: mount point of sysfs. Without sysfs, the locations of the GPUs on the
 * buses are not known, and NUMA nodes come from the device alone. gpus: for each member, the index
 * of its GPU in the device. want: a word of strategy_words. Errors: those of strategy_plan; -EINVAL
 * `want` is not a word of strategy_words; -EOPNOTSUPP two members are on one GPU, and `want` is
 * neither "auto" nor "copy". err gets the text. */
int choose_route(const char *sysfs, struct device *dev, const int *gpus, unsigned n_members,
	const char *want, struct choice *ret, struct err_text *err);
#endif
