#ifndef BPS_SCHEDULER_CORE_MEMBERS_H
#define BPS_SCHEDULER_CORE_MEMBERS_H
#include "bps-scheduler/model/model.h"

/* Handle HELLO: assign the connection to the member that HELLO names. The member may be new, or may
 * return after an earlier connection. Returns false if the member was refused. Otherwise the caller
 * commits. If the commit succeeds, the caller sends WELCOME. If the commit fails, the caller calls
 * sched_hello_undo. */
bool sched_receive_hello(struct sched_core *c, struct sched_conn *conn, const struct ctl_hello *h);
/* Undo sched_receive_hello after its commit failed. The member must not receive a state that is not
 * durable. */
void sched_hello_undo(struct sched_core *c, struct sched_conn *conn);
/* Do the work of sched_expel (core.h), without the commit. */
void sched_member_expel(struct sched_core *c, enum role role, const char *name);
/* Handle SEEN, the answer to SIGHT. The scheduler sends SIGHT about a member that is silent. The
 * member `by` has sent SEEN. SEEN contains the time since `by` last received data from the silent
 * member. */
void sched_receive_sight(
	struct sched_core *c, const struct sched_member *by, const struct ctl_sight *s);
/* Declare the member dead if it has been silent or disconnected for too long; otherwise schedule
 * the next check. */
void sched_member_check(struct sched_core *c, struct sched_member *m);
/* Detect whether this host is cut off from all members (isolation.c). Must run before
 * sched_member_check. */
void isolation_tick(struct sched_core *c);
#endif
