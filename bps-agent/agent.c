/* The agent's data thread: its loop, the callbacks of the core (struct agt_env), and the events
 * that the control thread posts. trainers/ serves the trainers, and core/ moves the partitions.
 * Thread: the data thread. The control thread calls agent_new, agent_free, agent_post_event,
 * agent_ask and the functions that read figures. */

#include "bps-agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "bps-agent/gpu/device_tensor.h"
#include "bps-agent/gpu/executor_link.h"
#include "bps-agent/handover/handover_write.h"
#include "bps-agent/io/io_threads.h"
#include "bps-agent/restore/handover_read.h"
#include "bps-agent/steps/job_steps.h"
#include "bps-agent/steps/trace.h"
#include "bps-agent/steps/trace_file.h"
#include "bps-agent/trainers/accept.h"
#include "bps-agent/trainers/job.h"
#include "bps-agent/trainers/job_failure.h"
#include "bps-agent/trainers/no_server.h"
#include "bps-agent/trainers/requests.h"
#include "bps-agent/trainers/roster.h"
#include "bps-agent/trainers/tensor.h"
#include "bps-agent/trainers/trainer.h"
#include "bps-agent/trainers/waits_report.h"
#include "bps-agent/trainers/why_stuck.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/loop/loop.h"

#define STATS_EVERY_NS UINT64_C(200000000)

/* ---- the loop ---- */

/* Return whether a->x is a transport with I/O threads (io/io_threads.h). */
static bool agent_has_io_threads(const struct agent *a)
{
	return a->cfg.io.n_threads > 1;
}

static void agent_publish_stats(struct agent *a, uint64_t now_ns)
{
	struct job *job;
	uint32_t jobs = 0;

	if (now_ns - a->stats_at_ns < STATS_EVERY_NS)
		return;
	a->stats_at_ns = now_ns;
	TAILQ_FOREACH (job, &a->jobs, link) {
		jobs++;
		quota_set_used(
			job->quota, QUOTA_INFLIGHT, job->core ? agt_job_inflight(job->core) : 0);
	}
	pthread_mutex_lock(&a->lock);
	quota_fill_view(a->quota, &a->quota_view);
	agt_core_stats(a->core, &a->figures.core);
	if (agent_has_io_threads(a))
		io_xport_figures(a->x, &a->figures.io);
	a->figures.n_links = agt_core_losses(a->core, now_ns, a->figures.links);
	a->figures.trainers = a->n_trainers;
	a->figures.n_step_jobs = job_steps_totals(a, a->figures.steps);
	a->figures.jobs = jobs;
	a->figures.executors = executors_count_in_use(a);
	a->figures.executor_failures = a->executor_failures;
	a->figures.stranded = a->stranded;
	a->figures.shared_bytes = a->quota_view.rows[0].used[QUOTA_MEMORY];
	pthread_mutex_unlock(&a->lock);
}

static uint64_t earlier_deadline_ns(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns < b_ns ? a_ns : b_ns;
}

static uint64_t loop_run_periodic_checks(void *ctx, uint64_t now_ns)
{
	struct agent *a = ctx;
	uint64_t due_ns;

	FAILPOINT(AGENT_THREAD_TICK);
	agent_publish_stats(a, now_ns);
	due_ns = why_stuck_tick(a, now_ns);
	due_ns = earlier_deadline_ns(due_ns, no_server_tick(a, now_ns));
	due_ns = earlier_deadline_ns(due_ns, leaver_check_jobs(a, now_ns));
	due_ns = earlier_deadline_ns(due_ns, handover_write_tick(a, now_ns));
	return earlier_deadline_ns(due_ns, agt_core_run_timers(a->core, now_ns));
}

static bool loop_run_queued_work(void *ctx)
{
	struct agent *a = ctx;
	struct trainer *t, *next;
	bool more = false;

	for (t = TAILQ_FIRST(&a->trainers); t; t = next) {
		/* trainer_poll_ring may remove the trainer from the list */
		next = TAILQ_NEXT(t, link);
		more |= trainer_poll_ring(t);
	}
	more |= executor_poll_rings(a);
	more |= agt_core_run_queued_work(a->core);
	trainer_wake_dirty(a);
	return more;
}

