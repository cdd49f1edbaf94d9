#ifndef BPS_AGENT_HANDOVER_CLUSTER_IDENTITY_H
#define BPS_AGENT_HANDOVER_CLUSTER_IDENTITY_H
/* Identity of this agent's cluster, kept for the next process in a ledger of its own ("cluster"
 * with the service manager; handover_write.h has the other names). A process that finds jobs
 * continues at once, under the previous member number, and accepts no other scheduler (C8). A
 * process that finds no jobs has nothing that another cluster could end, and starts as new.
 *
 * Thread: the control loop's, all of it. */
#include <stdbool.h>

#include "common/control/member.h"
#include "common/daemon/fdstore.h"

struct ledger;
struct cluster_live;

struct cluster_identity {
	struct member_past known; /* from before the restart; member_id 0: nothing */
	struct ledger *ledger;
	struct cluster_live *live;
	bool is_unsaid; /* the manager was too slow to accept that the last one is forgotten */
};

/* Read the identity that the previous process has left, out of s. p: zeroed. */
void cluster_identity_take(struct cluster_identity *p, struct fdstore *s);
/* Record a WELCOME of the scheduler, or a larger view. If it cannot be kept now, the next call
 * retries; otherwise only a restarted agent misses it and waits for the scheduler. */
void cluster_identity_note(struct cluster_identity *p, const struct member_past *now);
/* Forget the identity: it is not valid any more. */
void cluster_identity_forget(struct cluster_identity *p);
/* Release it at the end of the process; the service manager keeps the record. */
void cluster_identity_fini(struct cluster_identity *p);
#endif
