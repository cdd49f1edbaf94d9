#ifndef BPS_AGENT_MAKER_H
#define BPS_AGENT_MAKER_H
/* Makes and frees large shared memory on a thread of its own: the kernel zeroes a gigabyte in a
 * third of a second, in which the data thread would serve nobody. Requests take turns by pieces of
 * 16 MiB, so that a small one does not wait for the large ones before it.
 *
 * maker_make: WAITING --a piece at a time--> made, failed or cancelled --posted--> done() on the loop
 *
 * Thread: that of the data loop calls; the maker's own works. */
#include <sys/queue.h>

#include "bps-agent/arena.h"
#include "common/dataloop.h"

struct maker;

/* One request; the caller's memory, the maker's from maker_make until done. */
struct making {
	TAILQ_ENTRY(making) link;
	struct maker *maker;
	struct memory memory; /* result, the caller's when rc is 0 */
	const char *name;
	size_t bytes;
	int more_seals;
	uint32_t node; /* see memory_prefer */
	int rc;        /* 0, or negative with err; -ECANCELED: the maker stops */
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
/* Name, bytes, more_seals, done and user are set. Errors: -ECANCELED stopped,
 * and there is no room to say so later; done does not run. */
int maker_make(struct maker *m, struct making *request);
/* Unmap and close it, at some time. Owns: takes the memory. m NULL or stopped: now. */
void maker_drop(struct maker *m, const struct memory *memory);
#endif