static bool loop_may_sleep(void *ctx)
{
	struct agent *a = ctx;
	struct trainer *t;
	bool may = true;

	trainer_wake_dirty(a);
	TAILQ_FOREACH (t, &a->trainers, link)
		may &= trainer_may_sleep(t);
	may &= executors_prepare_sleep(a);
	return may;
}

static void loop_mark_rings_awake(void *ctx)
{
	struct agent *a = ctx;
	struct trainer *t;

	TAILQ_FOREACH (t, &a->trainers, link)
		trainer_mark_awake(t);
	executors_end_sleep(a);
}

static const struct dataloop_ops loop_ops = {.tick = loop_run_periodic_checks,
	.work = loop_run_queued_work,
	.may_sleep = loop_may_sleep,
	.awake = loop_mark_rings_awake};

static void on_listener_readable(uv_poll_t *p, int status, int events)
{
	(void)status;
	(void)events;
	trainer_accept(p->data);
}

/* ---- the core's environment ---- */

static int core_connect_to_server(
	void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret)
{
	struct agent *a = ctx;
	struct member_peer p;
	int rc = member_find_peer(a->member, server, &p);

	if (rc < 0 || p.state != PEER_UP || thread >= p.threads)
		return -ENOTCONN;
	if (a->cfg.io.same_host && strcmp(p.host, a->cfg.host) == 0 &&
		!shm_peer_is_on_host(a->cfg.io.same_host, p.instance, thread))
		log_limited(LOG_INFO,
			"server %s is on this host, but has no socket in %s: using the network, "
			"thread=%u",
			p.name, a->cfg.io.same_host->dir, thread);
	return a->x->ops->connect(
		a->x, p.addr, p.port, thread, server, p.instance, p.key, link, ret);
}

static uint64_t core_random_number(void *ctx)
{
	uint64_t v = 0;

	(void)ctx;
	if (getrandom(&v, sizeof(v), GRND_NONBLOCK) != sizeof(v))
		v = clock_now_ns();
	return v;
}

/* ---- messages from the scheduler ---- */

/* Handle the scheduler's report about a server. Notify the core if the server's instance or state
 * has changed. */
static void on_server_report(struct agent *a, const struct ctl_peer *p)
{
	uint32_t i = 0;

	while (i < a->n_servers && a->servers[i].id != p->id)
		i++;
	if (i == a->n_servers) {
		struct known_server *v = realloc(a->servers, (i + 1) * sizeof(*v));

		if (!v)
			/* Out of memory: do not notify the core. The core retries its connections
			 * even without a notification. */
			return;
		a->servers = v;
		a->n_servers++;
	} else if (a->servers[i].instance == p->instance && a->servers[i].state == p->state) {
		return;
	}
	a->servers[i] = (struct known_server){p->id, p->state, p->instance};
	agt_core_server_changed(a->core, p->id);
}

static void on_scheduler_message(struct agent *a, const struct ctl_msg *m)
{
	switch (m->type) {
	case CTL_PEERS:
		for (uint32_t i = 0; i < m->peers.n_peers; i++)
			on_server_report(a, &m->peers.peers[i]);
		break;
	case CTL_JOINED:
		job_on_joined_message(a, &m->joined);
		break;
	case CTL_JOB:
		job_on_job_message(a, &m->job);
		break;
	case CTL_JOB_END:
		job_on_end_message(a, &m->job_end);
		break;
	case CTL_PLAN:
		tensor_on_plan(a, &m->plan);
		break;
	case CTL_TENSOR_FAIL:
		tensor_on_fail(a, &m->tensor_fail);
		break;
	case CTL_WHY_TEXT:
		why_stuck_on_text(a, &m->why_text);
		break;
	case CTL_SIGHT:
		member_answer_sight(a->member, &m->sight,
			agt_core_last_receive_ns(a->core, m->sight.member, m->sight.instance));
		break;
	case CTL_PROBE:
		why_stuck_on_probe(a, &m->probe);
		break;
	default:
		log_rated(LOG_WARN,
			"ignoring a message of an unhandled type from the scheduler: type=%s",
			ctl_type_name(m->type));
	}
}

