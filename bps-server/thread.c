/* A data thread of the server: its loop, transport, core and memory, and the events posted to the
 * thread. The rules of rounds are in core/. Thread: callbacks and posted events run on the data
 * thread, the functions of thread.h on the control thread. */
#include "bps-server/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/os/memfd.h"
#include "common/loop/dataloop.h"

#define STATS_EVERY_NS UINT64_C(200000000)

struct segment {
	struct segment *next;
	void *mem;
	size_t bytes;
};

struct data_thread {
	struct member *member;
	struct dataloop *loop;
	struct xport *x;
	struct srv_core *core;
	struct segment *segments;
	uint64_t stats_at_ns;
	/* Protects stats and arrivals. The data thread and the control thread lock this mutex only
	 * with trylock. The data thread must not wait, and the control thread must answer HTTP even
	 * when a data thread hangs. */
	pthread_mutex_t lock;
	/* seen_stats and seen_arrivals: the control thread's latest copies of stats and arrivals */
	struct srv_stats stats, seen_stats;
	struct arrivals_figures arrivals, seen_arrivals;
};

/* Map memory that only this process can access. Neither this function nor segment_map_shared
 * populates the memory: zeroing would block the thread, and unused pages cost nothing. */
static int segment_map_private(struct segment *s)
{
	void *mem =
		mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		return -errno;
	s->mem = mem;
	return 0;
}

