#ifndef BPS_AGENT_AGENT_H
#define BPS_AGENT_AGENT_H
/* The agent's data thread around its core: trainers on the UNIX socket, their rings, the local part
 * of jobs. The control thread posts what the scheduler says.
 *
 *   trainer:  GREETING --HELLO--> JOINING --JOB--> ATTACHED --FINISH--> FINISHING --JOB_END--> OVER
 *                each: socket closed --> GONE (freed when its handles are)
 *   job:      FORMING --JOB--> RUNNING --JOB_END, or it failed--> ENDED --no trainer left, no read--> freed
 *
 *   accept.c   trainers come, hello.c and join     arena.c  shared memory
 *   trainer.c  socket, ring, slow_close.c the end
 *   job.c      trainers of a job                   agent.c  the thread, messages of the scheduler
 *   declare.c  what they declare                   memory_thread.c  makes their memory
 *   tensor.c   what they submit                    roster.c  who else is in the job
 *   barrier.c  where they wait for all of it
 *   why_stuck.c      what it waits for, in words         quota.c  who may use how much
 *   no_server.c when nobody can sum, or nobody is heard
 *   handover_write.c     what is written down for a successor, handover_read.c reads it, in a ledger.c
 *
 * One thread: that of the loop. A trainer can harm its own job only: whatever it sends is copied
 * once, checked, and nonsense closes its connection. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <uv.h>

#include "bps-agent/memory/arena.h"
#include "bps-agent/core/core.h"
#include "bps-agent/memory/memory_thread.h"
#include "bps-agent/quota/quota.h"
#include "common/loop/dataloop.h"
#include "common/datapath/datapath.h"
#include "common/local/local.h"
#include "common/control/member.h"

#define JOB_BATCH 256 /* declarations in one message to the scheduler */

/* What may change while it runs. */
struct agent_limits {
	struct quota_limits quotas;
	uint32_t max_tensors; /* per trainer that connects from now on */
	size_t window_bytes;  /* see struct agt_config; the job's bytes in flight are a quota */
	uint64_t stranded_ns; /* without servers, before trainers are told; 0: never */
};

/* What drives GPUs. */
struct gpu_config {
	const char *backend; /* "cuda", "host"; "": nothing does */
	const char *program; /* its path */
	const char *route;   /* "auto", or which one */
	const char *sysfs;
};

struct agent_config {
	uint32_t id; /* told by the scheduler */
	uint64_t instance;
	int listen_fd; /* SOCK_SEQPACKET, listening, nonblocking; the caller closes it after agent_free */
	uint32_t spin_us;
	const struct shm_config *same_host; /* NULL: off; outlives the agent */
	struct agent_limits limits;
	const char *host;       /* this machine, for messages */
	struct agt_config core; /* its window is that of the limits */
	const char *scheduler;  /* its address, for messages */
	/* The service manager keeps what a successor needs: trainers are left as they are at the
	 * end. */
	bool can_hand_over;
	struct fdstore *inherited; /* what a former life has left; for agent_new alone */
	struct gpu_config gpu;
};

struct executor_link;
struct device_tensor;

enum trainer_state {
	TRAINER_GREETING,
	TRAINER_JOINING,
	TRAINER_ATTACHED,
	TRAINER_FINISHING,
	TRAINER_OVER,
	TRAINER_GONE,
};
enum job_state { JOB_FORMING, JOB_RUNNING, JOB_ENDED };

struct agent;
struct pending_declare;
struct fdstore;
struct ledger_tensor_live;
struct ledger_trainer_live;
struct ledger_worker_live;
struct ledger;
struct job;
struct tensor;

/* A round submitted before the tensor's way was known. */
struct pending_submission {
	bool is_set;
	uint8_t op;
	uint16_t priority;
	uint64_t round;
};

struct trainer {
	TAILQ_ENTRY(trainer) link;
	TAILQ_ENTRY(trainer) of_job; /* job->trainers, until GONE */
	struct agent *agent;
	uint64_t number; /* no other has it, in all lives */
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
	/* Of a former life: what it did last may have been done, but not been noted. */
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
	uint32_t n_told;                   /* output arenas below this id are known to it */
	bool wants_device;                 /* asks for the executor: */
	uint32_t device_seq;
	bool has_asked_device; /* of this life of the agent, and has not given it up */
	uint32_t finish_seq;
	uint32_t why_seq, why_local_seq; /* the question under way, 0: none */
	uint64_t why_due_ns;             /* until then the scheduler may answer it */
	char why_text[CTL_TEXT_MAX + 1]; /* what is known locally about it */
	uint64_t calls, completed, quiet_since_ns;
};

