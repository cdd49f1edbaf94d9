#ifndef BPS_AGENT_HANDOVER_CLUSTER_IDENTITY_H
#define BPS_AGENT_HANDOVER_CLUSTER_IDENTITY_H
/* Identity of this agent's cluster. A separate ledger keeps the identity for the agent's next
 * process. The service manager keeps the ledger's descriptor under the name "cluster".
 * handover_write.h lists the names of the other descriptors. A process that finds jobs continues
 * them at once under the previous member number, and accepts no scheduler of another cluster (C8).
 * A process that finds no jobs starts as a new member. Such a process need not check the cluster,
 * because it has no job that a scheduler of another cluster could end.
 *
 * Thread: the control thread. */
#include <stdbool.h>

#include "common/control/member.h"
#include "common/daemon/fdstore.h"

struct ledger;
struct cluster_live;

struct cluster_identity {
	/* Identity that the agent's previous process has stored. If there is none, member_id is
	 * 0. */
	struct member_past known;
	struct ledger *ledger;
	struct cluster_live *live;
	/* the service manager has not yet accepted the request to forget the previous ledger */
	bool is_unsaid;
};

/* Read the identity that the agent's previous process has stored. Removes from s the descriptor of
 * the ledger that holds this identity. p: zeroed by the caller. */
void cluster_identity_take(struct cluster_identity *p, struct fdstore *s);
/* Record the identity. Call this after a WELCOME from the scheduler, and when the view may have
 * grown. If recording fails, the next call tries again. If the agent is restarted before a call
 * succeeds, the next process finds no identity and waits for the scheduler. */
void cluster_identity_note(struct cluster_identity *p, const struct member_past *now);
/* Forget the identity, because it is not valid any more. */
void cluster_identity_forget(struct cluster_identity *p);
/* Free the memory of p at the end of the process. The service manager keeps the record. */
void cluster_identity_fini(struct cluster_identity *p);
#endif
