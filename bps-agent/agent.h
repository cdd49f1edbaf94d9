#ifndef BPS_AGENT_AGENT_H
#define BPS_AGENT_AGENT_H
/* The agent's data thread, as the control thread uses it: start it, post the scheduler's messages,
 * read figures, end it. It serves trainers on the UNIX socket and runs the core.
 *
 *   model/     the structs that all files of the thread share
 *   trainers/  messages of trainers, and their jobs    gpu/       executors, and tensors on GPUs
 *   memory/    shared memory                           quota/     limits of users and jobs
 *   handover/  records for the next process            restore/   reads them
 *
 * A trainer can harm its own job only: all that it sends is copied once and checked. Invalid input
 * closes its connection. */
#include <jansson.h>

#include "bps-agent/model/control.h"
#include "common/control/member.h"

struct agent;
struct loop;

/* Create the thread and start it. net and member must outlive it; cfg is copied. Errors: negative,
 * with a text. */
int agent_new(struct net *net, struct member *member, const struct agent_config *cfg,
	struct agent **ret, struct err_text *err);
/* Close all trainers, or leave them to the next process. Then join the thread and free it. NULL is
 * allowed. */
void agent_free(struct agent *a);
/* Events of the control thread. FORGOTTEN: the scheduler has lost its state about this agent.
 * LIMITS: new limits, valid from the thread's next turn. Use beyond them is kept, not revoked. */
enum agent_event {
	AGENT_MESSAGE,
	AGENT_RESYNC_BEGIN,
	AGENT_RESYNC_END,
	AGENT_FORGOTTEN,
	AGENT_LIMITS,
};
/* m: for AGENT_MESSAGE, else NULL; the call takes its own reference. limits: for AGENT_LIMITS, else
 * NULL; copied. Errors: -EAGAIN, -ENOMEM: the event is lost. */
int agent_post(struct agent *a, enum agent_event event, struct member_msg *m,
	const struct agent_limits *limits);
/* Return the latest figures; zeros while a is NULL. Thread: the control thread. */
void agent_figures(struct agent *a, struct agent_figures *ret);
/* Let the data thread describe what this machine's workers wait for (trainers/waits_report.h), then
 * call done on the control loop with a new reference. Not called when the loop ends before; a
 * thread that hangs calls it late. Thread: the control thread. Errors: -EAGAIN, -ENOMEM. */
int agent_ask_waits(
	struct agent *a, struct loop *control, void (*done)(void *arg, json_t *jobs), void *arg);
/* Return the use of each user and job. Thread: the control thread. */
void agent_quotas(struct agent *a, struct quota_view *ret);
#endif
