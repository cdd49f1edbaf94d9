#ifndef BPS_SCHEDULER_PLACEMENT_DRAIN_H
#define BPS_SCHEDULER_PLACEMENT_DRAIN_H
/* Drains members, which then get no new work, and empties servers that are drained or leaving.
 *
 * drained   An operator has drained the member. The state lasts until an operator undrains the
 *           member. The state is durable and belongs to the member's name, so it survives restarts
 *           of the member and of the scheduler. The partitions of a drained server move to other
 *           servers (balance.h). The machine of a drained agent gets no new jobs, but its running
 *           jobs continue.
 * leaving   A server's process has sent LEAVE because it is about to end. The state belongs to that
 *           process, so a later process with the same name is not leaving. The scheduler answers
 *           LEFT when the server has no partitions any more. If its partitions cannot move, the
 *           scheduler answers at once, with the reason.
 *
 * The last server that accepts partitions can be neither drained nor leaving, because no other
 * server could take its partitions. If all other servers are lost later, a drained server takes
 * their partitions after all.
 *
 * This file is part of the core: it runs on the core's thread and reads no clock. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

struct sched_core;
struct sched_member;
struct state_member;

/* Find a member. target: "NAME" of a server or agent. If a server and an agent have the same name,
 * target must be "server:NAME" or "agent:NAME". Errors: BPS_ENOTFOUND if no member has
 * this name; -EINVAL if the name is ambiguous. On errors, err contains a sentence. */
int drain_find_member(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err);

/* Drain the target. If the target is already drained, replace its reason, unless the new reason is
 * empty. After every success, the caller must call sched_commit. *ret: the drained member. Errors:
 * the errors of drain_find_member; -EBUSY if the target is the last server that accepts partitions,
 * or if the other servers lack memory for the target's sums. */
int drain_set_member(struct sched_core *c, const char *target, const char *reason, const char *who,
	struct sched_member **ret, struct err_text *err);
/* Write a sentence about what a drain of the target would do, and change nothing. Errors: those of
 * drain_set_member. */
int drain_preview(struct sched_core *c, const char *target, struct err_text *ret_text);
/* Undrain the target. After every success, the caller must call sched_commit. Errors: the errors of
 * drain_find_member; -EALREADY if the target is not drained. */
int drain_clear_member(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err);
/* Write a sentence about the effect of draining or undraining m. Returns 0. */
int drain_describe(
	const struct sched_core *c, const struct sched_member *m, struct err_text *ret_text);

/* Return how many servers the cluster can lose, one after another, such that the remaining servers
 * still have enough memory for all sums. At least one server must remain. The rules of a drain
 * decide which servers take the partitions and how much of their memory counts. Set
 * *ret_lacks_memory if memory is the limit. */
uint32_t drain_tolerated_losses(const struct sched_core *c, bool *ret_lacks_memory);

/* Return the number of partitions of all jobs on a server. */
uint64_t drain_count_parts(const struct sched_core *c, const struct sched_member *m);

/* Return whether m is a drained agent that has sent LEAVE. Such an agent is dead as soon as its
 * connection closes. The agent gets no time to return. */
bool drain_has_stopped(const struct sched_member *m);
/* Handle LEAVE, with which a server or agent announces its end. LEAVE from an agent that is not
 * drained is only answered, because the agent may be restarting. */
void drain_receive_leave(struct sched_core *c, struct sched_member *m);
/* Send LEFT to each leaving server that has no partitions any more. Must run after the changes are
 * durable and sent. */
void drain_answer_leavers(struct sched_core *c);

/* Restore the drain of m from its state record. */
void drain_restore(struct sched_member *m, const struct state_member *s);
#endif
