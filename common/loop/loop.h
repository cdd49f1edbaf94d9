#ifndef BPS_COMMON_LOOP_LOOP_H
#define BPS_COMMON_LOOP_LOOP_H
/* An event loop that uses libevent. Other threads can post functions to the loop through a bounded
 * queue with an eventfd. loop_run runs the loop in the caller's thread. Make events for the loop's
 * event_base before loop_run, or in posted functions. Free the events after loop_run has returned
 * and before loop_free. */

#include "common/base/error.h"

struct event_base;
struct loop;

typedef void loop_fn(void *arg);

/* Make a loop. name: name of the loop in error texts. queue_count: maximum number of posted
 * functions that wait.
 * Errors: -ENOMEM, -errno; err gets the text. */
int loop_new(struct loop **ret_loop, const char *name, unsigned queue_count, struct err_text *err);

/* Return the libevent base, for use on the loop's thread. */
struct event_base *loop_base(const struct loop *l);

/* Run the loop in this thread until loop_quit is called. */
void loop_run(struct loop *l);

/* Run fn(arg) on the loop's thread. Functions run in the order in which they were posted. If
 * loop_post returns an error, fn does not run. Thread: any. Errors:
 *   -EAGAIN:     the queue is full
 *   BPS_ECLOSED: loop_quit was called */
int loop_post(struct loop *l, loop_fn *fn, void *arg);

/* Make loop_run return. The functions that were posted before this call run first. Thread: any. */
void loop_quit(struct loop *l);

/* Free a loop that does not run. NULL is allowed. */
void loop_free(struct loop *l);
#endif
