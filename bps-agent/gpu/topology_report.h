#ifndef BPS_AGENT_GPU_TOPOLOGY_REPORT_H
#define BPS_AGENT_GPU_TOPOLOGY_REPORT_H
/* Creates a part of the agent's status: this machine's GPUs, and the strategy for summing their
 * gradients. bps-agent/executor/plan/topology.h and strategy.h describe the fields. Any thread may
 * call the function. */
#include <jansson.h>

#include "bps-agent/executor/plan/strategy.h"

/* Create the report. The function reads the devices in sysfs, which takes some milliseconds.
 *   sysfs: path at which sysfs is mounted
 *   ask: request for strategy_plan; ask->n_gpus == 0 selects all GPUs
 *   reports: `n` descriptions of GPUs, made by the executor's program
 *   why: the reason why the executor's program finds no GPU, or ""
 * If a step fails, the field "error" of the report contains the error text. Returns NULL when out
 * of memory. The caller owns the reference. */
json_t *topology_report(const char *sysfs, const struct strategy_ask *ask,
	const struct topo_report *reports, unsigned n, const char *why);
#endif
