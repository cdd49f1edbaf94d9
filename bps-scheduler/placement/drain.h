#ifndef BPS_SCHEDULER_PLACEMENT_DRAIN_H
#define BPS_SCHEDULER_PLACEMENT_DRAIN_H
/* Members that are to get nothing new, and servers that are to lose what they have.
 *
 *   drained   by an operator, until he takes it back; durable, by the member's name, so that it
 *             outlives restarts of the member and of the scheduler. A server's partitions move to
 *             the others (balance.h), an agent's machine gets no new jobs; what runs there goes on.
 *   leaving   a server's process says LEAVE because it is about to end. Of that instance only: the
 *             next one is a server as any other. It is told LEFT when nothing is placed on it any
 *             more, or why it need not wait for that.
 *
 * The last server that takes partitions can be neither: they would have nowhere to go. When all
 * others are lost later, a drained one takes them all the same.
 *
 * Part of the core: its thread, no clock. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

struct sched_core;
struct sched_member;
struct state_member;

/* target: "NAME" of a server or agent, or "server:NAME", "agent:NAME" where one of each has it.
 * Errors: BPS_ENOTFOUND, -EINVAL it is not clear which; with a sentence. */
int drain_find(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err);

/* Drain the target, or give a drained one a new reason; an empty reason leaves the former one. The
 * caller commits. ret: the member. Errors: as drain_find; -EBUSY it is the last server, or the
 * others have no memory for its sums. */
int drain_set(struct sched_core *c, const char *target, const char *reason, const char *who,
	struct sched_member **ret, struct err_text *err);
/* The caller commits. Errors: as drain_find; -EALREADY it is not drained. */
int drain_clear(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err);
/* A sentence about what draining m, or the end of that, leads to. Returns 0. */
int drain_describe(
	const struct sched_core *c, const struct sched_member *m, struct err_text *ret_text);

/* How many partitions of all jobs are on a server. */
uint64_t drain_parts(const struct sched_core *c, const struct sched_member *m);

/* An agent that was drained has said LEAVE: when its connection closes it is gone, without a window. */
bool drain_has_stopped(const struct sched_member *m);
/* LEAVE of a server, or of an agent, for which a restart and an end are the same unless it is
 * drained. */
void drain_leave(struct sched_core *c, struct sched_member *m);
/* What has changed is durable and told: LEFT to those who are empty by now. */
void drain_settle(struct sched_core *c);

/* From a record. */
void drain_restore(struct sched_member *m, const struct state_member *s);
#endif
