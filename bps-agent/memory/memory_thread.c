/* The thread that makes and frees shared memory, piece by piece. memory_thread.h describes requests
 * and their order. Arenas are in arena.c. Threads: the data thread runs `deliver`,
 * `memory_thread_add_request` and the functions of the header. The memory thread runs all other
 * functions, unless stated otherwise. */
#include "bps-agent/memory/memory_thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/os/limits.h"

/* Longest wait for work, in seconds. A new request wakes the thread earlier. */
#define IDLE_S 10
/* Low priority, because rounds are more urgent than new memory. At this value, the thread still
 * gets a tenth of a processor that it shares with a busy thread. */
#define NICE 10

struct memory_discard {
	TAILQ_ENTRY(memory_discard) link;
	struct memory memory;
};

struct memory_thread {
	struct dataloop *loop;
	pthread_t thread;
	pthread_mutex_t lock; /* protects the fields below */
	pthread_cond_t wake;
	TAILQ_HEAD(, memory_request) requests;
	TAILQ_HEAD(, memory_discard) drops;
	uint64_t turn; /* sequence number of the piece that was begun last */
	bool is_stopped;
};

static void memory_request_deliver(void *arg)
{
	struct memory_request *m = arg;

	m->done(m);
}

static void memory_request_finish(struct memory_request *m, int rc)
{
	m->rc = rc;
	while (dataloop_post(m->memory_thread->loop, memory_request_deliver, m) == -EAGAIN)
		sched_yield(); /* retry, because the loop's queue is full */
}

/* Take the next request from the queue. Returns NULL if there is no request. The users take turns:
 * the next user is the one who has waited longest for a new piece of memory. Take the first request
 * of this user. In all requests of this user, set the field `turn` to the sequence number of the
 * new piece. */
static struct memory_request *memory_thread_take_request(struct memory_thread *m)
{
	struct memory_request *next = TAILQ_FIRST(&m->requests), *r;

	TAILQ_FOREACH (r, &m->requests, link)
		if (r->turn < next->turn)
			next = r;
	if (!next)
		return NULL;
	TAILQ_REMOVE(&m->requests, next, link);
	next->turn = ++m->turn;
	TAILQ_FOREACH (r, &m->requests, link)
		if (r->uid == next->uid)
			r->turn = next->turn;
	return next;
}

/* Queue a request. If the user already has requests in the queue, the new request gets the same
 * value of `turn` as these requests. Otherwise its `turn` is m->turn, the sequence number of the
 * piece that was begun last. No queued request has a `turn` larger than m->turn, so the users that
 * already wait are served first. */
static void memory_thread_add_request(struct memory_thread *m, struct memory_request *request)
{
	struct memory_request *r;

	request->turn = m->turn;
	TAILQ_FOREACH (r, &m->requests, link)
		if (r->uid == request->uid)
			request->turn = r->turn;
	TAILQ_INSERT_TAIL(&m->requests, request, link);
}

/* Make one piece of the request. Returns true if more pieces must be made. Otherwise calls the
 * function `finish` for the request and returns false. */
static bool memory_request_make_piece(struct memory_request *r)
{
	int rc = 0;

	if (!r->memory.mem)
		rc = memory_create_mapping(&r->memory, r->name, r->bytes, r->more_seals, &r->err);
	if (rc == 0 && !r->memory.n_made)
		memory_prefer_node(&r->memory, r->node);
	if (rc == 0)
		rc = memory_allocate_piece(&r->memory, &r->err);
	if (rc > 0)
		return true;
	if (rc < 0)
		memory_unmap_and_close(&r->memory);
	memory_request_finish(r, rc);
	return false;
}

static void memory_thread_free_discard(struct memory_thread *m, struct memory_discard *d)
{
	TAILQ_REMOVE(&m->drops, d, link);
	pthread_mutex_unlock(&m->lock);
	memory_unmap_and_close(&d->memory);
	free(d);
	pthread_mutex_lock(&m->lock);
}

