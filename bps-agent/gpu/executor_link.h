#ifndef BPS_AGENT_GPU_EXECUTOR_LINK_H
#define BPS_AGENT_GPU_EXECUTOR_LINK_H
/* The link to a job's executor: the child, its socket and its rings.
 *
 * After an agent restart, the next process finds the executor unchanged (handover_write.h). The
 * executor accepts it as its agent when it sends its own START. The new process learns the state of
 * rounds by starting them once more (K6, core.h).
 *
 * Thread: the data thread. */
#include "bps-agent/model/agent.h"
#include "common/local/ring_pair.h"

struct ledger_route;

extern const struct executor_ops executor_ops;

/* Adopt the job's executor; sock -1: it is gone. Owns: the descriptors. Errors: with a text. */
int executor_restore(struct job *job, int sock, int pidfd, pid_t pid, struct err_text *err);
/* Restore its route: it is running. Errors: BPS_EPROTO the record is invalid. */
int executor_restore_route(struct executor_link *g, const struct ledger_route *k);
/* Leave the executors running at the agent's end; they notice it. */
void executor_stop_all(struct agent *a);
/* Exchange entries with the executors; true when there were some. The loop calls it. */
bool executor_work(struct agent *a);
bool executor_may_sleep(struct agent *a);
void executor_awake(struct agent *a);
/* Return the number of executors whose processes run. */
uint32_t executor_count(const struct agent *a);
/* Read its socket until it is empty. */
void executor_read(struct executor_link *g);
void executor_send(struct executor_link *g, const struct ring_pair_entry *e);
/* End an executor that failed or broke the protocol. The job fails with it, unless it may shrink
 * and goes on without this machine. code: the cause, for the log. The job ends with BPS_EDEVICE, or
 * with BPS_EWORKER_LOST when that is the cause. */
void executor_fail(struct executor_link *g, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Send an arena to the executor. Errors: of local_send. */
int executor_tell_arena(struct executor_link *g, uint32_t id, uint64_t bytes, int fd);
#endif
