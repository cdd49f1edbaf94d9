#ifndef BPS_SCHEDULER_MODEL_CONN_H
#define BPS_SCHEDULER_MODEL_CONN_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

struct sched_conn {
	uint32_t id;
	struct sched_member *member; /* NULL before HELLO */
	bool is_known;               /* its HELLO named a member that was there already */
	uint64_t deadline_ns;        /* for HELLO */
	struct sched_conn *next;
};

/* The place of that connection in its bucket's list; *it is NULL: not there. */
struct sched_conn **sched_conn_at(struct sched_core *c, uint32_t id);
/* Free the connection; a member keeps its state. */
void sched_conn_forget(struct sched_core *c, uint32_t id);
/* Close the connection and forget it. */
void sched_conn_drop(struct sched_core *c, uint32_t id, const char *why);
/* m, which is UP, has lost its connection; it has its window to come back. */
void sched_member_suspect(struct sched_core *c, struct sched_member *m, const char *why);
/* Close the connection of a member that broke the protocol; it may come back. */
void sched_kick(struct sched_core *c, struct sched_member *m, const char *why);
#endif
