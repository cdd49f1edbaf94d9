#ifndef BPS_AGENT_GPU_TOPOLOGY_REPORT_H
#define BPS_AGENT_GPU_TOPOLOGY_REPORT_H
/* Reports this machine's GPUs and how their gradients would be summed, for the status. The fields
 * are those of bps-agent/executor/plan/topology.h and strategy.h. Thread: any. */
#include <jansson.h>

#include "bps-agent/executor/plan/strategy.h"

/* Create the report. sysfs: path at which sysfs is mounted; the function reads the devices there,
 * which takes milliseconds. ask: request for strategy_plan; n_gpus 0 selects all GPUs. reports: n
 * descriptions of GPUs, made by the executor's program. why: reason why that program finds no GPU,
 * or "". If a step fails, the field "error" of the report contains the error text. Returns NULL
 * when out of memory. The caller owns the reference. */
json_t *topology_report(const char *sysfs, const struct strategy_ask *ask,
	const struct topo_report *reports, unsigned n, const char *why);
#endif
