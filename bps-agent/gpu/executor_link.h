#ifndef BPS_AGENT_GPU_EXECUTOR_LINK_H
#define BPS_AGENT_GPU_EXECUTOR_LINK_H
/* A job's GPUs on this machine: its executor, a child process that drives them (executor/exec.h), and
 * the tensors that lie on them. Towards the core such a tensor is one whose contribution comes
 * ready in staging memory and whose sum is delivered to staging memory; this brings both about.
 *
 *   gpu:  STARTING --READY--> MEETING --ROUTE--> RUNNING --job ends, or the executor fails or dies--> OVER
 *                       freed when the job is gone and the child has been waited for
 *
 * A successor of this process finds the executor as it was (handover_write.h), is heard by it as its agent from
 * its own START on, and learns where rounds are by beginning them once more (K6, core.h).
 *
 *   executor_link.c       the child, its socket and its rings
 *   device_tensor.c  tensors: staging memory, rounds that are submitted ahead, what the rings say
 *
 * A trainer's stream may be several rounds ahead of what is done: up to DEVICE_AHEAD submissions of a
 * tensor wait here. The data thread's. */
#include "bps-agent/agent.h"
#include "common/local/ring_pair.h"

#define DEVICE_AHEAD 8

enum executor_state { EXECUTOR_STARTING, EXECUTOR_MEETING, EXECUTOR_RUNNING, EXECUTOR_OVER };

struct device_tensor;
struct ledger_route;
struct executor_link {
	TAILQ_ENTRY(executor_link) link; /* agent->executors */
	struct agent *agent;
	struct job *job; /* NULL: gone */
	struct quota_account *user;
	bool is_counted; /* as one of the user's executors */
	enum executor_state state;
	int code; /* of OVER */
	char text[CTL_TEXT_MAX + 1];
	pid_t pid;
	bool is_handed_over; /* a successor would have it */
	bool is_adopted; /* of a former life of this agent: no child of this one, and it may tell twice */
	int sock, wake_fd, exec_fd, pidfd; /* fds: eventfds, our own and the executor's */
	unsigned n_handles;
	uv_poll_t sock_poll, wake_poll, pid_poll;
	uv_timer_t watchdog; /* OVER: when it is due the child is killed */
	uint64_t asked_ns;   /* when the first worker asked for it */
	uint64_t beat, beat_at_ns;
	struct pipe pipe;
	struct memory page;
	char route[GPU_WORD_MAX + 1];
	uint32_t n_inputs;
	uint16_t input_nodes[LOCAL_GPUS_MAX]; /* see struct choice (executor/plan/choose.h) */
	uint32_t sum_node;
	struct arena_set arenas; /* staging, mapped by the executor too */
	struct memory_request request;
	bool is_making;
	struct device_tensor **tensors; /* by id */
	uint32_t n_tensors;
	TAILQ_HEAD(, device_tensor) again; /* whose next round may be submitted */
};

struct device_worker {
	uint32_t region;
	uint64_t offset;
	/* Submitted, not the core's yet: one more is under way, and one more in a successor's
	 * first moments, over. */
	struct pending_submission ahead[DEVICE_AHEAD + 2];
	unsigned n_ahead;
};

struct device_tensor {
	TAILQ_ENTRY(device_tensor) again;
	struct executor_link *executor;
	struct tensor *tensor;
	uint32_t id;
	bool is_again, is_told, has_kept_inputs;
	uint32_t late; /* worker + 1 whose stream the round waits for */
	struct arena *in_arena[LOCAL_GPUS_MAX], *out_arena;
	struct agt_mem in[LOCAL_GPUS_MAX];
	struct device_worker workers[]; /* job->n_workers */
};

/* ---- gpu.c ---- */
/* The executor that a job of a former life had; sock -1: it is gone. Owns: the descriptors. Errors:
 * -errno with a sentence. */
int executor_restore(struct job *job, int sock, int pidfd, pid_t pid, struct err_text *err);
/* What it has told of its route in a former life: it is running. Errors: BPS_EPROTO it makes no
 * sense. */
