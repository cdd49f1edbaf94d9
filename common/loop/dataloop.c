/* A data thread: call `tick` and `work` of the core, poll the transport, run posted functions, then
 * spin or sleep. Only the core handles messages and rounds. All functions run on the data thread
 * unless the header says otherwise. */
#include "common/loop/dataloop.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/os/handover_queue.h"
#include "common/os/limits.h"
#include "common/transport/xport.h"

/* Nanoseconds after which the function `turn` returns even if work is left, so that the loop polls
 * the descriptors. */
#define TURN_NS 500000
/* Limit for the duration of sched_yield. A longer call shows that another process needs the
 * processor. After a longer call the loop does not spin for a while. */
#define YIELD_TOO_LONG_NS UINT64_C(100000)
/* During a pause, the loop does not spin. A pause that has ended counts as recent for RESPITE times
 * its own length, but at most for 2 * DATALOOP_REST_MAX_NS (dataloop_rest_ns). The value of RESPITE
 * was found by measurement (docs/explanation/performance.md, point 12). */
#define RESPITE 8
/* Maximum number of calls of `turn` between two polls of the descriptors. */
#define TURNS 8

struct dataloop_post {
	void (*fn)(void *arg);
	void *arg;
};

struct dataloop {
	const struct dataloop_ops *ops;
	void *ctx;
	struct xport *x;
	char name[16];
	uint64_t spin_ns, idle_since_ns;
	/* End and length of the latest pause in spinning. During a pause the loop does not spin */
	uint64_t no_spin_until_ns, no_spin_ns;
	bool is_asleep, is_stopping, has_thread, has_x_poll;
	pthread_t thread;
	uv_loop_t uv;
	uv_prepare_t prepare;
	uv_check_t check;
	uv_idle_t idle;
	uv_timer_t timer, beat;
	uv_poll_t x_poll, posts_poll;
	/* Time of the last beat. The data thread writes the time, other threads read it. Relaxed
	 * order suffices, because no other data depends on the time */
	_Atomic uint64_t beat_ns;
	_Atomic uint64_t busy_ns;    /* see dataloop_busy_ns; written and read like beat_ns */
	struct handover_queue posts; /* items: struct dataloop_post */
};

static void on_post_pending(uv_poll_t *h, int status, int events)
{
	struct dataloop *l = h->data;
	struct dataloop_post p;

	(void)status;
	(void)events;
	handover_queue_clear_wake(&l->posts);
	while (handover_queue_pop(&l->posts, &p))
		p.fn(p.arg);
}

static void on_transport_readable(uv_poll_t *p, int status, int events)
{
	(void)p;
	(void)status;
	(void)events;
}

static void on_dataloop_idle(uv_idle_t *i)
{
	(void)i;
}

static void on_dataloop_timer(uv_timer_t *t)
{
	(void)t;
}

static void on_dataloop_beat(uv_timer_t *t)
{
	struct dataloop *l = t->data;

	atomic_store_explicit(&l->beat_ns, clock_now_ns(), memory_order_relaxed);
}

static void dataloop_set_timer(struct dataloop *l, uint64_t now_ns, uint64_t deadline_ns)
{
	uint64_t ms;

	if (deadline_ns == UINT64_MAX) {
		uv_timer_stop(&l->timer);
		return;
	}
	ms = deadline_ns > now_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
	uv_update_time(&l->uv);
	uv_timer_start(&l->timer, on_dataloop_timer, ms, 0);
}

static void dataloop_add_busy(struct dataloop *l, uint64_t ns)
{
	uint64_t busy_ns = atomic_load_explicit(&l->busy_ns, memory_order_relaxed);

	atomic_store_explicit(&l->busy_ns, busy_ns + ns, memory_order_relaxed);
}

/* Work until there is nothing to do or until TURN_NS have passed. Returns true when work is
 * left. */
