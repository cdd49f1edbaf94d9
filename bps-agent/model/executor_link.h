#ifndef BPS_AGENT_MODEL_EXECUTOR_LINK_H
#define BPS_AGENT_MODEL_EXECUTOR_LINK_H
/* The agent's end of the connection to an executor, and the tensors in the memory of the executor's
 * GPUs. An executor is a child process that drives the GPUs of one job on this machine
 * (executor/exec.h). Thread: the data thread.
 *
 *   STARTING --READY--> MEETING --ROUTE--> RUNNING --the job ends or the executor fails--> OVER
 *                  freed when the job has been freed and the executor's process has ended */
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

/* Largest number of waiting submissions of a tensor. A trainer's CUDA stream may submit several
 * rounds before the first of them is complete. */
#define DEVICE_AHEAD 8

enum executor_state { EXECUTOR_STARTING, EXECUTOR_MEETING, EXECUTOR_RUNNING, EXECUTOR_OVER };

struct executor_link {
	TAILQ_ENTRY(executor_link) link; /* entry in the list agent->executors */
	struct agent *agent;
	struct job *job; /* NULL: the job has been freed */
	struct quota_account *user;
	bool is_counted; /* the executor is counted in the user's quota */
	enum executor_state state;
	int code; /* code, text: reason of the executor's end; set in OVER */
	char text[CTL_TEXT_MAX + 1];
	pid_t pid;
	/* the service manager stores the executor's descriptors for the next process */
	bool is_handed_over;
	/* The previous process of the agent started the executor. The executor is not a child of
	 * this process, and may repeat messages. */
	bool is_adopted;
	/* wake_fd: eventfd that wakes the agent; exec_fd: eventfd that wakes the executor */
	int sock, wake_fd, exec_fd, pidfd;
	unsigned n_handles;
	uv_poll_t sock_poll, wake_poll, pid_poll;
	/* checks that the executor makes progress; in OVER, kills an executor that does not end */
	uv_timer_t watchdog;
	uint64_t asked_ns; /* when the first worker requested the executor */
	uint64_t beat, beat_at_ns;
	struct ring_pair pipe;
	struct memory page;
	char route[GPU_WORD_MAX + 1];
	uint32_t n_inputs;
	/* input_nodes, sum_node: see struct choice (executor/plan/choose.h) */
	uint16_t input_nodes[LOCAL_GPUS_MAX];
	uint16_t input_workers[LOCAL_GPUS_MAX]; /* number of workers behind each input */
	uint32_t sum_node;
	struct arena_set arenas; /* staging memory, mapped by the executor too */
	struct memory_request request;
	bool is_making;
	struct device_tensor **tensors; /* indexed by the tensor's id at the executor */
	uint32_t n_tensors;
	/* tensors whose round has just ended; the next iteration of the event loop submits their
	 * waiting rounds */
	TAILQ_HEAD(, device_tensor) again;
};

struct device_worker {
	uint32_t region;
	uint64_t offset;
	/* Rounds that the worker has submitted and the core has not accepted yet. After a restart,
	 * the array needs two more entries than DEVICE_AHEAD. One is for the round in progress. The
	 * other is for a round that was already complete. */
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
	struct device_worker workers[]; /* job->n_workers elements, one for each local worker */
};

/* Functions of gpu/executor_link.c that the files in trainers/ call. */
struct executor_ops {
	const struct tensor_kind *tensors; /* tensor kind for device memory */
	/* Request the executor of the trainer's job. The trainer gets the answer when the executor
	 * runs, or an error if there is no executor. */
	void (*ask)(struct trainer *t, uint32_t seq);
	/* End the executor, because its job has ended. g may be NULL. */
	void (*end)(struct executor_link *g, int code, const char *text);
	/* Detach the executor from its job, because the job is about to be freed. g may be NULL. */
	void (*release)(struct executor_link *g);
};
#endif
