/* Resolve one host name with getaddrinfo in a thread of its own, and deliver the answer on the
 * event loop. The thread writes only the answer; all other functions run on the loop's thread. */
#include "common/control/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <event2/event.h>

struct resolve {
	struct addr addr;
	resolve_done_fn *done;
	void *arg;
	struct event *ready; /* fires when fd is readable; the thread has then written the answer */
	int fd;
	bool has_thread;
	pthread_t thread;
	struct resolve_answer answer; /* the thread writes the answer before it writes to fd */
};

static void *resolve_thread_main(void *arg)
{
	struct resolve *r = arg;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	struct addrinfo *list = NULL;
	struct resolve_answer *a = &r->answer;
	char port[8];
	int rc;

	/* Wait for each name server one second, and try all name servers twice. Each thread has its
	 * own _res, so the limits apply to this lookup only. */
	if (res_init() == 0) {
		_res.retrans = 1;
		_res.retry = 2;
	}
	snprintf(port, sizeof(port), "%u", (unsigned)r->addr.port);
	rc = getaddrinfo(r->addr.host, port, &hints, &list);
	if (rc)
		a->rc = err_set(&a->err, -EADDRNOTAVAIL, "cannot resolve '%s': %s", r->addr.host,
			gai_strerror(rc));
	for (struct addrinfo *i = list; i && a->n_addrs < RESOLVE_MAX_ADDRS; i = i->ai_next) {
		memcpy(&a->addrs[a->n_addrs], i->ai_addr, i->ai_addrlen);
		a->lens[a->n_addrs++] = i->ai_addrlen;
	}
	if (list)
		freeaddrinfo(list);
	res_nclose(&_res);
	eventfd_write(r->fd, 1);
	return NULL;
}

void resolve_cancel(struct resolve *r)
{
	if (!r)
		return;
	if (r->has_thread)
		pthread_join(r->thread, NULL);
	if (r->ready)
		event_free(r->ready);
	if (r->fd >= 0)
		close(r->fd);
	free(r);
}

static void on_resolve_ready(evutil_socket_t fd, short what, void *arg)
{
	struct resolve *r = arg;
	struct resolve_answer answer;
	resolve_done_fn *done = r->done;
	void *done_arg = r->arg;

	(void)fd;
	(void)what;
	if (r->has_thread)
		pthread_join(r->thread, NULL);
	r->has_thread = false;
	answer = r->answer;
	resolve_cancel(r);
	done(done_arg, &answer);
}

int resolve_start(struct resolve **ret_resolve, struct event_base *base, const struct addr *addr,
	resolve_done_fn *done, void *arg)
{
	struct resolve *r = calloc(1, sizeof(*r));
	int rc = 0;

	if (!r)
		return -ENOMEM;
	r->addr = *addr;
	r->done = done;
	r->arg = arg;
	r->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (r->fd < 0) {
		rc = -errno;
		goto fail;
	}
	r->ready = event_new(base, r->fd, EV_READ, on_resolve_ready, r);
	if (!r->ready || event_add(r->ready, NULL)) {
		rc = -ENOMEM;
		goto fail;
	}
	if (addr_resolve_numeric(addr, &r->answer.addrs[0], &r->answer.lens[0]) == 0) {
		r->answer.n_addrs = 1;
		eventfd_write(r->fd, 1);
	} else {
		rc = -pthread_create(&r->thread, NULL, resolve_thread_main, r);
		r->has_thread = rc == 0;
	}
	if (rc)
		goto fail;
	*ret_resolve = r;
	return 0;
fail:
	resolve_cancel(r);
	return rc;
}
