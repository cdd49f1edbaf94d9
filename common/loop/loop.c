/* An event loop that uses libevent, with a queue of posted functions. The owner adds its events.
 * Any thread may call loop_post and loop_quit. Call all other functions of loop.h on the loop's
 * thread, or while the loop does not run. */
#include "common/loop/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include <event2/event.h>

#include "common/base/log.h"
#include "common/os/handover_queue.h"

struct loop_post_entry {
	loop_fn *fn;
	void *arg;
};

struct loop {
	struct event_base *base;
	struct event *wake;
	struct handover_queue posts;
};

static void on_libevent_log(int severity, const char *msg)
{
	if (severity >= EVENT_LOG_WARN)
		log_rated(LOG_WARN, "libevent: %s", msg);
	else
		log_debug("libevent: %s", msg);
}

/* Run posted functions, but at most posts.max of them in one call. Otherwise functions that post
 * other functions would keep the loop from serving its sockets. */
static void on_loop_wakeup(evutil_socket_t fd, short what, void *arg)
{
	struct loop *l = arg;
	struct loop_post_entry post;

	(void)fd;
	(void)what;
	handover_queue_clear_wake(&l->posts);
	for (unsigned i = 0; i < l->posts.max; i++) {
		if (!handover_queue_pop(&l->posts, &post)) {
			if (handover_queue_is_over(&l->posts))
				event_base_loopbreak(l->base);
			return;
		}
		post.fn(post.arg);
	}
	eventfd_write(l->posts.wake_fd, 1);
}

int loop_new(struct loop **ret_loop, const char *name, unsigned queue_count, struct err_text *err)
{
	struct loop *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return err_set(err, -ENOMEM, "out of memory for an event loop");
	event_set_log_callback(on_libevent_log);
	rc = handover_queue_init(
		&l->posts, queue_count ? queue_count : 1, sizeof(struct loop_post_entry));
	l->base = event_base_new();
	if (!rc && l->base)
		l->wake = event_new(
			l->base, l->posts.wake_fd, EV_READ | EV_PERSIST, on_loop_wakeup, l);
	if (!rc && (!l->wake || event_add(l->wake, NULL)))
		rc = -ENOMEM;
	if (rc) {
		loop_free(l);
		return err_set(err, rc, "cannot make the event loop '%s': %s", name, err_str(rc));
	}
	*ret_loop = l;
	return 0;
}

struct event_base *loop_base(const struct loop *l)
{
	return l->base;
}

void loop_run(struct loop *l)
{
	event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY);
}

int loop_post(struct loop *l, loop_fn *fn, void *arg)
{
	return handover_queue_push(&l->posts, &(struct loop_post_entry){fn, arg}, l->posts.max);
}

void loop_quit(struct loop *l)
{
	handover_queue_close(&l->posts);
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	if (l->wake)
		event_free(l->wake);
	if (l->base)
		event_base_free(l->base);
	handover_queue_fini(&l->posts);
	free(l);
}
