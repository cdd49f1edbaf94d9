#ifndef BPS_AGENT_MODEL_TRAINER_H
#define BPS_AGENT_MODEL_TRAINER_H
/* A process that is connected to the agent's socket.
 *
 *   GREETING --HELLO--> JOINING --JOB--> ATTACHED --FINISH--> FINISHING --JOB_END--> OVER
 *   each state --socket closed--> GONE (freed when its handles are closed)
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
	TAILQ_ENTRY(trainer) of_job; /* entry in the list job->trainers, until the state is GONE */
	struct agent *agent;
	uint64_t number; /* unique on this machine, also across restarts of the agent */
	bool has_kept_socket;
	struct ledger_trainer_live *live; /* set from HELLO on */
	struct job *job;                  /* set from HELLO on */
	enum trainer_state state;
	int sock, efd;
	/* pidfd of the trainer's process. Readable when the process has ended, even if a forked
	 * child keeps the socket open. -1: there is no pidfd. */
	int pidfd;
	unsigned n_handles; /* libuv handles that are not closed yet */
	uv_poll_t sock_poll, efd_poll, pid_poll;
	uv_timer_t greeting; /* runs in state GREETING; limits the time until HELLO arrives */
	/* Timer that runs while the user exceeds the request rate. When it expires, the socket is
	 * read again. */
	uv_timer_t slowed;
	struct quota_pace pace;
	bool is_slowed;
	/* the next message has already been delayed and counted in the request rate */
	bool has_waited;
	/* A message is being handled. The message stays in the socket until it is answered, so that
	 * the next process finds it after a restart. */
	bool is_asking;
	uint32_t asked_seq; /* sequence number of the message that is being handled */
	/* Set after a restart: the last message, submission or barrier may have been processed but
	 * not recorded. Accept one duplicate of each. */
	bool may_repeat_message, may_repeat_submission, may_have_passed;
	pid_t pid;
	uid_t uid;
	struct quota_account *user;
	uint32_t asked_rank; /* rank that the trainer requests; CTL_NO_ID: any */
	bool has_rank;       /* the scheduler has answered the trainer's last JOIN with the rank */
	/* worker: index of the rank among the job's ranks on this machine, assigned when the job
	 * becomes RUNNING */
	uint32_t rank, worker;
	uint32_t join_seq, part_bytes, machine_size;
	/* Used in state JOINING. Set if the job already runs, so the trainer can join only at a
	 * barrier. */
	bool is_waiting;
	struct local_control *control;
	size_t control_bytes;
	uint32_t sq_head;
	uint32_t max_tensors;
	/* Number of entries of the trainer's ring. The trainer has at most this number of
	 * submissions in flight, so the ring is never full. */
	uint32_t sq_entries;
	/* the trainer's control page has completions for which the trainer has not been woken
	 * yet */
	bool is_dirty;
	struct tensor **tensors; /* indexed by the trainer's own tensor index */
	uint32_t n_tensors;
	/* `input` is the newest arena of inputs. `told_input` is the newest arena of inputs whose
	 * descriptor was sent to the trainer. */
	struct arena *input, *told_input;
	struct pending_declare *declaring; /* the DECLARE in progress, or NULL */
	bool is_held;                      /* no message of the trainer is read at present */
	/* the trainer stays connected when this agent process ends, and the agent's next process
	 * serves the trainer */
	bool is_left;
	/* the trainer waits for the answer to its request for a connection to the executor */
	bool wants_device;
	/* Set when this process handles the trainer's request for a connection to the executor.
	 * Cleared when the trainer sends WHY about that request. */
	bool has_asked_device;
	/* The trainer's WHY that has no answer yet. why_seq is the sequence number of this WHY in
	 * messages to the scheduler, or 0 if no WHY waits for an answer. why_local_seq is the
	 * sequence number of this WHY in messages of the trainer. */
	uint32_t why_seq, why_local_seq;
	uint64_t why_due_ns; /* the agent waits until this time for the answer to why_seq */
	/* Findings of this agent about the trainer's last WHY. The agent appends this text to
	 * the scheduler's answer. */
	char why_text[CTL_TEXT_MAX + 1];
	uint64_t calls, completed, quiet_since_ns;
	/* The trainer's waits before this time are divided over the phases of rounds. */
	uint64_t divided_until_ns;
	/* Number of traces that were sent since the trainer had read everything */
	uint32_t n_unread_traces;
};

/* Functions that trainer.c calls when a trainer has sent something or ends. requests.c implements
 * them. */
struct trainer_events {
	/* Handle a message from the trainer. m is valid only during the call. *mem holds the
	 * strings of m; set *mem to NULL to keep that memory. */
	void (*message)(struct trainer *t, const struct local_msg *m, void **mem);
	/* Handle one entry of the trainer's ring. `e` is a copy of the entry that has not been
	 * checked yet. Errors: a negative code, and err gets the text. After an error, the trainer
	 * is disconnected, because the trainer has violated the protocol. */
	int (*submission)(struct trainer *t, const struct local_sqe *e, struct err_text *err);
	/* Called before the trainer's state becomes GONE. `why` is the reason, or NULL if the
	 * agent's next process will serve the trainer. */
	void (*going)(struct trainer *t, const char *why);
	/* Called before the trainer's memory is freed. */
	void (*freed)(struct trainer *t);
};
#endif
