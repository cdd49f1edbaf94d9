#ifndef BPS_AGENT_EXECUTOR_EXEC_H
#define BPS_AGENT_EXECUTOR_EXEC_H
/* The executor: a process of one job on one machine, child of its agent, that drives the job's GPUs
 * there. It has the memory that it makes for trainers, maps what they share with it, and carries
 * partitions between that and the staging memory of the agent (engine.h). The network is the
 * agent's.
 *
 *   exec: STARTING --START--> MEETING --all trainers have said HELLO--> RUNNING --END, error, EOF--> ENDING
 *
 * An agent may end and have a successor, who finds this socket as it was left: then nothing is seen
 * of that here but a second START, with new rings. What the first agent has said is still done; then
 * the second is told all anew, and asks for what it needs to know by saying once more which memory
 * and tensors there are, and which rounds run (engine_mute).
 *
 *   exec.c          the loop, the agent's socket and rings, the end
 *   exec_trainer.c  trainers' sockets, their memory and counter pages
 *   exec_tensor.c   tensors, as the agent describes them entry by entry
 *
 * Nothing that a trainer sends is trusted; it can harm its own job only, for there is no other one
 * in this process. One thread. Exit status: 0 the job is over; 1 the agent is gone; 2 it cannot
 * start, which the agent was told; 3 the job has failed here. */
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
	int sock;   /* -1: not here (any more) */
	int second; /* MEETING: another one that it may have been given instead; or -1 */
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

/* A tensor of which not all BUFFERs and PLACEs have come. */
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
	int agent_sock, wake_fd, agent_fd; /* fd: eventfds, our own and the agent's */
	struct ring_pair pipe;
	struct ring_pair_page *page;
	char job[256], want[GPU_WORD_MAX + 1], sysfs[GPU_PATH_MAX + 1];
	uint32_t n_workers, n_slots;
	struct choice choice;          /* from RUNNING on */
	struct exec_trainer *trainers; /* n_workers */
	TAILQ_HEAD(, exec_arena) arenas;
	struct exec_making making;
	struct engine *engine; /* from RUNNING on */
	uint64_t end_ns;       /* ENDING: not longer than this */
};

/* exec.c */
/* Run to the end; returns the exit status. agent_sock is taken. */
int exec_main(const struct device_ops *ops, int agent_sock);
/* Nothing goes on: tell all, once, and end. */
void exec_fail(struct exec *x, int code, const char *text);
/* All that the agent has sent; there may be an arena among it. */
void exec_read_agent(struct exec *x);
/* The pinned arena with that number, or NULL. */
struct device_mem *exec_arena(const struct exec *x, uint32_t id);

/* exec_trainer.c */
/* The agent's TRAINER. Owns: takes sock. */
void exec_trainer_add(struct exec *x, uint32_t worker, uint32_t pid, int sock);
/* Something is to be read from one of its sockets, or it is gone. */
void exec_trainer_read(struct exec *x, uint32_t worker, int sock);
/* Has it said HELLO, and is still there? MEETING. */
bool exec_trainer_waits(struct exec *x, uint32_t worker);
/* All have sent HELLO: close the second sockets, and forget no HELLO any more. */
void exec_trainers_met(struct exec *x);
/* Tell all that they are let in, and the route. */
void exec_welcome(struct exec *x);
/* A region of a trainer's, or NULL. */
struct device_mem *exec_region(const struct exec *x, uint32_t worker, uint32_t region);
/* Give back what a trainer had. Nothing of it is queued any more. */
void exec_trainer_free(struct exec *x, uint32_t worker);

/* exec_tensor.c */
/* One entry of the agent's ring, copied and not checked yet. */
void exec_entry(struct exec *x, const struct ring_pair_entry *e);
/* No more entries of that agent. */
void exec_entries_end(struct exec *x);
/* That memory is about to go: a tensor that is being described will not lie in it. */
void exec_entry_forget(struct exec *x, const struct device_mem *mem);
#endif
