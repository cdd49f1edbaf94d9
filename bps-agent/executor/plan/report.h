#ifndef BPS_AGENT_EXECUTOR_PLAN_REPORT_H
#define BPS_AGENT_EXECUTOR_PLAN_REPORT_H
/* A GPU of an executor's report (struct topo_report) as a line of text: `bps-agent-cuda --gpus`
 * writes them, and the agent, which never loads CUDA, reads them:
 *
 *   0000:3b:00.0 6a61...(32 hex digits) NODE LINKS PEERS CLIQUES NAME
 *
 * NODE in decimal, -1: not known; LINKS and PEERS are bit masks of lines, in hex; CLIQUES 1: NCCL
 * can be used; NAME is the rest. "-" stands for no address. Pure; any thread. */
#include <stdbool.h>

#include "bps-agent/executor/plan/topology.h"

#define REPORT_LINE_BYTES 256

/* Write the line without a line end. */
void report_write(const struct topo_report *r, bool has_cliques, char ret[REPORT_LINE_BYTES]);
/* Parse a line. False: it is not valid. */
bool report_parse(const char *line, struct topo_report *ret, bool *ret_has_cliques);
#endif
