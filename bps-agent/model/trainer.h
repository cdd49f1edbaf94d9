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
	uint64_t number; /* unique, also over restarts */
	bool has_kept_socket;
	struct ledger_trainer_live *live; /* from HELLO on */
	struct job *job;                  /* from HELLO on */
	enum trainer_state state;
	int sock, efd;
	int pidfd;          /* a forked child may keep the socket open; -1 when there is none */
	unsigned n_handles; /* libuv handles that are not closed yet */
	uv_poll_t sock_poll, efd_poll, pid_poll;
	uv_timer_t greeting; /* GREETING ends by itself */
	/* Its user asks more often than it may: the socket is read again when the timer is due. */
	uv_timer_t slowed;
	struct quota_pace pace;
	bool is_slowed;
	bool has_waited; /* the next message was counted when it was made to wait */
	/* Its message stays in the socket until it is answered. */
	bool is_asking;
	uint32_t asked_seq; /* of that message */
	/* Set after a restart: the last message, submission or barrier may have been processed but
	 * not recorded. Accept one duplicate of each. */
	bool may_repeat_message, may_repeat_submission, may_have_passed;
	pid_t pid;
	uid_t uid;
	struct quota_account *user;
	uint32_t asked_rank;   /* CTL_NO_ID: any */
	bool has_rank;         /* rank is that of the last JOIN's answer */
	uint32_t rank, worker; /* worker: index among the job's local ranks, when RUNNING */
	uint32_t join_seq, part_bytes, machine_size;
	bool is_waiting; /* JOINING: to be let into a running job */
	struct local_control *control;
	size_t control_bytes;
	uint32_t sq_head;
	uint32_t max_tensors;
	uint32_t sq_entries; /* as many as it may have in flight, so that its ring is never full */
	bool is_dirty;       /* completions not yet told */
	struct tensor **tensors; /* by its index */
	uint32_t n_tensors;
	struct arena *input, *told_input;  /* newest, and the newest that it knows */
	struct pending_declare *declaring; /* a DECLARE under way, or NULL */
	bool is_held;                      /* its socket is not read */
	bool is_left;                      /* to a successor */
	bool wants_device;                 /* asks for the executor */
	bool has_asked_device;             /* of this process, and has not given it up */
	uint32_t why_seq, why_local_seq;   /* the question under way, 0: none */
	uint64_t why_due_ns;               /* until then the scheduler may answer it */
	char why_text[CTL_TEXT_MAX + 1];   /* what is known locally about it */
	uint64_t calls, completed, quiet_since_ns;
};

/* What trainer.c reports of a trainer; requests.c has them. */
struct trainer_events {
	/* A message, lent. *mem: of its strings; set to NULL when they are needed longer. */
	void (*message)(struct trainer *t, const struct local_msg *m, void **mem);
	/* One entry of its ring, copied and not checked yet. Errors: negative, with a sentence: it
	 * broke the rules, and is dropped. */
	int (*submission)(struct trainer *t, const struct local_sqe *e, struct err_text *err);
	/* It is about to be GONE. why NULL: it is left to a successor. */
	void (*going)(struct trainer *t, const char *why);
	/* Its memory goes. */
	void (*freed)(struct trainer *t);
};
#endif
