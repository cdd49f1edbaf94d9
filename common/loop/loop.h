#ifndef BPS_COMMON_LOOP_LOOP_H
#define BPS_COMMON_LOOP_LOOP_H
/* An event loop (libevent) with a door: other threads post functions through a bounded queue with
 * an eventfd. It runs in a thread of its own (loop_start) or in the caller's (loop_run).
 *
 *   loop_new ──> loop_start ──> loop_stop ──> loop_free
 *            └─> loop_run (returns after loop_quit) ─┘
 *
 * What lives on the base is made before the start or in posted functions, and freed after the stop
 * and before loop_free. */
#include <stddef.h>

#include "common/base/error.h"

struct event_base;
struct loop;

typedef void loop_fn(void *arg);

/* name: of the thread, at most 15 characters count. queue_count: posts that may wait.
 * Errors: -ENOMEM, -errno with a sentence. */
int loop_new(struct loop **ret_loop, const char *name, size_t queue_count, struct err_text *err);

/* The loop's base, for the loop's thread. */
struct event_base *loop_base(const struct loop *l);

/* Run in a thread of its own, with all signals blocked. Errors: -errno with a sentence. */
int loop_start(struct loop *l, struct err_text *err);

/* Run in this thread until loop_quit. */
void loop_run(struct loop *l);

/* Run fn on the loop, in the order of posting. Thread: any.
 * Errors, and then fn will not run: -EAGAIN the queue is full; BPS_ECLOSED after loop_quit. */
int loop_post(struct loop *l, loop_fn *fn, void *arg);

/* Ask it to end; what was posted before still runs. Thread: any. */
void loop_quit(struct loop *l);

/* loop_quit, and wait for the thread's end. Not from the loop's thread. */
void loop_stop(struct loop *l);

/* Stops it when it runs. NULL is allowed. */
void loop_free(struct loop *l);
#endif
