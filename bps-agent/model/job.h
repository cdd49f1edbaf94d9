#ifndef BPS_AGENT_MODEL_JOB_H
#define BPS_AGENT_MODEL_JOB_H
/* A job on this machine: its local trainers, its tensors and their memory.
 *
 *   FORMING --JOB--> RUNNING --JOB_END or failure--> ENDED --no trainer and no read left--> freed
 *
 * Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "bps-agent/core/round_log.h"
#include "bps-agent/core/step_log.h"
#include "bps-agent/memory/arena.h"
#include "common/wire/ctlmsg.h"

struct agent;
struct agt_job;
struct executor_link;
struct ledger;
struct quota_account;
struct roster;
struct trainer;

#define JOB_BATCH 256 /* largest number of declarations in one message to the scheduler */

enum job_state { JOB_FORMING, JOB_RUNNING, JOB_ENDED };

struct job {
	TAILQ_ENTRY(job) link;
	struct agent *agent;
	enum job_state state;
	uint64_t number; /* unique on this machine, also across restarts */
	struct ledger *ledger;
	uint32_t n_kept; /* number of tensors in the ledger */
	char name[CTL_JOB_NAME_MAX + 1];
	uid_t uid; /* owner of the job on this machine */
	bool has_token;
	uint8_t token[CTL_TOKEN_BYTES]; /* HMAC of the job token, see trainers/token.h */
	struct quota_account *quota;
	uint32_t size, flags, id; /* id: CTL_NO_ID until the scheduler has assigned it */
	uint16_t backup;          /* number of machines that a round need not wait for */
	/* time in ms that a round waits for late machines after all required machines have
	 * contributed */
	uint32_t grace_ms;
	uint32_t max_size; /* largest number of workers of an elastic job */
	uint64_t barrier;  /* number of the last barrier that the job passed */
	bool is_local;     /* all workers are on this machine, so no server takes part */
	/* number of tensor ids that this agent has assigned; used if is_local */
	uint32_t n_tensors;
	uint32_t n_workers;    /* number of local workers; set when the job starts to run */
	uint32_t n_finished;   /* number of local workers that have called bps_close */
	uint64_t view;         /* view in which the job got its present members */
	struct roster *roster; /* the job's workers and machines; NULL until JOB arrives */
	uint32_t *ranks;
	struct trainer **by_worker; /* indexed by local worker; NULL: the worker has left */
	bool *has_finished;         /* indexed by local worker: it has called bps_close */
	struct agt_job *core;
	struct step_log steps;
	struct round_log rounds;
	uint32_t n_traces;              /* number of traces that are being written */
	struct executor_link *executor; /* the job's executor; NULL: no worker has requested it */
	uint64_t running_since_ns;      /* when this process set the state RUNNING */
	/* the scheduler has sent JOB for this job since the last reconnect */
	bool is_told;
	/* Set after a restart until the scheduler reports the job. Meanwhile no message of the
	 * job's trainers is read. */
	bool is_resumed;
	bool is_busy;      /* the core may still write to the job's memory */
	uint32_t n_making; /* number of open requests to the memory thread */
	/* The memory thread is making output memory for one worker's DECLARE. If the DECLARE of
	 * another worker also needs output memory, that DECLARE waits until this memory is
	 * ready. */
	bool makes_output;
	TAILQ_HEAD(, pending_declare) waiting;
	int code;                    /* error code of the failure; 0: no failure */
	char text[CTL_TEXT_MAX + 1]; /* error text of the failure */
	/* cause of the job's failure, as in struct ctl_cause */
	uint32_t cause_rank;
	char cause_host[CTL_NAME_MAX + 1];
	TAILQ_HEAD(, trainer) trainers;
	TAILQ_HEAD(, tensor) tensors;
	void *by_name; /* tsearch(3) tree of tensors */
	struct arena_set arenas;
	struct arena *output, *staging;   /* newest arena for outputs; newest for staging */
	struct ctl_decl batch[JOB_BATCH]; /* declarations that wait to be sent to the scheduler */
	uint32_t n_batch;
};

/* Return the cause of the job's failure. The job owns the host name of the cause. */
static inline struct ctl_cause job_failure_cause(const struct job *job)
{
	return (struct ctl_cause){job->cause_rank, job->cause_host};
}
#endif
