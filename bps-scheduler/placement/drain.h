#ifndef BPS_SCHEDULER_PLACEMENT_DRAIN_H
#define BPS_SCHEDULER_PLACEMENT_DRAIN_H
/* Members that get nothing new, and servers that lose what they have.
 *
 * drained   by an operator, until an operator undrains it. Durable, by the member's name, so it
 *           survives restarts of the member and of the scheduler. A server's partitions move to
 *           the others (balance.h). An agent's machine gets no new jobs; running jobs continue.
 * leaving   a server's process sends LEAVE because it is about to end. Only that instance is
 *           leaving. It receives LEFT when no partition is placed on it any more, or the reason
 *           why it need not wait for that.
 *
 * The last server that takes partitions can be neither: they would have no other server. If all
 * others are lost later, a drained server takes them all the same.
 *
 * Part of the core: its thread, no clock. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

struct sched_core;
struct sched_member;
struct state_member;

/* Find a member. target: "NAME" of a server or agent, or "server:NAME", "agent:NAME" if one of each
 * has it. Errors: BPS_ENOTFOUND, -EINVAL the name is ambiguous; with a sentence. */
int drain_find(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err);

/* Drain the target, or change the reason if it is drained; an empty reason keeps the former one.
 * The caller commits. ret: the member. Errors: as drain_find; -EBUSY it is the last server, or the
 * others have no memory for its sums. */
int drain_set(struct sched_core *c, const char *target, const char *reason, const char *who,
	struct sched_member **ret, struct err_text *err);
/* Undrain the target. The caller commits. Errors: as drain_find; -EALREADY it is not drained. */
int drain_clear(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err);
/* Write a sentence about the effect of draining or undraining m. Returns 0. */
int drain_describe(
	const struct sched_core *c, const struct sched_member *m, struct err_text *ret_text);

/* Return how many servers may be lost, one after the other, before the others have no memory for
 * all sums; one server must remain. A server is lost as by a drain: the same servers take its
 * partitions, and the same memory counts. Set *ret_lacks_memory if memory is the limit. */
uint32_t drain_losses(const struct sched_core *c, bool *ret_lacks_memory);

/* Return the number of partitions of all jobs on a server. */
uint64_t drain_parts(const struct sched_core *c, const struct sched_member *m);

/* Return whether m, a drained agent, has sent LEAVE. When its connection closes it is gone, without
 * a window. */
bool drain_has_stopped(const struct sched_member *m);
/* Handle LEAVE of a server or an agent. For an agent that is not drained, a restart and an end are
 * the same. */
void drain_leave(struct sched_core *c, struct sched_member *m);
/* Send LEFT to the servers that are empty now. Runs when the changes are durable and sent. */
void drain_settle(struct sched_core *c);

/* Restore from a record. */
void drain_restore(struct sched_member *m, const struct state_member *s);
#endif
