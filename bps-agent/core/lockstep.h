#ifndef BPS_AGENT_CORE_LOCKSTEP_H
#define BPS_AGENT_CORE_LOCKSTEP_H
/* Keeps the connections of a job in step (A8); lockstep.c explains why. A share is the part of a
 * job on one link; it lives while the job has partitions there. Thread: the core's. */
#include "bps-agent/core/link.h"

/* The bytes of a job's partitions on one server. */
struct lockstep_server {
	uint32_t server;
	uint64_t bytes;
};

/* The part of a job on a link; on link->shares while the job has partitions there. */
struct lockstep_share {
	TAILQ_ENTRY(lockstep_share) of_link;
	struct agt_link *link;
	struct agt_job *job;
	struct heap ready;    /* READY partitions, except parked ones */
	struct heap_node lag; /* in job->lagging while lockstep_counts; key: progress */
	/* in job->held; key: the progress of the last share that it waits for */
	struct heap_node wait;
	size_t n_parts;
	uint64_t burst;                   /* the last burst of the job in which it took part */
	uint64_t sent_bytes, ready_bytes; /* sent in that burst; waiting in ready */
	/* moved_ns: time of its last contribution, or since when it could send one. gap_ns: mean
	 * gap between two contributions. */
	uint64_t moved_ns, gap_ns;
	bool is_late; /* it has sent nothing for too long: no share waits for it until it does */
};

/* Return the job's share of the link, made when there is none. NULL: out of memory. */
struct lockstep_share *lockstep_share_get(struct agt_link *link, struct agt_job *job);
/* Free the share if it has no partitions. */
void lockstep_share_put(struct lockstep_share *s);
/* Add a partition that lives on the share's link, or drop it. */
void lockstep_add_part(struct lockstep_share *s, const struct agt_part *part);
void lockstep_drop_part(struct lockstep_share *s, const struct agt_part *part);
/* Update the share after its link has changed. */
void lockstep_changed(struct lockstep_share *s);
/* Record that a partition can be sent, cannot be sent any more, or was sent. */
void lockstep_push(struct agt_part *part);
void lockstep_remove(struct agt_part *part);
void lockstep_sent(struct agt_part *part);
/* Return whether the share has something to send, but waits for the one furthest behind. */
bool lockstep_is_held(const struct lockstep_share *s);
/* Queue the share as held; its link is activated when it is not held any more. */
void lockstep_hold(struct lockstep_share *s);
/* Return whether the share takes part: others wait for it, and it for others. */
bool lockstep_counts(const struct lockstep_share *s);
/* Stop waiting for shares that are late. Returns when the next one will be late, UINT64_MAX:
 * never. */
uint64_t lockstep_tick(struct agt_job *job);

#endif
