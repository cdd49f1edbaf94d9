#ifndef BPS_AGENT_GPU_GPU_PROBE_H
#define BPS_AGENT_GPU_GPU_PROBE_H
/* What the executor finds of GPUs, asked once when the agent starts, since the agent itself never
 * loads CUDA: a child (`bps-agent-cuda --gpus`) whose output is read by the control loop. It only
 * informs: jobs ask for themselves.
 *
 *   ASKING --its output ends--> KNOWN, or NONE with the reason       ASKING --20 s--> NONE
 *
 * Thread: the control loop's. */
#include "bps-agent/executor/plan/topology.h"
#include "common/base/error.h"

struct event_base;
struct gpu_probe;

/* program is copied. Errors: -ENOENT no such program, or another, with a sentence. */
int gpu_probe_start(
	struct event_base *base, const char *program, struct gpu_probe **ret, struct err_text *err);
/* Ends the child. NULL is allowed. */
void gpu_probe_free(struct gpu_probe *p);

/* How many GPUs it has told of, 0 while that is not known; lent. ret_has_cliques: NCCL can be used
 * on all of them. p may be NULL. */
unsigned gpu_probe_reports(
	const struct gpu_probe *p, const struct topo_report **ret, bool *ret_has_cliques);
/* Why there are none; "" otherwise. */
const char *gpu_probe_why(const struct gpu_probe *p);
#endif
