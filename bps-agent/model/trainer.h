#ifndef BPS_AGENT_MODEL_TRAINER_H
#define BPS_AGENT_MODEL_TRAINER_H
/* A process that is connected to the agent's socket.
 *
 *   GREETING --HELLO--> JOINING --JOB--> ATTACHED --FINISH--> FINISHING --JOB_END--> OVER
 *   each: socket closed --> GONE (freed when its handles are)
 *
 * Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <uv.h>

#include "bps-agent/quota/quota.h"
#include "common/local/local.h"
#include "common/wire/ctlmsg.h"

struct agent;
struct arena;
struct job;
struct ledger_trainer_live;
struct pending_declare;
struct tensor;

enum trainer_state {
	TRAINER_GREETING,
	TRAINER_JOINING,
	TRAINER_ATTACHED,
	TRAINER_FINISHING,
	TRAINER_OVER,
	TRAINER_GONE,
};

struct trainer {
	TAILQ_ENTRY(trainer) link;
	TAILQ_ENTRY(trainer) of_job; /* in job->trainers, until GONE */
	struct agent *agent;
	uint64_t number; /* unique on this machine, also across restarts */
	bool has_kept_socket;
	struct ledger_trainer_live *live; /* set from HELLO on */
	struct job *job;                  /* set from HELLO on */
	enum trainer_state state;
	int sock, efd;
	/* shows the end of the process even if a forked child keeps the socket open; -1: none */
	int pidfd;
	unsigned n_handles; /* libuv handles that are not closed yet */
	uv_poll_t sock_poll, efd_poll, pid_poll;
	uv_timer_t greeting; /* time limit of GREETING */
	/* Runs while the user exceeds the request rate. The socket is read again when it
	 * expires. */
	uv_timer_t slowed;
	struct quota_pace pace;
	bool is_slowed;
	bool has_waited; /* the next message was delayed, and counted in the request rate then */
	/* A message is being handled. It stays in the socket until it is answered, so that the next
	 * process finds it after a restart. */
	bool is_asking;
	uint32_t asked_seq; /* sequence number of that message */
	/* Set after a restart: the last message, submission or barrier may have been processed but
	 * not recorded. Accept one duplicate of each. */
	bool may_repeat_message, may_repeat_submission, may_have_passed;
	pid_t pid;
	uid_t uid;
	struct quota_account *user;
	uint32_t asked_rank; /* rank that the trainer requests; CTL_NO_ID: any */
	bool has_rank;       /* the scheduler has answered the last JOIN, with rank */
	/* worker: index among the job's local ranks, when the job is RUNNING */
	uint32_t rank, worker;
	uint32_t join_seq, part_bytes, machine_size;
	bool is_waiting; /* used in JOINING: waits to be let into a running job */
	struct local_control *control;
	size_t control_bytes;
	uint32_t sq_head;
	uint32_t max_tensors;
	/* entries of its ring, which also limits its submissions in flight: the ring is never
	 * full */
	uint32_t sq_entries;
	/* its control page has completions for which it was not woken yet */
	bool is_dirty;
	struct tensor **tensors; /* indexed by the trainer's own tensor index */
	uint32_t n_tensors;
	/* input: the newest arena; told_input: the newest arena whose descriptor was sent to the
	 * trainer */
	struct arena *input, *told_input;
	struct pending_declare *declaring; /* the DECLARE under way, or NULL */
	bool is_held;                      /* its socket is not read for now */
	/* stays connected when this process ends: the next process serves it */
	bool is_left;
	/* waits for the answer to its request for the executor */
	bool wants_device;
	/* has requested the executor from this process, and did not give up */
	bool has_asked_device;
	uint32_t why_seq, why_local_seq; /* the trainer's WHY that is not answered yet, 0: none */
	uint64_t why_due_ns;             /* time limit for the scheduler's answer to that WHY */
	/* findings of this agent, which become part of the answer */
	char why_text[CTL_TEXT_MAX + 1];
	uint64_t calls, completed, quiet_since_ns;
};

/* Events of a trainer that trainer.c reports. requests.c implements the functions. */
struct trainer_events {
	/* A message arrived. m is valid only during the call. *mem: memory that holds the strings
	 * of m; set *mem to NULL to take it over. */
	void (*message)(struct trainer *t, const struct local_msg *m, void **mem);
	/* Handle one entry of the trainer's ring, copied and not checked yet. Errors: negative,
	 * with a text: the trainer broke the rules, and is disconnected. */
	int (*submission)(struct trainer *t, const struct local_sqe *e, struct err_text *err);
	/* The trainer's state is about to become GONE. why NULL: the next process of the agent
	 * serves it. */
	void (*going)(struct trainer *t, const char *why);
	/* The trainer's memory is about to be freed. */
	void (*freed)(struct trainer *t);
};
#endif