static bool dataloop_run_turn(struct dataloop *l, uint64_t *ret_now, uint64_t *ret_deadline)
{
	uint64_t start = clock_now_ns(), now = start, worked = start, next;
	bool more;

	do {
		if (l->ops->pause && l->ops->pause(l->ctx))
			start = worked = now = clock_now_ns();
		*ret_deadline = l->ops->tick(l->ctx, now);
		/* Call `work` first, because `poll` sends the messages that `work` queues */
		more = l->ops->work(l->ctx);
		more |= l->x && l->x->ops->poll(l->x, now) > 0;
		now = clock_now_ns();
		if (more)
			worked = now;
	} while (more && now - start < TURN_NS);
	if (l->x && (next = l->x->ops->next_deadline(l->x)) < *ret_deadline)
		*ret_deadline = next;
	if (worked != start) {
		l->idle_since_ns = now;
		dataloop_add_busy(l, worked - start);
	}
	*ret_now = now;
	return more;
}

static bool dataloop_can_spin(const struct dataloop *l, uint64_t now_ns)
{
	return now_ns - l->idle_since_ns < l->spin_ns && now_ns >= l->no_spin_until_ns;
}

uint64_t dataloop_rest_ns(uint64_t last_ns, uint64_t quiet_ns)
{
	if (quiet_ns > RESPITE * last_ns || quiet_ns > 2 * DATALOOP_REST_MAX_NS)
		return DATALOOP_REST_MIN_NS;
	return last_ns < DATALOOP_REST_MAX_NS / 2 ? 2 * last_ns : DATALOOP_REST_MAX_NS;
}

/* Spin instead of sleeping, because a sleep costs a wake-up. Yield, so that the processes that send
 * the next message can run. If the yield takes long, another process needs the processor. Then
 * pause the spinning for a while and sleep instead, because the kernel prefers a newly woken thread
 * to a thread that has yielded. */
static void dataloop_spin_once(struct dataloop *l, uint64_t now_ns)
{
	uint64_t after;

	sched_yield();
	after = clock_now_ns();
	if (after - now_ns < YIELD_TOO_LONG_NS)
		return;
	l->no_spin_ns = dataloop_rest_ns(l->no_spin_ns, after - l->no_spin_until_ns);
	l->no_spin_until_ns = after + l->no_spin_ns;
}

/* Return whether this thread may block now: the owner and the transport have no work. A posted
 * function that waits wakes the thread at once. */
static bool dataloop_can_sleep(struct dataloop *l)
{
	if (l->ops->may_sleep && !l->ops->may_sleep(l->ctx))
		return false;
	l->is_asleep = true;
	return !l->x || l->x->ops->may_sleep(l->x);
}

/* Runs before libuv polls the descriptors. With an active idle handle, libuv polls without
 * blocking. */
static void on_dataloop_prepare(uv_prepare_t *p)
{
	struct dataloop *l = p->data;
	uint64_t now, deadline;

	for (unsigned i = 0; i < TURNS; i++) {
		if (dataloop_run_turn(l, &now, &deadline))
			break; /* work is left, but the descriptors must be polled first */
		if (dataloop_can_spin(l, now)) {
			dataloop_spin_once(l, now);
			continue;
		}
		if (dataloop_can_sleep(l)) {
			uv_idle_stop(&l->idle);
			dataloop_set_timer(l, now, deadline);
			return;
		}
	}
	if (l->x)
		l->x->ops->may_sleep(l->x); /* called only to send the queued messages */
	uv_idle_start(&l->idle, on_dataloop_idle);
}

static void on_dataloop_check(uv_check_t *c)
{
	struct dataloop *l = c->data;

	if (l->is_asleep && l->ops->awake)
		l->ops->awake(l->ctx);
	l->is_asleep = false;
}

