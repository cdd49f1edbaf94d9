#ifndef BPS_AGENT_AGENT_H
#define BPS_AGENT_AGENT_H
/* Interface of the agent's data thread for the control thread. The control thread starts and ends
 * the data thread, passes messages from the scheduler to it, and reads its figures. The data thread
 * serves trainers on the UNIX socket and runs the core (core/core.h).
 *
 *   model/     the structs that all files of the thread share
 *   trainers/  messages of trainers, and their jobs    gpu/       executors, and tensors on GPUs
 *   memory/    shared memory                           quota/     limits of users and jobs
 *   io/        I/O threads
 *   handover/  records for the next process            restore/   reads these records
 *
 * A trainer can harm only its own job, because the agent copies all data of a trainer once and
 * checks the copy. If the input is invalid, the agent closes the trainer's connection. */
#include <jansson.h>

#include "bps-agent/model/control.h"
#include "common/control/member.h"

struct agent;
struct loop;

/* Create the data thread and start it. member and the networks in cfg must outlive the thread; cfg
 * is copied. Errors: a negative code, and err gets the text. */
int agent_new(struct member *member, const struct agent_config *cfg, struct agent **ret,
	struct err_text *err);
/* Pass the carriers of the network cards to the data thread, a bit for each. Errors: -EAGAIN and
 * -ENOMEM: call again later. */
int agent_post_carriers(struct agent *a, uint32_t cards);
/* Close the connections of all trainers. If can_hand_over is set, leave the connections open for
 * the next process instead. Then join the thread and free `a`. NULL is allowed. */
void agent_free(struct agent *a);
/* Events that the control thread posts. MESSAGE: the scheduler has sent a message. RESYNC_BEGIN and
 * RESYNC_END: before and after the scheduler sends its complete state on a new connection.
 * FORGOTTEN: the scheduler has lost its state about this agent. LIMITS: the limits have changed.
 * The new limits take effect when the data thread handles the event. Resources that already exceed
 * a new limit stay in use. */
enum agent_event {
	AGENT_MESSAGE,
	AGENT_RESYNC_BEGIN,
	AGENT_RESYNC_END,
	AGENT_FORGOTTEN,
	AGENT_LIMITS,
};
/* Queue an event for the data thread. m: set for AGENT_MESSAGE, else NULL; agent_post_event takes
 * its own reference to m. limits: set for AGENT_LIMITS, else NULL; copied. Errors: -EAGAIN: the
 * queue is full; -ENOMEM. After an error the event is lost. */
int agent_post_event(struct agent *a, enum agent_event event, struct member_msg *m,
	const struct agent_limits *limits);
/* Write the data thread's latest figures to *ret. If `a` is NULL, write zeros. Thread: the control
 * thread. */
void agent_read_figures(struct agent *a, struct agent_figures *ret);
/* The answer to agent_ask; `done` takes what it holds. */
struct agent_answer {
	json_t *jobs; /* what this machine's workers wait for (trainers/waits_report.h) */
	/* A memory file with the trace, or a negative error code: BPS_ENOTFOUND: there is no such
	 * job; -EBUSY: its trace is being written; -ENOMEM. */
	int fd;
};
typedef void (*agent_answer_fn)(void *arg, const struct agent_answer *answer);
/* Ask the data thread for the trace of the job with the name trace_of (steps/trace.h) or, if
 * trace_of is NULL, what this machine's workers wait for. Then the control loop calls `done`. If
 * the data loop or the control loop ends first, `done` is not called. If the data thread hangs,
 * `done` is called late. Thread: the control thread. Errors: -EAGAIN: the queue is full;
 * -ENOMEM. */
int agent_ask(struct agent *a, struct loop *control, const char *trace_of, agent_answer_fn done,
	void *arg);
/* Write to *ret which resources each user and job uses. Thread: the control thread. */
void agent_read_quotas(struct agent *a, struct quota_view *ret);
#endif
