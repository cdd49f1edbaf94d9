#ifndef BPS_COMMON_LOOP_DATALOOP_H
#define BPS_COMMON_LOOP_DATALOOP_H
/* A data thread: a libuv loop in a thread of its own. The loop runs a transport
 * (common/transport/xport.h) and the core that uses the transport. The thread sleeps when there is
 * nothing to do. Other threads can post functions to the loop. The owner may add its own
 * descriptors, such as trainers' sockets, to the same libuv loop.
 *
 * The loop passes the time to the core, lets the core work, and polls the transport. While there is
 * work, the loop repeats these steps for about half a millisecond. Then the loop polls the
 * descriptors. When there is nothing to do, the loop spins for the spin time. Then the loop blocks
 * if may_sleep of the transport and may_sleep of the owner return true. A descriptor, a posted
 * function or the next deadline wakes the loop.
 *
 * Order of calls: dataloop_new, dataloop_attach, dataloop_start, on any thread. Posted functions
 * run on the data thread. dataloop_stop ends and joins the thread. */
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "common/base/error.h"

struct dataloop;
struct xport;

struct dataloop_ops {
	/* Pass the time to the core. Returns the core's next deadline, or UINT64_MAX for none. */
	uint64_t (*tick)(void *ctx, uint64_t now_ns);
	/* Do a small part of the work, and return after much less than a millisecond. Returns true
	 * when work is left. */
	bool (*work)(void *ctx);
	/* Called before each call of `tick`. It may block, for example while another thread uses
	 * the transport. Returns whether it has blocked. NULL: the loop calls nothing. */
	bool (*pause)(void *ctx);
	/* Called before the loop blocks. Returns false if there is new work. The loop then does not
	 * block. NULL: the owner never has new work. */
	bool (*may_sleep)(void *ctx);
	/* Called when the loop wakes up after may_sleep returned true. NULL: the loop calls
	 * nothing. */
	void (*awake)(void *ctx);
};

#define DATALOOP_REST_MIN_NS UINT64_C(10000000)
#define DATALOOP_REST_MAX_NS UINT64_C(1000000000)
/* Return the length of the next pause in spinning, in nanoseconds. A pause starts when another
 * process needs the processor. last_ns: length of the last pause; 0: there was no pause yet.
 * quiet_ns: time since that pause ended. If the last pause was recent, the result is twice last_ns,
 * at most DATALOOP_REST_MAX_NS. Else the result is DATALOOP_REST_MIN_NS, because even an idle
 * machine runs short tasks now and then. The result depends on the arguments only. */
uint64_t dataloop_rest_ns(uint64_t last_ns, uint64_t quiet_ns);

/* Make a loop. name: name of the thread. spin_us: how long to poll for work before blocking, in
 * microseconds. queue_count: maximum number of posted functions that wait. ops must outlive the
 * loop.
 * Errors: a negative code; err gets the text. */
int dataloop_new(const char *name, uint32_t spin_us, unsigned queue_count,
	const struct dataloop_ops *ops, void *ctx, struct dataloop **ret, struct err_text *err);
/* Set the transport that the loop polls. Call it before dataloop_start. */
void dataloop_attach(struct dataloop *l, struct xport *x);
/* Return the libuv loop, for the owner's handles. Call it before dataloop_start, or on the data
 * thread. */
uv_loop_t *dataloop_uv(struct dataloop *l);
/* Start the thread.
 * Errors: -errno; err gets the text. */
int dataloop_start(struct dataloop *l, struct err_text *err);

/* Let the thread run on these processors only. Call it after dataloop_start. Errors: -errno. */
int dataloop_set_cpus(struct dataloop *l, const cpu_set_t *cpus);

/* Run fn(arg) on the data thread, in the order of the posts. Returns -EAGAIN if the queue is full.
 * Thread: any. */
int dataloop_post(struct dataloop *l, void (*fn)(void *arg), void *arg);

/* Post fn with a copy of the n_bytes at item. fn frees the copy. Errors: also -ENOMEM. */
int dataloop_post_copy(
	struct dataloop *l, void (*fn)(void *item), const void *item, size_t n_bytes);

/* Let the loop end after the posted functions that run now, without another turn. dataloop_stop
 * still has to join the thread. Thread: the data thread. */
void dataloop_end(struct dataloop *l);
/* Run all posted functions, end the thread and join it. Before this call the owner must have posted
 * a function that closes the owner's handles. */
void dataloop_stop(struct dataloop *l);
/* Stop the loop if it runs, and free it. NULL is allowed. */
void dataloop_free(struct dataloop *l);

/* Return the time at which the data thread last recorded that it runs (its beat). In a healthy
 * thread the last beat was at most DATALOOP_BEAT_MS ago. Thread: any. */
#define DATALOOP_BEAT_MS 250
uint64_t dataloop_beat_ns(const struct dataloop *l);
/* Return the time in which the thread has had work. Time in which it looks for work or sleeps does
 * not count. Thread: any. */
uint64_t dataloop_busy_ns(const struct dataloop *l);
#endif
