#ifndef BPS_AGENT_EXECUTOR_EXEC_H
#define BPS_AGENT_EXECUTOR_EXEC_H
/* The executor: a process of one job on one machine, child of its agent, that drives the job's GPUs
 * there. It has the memory that it makes for trainers, and maps memory that they share with it. It
 * carries partitions between that and the staging memory of the agent (engine.h). The agent alone
 * uses the network.
 *
 *   exec: STARTING --START--> MEETING --all trainers have sent HELLO--> RUNNING
 *         any of them --END, error, EOF--> ENDING
 *
 * An agent process may be replaced by another, which finds this socket unchanged. Here that is only
 * a second START, with new rings. All messages of the first agent are still processed. The second
 * agent receives all state again, and requests it by repeating its messages: which memory and
 * tensors there are, and which rounds run (engine_mute).
 *
 *   exec.c          the loop, the agent's socket and rings, the end
 *   exec_trainer.c  trainers' sockets, their memory and counter pages
 *   exec_tensor.c   tensors, as the agent describes them entry by entry
 *
 * All input of trainers is checked. A trainer can harm its own job only, for there is no other one
 * in this process. One thread. Exit status: 0 the job is over; 1 the agent is gone; 2 it cannot
 * start, which was reported to the agent; 3 the job has failed here. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "bps-agent/executor/engine.h"
#include "bps-agent/executor/plan/choose.h"
#include "common/local/local.h"
#include "common/local/ring_pair.h"

#define EXEC_REGIONS_MAX 4096 /* of one trainer */

enum exec_state { EXEC_STARTING, EXEC_MEETING, EXEC_RUNNING, EXEC_ENDING };

struct exec_region {
	TAILQ_ENTRY(exec_region) link;
	uint32_t id;
	struct device_mem *mem;
};

struct exec_trainer {
	int sock;   /* -1: not connected (any more) */
	int second; /* MEETING: another socket that it may have received instead; or -1 */
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

/* A tensor whose BUFFERs and PLACEs are incomplete. */
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
	int agent_sock, wake_fd, agent_fd; /* fds: eventfds, the executor's own and the agent's */
	struct ring_pair pipe;
	struct ring_pair_page *page;
	char job[256], want[GPU_WORD_MAX + 1], sysfs[GPU_PATH_MAX + 1];
	uint32_t n_workers, n_slots;
	struct choice choice;          /* set from RUNNING on */
	struct exec_trainer *trainers; /* n_workers */
	TAILQ_HEAD(, exec_arena) arenas;
	struct exec_making making;
	struct engine *engine; /* set from RUNNING on */
	uint64_t end_ns;       /* time limit of ENDING */
};

/* exec.c */
/* Run to the end; returns the exit status. agent_sock is taken. */
int exec_main(const struct device_ops *ops, int agent_sock);
/* Fail the job: report it to all, once, and end. */
void exec_fail(struct exec *x, int code, const char *text);
/* Read all messages that the agent has sent; they may bring an arena. */
void exec_read_agent(struct exec *x);
/* Return the pinned arena with that number, or NULL. */
struct device_mem *exec_arena(const struct exec *x, uint32_t id);

/* exec_trainer.c */
/* Handle the agent's TRAINER. Owns: takes sock. */
void exec_trainer_add(struct exec *x, uint32_t worker, uint32_t pid, int sock);
/* Read one of the worker's sockets, or handle its end. */
void exec_trainer_read(struct exec *x, uint32_t worker, int sock);
/* MEETING: has the trainer sent HELLO, and is it still connected? */
bool exec_trainer_waits(struct exec *x, uint32_t worker);
/* Close the second sockets when all have sent HELLO; no HELLO is dropped from now on. */
void exec_trainers_met(struct exec *x);
/* Welcome all trainers, and send the route. */
void exec_welcome(struct exec *x);
/* Return a region of a trainer, or NULL. */
struct device_mem *exec_region(const struct exec *x, uint32_t worker, uint32_t region);
/* Free the resources of a trainer, of which nothing is queued any more. */
void exec_trainer_free(struct exec *x, uint32_t worker);

/* exec_tensor.c */
/* Handle one entry of the agent's ring, copied and not checked yet. */
void exec_entry(struct exec *x, const struct ring_pair_entry *e);
/* Discard an incomplete tensor: no more entries of that agent will come. */
void exec_entries_end(struct exec *x);
/* Forget memory that is about to be freed: the tensor that is being described cannot use it. */
void exec_entry_forget(struct exec *x, const struct device_mem *mem);
#endif
