#ifndef BPS_AGENT_TRAINERS_WHY_STUCK_H
#define BPS_AGENT_TRAINERS_WHY_STUCK_H
/* Describes what a call waits for. The data thread's. */
#include "bps-agent/model/agent.h"

/* Answer what a tensor waits for, here or, with the scheduler's answer, in why_stuck_on_text. */
void why_stuck_ask(struct trainer *t, uint32_t seq, const struct local_why *w);
void why_stuck_on_text(struct agent *a, const struct ctl_why_text *m);
/* Answer locally the questions that the scheduler has not answered in time. Returns the next
 * deadline. */
uint64_t why_stuck_tick(struct agent *a, uint64_t now_ns);
/* Append where the open partitions of a tensor are, and the conditions of the executor and the
 * network. tensor: CTL_NO_ID, the one that has been awaited longest. */
void why_stuck_describe(const struct agent *a, const struct job *job, uint32_t tensor,
	uint64_t now_ns, char *buf, size_t room);
/* Answer the scheduler's PROBE with a REPORT: what this agent's workers wait for. */
void why_stuck_on_probe(struct agent *a, const struct ctl_probe *m);
#endif