struct agent_delivery {
	struct agent *agent;
	enum agent_event event;
	struct member_msg *msg;
	struct agent_limits limits; /* new limits, set only if the event is AGENT_LIMITS */
};

static void agent_apply_limits(struct agent *a, const struct agent_limits *limits)
{
	a->cfg.limits = *limits;
	quota_set_limits(a->quota, &limits->quotas);
	agt_core_set_window(a->core, limits->window_bytes);
	agt_core_set_job_inflight(a->core, limits->quotas.of[QUOTA_JOB][QUOTA_INFLIGHT]);
}

static void agent_deliver_event(void *arg)
{
	struct agent_delivery *d = arg;

	switch (d->event) {
	case AGENT_MESSAGE:
		on_scheduler_message(d->agent, &d->msg->msg);
		break;
	case AGENT_RESYNC_BEGIN:
		job_resync_begin(d->agent);
		break;
	case AGENT_RESYNC_END:
		job_resync_end(d->agent);
		break;
	case AGENT_FORGOTTEN:
		job_forget_all(d->agent);
		break;
	case AGENT_LIMITS:
		agent_apply_limits(d->agent, &d->limits);
		break;
	}
	member_msg_unref(d->msg);
	free(d);
}

int agent_post_event(struct agent *a, enum agent_event event, struct member_msg *m,
	const struct agent_limits *limits)
{
	struct agent_delivery d = {.agent = a, .event = event, .msg = m ? member_msg_ref(m) : NULL};
	int rc;

	if (limits)
		d.limits = *limits;
	rc = dataloop_post_copy(a->loop, agent_deliver_event, &d, sizeof(d));
	if (rc < 0)
		member_msg_unref(d.msg);
	return rc;
}

void agent_read_figures(struct agent *a, struct agent_figures *ret)
{
	*ret = (struct agent_figures){0};
	if (!a)
		return;
	/* Do not wait for the lock, because a data thread that hangs must not block the control
	 * thread. */
	if (pthread_mutex_trylock(&a->lock) == 0) {
		a->seen_figures = a->figures;
		pthread_mutex_unlock(&a->lock);
	}
	*ret = a->seen_figures;
	ret->beat_ns = dataloop_beat_ns(a->loop);
	ret->data_busy_ns = dataloop_busy_ns(a->loop);
	if (agent_has_io_threads(a)) {
		uint64_t beat_ns = io_xport_beat_ns(a->x);

		ret->beat_ns = beat_ns < ret->beat_ns ? beat_ns : ret->beat_ns;
	}
}

void agent_read_quotas(struct agent *a, struct quota_view *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (!a)
		return;
	if (pthread_mutex_trylock(&a->lock) == 0) {
		a->seen_quotas = a->quota_view;
		pthread_mutex_unlock(&a->lock);
	}
	*ret = a->seen_quotas;
}

/* ---- questions of the control thread ---- */

/* A question that the data thread answers on the control loop. */
struct agent_question {
	struct agent *agent;
	struct loop *control;
	agent_answer_fn done;
	void *arg;
	char job[CTL_JOB_NAME_MAX + 1]; /* the job whose trace is requested */
	struct agent_answer answer;
};

/* Pass the answer on. Runs on the control loop. */
static void question_return_answer(void *arg)
{
	struct agent_question *q = arg;

	q->done(q->arg, &q->answer);
	free(q);
}

static void question_send_answer(struct agent_question *q, struct agent_answer answer)
{
	q->answer = answer;
	if (loop_post(q->control, question_return_answer, q) == 0)
		return;
	if (answer.fd >= 0)
		close(answer.fd);
	json_decref(answer.jobs);
	free(q);
}

