/* The loop of an I/O thread, and parking. The thread blocks in the loop's function `pause` while it
 * is parked. Thread: the I/O thread; io_thread_start, io_thread_park, io_thread_resume and
 * io_thread_stop: the data thread. */
#include <errno.h>
#include <unistd.h>

#include "bps-agent/io/io_impl.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/datapath/datapath.h"

/* Records that the thread executes before it polls its transport again. */
#define RECORDS_IN_TURN 16
#define HEARD_EVERY_NS  UINT64_C(100000000)
#define POSTS_MAX       4

/* Wait until the data thread lets this thread run again. */
static bool thread_pause(void *ctx)
{
	struct io_thread *t = ctx;

	if (!atomic_load_explicit(&t->wants_park, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&t->lock);
	while (atomic_load_explicit(&t->wants_park, memory_order_relaxed)) {
		t->is_parked = true;
		pthread_cond_broadcast(&t->changed);
		pthread_cond_wait(&t->changed, &t->lock);
	}
	t->is_parked = false;
	pthread_mutex_unlock(&t->lock);
	return true;
}

static uint64_t thread_tick(void *ctx, uint64_t now_ns)
{
	struct io_thread *t = ctx;

	FAILPOINT(AGENT_IO_TURN);
	if (now_ns >= t->heard_due_ns) {
		io_owner_note_heard(t);
		t->heard_due_ns = now_ns + HEARD_EVERY_NS;
	}
	io_owner_report_sent(t);
	io_queue_publish(&t->out);
	return UINT64_MAX;
}

static bool thread_work(void *ctx)
{
	struct io_thread *t = ctx;

	return io_owner_execute(t, RECORDS_IN_TURN) == RECORDS_IN_TURN;
}

static bool thread_may_sleep(void *ctx)
{
	struct io_thread *t = ctx;

	io_owner_report_sent(t);
	io_queue_publish(&t->out);
	if (!io_queue_may_sleep(&t->in))
		return false;
	/* io_thread_park wakes a reader that is asleep, so look once more. */
	if (atomic_load_explicit(&t->wants_park, memory_order_seq_cst))
		return false;
	return true;
}

static void thread_awake(void *ctx)
{
	struct io_thread *t = ctx;

	io_queue_awake(&t->in);
}

static const struct dataloop_ops thread_ops = {.pause = thread_pause,
	.tick = thread_tick,
	.work = thread_work,
	.may_sleep = thread_may_sleep,
	.awake = thread_awake};

static void on_in_readable(uv_poll_t *p, int status, int events)
{
	(void)p;
	(void)status;
	(void)events; /* thread_awake has emptied the descriptor */
}

/* Let the thread run near its card, on those processors there that this process may use. */
static void thread_set_cpus(struct io_thread *t)
{
	cpu_set_t mine, near = t->x->cfg.cards->of[t->card].cpus;
	int rc = 0;

	if (sched_getaffinity(0, sizeof(mine), &mine) < 0)
		return;
	CPU_AND(&near, &near, &mine);
	if (CPU_COUNT(&near))
		rc = dataloop_set_cpus(t->loop, &near);
	if (rc < 0)
		log_warn("cannot let an I/O thread run near its network card: %s", err_str(rc));
}

int io_thread_start(struct io_thread *t, struct err_text *err)
{
	char name[16];
	int rc = io_queue_init(&t->in), rc_out = io_queue_init(&t->out);

	LIST_INIT(&t->dirty);
	LIST_INIT(&t->conns);
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->changed, NULL);
	atomic_store(&t->wants_park, true);
	if (rc < 0 || rc_out < 0)
		return err_set(err, rc < 0 ? rc : rc_out,
			"cannot make the queues of an I/O thread: %s",
			err_str(rc < 0 ? rc : rc_out));
	snprintf(name, sizeof(name), "io%u", t->index);
	rc = dataloop_new(name, t->x->cfg.spin_us, POSTS_MAX, &thread_ops, t, &t->loop, err);
	if (rc < 0)
		return rc;
	dataloop_attach(t->loop, t->real);
	uv_poll_init(dataloop_uv(t->loop), &t->in_poll, t->in.wake_fd);
	uv_poll_start(&t->in_poll, UV_READABLE, on_in_readable);
	rc = dataloop_start(t->loop, err);
	if (rc < 0)
		return rc;
	thread_set_cpus(t);
	io_thread_park(t);
	return 0;
}

void io_thread_park(struct io_thread *t)
{
	if (t->n_parks++)
		return;
	atomic_store_explicit(&t->wants_park, true, memory_order_seq_cst);
	io_queue_wake(&t->in);
	pthread_mutex_lock(&t->lock);
	while (!t->is_parked)
		pthread_cond_wait(&t->changed, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

void io_thread_resume(struct io_thread *t)
{
	if (--t->n_parks)
		return;
	pthread_mutex_lock(&t->lock);
	atomic_store_explicit(&t->wants_park, false, memory_order_relaxed);
	/* The thread sets is_parked again if it finds another wants_park when it wakes up. */
	t->is_parked = false;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

void io_thread_stop(struct io_thread *t)
{
	if (!t->loop)
		return;
	if (t->n_parks) {
		t->n_parks = 1;
		io_thread_resume(t);
	}
	dataloop_stop(t->loop);
	t->n_parks = 1; /* a thread that has ended counts as parked */
}
