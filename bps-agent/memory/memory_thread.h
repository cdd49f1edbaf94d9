#ifndef BPS_AGENT_MEMORY_MEMORY_THREAD_H
#define BPS_AGENT_MEMORY_MEMORY_THREAD_H
/* Makes and frees shared memory on a thread of its own, of low priority. The kernel takes 0.3 to
 * 0.9 s to zero a gigabyte (1.6 ms for 2 MiB), which would block the data thread. The thread makes
 * memory in pieces of 16 MiB, and serves another request after each piece. So a small request does
 * not wait for earlier large ones. The next piece is for the user that has waited longest.
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

/* A request for memory. The caller owns the struct and keeps it from memory_thread_make until the
 * call of done, because the memory thread uses it. */
struct memory_request {
	TAILQ_ENTRY(memory_request) link;
	struct memory_thread *memory_thread;
	/* The thread numbers the pieces that it begins. turn is the number of the last piece that
	 * was begun for uid. If uid has no other request in the queue when this request arrives,
	 * turn is the number of the last piece for any user. The request with the smallest turn
	 * gets the next piece. */
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

/* Start the thread. loop: the loop on which done runs; it outlives the thread. Errors: -errno, and
 * err gets the text. */
int memory_thread_new(struct dataloop *loop, struct memory_thread **ret, struct err_text *err);
/* End the thread. Requests that wait or come later are cancelled: done is called for each. */
void memory_thread_stop(struct memory_thread *m);
/* Free m. Call this function after done has run for every request. NULL is allowed. */
void memory_thread_free(struct memory_thread *m);
/* Start a request. The caller sets the fields name, bytes, more_seals, node, uid, done and user of
 * the request. Errors: -ECANCELED: the thread has been stopped, and the loop's queue is full; done
 * is not called. */
int memory_thread_make(struct memory_thread *m, struct memory_request *request);
/* Unmap and close the memory later, on the thread. Owns: takes the memory. If m is NULL or stopped,
 * the caller's thread frees the memory at once. */
void memory_thread_drop(struct memory_thread *m, const struct memory *memory);
#endif