static void question_collect_waits(void *arg)
{
	struct agent_question *q = arg;

	question_send_answer(q,
		(struct agent_answer){.jobs = waits_report_to_json(q->agent), .fd = BPS_ENOTFOUND});
}

static void on_trace_made(void *arg, int fd)
{
	question_send_answer(arg, (struct agent_answer){.fd = fd});
}

static void question_start_trace(void *arg)
{
	struct agent_question *q = arg;
	const struct round_choice all = {0};
	struct job *job, *found = NULL;
	struct trace_machine *machines;
	int rc = BPS_ENOTFOUND;
	size_t n_machines;

	/* a job that has ended may have the name of one that runs */
	TAILQ_FOREACH (job, &q->agent->jobs, link)
		if (strcmp(job->name, q->job) == 0 && (!found || found->state == JOB_ENDED))
			found = job;
	if (found && found->n_traces) {
		rc = -EBUSY;
	} else if (found) {
		machines = roster_copy_machines(found, &n_machines);
		rc = trace_start(found, &all, machines, n_machines, on_trace_made, q);
	}
	if (rc < 0)
		on_trace_made(q, rc);
}

int agent_ask(struct agent *a, struct loop *control, const char *trace_of, agent_answer_fn done,
	void *arg)
{
	struct agent_question q = {.agent = a, .control = control, .done = done, .arg = arg};

	if (trace_of)
		snprintf(q.job, sizeof(q.job), "%s", trace_of);
	return dataloop_post_copy(
		a->loop, trace_of ? question_start_trace : question_collect_waits, &q, sizeof(q));
}

struct carriers_event {
	struct agent *agent;
	uint32_t cards;
};

static void agent_set_carriers(void *arg)
{
	struct carriers_event *e = arg;
	struct agent *a = e->agent;

	for (unsigned i = 0; i < a->cfg.io.cards->n; i++)
		io_xport_set_carrier(a->x, i, e->cards >> i & 1);
	free(e);
}

int agent_post_carriers(struct agent *a, uint32_t cards)
{
	const struct carriers_event e = {.agent = a, .cards = cards};

	return dataloop_post_copy(a->loop, agent_set_carriers, &e, sizeof(e));
}

/* ---- start and end ---- */

static void uv_pool_run_empty_task(uv_work_t *w)
{
	(void)w;
}

/* Start the threads of libuv's pool, which node_open has tried. libuv aborts the process when it
 * cannot start them. The later they start, the more threads the other processes of the control
 * group may have by then. */
static void uv_pool_start_threads(void *arg)
{
	struct agent *a = arg;

	uv_queue_work(dataloop_uv(a->loop), &a->first_task, uv_pool_run_empty_task, NULL);
}

/* Open what the data thread uses, and start the thread. */
static int agent_start_data_thread(struct agent *a, struct err_text *err)
{
	const struct io_config *io = &a->cfg.io;
	int rc = agent_has_io_threads(a) ? io_xport_new(io, &agt_core_events, a->core, &a->x, err)
					 : datapath_new(io->cards->of[0].net, io->same_host, 0,
						   &agt_core_events, a->core, &a->x, err);

	if (rc < 0)
		return rc;
	agt_core_set_xport(a->core, a->x);
	rc = dataloop_new("data0", a->cfg.io.spin_us, 65536, &loop_ops, a, &a->loop, err);
	if (rc < 0)
		return rc;
	dataloop_attach(a->loop, a->x);
	rc = memory_thread_new(a->loop, &a->memory_thread, err);
	if (rc < 0)
		return rc;
	uv_poll_init(dataloop_uv(a->loop), &a->listen_poll, a->cfg.listen_fd);
	a->listen_poll.data = a;
	uv_poll_start(&a->listen_poll, UV_READABLE, on_listener_readable);
	if (a->cfg.inherited)
		handover_restore_all(a, a->cfg.inherited);
	a->cfg.inherited = NULL;
	rc = dataloop_start(a->loop, err);
	if (rc == 0)
		dataloop_post(a->loop, uv_pool_start_threads, a);
	return rc;
}

