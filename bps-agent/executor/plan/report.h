#ifndef BPS_AGENT_EXECUTOR_PLAN_REPORT_H
#define BPS_AGENT_EXECUTOR_PLAN_REPORT_H
/* Format of a GPU's description (struct topo_report) as a line of text. `bps-agent-cuda --gpus`
 * writes such lines. The agent, which never loads CUDA, reads them:
 *
 *   0000:3b:00.0 6a61...(32 hex digits) NODE LINKS PEERS CLIQUES NAME
 *
 * The first word is the PCI address, or "-" if there is none. The second word is the UUID. NODE is
 * the NUMA node in decimal, or -1 if the node is not known. LINKS and PEERS are masks in hex; bit i
 * stands for the GPU of line i. CLIQUES is 1 if NCCL can be used. NAME is the rest of the line. The
 * functions have no state. Thread: any. */
#include <stdbool.h>

#include "bps-agent/executor/plan/topology.h"

#define REPORT_LINE_BYTES 256

/* Write the description as a line of text, without the newline character. */
void topo_report_format(const struct topo_report *r, bool has_cliques, char ret[REPORT_LINE_BYTES]);
/* Parse a line. Returns whether the line is valid. */
bool topo_report_parse(const char *line, struct topo_report *ret, bool *ret_has_cliques);
#endif
