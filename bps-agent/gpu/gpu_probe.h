#ifndef BPS_AGENT_GPU_GPU_PROBE_H
#define BPS_AGENT_GPU_GPU_PROBE_H
/* Finds the machine's GPUs once, when the agent starts. The agent itself never loads CUDA.
 * Its control loop reads the output of a child process (`bps-agent-cuda --gpus`). The result is
 * used only in the agent's answers to status requests. The executor of a job does not use the
 * result, because each executor finds the GPUs itself.
 *
 *   ASKING --the child's output ends--> KNOWN, or NONE with the reason
 *   ASKING --20 s--> NONE
 *
 * Thread: the control thread. */
#include "bps-agent/executor/plan/topology.h"
#include "common/base/error.h"

struct event_base;
struct gpu_probe;

/* Create the probe and start its child process. program: path of the executor's program.
 * Returns 0 or -errno. If an error occurs, the function writes its text to err. */
int gpu_probe_start(
	struct event_base *base, const char *program, struct gpu_probe **ret, struct err_text *err);
/* End the child and free the probe. NULL is allowed. */
void gpu_probe_free(struct gpu_probe *p);

/* Return the number of GPUs found. While the probe runs, the number is 0. p may be NULL.
 * *ret: descriptions of the GPUs; the probe owns this array.
 * *ret_has_cliques: whether NCCL can be used on all of the GPUs. */
unsigned gpu_probe_reports(
	const struct gpu_probe *p, const struct topo_report **ret, bool *ret_has_cliques);
/* Return why no GPU was found; "" if GPUs were found, or while the probe runs. */
const char *gpu_probe_why(const struct gpu_probe *p);
#endif
