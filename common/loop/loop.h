#ifndef BPS_COMMON_LOOP_LOOP_H
#define BPS_COMMON_LOOP_LOOP_H
/* An event loop (libevent) with a door: other threads post functions through a bounded queue with
 * an eventfd. It runs in the caller's thread, in loop_run. What lives on the base is made before
 * loop_run or in posted functions, and freed after loop_run and before loop_free. */
#include <stddef.h>

#include "common/base/error.h"

struct event_base;
struct loop;

typedef void loop_fn(void *arg);

/* name: for the sentence of an error. queue_count: posts that may wait.
 * Errors: -ENOMEM, -errno with a sentence. */
int loop_new(struct loop **ret_loop, const char *name, size_t queue_count, struct err_text *err);

/* The loop's base, for the loop's thread. */
struct event_base *loop_base(const struct loop *l);

/* Run in this thread until loop_quit. */
void loop_run(struct loop *l);

/* Run fn on the loop, in the order of posting. Thread: any.
 * Errors, and then fn will not run: -EAGAIN the queue is full; BPS_ECLOSED after loop_quit. */
int loop_post(struct loop *l, loop_fn *fn, void *arg);

/* Ask it to end; what was posted before still runs. Thread: any. */
void loop_quit(struct loop *l);

/* NULL is allowed. */
void loop_free(struct loop *l);
#endif
