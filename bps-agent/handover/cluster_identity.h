#ifndef BPS_AGENT_HANDOVER_CLUSTER_IDENTITY_H
#define BPS_AGENT_HANDOVER_CLUSTER_IDENTITY_H
/* To which cluster this agent belongs, kept for its successor in a ledger of its own ("cluster"
 * with the service manager, handover_write.h has the other names). A successor that finds jobs goes
 * on at once, under the number that its predecessor had, and takes no other scheduler for its own
 * (C8); one that finds none has nothing that another cluster could end, and starts as new.
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
	bool is_unsaid; /* the manager was too slow to hear that the last one is forgotten */
};

/* Read what the process before this one has left, out of s. p: zeroed. */
void cluster_identity_take(struct cluster_identity *p, struct fdstore *s);
/* The scheduler has welcomed us, or has told a larger view. What cannot be kept, with
 * the next one perhaps; it is missed by the successor alone, which waits for the scheduler. */
void cluster_identity_note(struct cluster_identity *p, const struct member_past *now);
/* Nothing of it holds any more. */
void cluster_identity_forget(struct cluster_identity *p);
/* The process ends; the service manager has what is kept. */
void cluster_identity_fini(struct cluster_identity *p);
#endif