struct tensor_worker {
	struct ledger_worker_live *live; /* when is_declared */
	bool is_declared;
	uint32_t index; /* in its trainer's tensors */
	struct arena *in_arena;
	struct agt_mem in;
	struct pending_submission pending;
	uint64_t submitted;
	uint64_t since_ns; /* of the last submission */
	uint8_t op;        /* of the last submission */
};

struct tensor {
	TAILQ_ENTRY(tensor) link;
	struct job *job;
	char *name;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t first_worker; /* who asked for it first; it may still wait for memory */
	uint32_t n_declared;
	uint32_t idx; /* among those that are kept; CTL_NO_ID: not kept yet */
	struct ledger_tensor_live *live;
	struct agt_kept_part *parts;           /* of a former life, or once planned */
	uint32_t kept_id, part_elems, n_parts; /* with parts */
	int failed;
	char *fail_text;
	struct agt_tensor *core; /* once all local workers have declared it */
	struct arena *out_arena, *staging_arena;
	struct device_tensor *device; /* it lies in device memory */
	struct agt_mem out[2], staging;
	struct tensor_worker workers[]; /* job->n_workers */
};

struct job {
	TAILQ_ENTRY(job) link;
	struct agent *agent;
	enum job_state state;
	uint64_t number; /* as a trainer's */
	struct ledger *ledger;
	uint32_t n_kept; /* tensors in it */
	char name[CTL_JOB_NAME_MAX + 1];
	uid_t uid; /* whose it is on this machine */
	bool has_token;
	uint8_t token[CTL_TOKEN_BYTES]; /* its proof, see token.h */
	struct quota_account *quota;
	uint32_t size, flags, id; /* id: CTL_NO_ID until the scheduler told */
	uint16_t backup;          /* machines that a round need not wait for */
	uint32_t grace_ms;        /* for them */
	uint32_t max_size;        /* of an elastic one */
	uint64_t barrier;         /* the last one that was passed */
	bool is_local;            /* no server takes part */
	uint32_t n_tensors;       /* planned here, when there is only one member */
	uint32_t n_workers;       /* local; from RUNNING on */
	uint64_t view;            /* of its members */
	struct roster *roster;    /* who they are, from RUNNING on */
	uint32_t *ranks;
	struct trainer **by_worker; /* NULL: gone */
	struct agt_job *core;
	struct executor_link *executor; /* its executor, when somebody asked for one */
	uint64_t running_since_ns;      /* from RUNNING on, in this life */
	bool is_told;                   /* since the last resync began */
	bool is_resumed;   /* of a former life; its trainers are not heard before the scheduler */
	bool is_busy;      /* the core may still write to its memory */
	uint32_t n_making; /* requests to the memory thread */
	bool makes_output; /* one of them is for outputs; then others wait for it: */
	TAILQ_HEAD(, pending_declare) waiting;
	int code; /* of its end */
	char text[CTL_TEXT_MAX + 1];
	TAILQ_HEAD(, trainer) trainers;
	TAILQ_HEAD(, tensor) tensors;
	void *by_name; /* tsearch(3) tree of tensors */
	struct arena_set arenas;
	struct arena *output, *staging;   /* newest */
	struct ctl_decl batch[JOB_BATCH]; /* to be sent */
	uint32_t n_batch;
};

struct known_server {
	uint32_t id;
	uint8_t state;
	uint64_t instance;
};

/* For the status screen and the metrics. */
struct agent_figures {
	struct agt_stats core;
	uint32_t trainers, jobs, executors;
	uint64_t shared_bytes, beat_ns, executor_failures;
	int stranded; /* code: what trainers are told, 0: nothing */
};

struct agent {
	struct agent_config cfg;
	int spare_fd; /* given up to refuse a trainer when there is no other */
	struct dataloop *loop;
	struct net *net; /* the node's, outlives us */
	struct xport *x;
	struct agt_core *core;
	struct member *member;
	uv_poll_t listen_poll;
	TAILQ_HEAD(, trainer) trainers;
	uint32_t n_trainers;
	TAILQ_HEAD(, job) jobs;
	TAILQ_HEAD(, executor_link) executors;
	uint64_t executor_failures;
	uint32_t next_seq;
	uint64_t next_number;
	STAILQ_HEAD(, unsent_fd) unsent; /* that the service manager has not taken yet */
	uint64_t unsent_since_ns, unsent_due_ns;
	uint64_t why_due_ns; /* of the oldest question to the scheduler, 0: none is open */
	bool has_dirty;
	struct known_server *servers; /* to see what has changed */
	uint32_t n_servers;
	uint64_t stats_at_ns;
	/* When anybody was last heard, and when there last was a server. */
	uint64_t heard_ns, server_ns;
	int stranded; /* as in the figures */
	struct quota *quota;
	struct memory_thread *memory_thread;
	pthread_mutex_t lock; /* of figures and quota_view, which the control thread reads */
	struct agent_figures figures, seen_figures; /* seen: the control thread's copy */
	struct quota_view quota_view, seen_quotas;  /* the same */
};

