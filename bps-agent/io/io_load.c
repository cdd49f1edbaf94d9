/* Decides from the load whether the I/O threads run or are parked. Thread: the data thread. */
#include <errno.h>
#include <sys/epoll.h>
#include <time.h>

#include "bps-agent/io/io_impl.h"
#include "common/base/failpoint.h"

/* The threads start to run when the data thread had work for BUSY_PERCENT of LOAD_NS. Time in which
 * the kernel ran other programs in the middle of the work looks like work. So if the data thread
 * did not have a processor for most of its work, it must be busy WINDOWS times in a row. The
 * threads are parked when all work together took less than CALM_PERCENT of LOOK_NS. */
#define LOAD_NS      UINT64_C(2000000)
#define BUSY_PERCENT 70
#define WINDOWS      5
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

/* Return the time for which this thread has had a processor. */
static uint64_t thread_cpu_ns(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

bool io_load_is_high(uint64_t span_ns, uint64_t busy_ns, uint64_t cpu_ns, unsigned *n_busy)
{
	*n_busy = busy_ns >= span_ns * BUSY_PERCENT / 100 ? *n_busy + 1 : 0;
	return *n_busy && (cpu_ns >= busy_ns / 2 || *n_busy >= WINDOWS);
}

static bool xport_is_busy(struct io_xport *x)
{
	uint64_t span_ns = x->now_ns - x->load_ns, busy_ns = x->busy_ns - x->load_busy_ns;
	uint64_t cpu_ns;

	if (span_ns < LOAD_NS)
		return false;
	cpu_ns = thread_cpu_ns() - x->load_cpu_ns;
	x->load_cpu_ns += cpu_ns;
	x->load_ns = x->now_ns;
	x->load_busy_ns = x->busy_ns;
	return io_load_is_high(span_ns, busy_ns, cpu_ns, &x->n_busy);
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