int agent_new(struct member *member, const struct agent_config *cfg, struct agent **ret,
	struct err_text *err)
{
	struct agt_env env = {.connect = core_connect_to_server,
		.done = tensor_core_done,
		.record = job_steps_on_record,
		.begun = job_steps_on_begun,
		.stage = device_tensor_stage,
		.unstage = device_tensor_unstage,
		.fail = on_core_job_failure,
		.random = core_random_number,
		.keep = handover_write_parts};
	struct agent *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return err_set(err, -ENOMEM, "out of memory");
	a->cfg = *cfg;
	a->member = member;
	/* the first trainer or job gets the number 1, because the number 0 means "none" */
	a->next_number = 1;
	a->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	a->trainer_events = &trainer_events;
	TAILQ_INIT(&a->trainers);
	TAILQ_INIT(&a->jobs);
	a->executor_ops = &executor_ops;
	TAILQ_INIT(&a->executors);
	STAILQ_INIT(&a->unsent);
	pthread_mutex_init(&a->lock, NULL);
	env.ctx = a;
	a->cfg.core.window_bytes = cfg->limits.window_bytes;
	a->cfg.core.job_inflight_bytes = cfg->limits.quotas.of[QUOTA_JOB][QUOTA_INFLIGHT];
	a->quota = quota_new(&cfg->limits.quotas, cfg->host);
	rc = a->quota ? agt_core_new(&a->cfg.core, &env, NULL, &a->core) : -ENOMEM;
	if (rc < 0)
		err_set(err, rc, "out of memory");
	else
		rc = agent_start_data_thread(a, err);
	if (rc < 0) {
		agent_free(a);
		return rc;
	}
	*ret = a;
	return 0;
}

/* Close the listener and the connections to all executors and trainers. Runs on the data thread, as
 * its last function. */
static void agent_close_connections(void *arg)
{
	struct agent *a = arg;

	uv_close((uv_handle_t *)&a->listen_poll, NULL);
	/* Rounds that the I/O threads have completed are reported while the trainers are there. */
	if (agent_has_io_threads(a))
		io_xport_stop(a->x);
	executor_stop_all(a);
	while (!TAILQ_EMPTY(&a->trainers))
		if (a->cfg.can_hand_over)
			trainer_close_for_handover(TAILQ_FIRST(&a->trainers));
		else
			trainer_disconnect(
				TAILQ_FIRST(&a->trainers), false, "the agent is stopping");
	/* Another turn could end a round, and report it to a trainer that is gone. */
	dataloop_end(a->loop);
}

void agent_free(struct agent *a)
{
	struct job *job;

	if (!a)
		return;
	/* Stop the memory thread before the trainers are closed. Before the thread ends, it posts
	 * all finished requests for memory, and cancels the unfinished requests. A trainer whose
	 * request is cancelled gets no answer from this process. Such a trainer is disconnected, or
	 * the next process answers the request. */
	memory_thread_stop(a->memory_thread);
	if (a->loop) {
		while (dataloop_post(a->loop, agent_close_connections, a) == -EAGAIN)
			sched_yield();
		dataloop_stop(a->loop);
	}
	/* close all connections and end all reads, so that the core can be freed */
	xport_free(a->x);
	dataloop_free(a->loop); /* runs the last callbacks of the libuv handles, too */
	agt_core_free(a->core);
	/* Free the jobs. Their arenas must not use the transport, which has been freed already. */
	while ((job = TAILQ_FIRST(&a->jobs))) {
		job->arenas.x = NULL;
		job_free_keep_records(job);
	}
	handover_write_end(a);
	memory_thread_free(a->memory_thread);
	quota_free(a->quota);
	if (a->spare_fd >= 0)
		close(a->spare_fd);
	pthread_mutex_destroy(&a->lock);
	free(a->servers);
	free(a);
}
