#ifndef BPS_AGENT_MODEL_JOB_H
#define BPS_AGENT_MODEL_JOB_H
/* The local part of a job: its trainers, its tensors and their memory.
 *
 *   FORMING --JOB--> RUNNING --JOB_END, or it failed--> ENDED --no trainer left, no read--> freed
 *
 * The data thread's. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "bps-agent/memory/arena.h"
#include "common/wire/ctlmsg.h"

struct agent;
struct agt_job;
struct executor_link;
struct ledger;
struct quota_account;
struct roster;
struct trainer;

#define JOB_BATCH 256 /* declarations in one message to the scheduler */

enum job_state { JOB_FORMING, JOB_RUNNING, JOB_ENDED };

struct job {
	TAILQ_ENTRY(job) link;
	struct agent *agent;
	enum job_state state;
	uint64_t number; /* unique, as a trainer's number */
	struct ledger *ledger;
	uint32_t n_kept; /* tensors in its ledger */
	char name[CTL_JOB_NAME_MAX + 1];
	uid_t uid; /* owner of the job on this machine */
	bool has_token;
	uint8_t token[CTL_TOKEN_BYTES]; /* its proof, see token.h */
	struct quota_account *quota;
	uint32_t size, flags, id; /* id: CTL_NO_ID until the scheduler has assigned it */
	uint16_t backup;          /* machines that a round need not wait for */
	uint32_t grace_ms;        /* time that a round waits for those machines */
	uint32_t max_size;        /* of an elastic job */
	uint64_t barrier;         /* the last barrier that was passed */
	bool is_local;            /* no server takes part */
	uint32_t n_tensors;       /* tensors planned here, when there is only one member */
	uint32_t n_workers;       /* local workers; set from RUNNING on */
	uint64_t view;            /* of its members */
	struct roster *roster;    /* its workers and machines, from RUNNING on */
	uint32_t *ranks;
	struct trainer **by_worker; /* NULL: the worker is gone */
	struct agt_job *core;
	struct executor_link *executor; /* its executor, if a worker has requested one */
	uint64_t running_since_ns;      /* from RUNNING on, in this process */
	bool is_told;                   /* named by the scheduler since the last resync began */
	/* After a restart: its trainers are not read before the scheduler answers. */
	bool is_resumed;
	bool is_busy;      /* the core may still write to its memory */
	uint32_t n_making; /* requests to the memory thread */
	/* one of these requests is for outputs; further ones for outputs wait until it is done */
	bool makes_output;
	TAILQ_HEAD(, pending_declare) waiting;
	int code; /* code of its end */
	char text[CTL_TEXT_MAX + 1];
	TAILQ_HEAD(, trainer) trainers;
	TAILQ_HEAD(, tensor) tensors;
	void *by_name; /* tsearch(3) tree of tensors */
	struct arena_set arenas;
	struct arena *output, *staging;   /* newest */
	struct ctl_decl batch[JOB_BATCH]; /* to be sent */
	uint32_t n_batch;
};
#endif
