#ifndef BPS_AGENT_GPU_EXECUTOR_LINK_H
#define BPS_AGENT_GPU_EXECUTOR_LINK_H
/* The agent's end of the connection to a job's executor: the child process, its socket and its
 * rings.
 *
 * An executor keeps running when the agent restarts (handover_write.h). The next agent process
 * sends START, and the executor then works for that process. The next process starts all rounds
 * again, and the executor reports the state of each round (K6, core.h).
 *
 * Thread: the data thread. */
#include "bps-agent/model/agent.h"
#include "common/local/ring_pair.h"

struct ledger_route;

extern const struct executor_ops executor_ops;

/* Continue with the executor that the previous agent process started. If sock is -1, the executor
 * has ended, and the state of the new executor_link is OVER. Owns: the function takes over the
 * descriptors. Errors: a negative code; err then explains the error. */
int executor_restore(struct job *job, int sock, int pidfd, pid_t pid, struct err_text *err);
/* Restore the executor's route, and set the state RUNNING. Errors: BPS_EPROTO if the record is
 * invalid. */
int executor_restore_route(struct executor_link *g, const struct ledger_route *k);
/* Close the agent's handles of all executors when the agent ends. An executor keeps running if its
 * descriptors are stored for the next agent process. The agent ends all other executors. */
void executor_stop_all(struct agent *a);
/* Handle the entries in the rings of all executors, and send the entries that wait for space.
 * Returns whether there was any work. The data thread calls this function in each iteration of its
 * loop. */
bool executor_poll_rings(struct agent *a);
bool executors_prepare_sleep(struct agent *a);
void executors_end_sleep(struct agent *a);
/* Return the number of executors whose processes run. */
uint32_t executors_count_in_use(const struct agent *a);
/* Read the executor's socket until it is empty. */
void executor_receive_messages(struct executor_link *g);
void executor_send_entry(struct executor_link *g, const struct ring_pair_entry *e);
/* End an executor that has failed or has violated the protocol. If its job is running, the job
 * fails on this machine. code: the cause, for the log. The job fails with BPS_EWORKER_LOST if code
 * is BPS_EWORKER_LOST, else with BPS_EDEVICE. After BPS_EDEVICE, a job that may shrink continues on
 * the other machines. */
void executor_fail(struct executor_link *g, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Send an arena of staging memory to the executor, which maps it. Errors: those of local_send. */
int executor_send_arena(struct executor_link *g, uint32_t id, uint64_t bytes, int fd);
#endif
