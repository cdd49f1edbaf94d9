#ifndef BPS_SCHEDULER_CORE_MEMBERS_H
#define BPS_SCHEDULER_CORE_MEMBERS_H
#include "bps-scheduler/model/model.h"

/* Make the connection that of the member in its first message, a new one or one that returns.
 * False: it was refused. Else the caller commits, then sends WELCOME or undoes it. */
bool sched_hello(struct sched_core *c, struct sched_conn *conn, const struct ctl_hello *h);
/* The state cannot be written. Until it can, the member must learn nothing of the new state. */
void sched_hello_undo(struct sched_core *c, struct sched_conn *conn);
/* sched_expel, within an event. */
void sched_member_expel(struct sched_core *c, enum role role, const char *name);
/* A server hears an agent that is silent here. */
void sched_seen(struct sched_core *c, const struct ctl_sight *s);
/* Declare the member dead when its time is over, else arm for that time. */
void sched_member_check(struct sched_core *c, struct sched_member *m);
/* Before the members are checked (isolation.c). */
void isolation_tick(struct sched_core *c);
#endif