static void memory_thread_wait(struct memory_thread *m)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_sec += IDLE_S;
	pthread_cond_timedwait(&m->wake, &m->lock, &ts);
}

static void *memory_thread_main(void *arg)
{
	struct memory_thread *m = arg;
	struct memory_discard *d;
	struct memory_request *r;

	pthread_setname_np(pthread_self(), "bps-memory");
	/* On Linux, setpriority with a thread's id affects only that thread. */
	if (setpriority(PRIO_PROCESS, (id_t)gettid(), NICE) < 0)
		log_debug("cannot lower the priority of the memory thread: %s", strerror(errno));
	pthread_mutex_lock(&m->lock);
	for (;;) {
		d = TAILQ_FIRST(&m->drops);
		if (d)
			memory_thread_free_discard(m, d);
		if (m->is_stopped && TAILQ_EMPTY(&m->drops))
			break;
		r = m->is_stopped ? NULL : memory_thread_take_request(m);
		if (r) {
			pthread_mutex_unlock(&m->lock);
			if (!memory_request_make_piece(r))
				/* the request is finished and belongs to its caller again */
				r = NULL;
			pthread_mutex_lock(&m->lock);
			if (r)
				TAILQ_INSERT_TAIL(&m->requests, r, link);
		} else if (!d) {
			memory_thread_wait(m);
		}
	}
	while ((r = memory_thread_take_request(m))) {
		memory_unmap_and_close(&r->memory);
		err_set(&r->err, -ECANCELED, "the agent is stopping");
		memory_request_finish(r, -ECANCELED);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

int memory_thread_new(struct dataloop *loop, struct memory_thread **ret, struct err_text *err)
{
	struct memory_thread *m = calloc(1, sizeof(*m));
	pthread_condattr_t attr;
	sigset_t all, old;
	int rc;

	if (!m)
		return err_set(err, -ENOMEM, "out of memory");
	m->loop = loop;
	TAILQ_INIT(&m->requests);
	TAILQ_INIT(&m->drops);
	pthread_mutex_init(&m->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->wake, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&m->thread, NULL, memory_thread_main, m);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		m->is_stopped = true;
		memory_thread_free(m);
		return limits_explain(-rc, "cannot start the memory thread", err);
	}
	*ret = m;
	return 0;
}

void memory_thread_stop(struct memory_thread *m)
{
	bool was;

	if (!m)
		return;
	pthread_mutex_lock(&m->lock);
	was = m->is_stopped;
	m->is_stopped = true;
	pthread_cond_signal(&m->wake);
	pthread_mutex_unlock(&m->lock);
	if (!was)
		pthread_join(m->thread, NULL);
}

void memory_thread_free(struct memory_thread *m)
{
	if (!m)
		return;
	memory_thread_stop(m);
	pthread_cond_destroy(&m->wake);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

int memory_thread_make(struct memory_thread *m, struct memory_request *request)
{
	int rc = 0;

	request->memory_thread = m;
	request->memory = (struct memory){.fd = -1};
	pthread_mutex_lock(&m->lock);
	if (m->is_stopped) {
		request->rc = err_set(&request->err, -ECANCELED, "the agent is stopping");
		rc = dataloop_post(m->loop, memory_request_deliver, request) < 0 ? -ECANCELED : 0;
	} else {
		memory_thread_add_request(m, request);
		pthread_cond_signal(&m->wake);
	}
	pthread_mutex_unlock(&m->lock);
	return rc;
}

void memory_thread_drop(struct memory_thread *m, const struct memory *memory)
{
	struct memory_discard *d = m ? malloc(sizeof(*d)) : NULL;
	struct memory mine = *memory;

	if (!d) {
		memory_unmap_and_close(&mine);
		return;
	}
	d->memory = mine;
	pthread_mutex_lock(&m->lock);
	if (!m->is_stopped) {
		TAILQ_INSERT_TAIL(&m->drops, d, link);
		d = NULL;
	}
	pthread_cond_signal(&m->wake);
	pthread_mutex_unlock(&m->lock);
	if (d)
		memory_unmap_and_close(&d->memory);
	free(d);
}
