#ifndef BPS_AGENT_AGENT_H
#define BPS_AGENT_AGENT_H
/* The agent's data thread, for the control thread: started, told what the scheduler says, asked for
 * figures, ended. It serves trainers on the UNIX socket and runs the core.
 *
 *   model/     the structs that all files of the thread share
 *   trainers/  what trainers send, and their jobs      gpu/       executors, and tensors on GPUs
 *   memory/    shared memory                           quota/     who may use how much
 *   handover/  what is written down for a successor    restore/   reads it
 *
 * A trainer can harm its own job only: whatever it sends is copied once, checked, and nonsense
 * closes its connection. */
#include "bps-agent/model/control.h"
#include "common/control/member.h"

struct agent;

/* Make it and start its thread. net and member must outlive it; cfg is copied.
 * Errors: negative, with a sentence. */
int agent_new(struct net *net, struct member *member, const struct agent_config *cfg,
	struct agent **ret, struct err_text *err);
/* Drops all trainers, or leaves them to a successor, joins the thread, frees. NULL is allowed. */
void agent_free(struct agent *a);
/* Events of the control thread. FORGOTTEN: the scheduler has lost all that it knew of this agent.
 * LIMITS: new ones, from the thread's next turn on; what is beyond them already stays. */
enum agent_event {
	AGENT_MESSAGE,
	AGENT_RESYNC_BEGIN,
	AGENT_RESYNC_END,
	AGENT_FORGOTTEN,
	AGENT_LIMITS,
};
/* m: of AGENT_MESSAGE, else NULL; it takes its own reference. limits: of AGENT_LIMITS, else NULL;
 * copied. Errors: -EAGAIN, -ENOMEM: it is lost. */
int agent_post(struct agent *a, enum agent_event event, struct member_msg *m,
	const struct agent_limits *limits);
/* Figures of a moment ago; zeros while a is NULL. Thread: the control thread. */
void agent_figures(struct agent *a, struct agent_figures *ret);
/* Use of each user and job, likewise. */
void agent_quotas(struct agent *a, struct quota_view *ret);
#endif
