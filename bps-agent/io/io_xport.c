/* The core's side of the I/O threads: the functions of struct xport_ops. io_core.c passes events to
 * the core, and io_load.c decides when the threads run. Thread: the data thread. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bps-agent/io/io_impl.h"
#include "common/datapath/datapath.h"
#include "common/transport/flow/read_window.h"

#define WAKE_UP UINT32_MAX /* epoll data of the queues */

/* Tell the transports which messages the core has handled, so that they discard eager bytes that no
 * read takes. */
static void xport_tell_decisions(struct io_xport *x)
{
	struct io_conn *c;

	while ((c = LIST_FIRST(&x->undecided))) {
		uint64_t n = c->n_handled;

		io_conn_stop_deciding(c);
		if (c->t->is_running)
			memcpy(io_put(&c->t->in, IO_DECIDED, c, sizeof(n))->body, &n, sizeof(n));
		else if (c->real && c->real->x->ops->decided)
			c->real->x->ops->decided(c->real, n);
		c->t->wants_poll = true;
	}
}

/* ---- functions for the core ---- */

static int io_connect(struct xport *xp, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn)
{
	struct io_conn *c = calloc(1, sizeof(*c));
	struct io_thread *t;
	struct io_connect *to;
	int rc = 0;

	if (!c)
		return -ENOMEM;
	c->pub = (struct xconn){
		.x = xp, .user = user, .peer_id = peer_id, .peer_instance = peer_instance};
	STAILQ_INIT(&c->deferred);
	t = io_cards_assign(io_xport_of(xp), c, addr);
	if (t->is_running) {
		to = (struct io_connect *)(void *)io_put(&t->in, IO_CONNECT, c, sizeof(*to))->body;
		snprintf(to->addr, sizeof(to->addr), "%s", addr);
		to->port = port;
		to->thread = thread;
		memcpy(to->key, key, sizeof(to->key));
	} else {
		rc = io_owner_connect(c, addr, port, thread, key);
		t->wants_poll = true;
	}
	if (rc < 0) {
		io_cards_note_down(c);
		free(c);
		return rc;
	}
	*ret_conn = &c->pub;
	return 0;
}

static bool conn_is_usable(const struct io_conn *c)
{
	return c->is_up && !c->is_closing && !c->is_down;
}

static int conn_send(
	struct io_conn *c, const struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	struct io_thread *t = c->t;

	if (!conn_is_usable(c))
		return -ENOTCONN;
	if (is_eager ? c->ahead >= io_conn_ahead_limit(c) : c->queued >= IO_QUEUED_MAX) {
		c->wants_writable = true;
		return -EAGAIN;
	}
	if (is_eager)
		c->ahead += m->len;
	else
		c->queued += (uint32_t)io_message_bytes(m);
	io_put_message(&t->in, IO_SEND, c, m, task, is_eager);
	t->x->has_worked = true;
	return 0;
}

/* Send on a connection whose thread is parked. Messages that waited for the transport when the
 * thread was parked go first. */
static bool conn_has_to_wait(struct io_conn *c)
{
	if (STAILQ_EMPTY(&c->deferred))
		return false;
	c->wants_writable = true;
	return true;
}

static int parked_result(struct io_conn *c, int rc)
{
	c->t->wants_poll = true; /* it sends the message */
	c->wants_writable |= rc == -EAGAIN;
	return rc;
}

static int io_send(struct xconn *xc, const struct wire_msg *m)
{
	struct io_conn *c = io_conn_of(xc);

	if (c->t->is_running)
		return conn_send(c, m, NULL, false);
	if (!conn_is_usable(c))
		return -ENOTCONN;
	return conn_has_to_wait(c) ? -EAGAIN : parked_result(c, xport_send(c->real, m));
}

static int io_send_eager(struct xconn *xc, const struct wire_msg *m, bool is_patient)
{
	struct io_conn *c = io_conn_of(xc);

	if (c->t->is_running)
		return conn_send(c, m, NULL, true);
	if (!conn_is_usable(c))
		return -ENOTCONN;
	return conn_has_to_wait(c) ? -EAGAIN
				   : parked_result(c, xport_send_eager(c->real, m, is_patient));
}

static int io_offer(
	struct xconn *xc, const struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	struct io_conn *c = io_conn_of(xc);
	struct wire_msg copy = *m;

	if (c->t->is_running)
		return conn_send(c, m, task, is_eager);
	if (!conn_is_usable(c))
		return -ENOTCONN;
	return conn_has_to_wait(c) ? -EAGAIN
				   : parked_result(c, xport_offer(c->real, &copy, task, is_eager));
}

