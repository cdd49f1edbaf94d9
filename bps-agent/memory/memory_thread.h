#ifndef BPS_AGENT_MEMORY_MEMORY_THREAD_H
#define BPS_AGENT_MEMORY_MEMORY_THREAD_H
/* Makes and frees shared memory on a separate thread of low priority. The kernel takes 0.3 to 0.9 s
 * to zero a gigabyte (1.6 ms for 2 MiB), which would block the data thread. The memory thread makes
 * memory in pieces of 16 MiB. After each piece, the thread turns to the user that has waited
 * longest, and to this user's next request. So a small request does not wait for earlier large
 * requests.
 *
 *   memory_thread_make --> waiting --piece by piece--> made, failed or cancelled --> done() on loop
 *
 * A request that is not finished when the agent ends is cancelled (-ECANCELED). The trainer that
 * sent the request gets no answer, and the next process of the agent handles the trainer's message
 * again.
 *
 * Thread: the functions are called on the data thread. */
#include <sys/queue.h>
#include <sys/types.h>

#include "bps-agent/memory/arena.h"
#include "common/loop/dataloop.h"

struct memory_thread;

/* A request for memory. The caller owns the struct, and must not free it between the calls of
 * memory_thread_make and `done`, because the memory thread uses the struct. */
struct memory_request {
	TAILQ_ENTRY(memory_request) link;
	struct memory_thread *memory_thread;
	/* The thread gives each piece a sequence number when it begins the piece. `turn` is the
	 * sequence number of the last piece that was begun for the user `uid`. If the queue has no
	 * other request of the user, `turn` starts as the sequence number of the last piece that
	 * was begun for any user. The request with the smallest `turn` gets the next piece. */
	uint64_t turn;
	struct memory memory; /* the result, owned by the caller when rc is 0 */
	const char *name;
	size_t bytes;
	int more_seals;
	uint32_t node; /* 1 + number of the preferred NUMA node; 0: any node */
	uid_t uid;     /* the user that the memory is for */
	int rc;        /* result: 0, or negative with the text in err */
	struct err_text err;
	void (*done)(struct memory_request *m); /* called on the loop's thread, exactly once */
	void *user;
};

/* Start the thread. loop: the loop that calls request->done; the loop must outlive the thread.
 * Errors: -errno, and `err` receives the text. */
int memory_thread_new(struct dataloop *loop, struct memory_thread **ret, struct err_text *err);
/* End the thread. Waiting requests and later requests are cancelled. The loop calls request->done
 * for each cancelled request. */
void memory_thread_stop(struct memory_thread *m);
/* Free m. Call this function after request->done has run for every request. NULL is allowed. */
void memory_thread_free(struct memory_thread *m);
/* Start a request. The caller sets the fields name, bytes, more_seals, node, uid, done and user of
 * the request. Returns -ECANCELED, and never calls request->done, if the thread has been stopped
 * and the loop's queue is full. */
int memory_thread_make(struct memory_thread *m, struct memory_request *request);
/* Unmap and close the memory later, on the thread. If m is NULL or stopped, the caller's thread
 * frees the memory at once. Owns: the function takes the memory. */
void memory_thread_drop(struct memory_thread *m, const struct memory *memory);
#endif
