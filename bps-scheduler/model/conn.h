#ifndef BPS_SCHEDULER_MODEL_CONN_H
#define BPS_SCHEDULER_MODEL_CONN_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

struct sched_conn {
	uint32_t id;
	struct sched_member *member; /* NULL before HELLO */
	bool is_known;               /* its HELLO named a member that already existed */
	bool has_master;             /* the peer has the cluster's master key */
	uint64_t deadline_ns;        /* end of the time to send HELLO */
	struct sched_conn *next;
};

/* Return the link to that connection in its bucket's list. *it is NULL if there is no such
 * connection. */
struct sched_conn **sched_conn_at(struct sched_core *c, uint32_t id);
/* Free the connection. The member keeps its state. */
void sched_conn_forget(struct sched_core *c, uint32_t id);
/* Close the connection and forget it. */
void sched_conn_drop(struct sched_core *c, uint32_t id, const char *why);
/* Handle the lost connection of m, which is UP: m has its window to return. */
void sched_member_suspect(struct sched_core *c, struct sched_member *m, const char *why);
/* Close the connection of a member that violated the protocol. The member may connect again. */
void sched_kick(struct sched_core *c, struct sched_member *m, const char *why);
#endif