static void io_run(struct xport *xp, struct xport_task *task)
{
	struct io_xport *x = io_xport_of(xp);
	struct io_thread *best = NULL;

	for (unsigned i = 0; i < x->n_threads; i++)
		if (x->threads[i].is_running && (!best || x->threads[i].n_tasks < best->n_tasks))
			best = &x->threads[i];
	if (!best) {
		xport_task_run_here(xp, task);
		return;
	}
	best->n_tasks++;
	io_put_pointer(&best->in, IO_RUN, NULL, task);
}

static int io_read(struct xport_read *r)
{
	struct io_conn *c = io_conn_of(r->conn);
	int rc = 0;

	if (!conn_is_usable(c))
		return -ENOTCONN;
	if (c->n_reads == READS_MAX)
		return -EAGAIN;
	if (c->t->is_running) {
		io_put_pointer(&c->t->in, IO_READ, c, r);
	} else {
		r->conn = c->real;
		rc = xport_read(r);
		c->t->wants_poll = true;
	}
	if (rc < 0)
		r->conn = &c->pub;
	else
		c->n_reads++;
	return rc;
}

static void conn_close_real(struct io_conn *c, const char *why)
{
	if (c->t->is_running)
		io_put_text(&c->t->in, IO_CLOSE, c, why);
	else if (c->real)
		xport_close(c->real, why);
	c->t->wants_poll = true;
}

static void io_close(struct xconn *xc, const char *why)
{
	struct io_conn *c = io_conn_of(xc);

	if (c->is_closing || c->is_down)
		return;
	c->is_closing = true;
	conn_close_real(c, why);
}

void io_conn_lose(struct io_conn *c, const char *why)
{
	c->is_moving = true;
	conn_close_real(c, why);
}

static uint64_t io_heard_ns(const struct xconn *xc)
{
	const struct io_conn *c = (const struct io_conn *)xc;

	if (!c->t->is_running && c->real)
		return c->real->x->ops->heard_ns(c->real);
	return atomic_load_explicit(&c->heard_ns, memory_order_relaxed);
}

uint64_t io_conn_heard_ns(const struct io_conn *c)
{
	uint64_t heard_ns = io_heard_ns(&c->pub);

	return heard_ns > c->begun_ns ? heard_ns : c->begun_ns;
}

/* ---- segments ---- */

/* Make the data thread the owner of all transports for a while. */
static void xport_pause_threads(struct io_xport *x)
{
	for (unsigned i = 0; i < x->n_threads; i++)
		if (x->threads[i].is_running)
			io_thread_park(&x->threads[i]);
}

static void xport_resume_threads(struct io_xport *x)
{
	for (unsigned i = 0; i < x->n_threads; i++)
		if (x->threads[i].is_running)
			io_thread_resume(&x->threads[i]);
}

static void threads_drop_segment(struct io_xport *x, uint16_t segment, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (x->threads[i].real)
			x->threads[i].real->ops->seg_del(x->threads[i].real, segment);
}

static int io_seg_add(struct xport *xp, void *mem, size_t bytes, uint16_t *ret_segment)
{
	struct io_xport *x = io_xport_of(xp);
	unsigned n = 0;
	int rc = 0;

	xport_pause_threads(x);
	while (n < x->n_threads && rc == 0) {
		struct xport *real = x->threads[n].real;

		rc = n == 0 ? real->ops->seg_add(real, mem, bytes, ret_segment)
			    : real->ops->seg_set(real, *ret_segment, mem, bytes);
		n += rc == 0;
	}
	if (rc < 0)
		threads_drop_segment(x, *ret_segment, n);
	xport_resume_threads(x);
	return rc;
}

static int io_seg_share(struct xport *xp, uint16_t segment, int fd)
{
	struct io_xport *x = io_xport_of(xp);
	int rc = 0;

	xport_pause_threads(x);
	for (unsigned i = 0; i < x->n_threads && rc == 0; i++)
		if (x->threads[i].real->ops->seg_share)
			rc = x->threads[i].real->ops->seg_share(x->threads[i].real, segment, fd);
	xport_resume_threads(x);
	return rc;
}

static void io_seg_del(struct xport *xp, uint16_t segment)
{
	struct io_xport *x = io_xport_of(xp);

	xport_pause_threads(x);
	threads_drop_segment(x, segment, x->n_threads);
	xport_resume_threads(x);
}

/* ---- the loop of the data thread ---- */

