#ifndef BPS_COMMON_LOOP_DATALOOP_H
#define BPS_COMMON_LOOP_DATALOOP_H
/* A data thread: a libuv loop that turns a transport (common/transport/xport.h) and the core on top
 * of it, in one thread, and sleeps when there is nothing to do. Other threads post functions to it.
 * The owner adds what else it watches (trainers' sockets) to the same libuv loop.
 *
 * Each turn: poll the transport, let the core's time pass, let it work for at most about a
 * millisecond, look at the descriptors. Before it blocks: the spin time has passed, the transport
 * agrees (fi_trywait), and the owner agrees (may_sleep). It blocks until a descriptor, a post, or
 * the next deadline.
 *
 * Life: new, (on any thread) attach, start; posted functions run on the thread; stop joins it. */
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "common/base/error.h"

struct dataloop;
struct xport;

struct dataloop_ops {
	/* The time has moved; returns the next deadline, UINT64_MAX for none. */
	uint64_t (*tick)(void *ctx, uint64_t now_ns);
	/* One slice of work, well below a millisecond; true when there is more. */
	bool (*work)(void *ctx);
	/* About to block: false when something has come in meanwhile. NULL: always true. */
	bool (*may_sleep)(void *ctx);
	/* Woken up again after may_sleep said true. NULL: nothing. */
	void (*awake)(void *ctx);
};

#define DATALOOP_REST_MIN_NS UINT64_C(10000000)
#define DATALOOP_REST_MAX_NS UINT64_C(1000000000)
/* How long not to spin, since somebody else needs the processor: twice as long as the last time if
 * that is not long ago. A machine at rest has something to do now and then, too. last_ns: 0, none
 * yet; quiet_ns: since that was over. Pure. */
uint64_t dataloop_rest_ns(uint64_t last_ns, uint64_t quiet_ns);

/* spin_us: how long to look for work before blocking. queue_count: posts that may wait. ops must
 * outlive it.
 * Errors: negative, with a sentence. */
int dataloop_new(const char *name, uint32_t spin_us, size_t queue_count,
	const struct dataloop_ops *ops, void *ctx, struct dataloop **ret, struct err_text *err);
/* The transport that it polls; before start. */
void dataloop_attach(struct dataloop *l, struct xport *x);
/* For the owner's handles; before start, or on the thread. */
uv_loop_t *dataloop_uv(struct dataloop *l);
/* Errors: -errno, with a sentence. */
int dataloop_start(struct dataloop *l, struct err_text *err);

/* Run fn(arg) on the thread, in the order of posting. Thread: any. Errors: -EAGAIN the queue is
 * full. */
int dataloop_post(struct dataloop *l, void (*fn)(void *arg), void *arg);

/* Run what was posted, end the thread and join it. All handles of the owner's must be closed, or be
 * closed by what was posted last. */
void dataloop_stop(struct dataloop *l);
/* Stops it when it runs. NULL is allowed. */
void dataloop_free(struct dataloop *l);

/* Time of the last turn; at most DATALOOP_BEAT_MS old in a healthy thread. Thread: any. */
#define DATALOOP_BEAT_MS 250
uint64_t dataloop_beat_ns(const struct dataloop *l);
#endif
