#ifndef BPS_AGENT_GPU_TOPOLOGY_REPORT_H
#define BPS_AGENT_GPU_TOPOLOGY_REPORT_H
/* Report of this machine's GPUs and of the route of their gradients, for the status. It has the
 * contents of bps-agent/executor/plan/topology.h and strategy.h. Thread: any. */
#include <jansson.h>

#include "bps-agent/executor/plan/strategy.h"

/* Create the report. sysfs: where it is mounted; it is read now (milliseconds). ask: for all GPUs,
 * with gpus NULL. reports: n of the executor's, or none. why: why it finds no GPU, or "". Failures
 * are reported in the document ("error"). NULL: out of memory. */
json_t *topology_report(const char *sysfs, const struct strategy_ask *ask,
	const struct topo_report *reports, unsigned n, const char *why);
#endif