int executor_restore_route(struct executor_link *g, const struct ledger_route *k);
/* The trainer asks for the executor: answered when there is one, or why there is none. */
void executor_ask(struct trainer *t, uint32_t seq);
/* Does the worker wait in bps_gpu_open, or is it waited for there? *ret_ms: for how long. Of an
 * executor that has outlived an agent it is not known who has asked for it: GPU_OPEN_NONE. */
enum ctl_gpu_open executor_opening(const struct job *job, uint32_t worker, uint32_t *ret_ms);
/* For how long its loop has not turned, in ns; 0: it turns, or there is none. */
uint64_t executor_stands_ns(const struct executor_link *g, uint64_t now_ns);
/* The job has ended: so does the executor, in its own time. NULL is allowed, here and below. */
void executor_end(struct executor_link *g, int code, const char *text);
/* The job is gone. */
void executor_release(struct executor_link *g);
/* The agent ends: leave the executors, which see it. */
void executor_stop_all(struct agent *a);
/* For the loop: see what the executors say, tell them what there is to tell; true when something
 * was. */
bool executor_work(struct agent *a);
bool executor_may_sleep(struct agent *a);
void executor_awake(struct agent *a);
/* Executors whose processes live. */
uint32_t executor_count(const struct agent *a);
/* Read what its socket holds. */
void executor_read(struct executor_link *g);
void executor_send(struct executor_link *g, const struct pipe_entry *e);
/* It broke, or broke the rules: it is over, and the job with it, unless the job may shrink and goes
 * on without this machine. code: the cause, for the log. The job is told BPS_EDEVICE, or
 * BPS_EWORKER_LOST when that is the cause. */
void executor_fail(struct executor_link *g, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- device_tensor.c ---- */
/* A worker declares the tensor in device memory: staging memory for it, as far as it is missing.
 * Errors: with a sentence; -EINPROGRESS it is being made, declare_wake follows. */
int device_tensor_declare(struct trainer *t, struct tensor *tensor, const struct local_decl *d,
	size_t bytes, struct err_text *err);
/* All workers have: give it to the core. Errors: -ENOMEM. */
int device_tensor_to_core(struct tensor *tensor);
/* A tensor of a former life, with the executor's number of it. Errors: -ENOMEM, BPS_EPROTO. */
int device_tensor_restore(struct executor_link *g, struct tensor *tensor, uint32_t id);
/* What that worker has submitted since round complete. */
void device_tensor_resubmit(struct tensor *tensor, uint32_t worker, uint64_t complete);
/* Submit: now, or when its turn has come. Errors: BPS_EBUSY too far ahead. */
int device_tensor_submit(
	struct tensor *tensor, uint32_t worker, const struct pending_submission *p);
/* What waits may go to the core. */
void device_tensor_pump(struct tensor *tensor);
/* A round is over: see about the next. */
void device_tensor_round_over(struct tensor *tensor, int status);
/* The rounds that wait here are over with code. */
void device_tensor_fail_pending(struct tensor *tensor, int code);
/* It has failed: the executor gives it up, if it knows it. */
void device_tensor_cancel(struct tensor *tensor);
/* Nothing will come for that worker: let its stream go. */
void device_tensor_poison(struct tensor *tensor, uint32_t worker);
void device_tensor_free(struct tensor *tensor);
/* Which worker's stream does the round under way wait for? False: it is not that. */
bool device_tensor_late(const struct tensor *tensor, uint32_t *ret_worker);
/* The core's callbacks. */
void device_tensor_stage(
	void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
void device_tensor_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
/* One entry of the executor's, copied and not checked yet. */
void device_tensor_on_entry(struct executor_link *g, const struct pipe_entry *e);
/* A staging arena is there: the executor maps it, too. */
int executor_arena_adopted(void *ctx, struct arena *a);
/* One of a former life: it may not have heard of it. Errors: of local_send. */
int executor_tell_arena(struct executor_link *g, uint32_t id, uint64_t bytes, int fd);
#endif
