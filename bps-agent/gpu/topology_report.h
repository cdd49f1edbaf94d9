#ifndef BPS_AGENT_GPU_TOPOLOGY_REPORT_H
#define BPS_AGENT_GPU_TOPOLOGY_REPORT_H
/* This machine's GPUs and how their gradients would travel, for the status: a document of
 * bps-agent/executor/plan/topology.h and strategy.h. Thread: any. */
#include <jansson.h>

#include "bps-agent/executor/plan/strategy.h"

/* A new object. sysfs: where it is mounted; it is read now (milliseconds). ask: for all GPUs, has
 * its gpus NULL. reports: n of the executor's, or none. why: it finds no GPU, or "". What cannot be
 * read or had is said in the document ("error"). NULL: out of memory. */
json_t *topology_report(const char *sysfs, const struct strategy_ask *ask,
	const struct topo_report *reports, unsigned n, const char *why);
#endif
