#ifndef BPS_SCHEDULER_CORE_MEMBERS_H
#define BPS_SCHEDULER_CORE_MEMBERS_H
#include "bps-scheduler/model/model.h"

/* Assign the connection to the member that its first message names, a new one or one that returns.
 * False: it was refused. Otherwise the caller commits, then sends WELCOME or undoes the
 * assignment. */
bool sched_hello(struct sched_core *c, struct sched_conn *conn, const struct ctl_hello *h);
/* Undo sched_hello, because the state cannot be written. Until it can, the member must not learn of
 * the new state. */
void sched_hello_undo(struct sched_core *c, struct sched_conn *conn);
/* Do the work of sched_expel within an event. */
void sched_member_expel(struct sched_core *c, enum role role, const char *name);
/* Handle a report of a member: when it last received from one of the other role, which is silent
 * here. */
void sched_seen(struct sched_core *c, const struct sched_member *by, const struct ctl_sight *s);
/* Declare the member dead if its time is over; otherwise arm for that time. */
void sched_member_check(struct sched_core *c, struct sched_member *m);
/* Detect isolation. Runs before the members are checked (isolation.c). */
void isolation_tick(struct sched_core *c);
#endif
