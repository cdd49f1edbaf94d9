#ifndef BPS_AGENT_MODEL_EXECUTOR_LINK_H
#define BPS_AGENT_MODEL_EXECUTOR_LINK_H
/* A job's executor, a child process that drives its GPUs on this machine (executor/exec.h), and the
 * tensors that lie on them. The data thread's.
 *
 *   STARTING --READY--> MEETING --ROUTE--> RUNNING --job ends, or it fails or dies--> OVER
 *                       freed when the job is gone and the child has been waited for */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "bps-agent/memory/memory_thread.h"
#include "bps-agent/model/tensor.h"
#include "common/local/local_gpu.h"
#include "common/local/ring_pair.h"

struct agent;
struct quota_account;

/* Limit of a tensor's waiting submissions: a stream may be several rounds ahead of the last done
 * one. */
#define DEVICE_AHEAD 8

enum executor_state { EXECUTOR_STARTING, EXECUTOR_MEETING, EXECUTOR_RUNNING, EXECUTOR_OVER };

struct executor_link {
	TAILQ_ENTRY(executor_link) link; /* agent->executors */
	struct agent *agent;
	struct job *job; /* NULL: gone */
	struct quota_account *user;
	bool is_counted; /* counted as one of the user's executors */
	enum executor_state state;
	int code; /* set in OVER */
	char text[CTL_TEXT_MAX + 1];
	pid_t pid;
	bool is_handed_over; /* stored for the next process */
	bool is_adopted; /* from before a restart: no child of this process, may repeat messages */
	int sock, wake_fd, exec_fd, pidfd; /* fds: eventfds, the agent's own and the executor's */
	unsigned n_handles;
	uv_poll_t sock_poll, wake_poll, pid_poll;
	uv_timer_t watchdog; /* OVER: the child is killed when it expires */
	uint64_t asked_ns;   /* when the first worker requested it */
	uint64_t beat, beat_at_ns;
	struct ring_pair pipe;
	struct memory page;
	char route[GPU_WORD_MAX + 1];
	uint32_t n_inputs;
	uint16_t input_nodes[LOCAL_GPUS_MAX]; /* see struct choice (executor/plan/choose.h) */
	uint32_t sum_node;
	struct arena_set arenas; /* staging memory, mapped by the executor too */
	struct memory_request request;
	bool is_making;
	struct device_tensor **tensors; /* by id */
	uint32_t n_tensors;
	TAILQ_HEAD(, device_tensor) again; /* tensors whose next round may be submitted */
};

struct device_worker {
	uint32_t region;
	uint64_t offset;
	/* Submitted, but not passed to the core yet. Two more entries: a round under way, and just
	 * after a restart a finished one. */
	struct pending_submission ahead[DEVICE_AHEAD + 2];
	unsigned n_ahead;
};

struct device_tensor {
	TAILQ_ENTRY(device_tensor) again;
	struct executor_link *executor;
	struct tensor *tensor;
	uint32_t id;
	bool is_again, is_told, has_kept_inputs;
	struct arena *in_arena[LOCAL_GPUS_MAX], *out_arena;
	struct agt_mem in[LOCAL_GPUS_MAX];
	struct device_worker workers[]; /* job->n_workers */
};

/* Functions of executors that trainers and their jobs use. */
struct executor_ops {
	const struct tensor_kind *tensors; /* the kind of tensors in device memory */
	/* The trainer requests the executor: answered when there is one, or why there is none. */
	void (*ask)(struct trainer *t, uint32_t seq);
	/* The job has ended: end the executor. g may be NULL, here and below. */
	void (*end)(struct executor_link *g, int code, const char *text);
	/* Release the executor of a job that is gone. */
	void (*release)(struct executor_link *g);
};
#endif
