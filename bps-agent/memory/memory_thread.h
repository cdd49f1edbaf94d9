#ifndef BPS_AGENT_MEMORY_MEMORY_THREAD_H
#define BPS_AGENT_MEMORY_MEMORY_THREAD_H
/* Makes and frees shared memory on a thread of its own, of low priority: the kernel takes 0.3 to
 * 0.9 s for a gigabyte of zeroes (1.6 ms for 2 MiB), in which the data thread would serve nobody.
 * Requests take turns by pieces of 16 MiB, so that a small one does not wait for the large ones
 * before it; and so do users: the next piece is for the one who has waited longest.
 *
 * memory_thread_make: WAITING --a piece at a time--> made, failed or cancelled
 * of each: --posted--> done() on the loop
 *
 * Cancelled (-ECANCELED) is what was not made because the agent ends. Whoever waits for it is not
 * answered: the agent's successor is asked again.
 *
 * Thread: that of the data loop calls; the thread itself works. */
#include <sys/queue.h>
#include <sys/types.h>

#include "bps-agent/memory/arena.h"
#include "common/loop/dataloop.h"

struct memory_thread;

/* One request; the caller's memory, the thread's from memory_thread_make until done. */
struct memory_request {
	TAILQ_ENTRY(memory_request) link;
	struct memory_thread *memory_thread;
	uint64_t turn;        /* of its user's last piece */
	struct memory memory; /* result, the caller's when rc is 0 */
	const char *name;
	size_t bytes;
	int more_seals;
	uint32_t node; /* see memory_prefer */
	uid_t uid;     /* who it is for */
	int rc;        /* 0, or negative with err */
	struct err_text err;
	void (*done)(struct memory_request *m); /* on the loop's thread, exactly once */
	void *user;
};

/* Errors: -errno with a sentence. loop: where done runs; outlives the thread. */
int memory_thread_new(struct dataloop *loop, struct memory_thread **ret, struct err_text *err);
/* End its thread; cancel what waits and what is requested later: its done follows. */
void memory_thread_stop(struct memory_thread *m);
/* NULL is allowed. After every done. */
void memory_thread_free(struct memory_thread *m);
/* Make what request says by name, bytes, more_seals, node, uid, done and user; the rest need not be
 * set. Errors: -ECANCELED the thread is stopped, and the loop has no room for a done that says so:
 * it does not run. */
int memory_thread_make(struct memory_thread *m, struct memory_request *request);
/* Unmap and close it, at some time. Owns: takes the memory. m NULL or stopped: now. */
void memory_thread_drop(struct memory_thread *m, const struct memory *memory);
#endif
