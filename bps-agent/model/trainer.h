#ifndef BPS_AGENT_MODEL_TRAINER_H
#define BPS_AGENT_MODEL_TRAINER_H
/* A process that is connected to the agent's socket.
 *
 *   GREETING --HELLO--> JOINING --JOB--> ATTACHED --FINISH--> FINISHING --JOB_END--> OVER
 *   each: socket closed --> GONE (freed when its handles are)
 *
 * The data thread's. */
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
	TAILQ_ENTRY(trainer) of_job; /* job->trainers, until GONE */
	struct agent *agent;
	uint64_t number; /* unique, also across restarts */
	bool has_kept_socket;
	struct ledger_trainer_live *live; /* set from HELLO on */
	struct job *job;                  /* set from HELLO on */
	enum trainer_state state;
	int sock, efd;
	int pidfd;          /* a forked child may keep the socket open; -1 when there is none */
	unsigned n_handles; /* libuv handles that are not closed yet */
	uv_poll_t sock_poll, efd_poll, pid_poll;
	uv_timer_t greeting; /* time limit of GREETING */
	/* The user exceeds the request rate: the socket is read again when the timer expires. */
	uv_timer_t slowed;
	struct quota_pace pace;
	bool is_slowed;
	bool has_waited; /* the next message was already counted when it was delayed */
	/* A message is being answered; it stays in the socket until then. */
	bool is_asking;
	uint32_t asked_seq; /* of that message */
	/* Set after a restart: the last message, submission or barrier may have been processed but
	 * not recorded. Accept one duplicate of each. */
	bool may_repeat_message, may_repeat_submission, may_have_passed;
	pid_t pid;
	uid_t uid;
	struct quota_account *user;
	uint32_t asked_rank;   /* CTL_NO_ID: any */
	bool has_rank;         /* rank is that of the answer to the last JOIN */
	uint32_t rank, worker; /* worker: index among the job's local ranks, when RUNNING */
	uint32_t join_seq, part_bytes, machine_size;
	bool is_waiting; /* JOINING: waits to be let into a running job */
	struct local_control *control;
	size_t control_bytes;
	uint32_t sq_head;
	uint32_t max_tensors;
	/* its limit of submissions in flight, so that its ring is never full */
	uint32_t sq_entries;
	bool is_dirty;           /* has completions that were not reported yet */
	struct tensor **tensors; /* by its index */
	uint32_t n_tensors;
	/* the newest one; the newest one that was sent to the trainer */
	struct arena *input, *told_input;
	struct pending_declare *declaring; /* a DECLARE under way, or NULL */
	bool is_held;                      /* its socket is not read */
	bool is_left;                      /* left to the next process */
	bool wants_device;                 /* requests the executor */
	/* has requested it from this process, and has not given up */
	bool has_asked_device;
	uint32_t why_seq, why_local_seq; /* the trainer's WHY that is not answered yet, 0: none */
	uint64_t why_due_ns;             /* time limit for the scheduler's answer to that WHY */
	char why_text[CTL_TEXT_MAX + 1]; /* the agent's own findings for the answer */
	uint64_t calls, completed, quiet_since_ns;
};

/* Events of a trainer that trainer.c reports; requests.c implements them. */
struct trainer_events {
	/* A message arrived; lent. *mem: memory of its strings; set it to NULL to keep them. */
	void (*message)(struct trainer *t, const struct local_msg *m, void **mem);
	/* Handle one entry of its ring, copied and not checked yet. Errors: negative, with a text:
	 * it broke the rules, and is dropped. */
	int (*submission)(struct trainer *t, const struct local_sqe *e, struct err_text *err);
	/* The trainer is about to be GONE. why NULL: the agent's next process takes it over. */
	void (*going)(struct trainer *t, const char *why);
	/* The trainer's memory is about to be freed. */
	void (*freed)(struct trainer *t);
};
#endif
