#ifndef BPS_AGENT_GPU_GPU_PROBE_H
#define BPS_AGENT_GPU_GPU_PROBE_H
/* Finds the machine's GPUs once, when the agent starts. The agent itself never loads CUDA: the
 * control loop reads the output of a child (`bps-agent-cuda --gpus`). The result is only displayed:
 * jobs look for GPUs themselves.
 *
 *   ASKING --its output ends--> KNOWN, or NONE with the reason       ASKING --20 s--> NONE
 *
 * Thread: the control loop's. */
#include "bps-agent/executor/plan/topology.h"
#include "common/base/error.h"

struct event_base;
struct gpu_probe;

/* Start the probe; program is copied. Errors: -ENOENT no such program, or another, with a text. */
int gpu_probe_start(
	struct event_base *base, const char *program, struct gpu_probe **ret, struct err_text *err);
/* End the child and free the probe. NULL is allowed. */
void gpu_probe_free(struct gpu_probe *p);

/* Return the number of reported GPUs, 0 while it is not known; lent. ret_has_cliques: NCCL can be
 * used on all of them. p may be NULL. */
unsigned gpu_probe_reports(
	const struct gpu_probe *p, const struct topo_report **ret, bool *ret_has_cliques);
/* Return why there are none; "" otherwise. */
const char *gpu_probe_why(const struct gpu_probe *p);
#endif
