#ifndef BPS_AGENT_MEMORY_MEMORY_THREAD_H
#define BPS_AGENT_MEMORY_MEMORY_THREAD_H
/* Makes and frees shared memory on a thread of its own, of low priority: the kernel takes 0.3 to
 * 0.9 s for a gigabyte of zeroes (1.6 ms for 2 MiB), in which the data thread would serve nobody.
 * Requests take turns by pieces of 16 MiB, so that a small one does not wait for the large ones
 * before it; and so do users: the next piece is for the one who has waited longest.
 *
 * maker_make: WAITING --a piece at a time--> made, failed or cancelled
 * of each: --posted--> done() on the loop
 *
 * Cancelled (-ECANCELED) is what was not made because the agent ends. Whoever waits for it is not
 * answered: the agent's successor is asked again.
 *
 * Thread: that of the data loop calls; the maker's own works. */
#include <sys/queue.h>
#include <sys/types.h>

#include "bps-agent/memory/arena.h"
#include "common/loop/dataloop.h"

struct maker;

/* One request; the caller's memory, the maker's from maker_make until done. */
struct making {
	TAILQ_ENTRY(making) link;
	struct maker *maker;
	uint64_t turn;        /* of its user's last piece */
	struct memory memory; /* result, the caller's when rc is 0 */
	const char *name;
	size_t bytes;
	int more_seals;
	uint32_t node; /* see memory_prefer */
	uid_t uid;     /* who it is for */
	int rc;        /* 0, or negative with err */
	struct err_text err;
	void (*done)(struct making *m); /* on the loop's thread, exactly once */
	void *user;
};

/* Errors: -errno with a sentence. loop: where done runs; outlives the maker. */
int maker_new(struct dataloop *loop, struct maker **ret, struct err_text *err);
/* End its thread; what waits, and what is asked for from then on, is cancelled: its done follows. */
void maker_stop(struct maker *m);
/* NULL is allowed. After every done. */
void maker_free(struct maker *m);
/* Make what request says by name, bytes, more_seals, node, uid, done and user; the rest need not be
 * set. Errors: -ECANCELED the maker is stopped, and the loop has no room for a done that says so:
 * it does not run. */
int maker_make(struct maker *m, struct making *request);
/* Unmap and close it, at some time. Owns: takes the memory. m NULL or stopped: now. */
void maker_drop(struct maker *m, const struct memory *memory);
#endif
