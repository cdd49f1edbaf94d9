#ifndef BPS_AGENT_AGENT_H
#define BPS_AGENT_AGENT_H
/* The agent's data thread, as the control thread sees it: start the thread, pass it the scheduler's
 * messages, read its figures, end it. The data thread serves trainers on the UNIX socket and runs
 * the core (core/core.h).
 *
 *   model/     the structs that all files of the thread share
 *   trainers/  messages of trainers, and their jobs    gpu/       executors, and tensors on GPUs
 *   memory/    shared memory                           quota/     limits of users and jobs
 *   handover/  records for the next process            restore/   reads these records
 *
 * A trainer can harm only its own job, because everything that it sends is copied once and then
 * checked. Invalid input closes the trainer's connection. */
#include <jansson.h>

#include "bps-agent/model/control.h"
#include "common/control/member.h"

struct agent;
struct loop;

/* Create the thread and start it. net and member must outlive the thread; cfg is copied. Errors: a
 * negative code, and err gets the text. */
int agent_new(struct net *net, struct member *member, const struct agent_config *cfg,
	struct agent **ret, struct err_text *err);
/* Close the connections of all trainers, or leave them open for the next process (can_hand_over).
 * Then join the thread and free a. NULL is allowed. */
void agent_free(struct agent *a);
/* Events that the control thread posts. MESSAGE: a message of the scheduler. RESYNC_BEGIN and
 * RESYNC_END: before and after the scheduler sends its complete state on a new connection.
 * FORGOTTEN: the scheduler has lost its state about this agent. LIMITS: new limits, valid from the
 * thread's next turn. Resources in use beyond a new limit are not taken away. */
enum agent_event {
	AGENT_MESSAGE,
	AGENT_RESYNC_BEGIN,
	AGENT_RESYNC_END,
	AGENT_FORGOTTEN,
	AGENT_LIMITS,
};
/* Queue an event for the data thread. m: set for AGENT_MESSAGE, else NULL; the call takes its own
 * reference. limits: set for AGENT_LIMITS, else NULL; copied. Errors: -EAGAIN the queue is full,
 * -ENOMEM; the event is lost. */
int agent_post(struct agent *a, enum agent_event event, struct member_msg *m,
	const struct agent_limits *limits);
/* Write the latest figures to *ret; zeros while a is NULL. Thread: the control thread. */
void agent_figures(struct agent *a, struct agent_figures *ret);
/* Let the data thread describe what this machine's workers wait for (trainers/waits_report.h). Then
 * done is called on the control loop; done owns jobs. If one of the two loops ends before that,
 * done is not called. If the data thread hangs, done is called late. Thread: the control thread.
 * Errors: -EAGAIN the queue is full, -ENOMEM. */
int agent_ask_waits(
	struct agent *a, struct loop *control, void (*done)(void *arg, json_t *jobs), void *arg);
/* Write to *ret what each user and job uses. Thread: the control thread. */
void agent_quotas(struct agent *a, struct quota_view *ret);
#endif
