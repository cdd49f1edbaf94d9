#ifndef BPS_AGENT_CORE_LOCKSTEP_H
#define BPS_AGENT_CORE_LOCKSTEP_H
/* Keeping the connections of a job in step (A8): lockstep.c says why. A share is what a job has on a
 * link; it lives while the job has partitions there. Thread: the core's. */
#include "bps-agent/core/link.h"

/* The bytes of a job's partitions on one server. */
struct lockstep_server {
	uint32_t server;
	uint64_t bytes;
};

/* What a job has on a link; on link->shares while it has partitions there. */
struct lockstep_share {
	TAILQ_ENTRY(lockstep_share) of_link;
	struct agt_link *link;
	struct agt_job *job;
	struct heap ready;     /* READY partitions, but for those that are parked */
	struct heap_node lag;  /* in job->lagging while lockstep_counts; key: progress */
	struct heap_node wait; /* in job->held; key: the progress that it waits for */
	size_t n_parts;
	uint64_t burst;                   /* the job's that it took part in last */
	uint64_t sent_bytes, ready_bytes; /* in that burst; of ready */
	/* When it sent a contribution last, or could have begun to; the mean gap between two. */
	uint64_t moved_ns, gap_ns;
	bool is_late; /* it has sent nothing for too long: nobody waits for it until it does */
};

/* The job's share of the link, made when there is none. NULL: out of memory. */
struct lockstep_share *lockstep_share_get(struct agt_link *link, struct agt_job *job);
/* Free it if it has no partitions. */
void lockstep_share_put(struct lockstep_share *s);
/* A partition lives on its link now, or does no more. */
void lockstep_add_part(struct lockstep_share *s, const struct agt_part *part);
void lockstep_drop_part(struct lockstep_share *s, const struct agt_part *part);
/* Its link has changed. */
void lockstep_changed(struct lockstep_share *s);
/* A partition can be sent; it can not any more; it has been. */
void lockstep_push(struct agt_part *part);
void lockstep_remove(struct agt_part *part);
void lockstep_sent(struct agt_part *part);
/* It has something to send, and waits for the one furthest behind. */
bool lockstep_is_held(const struct lockstep_share *s);
/* Activate its link when it is not held any more. */
void lockstep_hold(struct lockstep_share *s);
/* Others wait for it, and it for others. */
bool lockstep_counts(const struct lockstep_share *s);
/* Wait no longer for who is late. Returns when the next one will be, UINT64_MAX: never. */
uint64_t lockstep_tick(struct agt_job *job);

#endif
