#ifndef BPS_AGENT_TRAINERS_WHY_STUCK_H
#define BPS_AGENT_TRAINERS_WHY_STUCK_H
/* Describes what a waiting call of a trainer waits for. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Serve WHY: describe what the trainer's call waits for. The answer is sent at once if this machine
 * causes the wait. Otherwise the agent sends WHY to the scheduler, and why_stuck_on_text sends the
 * answer. */
void why_stuck_accept_request(struct trainer *t, uint32_t seq, const struct local_why *w);
void why_stuck_on_text(struct agent *a, const struct ctl_why_text *m);
/* Answer each WHY that the scheduler has not answered within the time limit. The answer contains
 * only this agent's own findings. Returns the next deadline. */
uint64_t why_stuck_tick(struct agent *a, uint64_t now_ns);
/* Append to buf what a tensor waits for. The text states how many of the tensor's partitions have
 * no sum yet, and what delays the one that has waited longest. Also append problems of the executor
 * and of the connections to servers. tensor: the tensor's id. CTL_NO_ID selects the tensor for
 * which workers have waited longest. */
void why_stuck_describe(const struct agent *a, const struct job *job, uint32_t tensor,
	uint64_t now_ns, char *buf, size_t room);
/* Answer the scheduler's PROBE with a REPORT of what this agent's workers wait for. */
void why_stuck_on_probe(struct agent *a, const struct ctl_probe *m);
#endif
