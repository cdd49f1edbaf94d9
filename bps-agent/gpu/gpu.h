#ifndef BPS_AGENT_GPU_GPU_H
#define BPS_AGENT_GPU_GPU_H
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
 *   gpu.c         the child, its socket and its rings
 *   gpu_tensor.c  tensors: staging memory, rounds that are submitted ahead, what the rings say
 *
 * A trainer's stream may be several rounds ahead of what is done: up to GPU_AHEAD submissions of a
 * tensor wait here. The data thread's. */
#include "bps-agent/agent.h"
#include "common/local/ring_pair.h"

#define GPU_AHEAD 8

enum gpu_state { GPU_STARTING, GPU_MEETING, GPU_RUNNING, GPU_OVER };

struct gpu_tensor;
struct ledger_route;
struct gpu {
	TAILQ_ENTRY(gpu) link; /* agent->gpus */
	struct agent *agent;
	struct job *job; /* NULL: gone */
	struct quota_account *user;
	bool is_counted; /* as one of the user's executors */
	enum gpu_state state;
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
	struct gpu_tensor **tensors; /* by id */
	uint32_t n_tensors;
	TAILQ_HEAD(, gpu_tensor) again; /* whose next round may be submitted */
};

struct gpu_worker {
	uint32_t region;
	uint64_t offset;
	/* Submitted, not the core's yet: one more is under way, and one more in a successor's
	 * first moments, over. */
	struct pending ahead[GPU_AHEAD + 2];
	unsigned n_ahead;
};

struct gpu_tensor {
	TAILQ_ENTRY(gpu_tensor) again;
	struct gpu *gpu;
	struct tensor *tensor;
	uint32_t id;
	bool is_again, is_told, has_kept_inputs;
	uint32_t late; /* worker + 1 whose stream the round waits for */
	struct arena *in_arena[LOCAL_GPUS_MAX], *out_arena;
	struct agt_mem in[LOCAL_GPUS_MAX];
	struct gpu_worker workers[]; /* job->n_workers */
};

/* ---- gpu.c ---- */
/* The executor that a job of a former life had; sock -1: it is gone. Owns: the descriptors. Errors:
 * -errno with a sentence. */
int gpu_restore(struct job *job, int sock, int pidfd, pid_t pid, struct err_text *err);
/* What it has told of its route in a former life: it is running. Errors: BPS_EPROTO it makes no
 * sense. */
int gpu_restore_route(struct gpu *g, const struct ledger_route *k);
/* The trainer asks for the executor: answered when there is one, or why there is none. */
void gpu_ask(struct trainer *t, uint32_t seq);
/* Does the worker wait in bps_gpu_open, or is it waited for there? *ret_ms: for how long. Of an
 * executor that has outlived an agent it is not known who has asked for it: GPU_OPEN_NONE. */
enum ctl_gpu_open gpu_opening(const struct job *job, uint32_t worker, uint32_t *ret_ms);
/* For how long its loop has not turned, in ns; 0: it turns, or there is none. */
uint64_t gpu_stands_ns(const struct gpu *g, uint64_t now_ns);
/* The job has ended: so does the executor, in its own time. NULL is allowed, here and below. */
void gpu_end(struct gpu *g, int code, const char *text);
/* The job is gone. */
void gpu_release(struct gpu *g);
/* The agent ends: leave the executors, which see it. */
void gpu_stop_all(struct agent *a);
/* For the loop: see what the executors say, tell them what there is to tell; true when something
 * was. */
bool gpu_work(struct agent *a);
bool gpu_may_sleep(struct agent *a);
void gpu_awake(struct agent *a);
/* Executors whose processes live. */
uint32_t gpu_count(const struct agent *a);
/* Read what its socket holds. */
void gpu_read(struct gpu *g);
void gpu_say(struct gpu *g, const struct pipe_entry *e);
/* It broke, or broke the rules: it is over, and the job with it, unless the job may shrink and goes
 * on without this machine. code: the cause, for the log. The job is told BPS_EDEVICE, or
 * BPS_EWORKER_LOST when that is the cause. */
void gpu_fail(struct gpu *g, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- gpu_tensor.c ---- */
/* A worker declares the tensor in device memory: staging memory for it, as far as it is missing.
 * Errors: with a sentence; -EINPROGRESS it is being made, declare_wake follows. */
int gpu_declare(struct trainer *t, struct tensor *tensor, const struct local_decl *d, size_t bytes,
	struct err_text *err);
/* All workers have: give it to the core. Errors: -ENOMEM. */
int gpu_give_to_core(struct tensor *tensor);
/* A tensor of a former life, with the executor's number of it. Errors: -ENOMEM, BPS_EPROTO. */
int gpu_tensor_restore(struct gpu *g, struct tensor *tensor, uint32_t id);
/* What that worker has submitted since round complete. */
void gpu_submit_again(struct tensor *tensor, uint32_t worker, uint64_t complete);
/* Submit: now, or when its turn has come. Errors: BPS_EBUSY too far ahead. */
int gpu_submit(struct tensor *tensor, uint32_t worker, const struct pending *p);
/* What waits may go to the core. */
void gpu_pump(struct tensor *tensor);
/* A round is over: see about the next. */
void gpu_round_over(struct tensor *tensor, int status);
/* The rounds that wait here are over with code. */
void gpu_fail_pending(struct tensor *tensor, int code);
/* It has failed: the executor gives it up, if it knows it. */
void gpu_cancel(struct tensor *tensor);
/* Nothing will come for that worker: let its stream go. */
void gpu_poison(struct tensor *tensor, uint32_t worker);
void gpu_tensor_free(struct tensor *tensor);
/* Which worker's stream does the round under way wait for? False: it is not that. */
bool gpu_late(const struct tensor *tensor, uint32_t *ret_worker);
/* The core's callbacks. */
void gpu_core_stage(void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
void gpu_core_unstage(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
/* One entry of the executor's, copied and not checked yet. */
void gpu_entry(struct gpu *g, const struct pipe_entry *e);
/* A staging arena is there: the executor maps it, too. */
int gpu_arena_adopted(void *ctx, struct arena *a);
/* One of a former life: it may not have heard of it. Errors: of local_send. */
int gpu_tell_arena(struct gpu *g, uint32_t id, uint64_t bytes, int fd);
#endif