static void xport_free_gone(struct io_xport *x)
{
	struct io_conn *c;

	while ((c = TAILQ_FIRST(&x->gone))) {
		TAILQ_REMOVE(&x->gone, c, gone);
		if (c->is_dirty)
			LIST_REMOVE(c, dirty);
		free(c);
	}
}

static void xport_end_sleep(struct io_xport *x)
{
	if (!x->is_armed)
		return;
	x->is_armed = false;
	for (unsigned i = 0; i < x->n_threads; i++)
		if (x->threads[i].is_running)
			io_queue_awake(&x->threads[i].out);
}

/* Poll the transports of the parked threads that may have work. One system call finds those with
 * events of the network; without it, each transport would need one. */
static unsigned xport_poll_parked(struct io_xport *x)
{
	struct epoll_event ev[2 * IO_THREADS_MAX];
	int n_events = epoll_wait(x->epoll_fd, ev, 2 * IO_THREADS_MAX, 0);
	unsigned n = 0;

	for (int i = 0; i < n_events; i++)
		if (ev[i].data.u32 != WAKE_UP)
			x->threads[ev[i].data.u32].wants_poll = true;
	for (unsigned i = 0; i < x->n_threads; i++) {
		struct io_thread *t = &x->threads[i];
		unsigned n_here;

		if (!t->wants_poll && !t->n_near &&
			x->now_ns < t->real->ops->next_deadline(t->real))
			continue;
		n_here = (unsigned)t->real->ops->poll(t->real, x->now_ns);
		t->wants_poll = n_here > 0;
		n += n_here;
		io_owner_report_sent(t);
	}
	return n;
}

static int io_poll(struct xport *xp, uint64_t now_ns)
{
	struct io_xport *x = io_xport_of(xp);
	unsigned n = 0;

	/* Time in which the thread only waits for work, spinning or asleep, does not count. */
	if (x->has_worked)
		x->busy_ns += now_ns - x->now_ns;
	x->has_worked = false;
	x->now_ns = now_ns;
	xport_end_sleep(x);
	xport_free_gone(x);
	xport_tell_decisions(x);
	for (unsigned i = 0; i < x->n_threads && x->is_running; i++) {
		n += io_core_deliver(&x->threads[i]);
		io_queue_publish(&x->threads[i].in);
	}
	if (!x->is_running)
		n += xport_poll_parked(x);
	x->has_worked |= n > 0;
	io_cards_balance(x);
	io_load_choose_owners(x);
	return (int)n;
}

static int io_may_sleep(struct xport *xp)
{
	struct io_xport *x = io_xport_of(xp);
	bool may = LIST_EMPTY(&x->undecided) && TAILQ_EMPTY(&x->gone);

	x->is_armed = true;
	for (unsigned i = 0; i < x->n_threads; i++) {
		struct io_thread *t = &x->threads[i];

		if (t->is_running) {
			io_queue_publish(&t->in);
			may &= io_queue_may_sleep(&t->out);
		} else {
			t->wants_poll |= !t->real->ops->may_sleep(t->real);
			may &= !t->wants_poll;
		}
	}
	return may;
}

static int io_poll_fd(struct xport *xp)
{
	return io_xport_of(xp)->epoll_fd;
}

static uint64_t io_next_deadline(struct xport *xp)
{
	struct io_xport *x = io_xport_of(xp);
	uint64_t next = io_cards_due_ns(x), look_ns = io_load_next_look_ns(x);

	if (x->is_running)
		return look_ns < next ? look_ns : next;
	for (unsigned i = 0; i < x->n_threads; i++) {
		struct xport *real = x->threads[i].real;
		uint64_t at = real->ops->next_deadline(real);

		next = at < next ? at : next;
	}
	return next;
}

/* End the thread, and give the core all events that the thread has recorded. */
static void thread_end(struct io_thread *t)
{
	if (!t->loop || t->has_ended)
		return;
	/* Until it ends, the thread must not call the core. */
	t->is_running = true;
	io_thread_stop(t);
	io_load_drain(t);
	t->is_running = false;
	t->has_ended = true;
}

void io_xport_stop(struct xport *xp)
{
	struct io_xport *x = io_xport_of(xp);

	x->is_stopping = true;
	if (x->is_running)
		io_load_park(x);
	for (unsigned i = 0; i < x->n_threads; i++)
		thread_end(&x->threads[i]);
}

