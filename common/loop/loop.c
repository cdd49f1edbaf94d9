/* An event loop that uses libevent. The loop has a bounded queue of posted functions. An eventfd
 * wakes the loop. The owner adds its own events. Any thread may call loop_post and loop_quit. Call
 * all other functions of loop.h on the loop's thread, or while the loop does not run. */
#include "common/loop/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/event.h>

#include "common/base/log.h"

struct loop_post_entry {
	loop_fn *fn;
	void *arg;
};

struct loop {
	struct event_base *base;
	struct event *wake;
	int fd;

	pthread_mutex_t mutex; /* guards the fields below */
	bool is_closed;
	size_t size, head, count;
	struct loop_post_entry *posts; /* ring of `size` entries */
};

static void on_libevent_log(int severity, const char *msg)
{
	if (severity >= EVENT_LOG_WARN)
		log_rated(LOG_WARN, "libevent: %s", msg);
	else
		log_debug("libevent: %s", msg);
}

static bool loop_take_post(struct loop *l, struct loop_post_entry *ret_post, bool *ret_is_closed)
{
	bool found;

	pthread_mutex_lock(&l->mutex);
	found = l->count > 0;
	if (found) {
		*ret_post = l->posts[l->head];
		l->head = (l->head + 1) % l->size;
		l->count--;
	}
	*ret_is_closed = l->is_closed;
	pthread_mutex_unlock(&l->mutex);
	return found;
}

/* Run posted functions, but at most l->size of them in one call. Otherwise functions that post
 * other functions would keep the loop from serving its sockets. */
static void on_loop_wakeup(evutil_socket_t fd, short what, void *arg)
{
	struct loop *l = arg;
	struct loop_post_entry post;
	eventfd_t n;
	bool is_closed = false;

	(void)what;
	eventfd_read(fd, &n);
	for (size_t i = 0; i < l->size; i++) {
		if (!loop_take_post(l, &post, &is_closed)) {
			if (is_closed)
				event_base_loopbreak(l->base);
			return;
		}
		post.fn(post.arg);
	}
	eventfd_write(fd, 1);
}

static int loop_create_parts(struct loop *l)
{
	event_set_log_callback(on_libevent_log);
	l->posts = calloc(l->size, sizeof(*l->posts));
	l->base = event_base_new();
	if (!l->posts || !l->base)
		return -ENOMEM;
	l->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (l->fd < 0)
		return -errno;
	l->wake = event_new(l->base, l->fd, EV_READ | EV_PERSIST, on_loop_wakeup, l);
	if (!l->wake || event_add(l->wake, NULL))
		return -ENOMEM;
	return 0;
}

int loop_new(struct loop **ret_loop, const char *name, size_t queue_count, struct err_text *err)
{
	struct loop *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return err_set(err, -ENOMEM, "out of memory for an event loop");
	pthread_mutex_init(&l->mutex, NULL);
	l->fd = -1;
	l->size = queue_count ? queue_count : 1;
	rc = loop_create_parts(l);
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
	int rc = 0;

	pthread_mutex_lock(&l->mutex);
	if (l->is_closed)
		rc = BPS_ECLOSED;
	else if (l->count == l->size)
		rc = -EAGAIN;
	else
		l->posts[(l->head + l->count++) % l->size] = (struct loop_post_entry){fn, arg};
	pthread_mutex_unlock(&l->mutex);
	if (!rc)
		eventfd_write(l->fd, 1);
	return rc;
}

void loop_quit(struct loop *l)
{
	pthread_mutex_lock(&l->mutex);
	l->is_closed = true;
	pthread_mutex_unlock(&l->mutex);
	eventfd_write(l->fd, 1);
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	if (l->wake)
		event_free(l->wake);
	if (l->base)
		event_base_free(l->base);
	if (l->fd >= 0)
		close(l->fd);
	pthread_mutex_destroy(&l->mutex);
	free(l->posts);
	free(l);
}