/* Map memory that agents on this host may map read-only. */
static int segment_map_shared(struct segment *s, int *ret_fd)
{
	int rc = memfd_create_sealed("bps-sums", s->bytes, MEMFD_FIXED_SIZE, ret_fd);
	void *mem;

	if (rc < 0)
		return rc;
	mem = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	if (mem == MAP_FAILED)
		return -errno;
	s->mem = mem;
	return fcntl(*ret_fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0 ? -errno : 0;
}

static int segment_register_and_share(
	struct xport *x, const struct segment *s, int fd, uint16_t *ret_segment)
{
	uint16_t segment;
	int rc = x->ops->seg_add(x, s->mem, s->bytes, &segment);

	if (rc < 0)
		return rc;
	rc = fd >= 0 ? x->ops->seg_share(x, segment, fd) : 0;
	if (rc < 0)
		x->ops->seg_del(x, segment);
	else
		*ret_segment = segment;
	return rc;
}

static int segment_create_registered(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment)
{
	struct data_thread *t = ctx;
	struct segment *s;
	int fd = -1, rc = FAILPOINT(SERVER_MEMORY_SEGMENT);

	if (rc < 0)
		return rc;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->bytes = bytes;
	rc = datapath_is_shared(t->x) ? segment_map_shared(s, &fd) : segment_map_private(s);
	if (rc == 0)
		rc = segment_register_and_share(t->x, s, fd, ret_segment);
	if (fd >= 0)
		close(fd);
	if (rc < 0) {
		if (s->mem)
			munmap(s->mem, bytes);
		free(s);
		return rc;
	}
	s->next = t->segments;
	t->segments = s;
	*ret_mem = s->mem;
	return 0;
}

static void thread_report_job_failure(void *ctx, uint32_t job, int code, const char *text)
{
	struct data_thread *t = ctx;
	struct ctl_msg m = {
		.type = CTL_FAIL, .fail = {.job = job, .code = (uint32_t)-code, .text = text}};

	log_limited(LOG_AS(LOG_WARN, JOB_FAILED), "a job failed on this server: job=%u err=%s: %s",
		job, err_str(code), text);
	if (member_send(t->member, &m) < 0)
		log_limited(LOG_WARN, "cannot report a failed job to the scheduler: job=%u", job);
}

static uint64_t on_thread_loop_tick(void *ctx, uint64_t now_ns)
{
	struct data_thread *t = ctx;

	FAILPOINT(SERVER_THREAD_TICK);
	if (now_ns - t->stats_at_ns > STATS_EVERY_NS && pthread_mutex_trylock(&t->lock) == 0) {
		t->stats_at_ns = now_ns;
		srv_core_stats(t->core, &t->stats);
		srv_core_arrivals(t->core, &t->arrivals);
		pthread_mutex_unlock(&t->lock);
	}
	return srv_core_run_deadlines(t->core, now_ns);
}

static bool on_thread_loop_work(void *ctx)
{
	struct data_thread *t = ctx;

	return srv_core_sum_slice(t->core);
}

static const struct dataloop_ops loop_ops = {
	.tick = on_thread_loop_tick, .work = on_thread_loop_work};

int thread_new(struct net *net, struct member *member, const struct thread_config *cfg,
	struct data_thread **ret, struct err_text *err)
{
	struct srv_env env = {.segment = segment_create_registered,
		.clock_ns = clock_now_ns,
		.fail = thread_report_job_failure};
	struct data_thread *t = calloc(1, sizeof(*t));
	char name[16];
	int rc;

	if (!t)
		return err_set(err, -ENOMEM, "out of memory for a data thread");
	t->member = member;
	pthread_mutex_init(&t->lock, NULL);
	env.ctx = t;
	rc = srv_core_new(&cfg->core, &env, &t->core);
	if (rc < 0) {
		err_set(err, rc, "cannot create the state of a data thread: %s", err_str(rc));
		goto failed;
	}
	rc = datapath_new(
		net, cfg->same_host, cfg->core.thread, &srv_core_events, t->core, &t->x, err);
	if (rc < 0)
		goto failed;
	snprintf(name, sizeof(name), "data%u", cfg->core.thread);
	rc = dataloop_new(name, cfg->spin_us, 4096, &loop_ops, t, &t->loop, err);
	if (rc < 0)
		goto failed;
	dataloop_attach(t->loop, t->x);
	rc = dataloop_start(t->loop, err);
	if (rc < 0)
		goto failed;
	*ret = t;
	return 0;
failed:
	thread_free(t);
	return rc;
}

void thread_free(struct data_thread *t)
{
	struct segment *s;

	if (!t)
		return;
	dataloop_free(t->loop);
	xport_free(t->x); /* xport_free ends every connection and read */
	srv_core_free(t->core);
	while ((s = t->segments)) {
		t->segments = s->next;
		munmap(s->mem, s->bytes);
		free(s);
	}
	pthread_mutex_destroy(&t->lock);
	free(t);
}

struct thread_message {
	struct data_thread *thread;
	enum thread_event event;
	struct member_msg *msg;
	size_t window_bytes; /* new value of peer_window_bytes; set for THREAD_PEER_WINDOW */
};

static void thread_dispatch_message(struct data_thread *t, const struct ctl_msg *msg)
{
	struct srv_core *core = t->core;
	int rc;

	switch (msg->type) {
	case CTL_JOB:
		rc = srv_core_apply_job(core, &msg->job);
		if (rc < 0)
			thread_report_job_failure(t, msg->job.job, rc,
				rc == -ENOMEM ? "a server is out of memory"
					      : "a server rejected the list of the job's members");
		break;
	case CTL_PLAN:
		srv_core_apply_plan(core, &msg->plan);
		break;
	case CTL_PEERS:
		for (uint32_t i = 0; i < msg->peers.n_peers; i++)
			if (msg->peers.peers[i].state != PEER_UP)
				srv_core_agent_gone(core, msg->peers.peers[i].id);
		break;
	case CTL_JOB_END:
		srv_core_job_end(core, msg->job_end.job);
		break;
	case CTL_SIGHT:
		member_answer_sight(t->member, &msg->sight,
			srv_core_heard_ns(core, msg->sight.member, msg->sight.instance));
		break;
	default:
		break;
	}
}

static void thread_deliver_event(void *arg)
{
	struct thread_message *d = arg;

	switch (d->event) {
	case THREAD_MESSAGE:
		thread_dispatch_message(d->thread, &d->msg->msg);
		break;
	case THREAD_RESYNC_BEGIN:
		srv_core_resync_begin(d->thread->core);
		break;
	case THREAD_RESYNC_END:
		srv_core_resync_end(d->thread->core);
		break;
	case THREAD_PEER_WINDOW:
		srv_core_set_peer_window(d->thread->core, d->window_bytes);
		break;
	}
	member_msg_unref(d->msg);
	free(d);
}

int thread_post_event(struct data_thread *t, enum thread_event event, struct member_msg *m)
{
	struct thread_message d = {
		.thread = t, .event = event, .msg = m ? member_msg_ref(m) : NULL};
	int rc = dataloop_post_copy(t->loop, thread_deliver_event, &d, sizeof(d));

	if (rc < 0)
		member_msg_unref(m);
	return rc;
}

int thread_set_peer_window(struct data_thread *t, size_t bytes)
{
	const struct thread_message d = {
		.thread = t, .event = THREAD_PEER_WINDOW, .window_bytes = bytes};

	return dataloop_post_copy(t->loop, thread_deliver_event, &d, sizeof(d));
}

void thread_read_stats(struct data_thread *t, struct srv_stats *ret, uint64_t *ret_beat_ns)
{
	if (pthread_mutex_trylock(&t->lock) == 0) {
		t->seen_stats = t->stats;
		pthread_mutex_unlock(&t->lock);
	}
	*ret = t->seen_stats;
	*ret_beat_ns = dataloop_beat_ns(t->loop);
}

void thread_arrivals(struct data_thread *t, struct arrivals_figures *to)
{
	if (pthread_mutex_trylock(&t->lock) == 0) {
		t->seen_arrivals = t->arrivals;
		pthread_mutex_unlock(&t->lock);
	}
	arrivals_merge(to, &t->seen_arrivals);
}
