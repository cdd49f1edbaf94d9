#ifndef BPS_COMMON_LOOP_LOOP_H
#define BPS_COMMON_LOOP_LOOP_H
/* An event loop (libevent) that other threads can post functions to, through a bounded queue with
 * an eventfd. It runs in the caller's thread, in loop_run. Make events on the base before loop_run
 * or in posted functions. Free them after loop_run and before loop_free. */
#include <stddef.h>

#include "common/base/error.h"

struct event_base;
struct loop;

typedef void loop_fn(void *arg);

/* Make a loop. name: for error sentences. queue_count: posts that may wait.
 * Errors: -ENOMEM, -errno with a sentence. */
int loop_new(struct loop **ret_loop, const char *name, size_t queue_count, struct err_text *err);

/* Return the libevent base, for use on the loop's thread. */
struct event_base *loop_base(const struct loop *l);

/* Run in this thread until loop_quit. */
void loop_run(struct loop *l);

/* Run fn on the loop, in the order of posting. Thread: any.
 * Errors: -EAGAIN the queue is full, BPS_ECLOSED after loop_quit. After an error fn does not
 * run. */
int loop_post(struct loop *l, loop_fn *fn, void *arg);

/* Make loop_run return after the functions that were posted before. Thread: any. */
void loop_quit(struct loop *l);

/* NULL is allowed. */
void loop_free(struct loop *l);
#endif