/* ---- agent.c: for the control thread ---- */
/* Make it and start its thread. net and member must outlive it; cfg is copied.
 * Errors: negative, with a sentence. */
int agent_new(struct net *net, struct member *member, const struct agent_config *cfg,
	struct agent **ret, struct err_text *err);
/* Drops all trainers, or leaves them to a successor, joins the thread, frees. NULL is allowed. */
void agent_free(struct agent *a);
/* What the data thread hears of the scheduler. FORGOTTEN: it has lost all that it knew of this
 * agent. */
enum agent_event { AGENT_MESSAGE, AGENT_RESYNC_BEGIN, AGENT_RESYNC_END, AGENT_FORGOTTEN };
/* m: of AGENT_MESSAGE, else NULL; it takes its own reference. Errors: -EAGAIN, -ENOMEM: it is
 * lost. */
int agent_post(struct agent *a, enum agent_event event, struct member_msg *m);
/* New limits, from the thread's next turn on; what is beyond them already stays.
 * Errors: -EAGAIN, -ENOMEM: they are lost. */
int agent_set_limits(struct agent *a, const struct agent_limits *limits);
/* Figures of a moment ago. Thread: any. */
void agent_figures(struct agent *a, struct agent_figures *ret);
/* Bytes sent over the network since it began: messages, and contributions when they are first
 * offered. core, net: of now, or of a moment ago. */
static inline uint64_t agent_sent_bytes(const struct agt_stats *core, const struct net_stats *net)
{
	return net->tx_bytes + core->offered_bytes;
}
/* Who uses how much, of a moment ago. Thread: any. */
void agent_quotas(struct agent *a, struct quota_view *ret);

/* ---- trainer.c: this and what follows for the data thread ---- */
/* Its message, which may have waited in its socket, is answered: on to the next. */
void trainer_answered(struct trainer *t);
/* The process ends, not the trainer: as trainer_drop, but nobody hears of it. */
void trainer_leave(struct trainer *t);
/* Somebody is at the listening socket. */
void trainer_accept(struct agent *a);
/* Drop it: it left, or broke the rules (why is logged as such when is_fault). */
void trainer_drop(struct trainer *t, bool is_fault, const char *why);
/* Handle its submissions; true when there were any. */
bool trainer_poll_ring(struct trainer *t);
/* Tell it that the agent sleeps from now on; false: its ring has something, do not. */
bool trainer_may_sleep(struct trainer *t);
/* The agent is awake: submissions need no system call. */
void trainer_awake(struct trainer *t);
/* A round of one of its tensors is over. index: the trainer's own of the tensor; status: 0 or a
 * negative code; workers: behind the sum. It is woken by trainer_flush. */
void trainer_done(struct trainer *t, uint32_t index, uint64_t round, int status, uint32_t workers);
/* Wake the trainers that have completions they were not told of. */
void trainer_flush(struct agent *a);
/* Send m with n_fds descriptors, lent. A trainer that does not take it is dropped later. */
void trainer_send(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds);
/* Read its socket no more, or again. */
void trainer_hold(struct trainer *t, bool is_held);
/* Keep its memory after it is GONE, until trainer_unref. */
void trainer_ref(struct trainer *t);
void trainer_unref(struct trainer *t);
/* The only writer of its state; trainer.c has the table of what may follow. */
void trainer_set_state(struct trainer *t, enum trainer_state state);

/* ---- job.c ---- */
/* The trainer's HELLO: find or make its job, ask the scheduler to let it join. Errors: with a
 * sentence. */
int job_attach(struct trainer *t, const struct local_hello *h, struct err_text *err);
/* The trainer is going: if its job is not over, that ends it, with why as the reason. */
void job_detach(struct trainer *t, const char *why);
/* Free it when nothing needs it any more. */
void job_free_if_unused(struct job *job);
/* A job that forms. NULL: out of memory. */
struct job *job_new(struct agent *a, struct quota_account *user, uid_t uid, const char *name,
	uint32_t size, uint32_t flags);
/* Have the trainer join, which has been attached. */
void job_join(struct trainer *t);
/* It runs, of a former life: the core's part, whose trainers are by_worker. Errors: -ENOMEM. */
int job_resume(struct job *job, const struct ctl_job *m, uint16_t my_member);
/* The process ends: free it. */
void job_leave(struct job *job);
/* The code of the job's end, and the sentence, as this trainer is told. When another left who was
 * told of a mismatch this one hears of the mismatch too, and not only of the loss. */
