/* Decides from the load whether the I/O threads run or are parked. Thread: the data thread. */
#include <errno.h>
#include <sys/epoll.h>

#include "bps-agent/io/io_impl.h"
#include "common/base/failpoint.h"

/* The threads start to run when the data thread had work for BUSY_PERCENT of LOAD_NS. They are
 * parked when the work of all threads together took less than CALM_PERCENT of LOOK_NS. */
#define LOAD_NS      UINT64_C(2000000)
#define BUSY_PERCENT 70
#define LOOK_NS      UINT64_C(100000000)
#define CALM_PERCENT 50
/* Tasks without a connection that one thread may have at a time, so that the most urgent one is
 * chosen late. */
#define TASKS_PER_THREAD 2

int io_load_watch(struct io_thread *t, int op, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.u32 = t->index};

	return epoll_ctl(t->x->epoll_fd, op, t->real->ops->fd(t->real), &ev) ? -errno : 0;
}

void io_load_drain(struct io_thread *t)
{
	unsigned n;

	do {
		io_queue_publish(&t->in);
		n = io_owner_execute(t, UINT32_MAX);
		io_owner_report_sent(t);
		io_queue_publish(&t->out);
		n += io_core_deliver(t);
	} while (n);
}

/* Let the threads own their transports. */
static void xport_run_threads(struct io_xport *x)
{
	for (unsigned i = 0; i < x->n_threads; i++) {
		struct io_thread *t = &x->threads[i];

		io_load_watch(t, EPOLL_CTL_MOD, 0);
		t->is_running = true;
		t->look_busy_ns = dataloop_busy_ns(t->loop);
		io_thread_resume(t);
	}
	x->is_running = true;
	x->n_runs++;
	x->look_ns = x->now_ns;
	x->look_busy_ns = x->busy_ns;
	x->pub.tasks_max = x->n_threads * TASKS_PER_THREAD;
	atomic_store_explicit(&x->run_at_ns, x->now_ns, memory_order_relaxed);
}

void io_load_park(struct io_xport *x)
{
	for (unsigned i = 0; i < x->n_threads; i++) {
		struct io_thread *t = &x->threads[i];

		io_thread_park(t);
		io_load_drain(t);
		t->is_running = false;
		t->wants_poll = true;
		io_owner_note_heard(t);
		io_load_watch(t, EPOLL_CTL_MOD, EPOLLIN);
		/* The thread may have woken this one after its last look at the queue. */
		io_queue_awake(&t->out);
	}
	x->is_running = false;
	x->pub.tasks_max = 0;
	atomic_store_explicit(&x->run_at_ns, 0, memory_order_relaxed);
}

static bool xport_is_busy(struct io_xport *x)
{
	uint64_t span_ns = x->now_ns - x->load_ns, busy_ns = x->busy_ns - x->load_busy_ns;

	if (span_ns < LOAD_NS)
		return false;
	x->load_ns = x->now_ns;
	x->load_busy_ns = x->busy_ns;
	return busy_ns >= span_ns * BUSY_PERCENT / 100;
}

/* Return whether the data thread can do all work of the threads that run, and have much room. */
static bool xport_is_calm(struct io_xport *x)
{
	uint64_t span_ns = x->now_ns - x->look_ns, busy_ns = x->busy_ns - x->look_busy_ns;

	if (span_ns < LOOK_NS)
		return false;
	for (unsigned i = 0; i < x->n_threads; i++) {
		struct io_thread *t = &x->threads[i];
		uint64_t total_ns = dataloop_busy_ns(t->loop);

		busy_ns += total_ns - t->look_busy_ns;
		t->look_busy_ns = total_ns;
	}
	x->look_ns = x->now_ns;
	x->look_busy_ns = x->busy_ns;
	return busy_ns < span_ns * CALM_PERCENT / 100;
}

void io_load_choose_owners(struct io_xport *x)
{
	bool never_parks = FAILPOINT(AGENT_IO_LOAD) > 0;

	if (x->is_stopping)
		return;
	if (!x->is_running && (xport_is_busy(x) || never_parks))
		xport_run_threads(x);
	else if (x->is_running && xport_is_calm(x) && !never_parks)
		io_load_park(x);
}

uint64_t io_load_next_look_ns(const struct io_xport *x)
{
	return x->look_ns + LOOK_NS;
}
