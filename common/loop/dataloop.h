#ifndef BPS_COMMON_LOOP_DATALOOP_H
#define BPS_COMMON_LOOP_DATALOOP_H
/* A data thread: a libuv loop that drives a transport (common/transport/xport.h) and the core on
 * top of it in one thread, and sleeps when there is nothing to do. Other threads post functions to
 * it. The owner adds its own descriptors (trainers' sockets) to the same libuv loop.
 *
 * Each turn: poll the transport, pass the time to the core, let it work for at most about a
 * millisecond, poll the descriptors. The loop blocks when the spin time has passed, the transport
 * agrees (fi_trywait) and the owner agrees (may_sleep). A descriptor, a post or the next deadline
 * ends the block.
 *
 * Order of calls: new, attach (on any thread), start; posted functions run on the thread; stop
 * joins the thread. */
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "common/base/error.h"

struct dataloop;
struct xport;

struct dataloop_ops {
	/* Advance the time; returns the next deadline, UINT64_MAX for none. */
	uint64_t (*tick)(void *ctx, uint64_t now_ns);
	/* Do one slice of work, well below a millisecond; true when work is left. */
	bool (*work)(void *ctx);
	/* Called before the loop blocks; false when new work has come in. NULL: always true. */
	bool (*may_sleep)(void *ctx);
	/* Called when the loop wakes up after may_sleep returned true. NULL: nothing. */
	void (*awake)(void *ctx);
};

#define DATALOOP_REST_MIN_NS UINT64_C(10000000)
#define DATALOOP_REST_MAX_NS UINT64_C(1000000000)
/* Return how long not to spin because another process needs the processor: twice last_ns if the
 * last pause was recent. A machine at rest has short tasks now and then, too. last_ns: the last
 * pause, 0: none yet; quiet_ns: time since its end. Pure. */
uint64_t dataloop_rest_ns(uint64_t last_ns, uint64_t quiet_ns);

/* Make a loop. spin_us: how long to poll for work before blocking. queue_count: posts that may
 * wait. ops must outlive the loop.
 * Errors: negative, with a sentence. */
int dataloop_new(const char *name, uint32_t spin_us, size_t queue_count,
	const struct dataloop_ops *ops, void *ctx, struct dataloop **ret, struct err_text *err);
/* Attach the transport that the loop polls; before start. */
void dataloop_attach(struct dataloop *l, struct xport *x);
/* Return the libuv loop for the owner's handles; before start, or on the thread. */
uv_loop_t *dataloop_uv(struct dataloop *l);
/* Start the thread.
 * Errors: -errno, with a sentence. */
int dataloop_start(struct dataloop *l, struct err_text *err);

/* Run fn(arg) on the thread, in the order of posting. Thread: any.
 * Errors: -EAGAIN the queue is full. */
int dataloop_post(struct dataloop *l, void (*fn)(void *arg), void *arg);

/* Run all posted functions, end the thread and join it. The last posted function must leave all
 * handles of the owner closed. */
void dataloop_stop(struct dataloop *l);
/* Stop the loop if it runs, and free it. NULL is allowed. */
void dataloop_free(struct dataloop *l);

/* Return the time of the last turn; at most DATALOOP_BEAT_MS old in a healthy thread. Thread:
 * any. */
#define DATALOOP_BEAT_MS 250
uint64_t dataloop_beat_ns(const struct dataloop *l);
#endif
