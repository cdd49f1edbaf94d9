#ifndef BPS_AGENT_CORE_LOCKSTEP_H
#define BPS_AGENT_CORE_LOCKSTEP_H
/* Keeps the connections of a job in step (A8); lockstep.c explains why. A share is one job's part
 * of one link: the partitions of the job that are placed on that link. Thread: the core's
 * thread. */
#include "bps-agent/core/link.h"

/* A server, and the total bytes of a job's partitions on that server. */
struct lockstep_server {
	uint32_t server;
	uint64_t bytes;
};

/* The share of one job on a link. The share is in link->shares while the job has partitions on the
 * link. */
struct lockstep_share {
	TAILQ_ENTRY(lockstep_share) of_link;
	struct agt_link *link;
	struct agt_job *job;
	struct heap ready; /* READY partitions, except those in job->parked */
	/* entry in job->lagging while lockstep_counts(share) is true; key: progress of the share */
	struct heap_node lag;
	/* Entry in job->held while the share is held. The entry's key is a value of progress. The
	 * share is released at the latest when the share with the least progress reaches this
	 * value. */
	struct heap_node wait;
	size_t n_parts;
	/* value of job->burst when a partition was last added to `ready` */
	uint64_t burst;
	/* sent_bytes: bytes sent in the burst. ready_bytes: bytes of the partitions in `ready`. */
	uint64_t sent_bytes, ready_bytes;
	/* moved_ns: when the share last sent a contribution, or became able to send one. gap_ns:
	 * mean time between two contributions. */
	uint64_t moved_ns, gap_ns;
	/* The share has sent nothing for too long. Until the share sends a contribution, other
	 * shares do not wait for this share. */
	bool is_late;
};

/* Return the job's share of the link, and create the share if there is none. NULL: out of
 * memory. */
struct lockstep_share *lockstep_share_get(struct agt_link *link, struct agt_job *job);
/* Free the share if it has no partitions. */
void lockstep_share_put(struct lockstep_share *s);
/* Count the share's partitions. lockstep_add_part: the partition has been placed on the share's
 * link. lockstep_drop_part: the partition is no longer on this link. */
void lockstep_add_part(struct lockstep_share *s, const struct agt_part *part);
void lockstep_drop_part(struct lockstep_share *s, const struct agt_part *part);
/* Update the share after the state of its link or its ready heap has changed. */
void lockstep_changed(struct lockstep_share *s);
/* Record a change of a partition. lockstep_push_part: the partition can be sent. lockstep_remove:
 * the partition cannot be sent any more. lockstep_record_sent: the partition has been sent. */
void lockstep_push_part(struct agt_part *part);
void lockstep_remove(struct agt_part *part);
void lockstep_record_sent(struct agt_part *part);
/* Return whether the share must wait because another share is too far behind. */
bool lockstep_is_held(const struct lockstep_share *s);
/* Add the share to job->held. The share's link is activated when the share may send again. */
void lockstep_hold_share(struct lockstep_share *s);
/* Return whether the share is kept in step: other shares wait for it, and it waits for other
 * shares. */
bool lockstep_counts(const struct lockstep_share *s);
/* If a share of the job has sent nothing for too long, mark the share as late. Shares do not wait
 * for a late share. Returns the time at which the next share becomes late, or UINT64_MAX if none
 * will. */
uint64_t lockstep_mark_late_shares(struct agt_job *job);

#endif
