#ifndef BPS_AGENT_EXECUTOR_EXEC_H
#define BPS_AGENT_EXECUTOR_EXEC_H
/* The executor: a process that drives the GPUs of one job on this machine. The agent starts the
 * executor as a child process. Trainers share their tensors in GPU memory with the executor. The
 * executor can also allocate that memory for them. The executor copies partitions between the GPUs
 * and the agent's staging memory in the host (engine.h). Only the agent uses the network.
 *
 *   exec: STARTING --START--> MEETING --all trainers have sent HELLO--> RUNNING
 *         any state --END, error, EOF of the agent's socket--> ENDING
 *
 * The agent may be restarted while the executor runs. The next agent process inherits the socket,
 * and sends a second START with new rings. Before the executor uses the new rings, it processes all
 * messages of the first process. The second process repeats the messages about memory, tensors and
 * running rounds. The executor's answers show the second process the current state
 * (engine_mute_reports).
 *
 *   exec.c          the loop, the agent's socket and rings, the end
 *   exec_trainer.c  trainers' sockets, their memory and counter pages
 *   exec_tensor.c   tensors, which the agent describes in several ring entries
 *
 * All input from trainers is checked. A trainer can harm only its own job, because each executor
 * serves only one job. The executor has one thread. Exit status of the executor: 0: the job is
 * over. 1: the agent has ended. 2: the executor cannot start, and has reported the reason to the
 * agent. 3: the job has failed. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "bps-agent/executor/engine.h"
#include "bps-agent/executor/plan/choose.h"
#include "common/local/local.h"
#include "common/local/ring_pair.h"

#define EXEC_REGIONS_MAX 4096 /* limit of the number of regions per trainer */

enum exec_state { EXEC_STARTING, EXEC_MEETING, EXEC_RUNNING, EXEC_ENDING };

struct exec_region {
	TAILQ_ENTRY(exec_region) link;
	uint32_t id;
	struct device_mem *mem;
};

struct exec_trainer {
	int sock; /* socket of the trainer, or -1 if the trainer is not connected */
	/* a second socket, or -1. In the state MEETING, the trainer may use this socket instead of
	 * `sock` (see exec_trainer_add). */
	int second;
	uint32_t pid;
	bool has_hello;
	int gpu;
	uint8_t uuid[GPU_UUID_BYTES];
	int page_fd;
	struct gpu_slot *slots;
	uint64_t page_bytes;
	uint32_t hello_seq, n_regions, next_region;
	TAILQ_HEAD(, exec_region) regions;
};

struct exec_arena {
	TAILQ_ENTRY(exec_arena) link;
	uint32_t id;
	void *map;
	uint64_t bytes;
	struct device_mem *mem;
};

/* The tensor that the agent is describing. is_open: some BUFFER or PLACE entries have not arrived
 * yet. */
struct exec_making {
	bool is_open, is_bad;
	struct engine_tensor_desc t;
	uint32_t n_places, n_in, n_out;
	struct engine_place places[DEVICE_GPUS_MAX];
	struct engine_range in[DEVICE_GPUS_MAX];
};

struct exec {
	const struct device_ops *ops;
	struct device *dev;
	enum exec_state state;
	int exit_status;
	/* wake_fd: eventfd that wakes the executor; agent_fd: eventfd that wakes the agent */
	int agent_sock, wake_fd, agent_fd;
	struct ring_pair pipe;
	struct ring_pair_page *page;
	char job[256], want[GPU_WORD_MAX + 1], sysfs[GPU_PATH_MAX + 1];
	uint32_t n_workers, n_slots;
	struct choice choice;          /* route of the job, set when the state becomes RUNNING */
	struct exec_trainer *trainers; /* array of n_workers trainers */
	TAILQ_HEAD(, exec_arena) arenas;
	struct exec_making making;
	struct engine *engine; /* created when the state becomes RUNNING */
	/* the state ENDING lasts at most until this time, even if work is queued */
	uint64_t end_ns;
};

/* exec.c */
/* Run the executor until it ends. Returns the exit status. Owns: the function takes agent_sock. */
int exec_main(const struct device_ops *ops, int agent_sock);
/* Fail the job: report the failure to the agent and all trainers, and set the state ENDING. Only
 * the first call has an effect. */
void exec_fail(struct exec *x, int code, const char *text);
/* Handle all messages in the agent's socket. Messages may add arenas. */
void exec_read_agent(struct exec *x);
/* Return the memory of the arena with this id, or NULL if there is no such arena. The memory is
 * pinned for the GPUs. */
struct device_mem *exec_arena_memory(const struct exec *x, uint32_t id);

/* exec_trainer.c */
/* Handle the agent's TRAINER message. The message brings `sock`, which is connected to the process
 * of this worker. Owns: the function takes sock. */
void exec_trainer_add(struct exec *x, uint32_t worker, uint32_t pid, int sock);
/* Read a message from sock, which is one of the worker's sockets. If the trainer has closed this
 * socket, close the executor's side as well. */
void exec_trainer_read(struct exec *x, uint32_t worker, int sock);
/* Return whether the trainer has sent HELLO and is still connected. Call this function only in the
 * state MEETING. */
bool exec_trainer_waits(struct exec *x, uint32_t worker);
/* Close each trainer's second socket, if there is one. The executor calls this function when all
 * trainers have sent HELLO. After the call a trainer cannot change its socket or repeat HELLO. */
void exec_trainers_met(struct exec *x);
/* Answer HELLO of all trainers with WELCOME, which names the route. */
void exec_welcome_trainers(struct exec *x);
/* Return the memory of a worker's region, or NULL. */
struct device_mem *exec_region_memory(const struct exec *x, uint32_t worker, uint32_t region);
/* Free the resources of a trainer. Before this call, all queued GPU work that uses these
 * resources must have ended. */
void exec_trainer_free(struct exec *x, uint32_t worker);

/* exec_tensor.c */
/* Handle one entry of the agent's ring. e: a copy of the entry, not checked yet. */
void exec_apply_ring_entry(struct exec *x, const struct ring_pair_entry *e);
/* Discard the tensor that is being described, because the agent process that described it has
 * ended. */
void exec_entries_end(struct exec *x);
/* Remove mem from the tensor that the agent is describing, because mem will be freed. */
void exec_entry_forget(struct exec *x, const struct device_mem *mem);
#endif
