#ifndef BPS_AGENT_MEMORY_MEMORY_THREAD_H
#define BPS_AGENT_MEMORY_MEMORY_THREAD_H
/* Makes and frees shared memory on a thread of its own, of low priority. The kernel takes 0.3 to
 * 0.9 s to zero a gigabyte (1.6 ms for 2 MiB), which would block the data thread. Requests take
 * turns by pieces of 16 MiB, so that a small one does not wait for earlier large ones. Users take
 * turns as well: the next piece is for the user that has waited longest.
 *
 * memory_thread_make: WAITING --a piece at a time--> made, failed or cancelled
 * of each: --posted--> done() on the loop
 *
 * A request that is not finished when the agent ends is cancelled (-ECANCELED). Its requester gets
 * no answer, and repeats the request to the next agent process.
 *
 * Thread: that of the data loop calls; the thread itself works. */
#include <sys/queue.h>
#include <sys/types.h>

#include "bps-agent/memory/arena.h"
#include "common/loop/dataloop.h"

struct memory_thread;

/* A request. The memory is the caller's; the thread uses it from memory_thread_make until done. */
struct memory_request {
	TAILQ_ENTRY(memory_request) link;
	struct memory_thread *memory_thread;
	uint64_t turn;        /* turn of its user's last piece */
	struct memory memory; /* result, the caller's when rc is 0 */
	const char *name;
	size_t bytes;
	int more_seals;
	uint32_t node; /* see memory_prefer */
	uid_t uid;     /* the user that it is for */
	int rc;        /* 0, or negative with err */
	struct err_text err;
	void (*done)(struct memory_request *m); /* on the loop's thread, exactly once */
	void *user;
};

/* Start the thread. Errors: -errno with a text. loop: where done runs; outlives the thread. */
int memory_thread_new(struct dataloop *loop, struct memory_thread **ret, struct err_text *err);
/* End its thread. Cancel requests that wait or come later: their done follows. */
void memory_thread_stop(struct memory_thread *m);
/* Free it after every done. NULL is allowed. */
void memory_thread_free(struct memory_thread *m);
/* Start a request, given by name, bytes, more_seals, node, uid, done and user; the other fields
 * need not be set. Errors: -ECANCELED the thread is stopped and the loop has no room for done,
 * which does not run. */
int memory_thread_make(struct memory_thread *m, struct memory_request *request);
/* Unmap and close the memory later. Owns: takes the memory. m NULL or stopped: now. */
void memory_thread_drop(struct memory_thread *m, const struct memory *memory);
#endif
