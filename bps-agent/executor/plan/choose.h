#ifndef BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
#define BPS_AGENT_EXECUTOR_PLAN_CHOOSE_H
/* Chooses the route (route.h) of a job's members by where their GPUs are. Reads sysfs and the open
 * device (topology.h); the rule decides (strategy.h). Runs in the executor, once per job. */
#include "bps-agent/executor/device/device.h"
#include "bps-agent/executor/plan/route.h"
#include "bps-agent/executor/plan/strategy.h"

/* Read the device's GPUs, in its order, for topology_refine. Returns their number, or the device's
 * error, with a text. */
int choose_reports(struct device *dev, struct topo_report ret[TOPO_GPUS_MAX], struct err_text *err);

/* The choice for a job's members. */
struct choice {
	struct route route;
	char why[PLAN_WHY_BYTES]; /* for display */
	/* NUMA nodes, plus 1, of the host memory between GPUs and network; 0: anywhere. An input
	 * lies where the GPUs of its group are. If a group's GPUs are on several nodes, its input
	 * lies with the sums when the job's GPUs are on several nodes, else anywhere. All GPUs read
	 * the sums and the network writes them. They lie where all GPUs are, or else where the
	 * fastest network cards that are up are; anywhere when those are on several nodes. */
	uint16_t input_nodes[DEVICE_GPUS_MAX]; /* by group of the route */
	uint16_t sum_node;
};

/* Choose the route. sysfs: where it is mounted; without it the GPUs have no place, and only the
 * device reports nodes. gpus: per member, an index of the device's. want: a word of strategy_words.
 * Errors: as strategy_plan, -EINVAL no such word, -EOPNOTSUPP two members on one GPU and another
 * route than copy is wanted; with a text. */
int choose_route(const char *sysfs, struct device *dev, const int *gpus, unsigned n_members,
	const char *want, struct choice *ret, struct err_text *err);
#endif
