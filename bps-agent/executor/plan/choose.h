#ifndef BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
#define BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
/* Chooses the route (route.h) of a job's members by where their GPUs are. Reads that from sysfs and
 * the open device (topology.h), and applies the rule of strategy.h. Runs in the executor, once per
 * job. */
#include "bps-agent/executor/device/device.h"
#include "bps-agent/executor/plan/route.h"
#include "bps-agent/executor/plan/strategy.h"

/* Describe the device's GPUs, in the order of the device, for topology_refine. Returns their
 * number, or the device's error with a text. */
int choose_reports(struct device *dev, struct topo_report ret[TOPO_GPUS_MAX], struct err_text *err);

/* The route that was chosen for a job's members. */
struct choice {
	struct route route;
	char why[PLAN_WHY_BYTES]; /* reason for display */
	/* NUMA node + 1 of each piece of host memory between GPUs and network; 0: any node. The
	 * input of a group is on the node of the group's GPUs. If these are on several nodes, it is
	 * on sum_node. The sums are written by the network and read by all GPUs. They are on the
	 * node of the job's GPUs. If these are on several nodes, sum_node is the node of the
	 * fastest network cards that are up; 0 if those are on several nodes, too. */
	uint16_t input_nodes[DEVICE_GPUS_MAX]; /* indexed by group of the route */
	uint16_t sum_node;
};

/* Choose the route. sysfs: where sysfs is mounted; if it is not there, the GPUs have no place on
 * the buses, and NUMA nodes come from the device alone. gpus: for each member, the device's index
 * of its GPU. want: a word of strategy_words. Errors: those of strategy_plan; -EINVAL no such word;
 * -EOPNOTSUPP two members are on one GPU, and want is neither auto nor copy; with a text. */
int choose_route(const char *sysfs, struct device *dev, const int *gpus, unsigned n_members,
	const char *want, struct choice *ret, struct err_text *err);
#endif
