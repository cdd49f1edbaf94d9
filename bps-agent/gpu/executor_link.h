#ifndef BPS_AGENT_GPU_EXECUTOR_LINK_H
#define BPS_AGENT_GPU_EXECUTOR_LINK_H
/* The link to a job's executor: the child, its socket and its rings.
 *
 * A successor of this process finds the executor as it was (handover_write.h), is heard by it as
 * its agent from its own START on, and learns where rounds are by beginning them once more (K6,
 * core.h).
 *
 * The data thread's. */
#include "bps-agent/model/agent.h"
#include "common/local/ring_pair.h"

struct ledger_route;

extern const struct executor_ops executor_ops;

/* Adopt the job's executor; sock -1: it is gone. Owns: the descriptors. Errors: with a sentence. */
int executor_restore(struct job *job, int sock, int pidfd, pid_t pid, struct err_text *err);
/* Restore its route: it is running. Errors: BPS_EPROTO it makes no sense. */
int executor_restore_route(struct executor_link *g, const struct ledger_route *k);
/* The agent ends: leave the executors, which see it. */
void executor_stop_all(struct agent *a);
/* For the loop: exchange entries with the executors; true when there were some. */
bool executor_work(struct agent *a);
bool executor_may_sleep(struct agent *a);
void executor_awake(struct agent *a);
/* Executors whose processes live. */
uint32_t executor_count(const struct agent *a);
/* Read what its socket holds. */
void executor_read(struct executor_link *g);
void executor_send(struct executor_link *g, const struct ring_pair_entry *e);
/* It broke, or broke the rules: it is over, and the job with it, unless the job may shrink and goes
 * on without this machine. code: the cause, for the log. The job is told BPS_EDEVICE, or
 * BPS_EWORKER_LOST when that is the cause. */
void executor_fail(struct executor_link *g, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Tell the executor of an arena. Errors: of local_send. */
int executor_tell_arena(struct executor_link *g, uint32_t id, uint64_t bytes, int fd);
#endif
