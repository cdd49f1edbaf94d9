#ifndef BPS_SCHEDULER_MODEL_STALL_H
#define BPS_SCHEDULER_MODEL_STALL_H
/* A job whose round makes no progress, and the findings of the last probe of its agents.
 * core/stalls.h has the states and the rules. A zeroed struct sched_stall means a job that makes
 * progress. */
#include <stdbool.h>
#include <stdint.h>

#define SCHED_FINDINGS_MAX 16

enum sched_finding_kind {
	FINDING_NO_ANSWER, /* an agent did not answer the probe */
	FINDING_STRAGGLER, /* a few workers have not submitted a tensor that many others wait for */
	/* workers have not submitted a tensor for which other workers have waited too long */
	FINDING_STALLED,
};
struct sched_finding {
	enum sched_finding_kind kind;
	/* Id of the agent. A finding about workers has the agent of the first late worker. */
	uint32_t agent;
	/* For a finding about workers: rank and pid of the first late worker, and the number of
	 * other late workers. */
	uint32_t rank, pid, n_more;
	uint32_t n_waiting;
	/* Id of the tensor. CTL_NO_ID means that the tensor is unknown, because the job has no
	 * partitions on servers. */
	uint32_t tensor;
	uint64_t round; /* round for which the late workers have not submitted the tensor */
	uint64_t since_ns;
};

enum stall_state { STALL_MOVING, STALL_STANDING, STALL_PROBING, STALL_PROBED, STALL_STATES };
struct sched_stall {
	enum stall_state state;
	uint64_t moved_ns; /* when a round of the job last completed */
	uint64_t due_ns;   /* time of the next probe; unused in MOVING */
	/* Number of rounds that the servers had completed at the last check. A round is counted
	 * once for each partition. */
	uint64_t rounds;
	/* number of calls that all workers together had completed at the last probe */
	uint64_t completed;
	bool has_completed;
	uint32_t probe_seq; /* number of the running probe; only valid in PROBING */
	struct sched_finding findings[SCHED_FINDINGS_MAX];
	uint32_t n_findings;
};
#endif
