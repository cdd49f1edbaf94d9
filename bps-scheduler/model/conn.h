#ifndef BPS_SCHEDULER_MODEL_CONN_H
#define BPS_SCHEDULER_MODEL_CONN_H
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"

struct sched_conn {
	uint32_t id;
	struct sched_member *member; /* member that uses the connection; NULL before its HELLO */
	/* the HELLO of this connection named a member that already existed */
	bool is_known;
	/* the peer proved its identity with the cluster's master key */
	bool has_master;
	uint64_t deadline_ns; /* time by which HELLO must have arrived */
	struct sched_conn *next;
};

/* Find a connection by id. Returns the address of the pointer that links the connection into its
 * hash chain, so that the caller can unlink the connection. That pointer is NULL if there is no
 * such connection. */
struct sched_conn **sched_conn_find_slot(struct sched_core *c, uint32_t id);
/* Free the record of a connection without closing the connection. The state of its member does not
 * change. */
void sched_conn_forget(struct sched_core *c, uint32_t id);
/* Close the connection and free its record. */
void sched_conn_drop(struct sched_core *c, uint32_t id, const char *why);
/* Handle the loss of the connection of member m. m must be UP and becomes SUSPECT. If m does not
 * connect again within its window (server_window_ms or agent_window_ms), m is declared dead. If the
 * window would end before the end of the scheduler's grace period (c->grace_ns), the window is
 * extended to the end of the grace period. */
void sched_member_set_suspect(struct sched_core *c, struct sched_member *m, const char *why);
/* Close the connection of a member that violated the protocol, and log why. The member may connect
 * again. */
void sched_member_disconnect(struct sched_core *c, struct sched_member *m, const char *why);
#endif
