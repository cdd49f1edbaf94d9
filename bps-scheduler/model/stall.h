#ifndef BPS_SCHEDULER_MODEL_STALL_H
#define BPS_SCHEDULER_MODEL_STALL_H
/* A job whose round stands still, and what the last probe of its agents found (core/stalls.h has the
 * states and the rules). Zeroed is a job that moves. */
#include <stdbool.h>
#include <stdint.h>

#define SCHED_FINDINGS_MAX 16

enum sched_finding_kind {
	FINDING_NO_ANSWER, /* agent: did not answer the probe */
	FINDING_STRAGGLER, /* few workers have not submitted what many others wait for */
	FINDING_STALLED,   /* workers have not submitted what others have waited for too long */
};
struct sched_finding {
	enum sched_finding_kind kind;
	uint32_t agent; /* id; of a finding about workers: the first one's */
	/* Of workers: the first one, and how many more there are. */
	uint32_t rank, pid, n_more;
	uint32_t n_waiting;
	uint32_t tensor; /* CTL_NO_ID: not known, the job has no partitions on servers */
	uint64_t round;  /* that they have not submitted */
	uint64_t since_ns;
};

enum stall_state { STALL_MOVING, STALL_STANDING, STALL_PROBING, STALL_PROBED, STALL_STATES };
struct sched_stall {
	enum stall_state state;
	uint64_t moved_ns;  /* when a round was last seen to complete */
	uint64_t due_ns;    /* of the next probe, when it is not MOVING */
	uint64_t rounds;    /* of partitions, complete at the servers, when it was last looked at */
	uint64_t completed; /* calls of all workers, by the last probe */
	bool has_completed;
	uint32_t probe_seq; /* PROBING: of the probe */
	struct sched_finding findings[SCHED_FINDINGS_MAX];
	uint32_t n_findings;
};
#endif