int dataloop_new(const char *name, uint32_t spin_us, unsigned queue_count,
	const struct dataloop_ops *ops, void *ctx, struct dataloop **ret, struct err_text *err)
{
	struct dataloop *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return err_set(err, -ENOMEM, "out of memory for a data thread");
	l->ops = ops;
	l->ctx = ctx;
	l->spin_ns = (uint64_t)spin_us * 1000;
	strncpy(l->name, name, sizeof(l->name) - 1);
	rc = handover_queue_init(&l->posts, queue_count, sizeof(struct dataloop_post));
	if (!rc)
		rc = uv_loop_init(&l->uv);
	if (rc < 0) {
		handover_queue_fini(&l->posts);
		free(l);
		return err_set(err, rc, "cannot make the event loop of a data thread: %s",
			uv_strerror(rc));
	}
	uv_prepare_init(&l->uv, &l->prepare);
	uv_check_init(&l->uv, &l->check);
	uv_idle_init(&l->uv, &l->idle);
	uv_timer_init(&l->uv, &l->timer);
	uv_timer_init(&l->uv, &l->beat);
	uv_poll_init(&l->uv, &l->posts_poll, l->posts.wake_fd);
	l->prepare.data = l->check.data = l->posts_poll.data = l->beat.data = l;
	uv_poll_start(&l->posts_poll, UV_READABLE, on_post_pending);
	uv_prepare_start(&l->prepare, on_dataloop_prepare);
	uv_check_start(&l->check, on_dataloop_check);
	uv_timer_start(&l->beat, on_dataloop_beat, 0, DATALOOP_BEAT_MS);
	atomic_store(&l->beat_ns, clock_now_ns());
	*ret = l;
	return 0;
}

void dataloop_attach(struct dataloop *l, struct xport *x)
{
	l->x = x;
	uv_poll_init(&l->uv, &l->x_poll, x->ops->fd(x));
	uv_poll_start(&l->x_poll, UV_READABLE, on_transport_readable);
	l->has_x_poll = true;
}

uv_loop_t *dataloop_uv(struct dataloop *l)
{
	return &l->uv;
}

static void *dataloop_thread_main(void *arg)
{
	struct dataloop *l = arg;

	pthread_setname_np(pthread_self(), l->name);
	while (!l->is_stopping)
		uv_run(&l->uv, UV_RUN_ONCE);
	return NULL;
}

int dataloop_start(struct dataloop *l, struct err_text *err)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&l->thread, NULL, dataloop_thread_main, l);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return limits_explain(-rc, "cannot start a data thread", err);
	l->has_thread = true;
	return 0;
}

int dataloop_set_cpus(struct dataloop *l, const cpu_set_t *cpus)
{
	return -pthread_setaffinity_np(l->thread, sizeof(*cpus), cpus);
}

int dataloop_post(struct dataloop *l, void (*fn)(void *arg), void *arg)
{
	return handover_queue_push(&l->posts, &(struct dataloop_post){fn, arg}, l->posts.max);
}

int dataloop_post_copy(struct dataloop *l, void (*fn)(void *item), const void *item, size_t n_bytes)
{
	void *copy = malloc(n_bytes);
	int rc;

	if (!copy)
		return -ENOMEM;
	memcpy(copy, item, n_bytes);
	rc = dataloop_post(l, fn, copy);
	if (rc < 0)
		free(copy);
	return rc;
}

void dataloop_end(struct dataloop *l)
{
	l->is_stopping = true;
}

static void dataloop_mark_stopping(void *arg)
{
	dataloop_end(arg);
}

void dataloop_stop(struct dataloop *l)
{
	if (!l->has_thread)
		return;
	/* The queue does not stay full, because the thread still runs. */
	while (dataloop_post(l, dataloop_mark_stopping, l) == -EAGAIN)
		sched_yield();
	pthread_join(l->thread, NULL);
	l->has_thread = false;
}

static void dataloop_close_handle(uv_handle_t *h, void *arg)
{
	(void)arg;
	if (!uv_is_closing(h))
		uv_close(h, NULL);
}

void dataloop_free(struct dataloop *l)
{
	if (!l)
		return;
	dataloop_stop(l);
	uv_prepare_stop(&l->prepare);
	uv_walk(&l->uv, dataloop_close_handle, NULL);
	uv_run(&l->uv, UV_RUN_DEFAULT);
	uv_loop_close(&l->uv);
	handover_queue_fini(&l->posts);
	free(l);
}

uint64_t dataloop_busy_ns(const struct dataloop *l)
{
	return atomic_load_explicit(&l->busy_ns, memory_order_relaxed);
}

uint64_t dataloop_beat_ns(const struct dataloop *l)
{
	return atomic_load_explicit(&l->beat_ns, memory_order_relaxed);
}