int job_why_over(const struct trainer *t, struct err_text *ret);
/* The trainer's FINISH: it is answered by the end of the job. */
void job_finish(struct trainer *t, uint32_t seq);
/* What the scheduler says; m is lent. */
void job_on_joined(struct agent *a, const struct ctl_joined *m);
void job_on_job(struct agent *a, const struct ctl_job *m);
void job_on_end(struct agent *a, uint32_t id, int code, const char *text);
/* The scheduler knows us (again), and may have forgotten what was under way: say it again. */
void job_resync_begin(struct agent *a);
/* It has told everything: jobs that it did not name are over. */
void job_resync_end(struct agent *a);
/* The scheduler does not know this agent any more: none of its jobs goes on. */
void job_forget_all(struct agent *a);
/* The job with that number that has not ended, or NULL. */
struct job *agent_job(struct agent *a, uint32_t id);
/* The core's fail callback. */
void job_core_fail(void *ctx, uint32_t job, int code, const char *text);

/* ---- declare.c ---- */
/* The trainer's DECLARE, answered with where the tensors' slots lie, or why there are none: at
 * once, or when memory for them was made, until when the trainer is held. Owns: takes *mem,
 * in which d's names lie. */
void declare_begin(struct trainer *t, uint32_t seq, const struct local_declare *d, void **mem);
/* What some waited for is there, or not: they look again. */
void declare_wake(struct job *job);
/* The trainer is going: its DECLARE waits no more. What is being made for it comes all the same. */
void declare_cancel(struct trainer *t);
/* With the trainer's memory. */
void declare_free(struct trainer *t);

/* ---- tensor.c ---- */
/* One entry of the trainer's ring, copied and not checked yet.
 * Errors: negative, with a sentence: the trainer broke the rules. */
int tensor_submit(struct trainer *t, const struct local_sqe *e, struct err_text *err);
/* What the scheduler says; m is lent. */
void tensor_on_plan(struct agent *a, const struct ctl_plan *m);
void tensor_on_fail(struct agent *a, const struct ctl_tensor_fail *m);
/* The core's done callback. */
void tensor_core_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
/* The job has ended: rounds that were submitted but never got as far as the core end with its
 * code. */
void tensor_fail_pending(struct job *job);
/* Declare again what the scheduler has not answered. */
void tensor_declare_unplanned(struct job *job);
/* After the core has released the job's memory. */
void tensor_free_all(struct job *job);

/* ---- roster.c ---- */
/* Remember who is in the job. Errors: -ENOMEM, and what was known stays. */
int roster_update(struct job *job, const struct ctl_job *m);
/* With the job. */
void roster_free(struct job *job);
/* Who was let in at that barrier, and the lowest rank that was there before; CTL_NO_ID: nobody
 * was. */
void roster_newcomers(
	const struct job *job, uint64_t barrier, uint32_t *ret_n_new, uint32_t *ret_root);
/* Is that rank one of those who were let in last? */
bool roster_is_new(const struct job *job, uint32_t rank);
/* The trainer asks who is there. */
void roster_ask(struct trainer *t, uint32_t seq, const struct local_ask *q);

/* ---- barrier.c ---- */
/* The trainer's BARRIER. */
void barrier_ask(struct trainer *t, uint32_t seq, uint64_t number);
/* Before a submission: does it wait at none? */
bool barrier_is_over(struct trainer *t);
/* A JOB has come: whoever waits is told, or says again that it does. */
void barrier_look(struct job *job);
/* Say it again to a scheduler that may have forgotten. */
void barrier_again(struct trainer *t);
/* The job is over: if it waits, it waits no more. */
void barrier_over(struct trainer *t, int code, const char *text);

/* ---- why_stuck.c ---- */
/* The trainer asks what a tensor waits for; answered from here, or by the scheduler in
 * why_stuck_on_text. */
void why_stuck_ask(struct trainer *t, uint32_t seq, const struct local_why *w);
void why_stuck_on_text(struct agent *a, const struct ctl_why_text *m);
/* What the scheduler has not answered in time is answered with what is known here. Returns when to
 * be called again. */
uint64_t why_stuck_tick(struct agent *a, uint64_t now_ns);
/* The scheduler asks what this agent's workers wait for: a REPORT. */
void why_stuck_on_probe(struct agent *a, const struct ctl_probe *m);

/* ---- no_server.c ---- */
/* See whether anybody can sum; trainers of jobs that need it are told when nobody has been able to
 * for too long. Returns when to be called again. */
uint64_t no_server_tick(struct agent *a, uint64_t now_ns);
#endif