static void io_free(struct xport *xp)
{
	struct io_xport *x = io_xport_of(xp);

	/* The core may remove a segment from all transports when its last read ends. So free no
	 * transport before all threads have ended. */
	io_xport_stop(xp);
	for (unsigned i = 0; i < x->n_threads; i++) {
		xport_free(x->threads[i].real);
		x->threads[i].real = NULL;
	}
	xport_free_gone(x);
	for (unsigned i = 0; i < x->n_threads; i++) {
		dataloop_free(x->threads[i].loop);
		io_queue_fini(&x->threads[i].in);
		io_queue_fini(&x->threads[i].out);
	}
	if (x->epoll_fd >= 0)
		close(x->epoll_fd);
	free(x->peers);
	free(x);
}

static const struct xport_ops io_ops = {
	.connect = io_connect,
	.send = io_send,
	.send_eager = io_send_eager,
	.offer = io_offer,
	.run = io_run,
	.read = io_read,
	.close = io_close,
	.seg_add = io_seg_add,
	.seg_share = io_seg_share,
	.seg_del = io_seg_del,
	.heard_ns = io_heard_ns,
	.poll = io_poll,
	.may_sleep = io_may_sleep,
	.fd = io_poll_fd,
	.next_deadline = io_next_deadline,
	.free = io_free,
};

static int io_thread_new(struct io_xport *x, struct err_text *err)
{
	struct io_thread *t = &x->threads[x->n_threads];
	struct epoll_event ev = {.events = EPOLLIN, .data.u32 = WAKE_UP};
	int rc;

	t->x = x;
	t->index = x->n_threads++;
	t->card = t->index % x->cfg.cards->n;
	t->in.wake_fd = t->out.wake_fd = -1;
	rc = datapath_new(x->cfg.cards->of[t->card].net, x->cfg.same_host, t->index,
		&io_owner_events, t, &t->real, err);
	if (rc < 0)
		return rc;
	rc = io_thread_start(t, err);
	if (rc < 0)
		return rc;
	if (epoll_ctl(x->epoll_fd, EPOLL_CTL_ADD, t->out.wake_fd, &ev) ||
		io_load_watch(t, EPOLL_CTL_ADD, EPOLLIN) < 0)
		return err_set(
			err, -errno, "cannot watch an I/O thread with epoll: %s", strerror(errno));
	return 0;
}

int io_xport_new(const struct io_config *cfg, const struct xport_events *ev, void *ctx,
	struct xport **ret, struct err_text *err)
{
	struct io_xport *x = calloc(1, sizeof(*x));
	int rc = 0;

	if (!x)
		return err_set(err, -ENOMEM, "out of memory for the I/O threads");
	x->pub = (struct xport){.ops = &io_ops, .ev = ev, .ctx = ctx};
	x->cfg = *cfg;
	LIST_INIT(&x->undecided);
	LIST_INIT(&x->conns);
	TAILQ_INIT(&x->gone);
	x->has_speeds = true;
	for (unsigned i = 0; i < cfg->cards->n; i++) {
		x->cards[i].has_carrier = true;
		x->has_speeds &= cfg->cards->of[i].mbps > 0;
	}
	x->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (x->epoll_fd < 0)
		rc = err_set(err, -errno, "cannot make an epoll descriptor: %s", strerror(errno));
	while (rc == 0 && x->n_threads < cfg->n_threads)
		rc = io_thread_new(x, err);
	if (rc < 0) {
		io_free(&x->pub);
		return rc;
	}
	*ret = &x->pub;
	return 0;
}

void io_xport_figures(const struct xport *xp, struct io_figures *ret)
{
	const struct io_xport *x = (const struct io_xport *)xp;

	*ret = (struct io_figures){
		.n_threads = x->n_threads, .is_running = x->is_running, .n_runs = x->n_runs};
	for (unsigned i = 0; i < x->n_threads; i++)
		ret->busy_ns[i] = dataloop_busy_ns(x->threads[i].loop);
}

uint64_t io_xport_beat_ns(const struct xport *xp)
{
	const struct io_xport *x = (const struct io_xport *)xp;
	uint64_t run_at_ns = atomic_load_explicit(&x->run_at_ns, memory_order_relaxed);
	uint64_t oldest_ns = UINT64_MAX;

	for (unsigned i = 0; i < x->n_threads && run_at_ns; i++) {
		uint64_t beat_ns = dataloop_beat_ns(x->threads[i].loop);

		oldest_ns = beat_ns < oldest_ns ? beat_ns : oldest_ns;
	}
	/* The last beat may be from before the thread was parked. */
	return oldest_ns < run_at_ns ? run_at_ns : oldest_ns;
}
