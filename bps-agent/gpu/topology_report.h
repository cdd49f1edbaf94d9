#ifndef BPS_AGENT_GPU_TOPOLOGY_REPORT_H
#define BPS_AGENT_GPU_TOPOLOGY_REPORT_H
/* Reports this machine's GPUs and how their gradients would be summed, for the status. The fields
 * are those of bps-agent/executor/plan/topology.h and strategy.h. Thread: any. */
#include <jansson.h>

#include "bps-agent/executor/plan/strategy.h"

/* Create the report. sysfs: path at which sysfs is mounted; reading the devices there takes
 * milliseconds. ask: the request to strategy_plan, with gpus NULL for all GPUs. reports: n
 * descriptions of GPUs by the executor's program. why: the reason why that program finds no GPU, or
 * "". If a step fails, the report contains the error as "error". NULL: out of memory. The caller
 * owns the reference. */
json_t *topology_report(const char *sysfs, const struct strategy_ask *ask,
	const struct topo_report *reports, unsigned n, const char *why);
#endif
