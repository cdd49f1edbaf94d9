/* Implements the agent's side of the connection to a job's executor: starts the executor's process,
 * exchanges messages with this process, checks its progress, and reacts when the process has ended.
 * Tensors are in device_tensor.c. Thread: the data thread. */
#include "bps-agent/gpu/executor_link.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bps-agent/gpu/device_tensor.h"
#include "bps-agent/gpu/spawn_child.h"
#include "bps-agent/handover/handover_write.h"
#include "bps-agent/handover/ledger_records.h"
#include "bps-agent/trainers/job_failure.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/clock.h"
#include "common/base/log.h"

/* KILL_MS: time limit for an executor to end after GPU_END; then the executor is killed. The
 * executor may have to wait for its GPUs first. */
#define KILL_MS 5000
/* WATCH_MS: interval at which the agent checks whether the executor makes progress. The executor's
 * loop runs at least once a second, but pinning much memory can delay the loop. HANG_NS: if the
 * executor makes no progress for this time, the agent kills the executor. */
#define WATCH_MS 1000
#define HANG_NS  UINT64_C(20000000000)

static const char *const states[] = {"starting", "meeting", "running", "over"};

static void executor_set_state(struct executor_link *g, enum executor_state state, const char *why)
{
	log_debug("executor changes from %s to %s: job=%s pid=%d why=%s", states[g->state],
		states[state], g->job ? g->job->name : "-", (int)g->pid, why);
	g->state = state;
}

/* ---- the end ---- */

/* Stop counting the executor's process in the user's quota, because it has ended or was never
 * started. */
static void executor_release_quota(struct executor_link *g)
{
	if (g->is_counted)
		quota_give(g->user, QUOTA_EXECUTORS, 1);
	g->is_counted = false;
}

static void free_if_unused(struct executor_link *g)
{
	if (g->job || g->n_handles || g->is_making)
		return;
	TAILQ_REMOVE(&g->agent->executors, g, link);
	executor_release_quota(g);
	quota_account_release(g->user);
	ring_pair_fini(&g->pipe);
	memory_unmap_and_close(&g->page);
	for (const int *fd = (int[]){g->sock, g->wake_fd, g->exec_fd, g->pidfd, -2}; *fd != -2;
		fd++)
		if (*fd >= 0)
			close(*fd);
	free(g->tensors);
	free(g);
}

static void on_handle_closed(uv_handle_t *h)
{
	struct executor_link *g = h->data;

	g->n_handles--;
	free_if_unused(g);
}

static void executor_close_handles(struct executor_link *g)
{
	uv_handle_t *all[] = {(uv_handle_t *)&g->sock_poll, (uv_handle_t *)&g->wake_poll,
		(uv_handle_t *)&g->pid_poll, (uv_handle_t *)&g->watchdog};

	for (unsigned i = 0; i < 4; i++)
		if (all[i]->data && !uv_is_closing(all[i]))
			uv_close(all[i], on_handle_closed);
}

static void trainer_send_device_answer(struct trainer *t, int fd, int code, const char *text)
{
	struct local_msg m = {.type = LOCAL_DEVICE_AT, .seq = t->live->device_seq};

	m.device_at = (struct local_text){.code = (uint32_t)-code, .text = text};
	t->wants_device = false;
	trainer_send_message(t, &m, &fd, fd >= 0);
	/* Clear device_seq last. If the process ends before this store, the next process repeats
	 * the answer, which is harmless. */
	t->live->device_seq = 0;
}

static void executor_answer_waiters(struct executor_link *g, int code, const char *text)
{
	struct trainer *t;

	if (!g->job)
		return;
	TAILQ_FOREACH (t, &g->job->trainers, of_job)
		if (t->wants_device)
			trainer_send_device_answer(t, -1, code, text);
}

/* Set the state OVER, and answer the trainers that wait for the executor. code, text: the reason.
 * Later messages from the executor are ignored, but the agent still waits for the end of the
 * executor's process. */
static void executor_mark_over(struct executor_link *g, int code, const char *text)
{
	g->code = code;
	snprintf(g->text, sizeof(g->text), "%s", text);
	executor_set_state(g, EXECUTOR_OVER, text);
	handover_forget_executor(g);
	executor_answer_waiters(g, code, g->text);
}

/* Kill the executor by its pidfd, not by its pid. An adopted executor may have ended, and its pid
 * may belong to another process now. */
static void executor_kill_process(const struct executor_link *g)
{
	(void)syscall(SYS_pidfd_send_signal, g->pidfd, SIGKILL, NULL, 0);
}

static void on_executor_kill_timer(uv_timer_t *timer)
{
	struct executor_link *g = timer->data;

	log_warn("killing an executor that does not end: pid=%d", (int)g->pid);
	executor_kill_process(g);
}

/* Send GPU_END to the executor. If the executor does not end within KILL_MS, the timer `watchdog`
 * kills the executor. */
static void executor_send_end(struct executor_link *g, int code, const char *text)
{
	struct local_msg m = {.type = GPU_END, .gpu_text = {.code = (uint32_t)-code, .text = text}};

	if (local_send(g->sock, &m, NULL, 0, 0) < 0)
		shutdown(g->sock, SHUT_RDWR);
	if (g->watchdog.data)
		uv_timer_start(&g->watchdog, on_executor_kill_timer, KILL_MS, 0);
}

void executor_fail(struct executor_link *g, int code, const char *fmt, ...)
{
	struct job *job = g->job;
	bool was_used = g->state == EXECUTOR_RUNNING;
	struct err_text text;

	if (g->state == EXECUTOR_OVER)
		return;
	format_arguments(text.s, fmt);
	log_rated(LOG_WARN, "ending an executor that failed: job=%s pid=%d err=%s: %s",
		job ? job->name : "-", (int)g->pid, err_str(code), text.s);
	g->agent->executor_failures++;
	/* A code other than BPS_EWORKER_LOST means that this machine has failed. A job that may
	 * shrink then continues without this machine. */
	if (code != BPS_EWORKER_LOST)
		code = BPS_EDEVICE;
	executor_send_end(g, code, text.s);
	executor_mark_over(g, code, text.s);
	if (!was_used || !job || job->state != JOB_RUNNING || job->code < 0)
		return;
	job_report_failure(g->agent, job->id, code, g->text,
		&(struct ctl_cause){CTL_NO_ID, g->agent->cfg.host});
	agt_job_fail(job->core, code);
}

static void executor_end(struct executor_link *g, int code, const char *text)
{
	if (!g || g->state == EXECUTOR_OVER)
		return;
	executor_send_end(g, code, text);
	executor_mark_over(g, code < 0 ? code : BPS_ECLOSED, code < 0 ? text : "the job is over");
}

static void executor_release(struct executor_link *g)
{
	if (!g)
		return;
	/* If the agent is ending, the transport has been freed already, and job->arenas.x is
	 * NULL. */
	g->arenas.x = g->job->arenas.x;
	arena_set_fini(&g->arenas);
	g->job = NULL;
	free_if_unused(g);
}

void executor_stop_all(struct agent *a)
{
	struct executor_link *g;

	TAILQ_FOREACH (g, &a->executors, link) {
		/* An executor that was handed over keeps running for the next process. If no next
		 * process starts, the executor sees the end of its socket. */
		if (!g->is_handed_over) {
			executor_end(g, BPS_ENOAGENT, "bps-agent is stopping");
			shutdown(g->sock, SHUT_RDWR);
		}
		executor_close_handles(g);
	}
}

/* ---- the child ---- */

static void describe_exit_status(int status, const char *program, struct err_text *ret)
{
	if (WIFSIGNALED(status))
		err_set(ret, 0, "%s was ended by signal %d (%s)", program, WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) == 127)
		err_set(ret, 0,
			"%s cannot be run; check that the driver's libcuda.so.1 is installed",
			program);
	else
		err_set(ret, 0, "%s ended with status %d", program, WEXITSTATUS(status));
}

static void on_executor_exit(uv_poll_t *p, int status, int events)
{
	struct executor_link *g = p->data;
	struct err_text text;
	int wstatus = 0;

	(void)status;
	(void)events;
	if (!g->is_adopted && waitpid(g->pid, &wstatus, WNOHANG) != g->pid)
		return;
	executor_receive_messages(
		g); /* the reason for the end is in the last messages from the executor */
	if (g->is_adopted)
		err_set(&text, 0, "the executor of the job's GPUs has ended");
	else
		describe_exit_status(wstatus, basename(g->agent->cfg.gpu.program), &text);
	log_debug("executor has ended: pid=%d: %s", (int)g->pid, text.s);
	executor_fail(g, BPS_EDEVICE, "%s", text.s);
	executor_close_handles(g);
	executor_release_quota(g);
}

static int spawn_executor(const struct gpu_config *cfg, int sock, pid_t *ret)
{
	posix_spawn_file_actions_t files;
	int rc;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, sock, GPU_PIPE_FD);
	posix_spawn_file_actions_addclosefrom_np(&files, GPU_PIPE_FD + 1);
	rc = spawn_child(cfg->program, NULL, &files, ret);
	posix_spawn_file_actions_destroy(&files);
	return rc;
}

static void on_executor_readable(uv_poll_t *p, int status, int events)
{
	(void)status;
	(void)events;
	executor_receive_messages(p->data);
}

static void on_executor_wake_event(uv_poll_t *p, int status, int events)
{
	uint64_t n;

	(void)status;
	(void)events;
	/* reset the eventfd; the loop handles the rings after this callback */
	(void)!read(((struct executor_link *)p->data)->wake_fd, &n, sizeof(n));
}

/* Check that the executor's loop still runs. The loop increments `beat` in the shared page. */
static void on_executor_watch_timer(uv_timer_t *timer)
{
	struct executor_link *g = timer->data;
	const struct ring_pair_page *page = g->page.mem;
	/* Relaxed: the value is only compared with the previous value. */
	uint64_t beat = atomic_load_explicit(&page->beat, memory_order_relaxed);
	uint64_t now_ns = clock_now_ns();

	if (beat != g->beat) {
		g->beat = beat;
		g->beat_at_ns = now_ns;
	} else if (now_ns - g->beat_at_ns > HANG_NS) {
		executor_fail(g, BPS_EDEVICE,
			"%s hangs: the process has made no progress for %.0f s",
			basename(g->agent->cfg.gpu.program), (double)HANG_NS / 1e9);
		executor_kill_process(g);
	}
}

static void executor_start_watching(struct executor_link *g)
{
	uv_loop_t *uv = dataloop_uv(g->agent->loop);

	uv_timer_init(uv, &g->watchdog);
	uv_poll_init(uv, &g->sock_poll, g->sock);
	uv_poll_init(uv, &g->wake_poll, g->wake_fd);
	uv_poll_init(uv, &g->pid_poll, g->pidfd);
	g->watchdog.data = g->sock_poll.data = g->wake_poll.data = g->pid_poll.data = g;
	g->n_handles = 4;
	g->beat_at_ns = clock_now_ns();
	uv_timer_start(&g->watchdog, on_executor_watch_timer, WATCH_MS, WATCH_MS);
	uv_poll_start(&g->sock_poll, UV_READABLE | UV_DISCONNECT, on_executor_readable);
	uv_poll_start(&g->wake_poll, UV_READABLE, on_executor_wake_event);
	uv_poll_start(&g->pid_poll, UV_READABLE, on_executor_exit);
}

static int executor_make_rings(struct executor_link *g, struct err_text *err)
{
	int rc = memory_make_sealed(&g->page, "bps-rings", sizeof(struct ring_pair_page), 0, err);

	if (rc < 0)
		return rc;
	g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	g->exec_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (g->wake_fd < 0 || g->exec_fd < 0)
		return err_set(err, -errno, "cannot create descriptors for an executor: %s",
			strerror(errno));
	ring_pair_init(&g->pipe, g->page.mem, g->exec_fd, true);
	return 0;
}

/* Send START. If sending fails, the executor has ended, and on_executor_exit handles its end. */
static void executor_send_start(struct executor_link *g)
{
	struct local_msg m = {.type = GPU_START};

	m.gpu_start = (struct gpu_start){.abi = LOCAL_ABI,
		.version = BPS_VERSION,
		.job = g->job->name,
		.n_workers = g->job->n_workers,
		.n_slots = g->agent->cfg.limits.max_tensors,
		.route = g->agent->cfg.gpu.route,
		.sysfs = g->agent->cfg.gpu.sysfs};
	local_send(g->sock, &m, (int[]){g->page.fd, g->exec_fd, g->wake_fd}, 3, 0);
}

/* Start the executor's process, with its socket and rings. Errors: a negative code, and err gets
 * the text. */
static int executor_start_process(struct executor_link *g, struct err_text *err)
{
	const struct gpu_config *cfg = &g->agent->cfg.gpu;
	int sv[2], rc = executor_make_rings(g, err);

	if (rc < 0)
		return rc;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
		return err_set(err, -errno, "cannot create descriptors for an executor: %s",
			strerror(errno));
	g->sock = sv[0];
	rc = spawn_executor(cfg, sv[1], &g->pid);
	close(sv[1]);
	if (rc < 0)
		return err_set(err, rc, "cannot run '%s': %s%s", cfg->program, err_str(rc),
			rc == -ENOENT ? " (is the package bps-agent-cuda installed?)" : "");
	g->pidfd = (int)syscall(SYS_pidfd_open, g->pid, 0);
	rc = g->pidfd < 0 ? -errno : handover_write_executor(g);
	if (rc < 0) {
		kill(g->pid, SIGKILL);
		waitpid(g->pid, NULL, 0);
		return err_set(err, rc, "cannot watch the process of an executor: %s", err_str(rc));
	}
	executor_start_watching(g);
	executor_send_start(g);
	return 0;
}

int executor_send_arena(struct executor_link *g, uint32_t id, uint64_t bytes, int fd)
{
	struct local_msg m = {.type = GPU_ARENA, .gpu_arena = {.id = id, .bytes = bytes}};

	return local_send(g->sock, &m, &fd, 1, 0);
}

/* The callback `adopted` of struct arena_set, for staging memory. Records a new arena, and sends it
 * to the executor. */
static int executor_arena_adopted(void *ctx, struct arena *a)
{
	struct job *job = ctx;
	int rc = handover_write_staging(job, a);

	if (rc == 0 && executor_send_arena(job->executor, a->id, a->bytes, a->fd) < 0)
		rc = BPS_EDEVICE; /* the executor has ended, and on_executor_exit reports why */
	return rc;
}

static struct executor_link *executor_link_new(struct job *job)
{
	struct executor_link *g = calloc(1, sizeof(*g));

	if (g)
		g->user = quota_get_user_account(job->agent->quota, job->uid);
	if (!g || !g->user) {
		free(g);
		return NULL;
	}
	g->agent = job->agent;
	g->job = job;
	g->sock = g->wake_fd = g->exec_fd = g->pidfd = g->page.fd = -1;
	g->asked_ns = clock_now_ns();
	TAILQ_INIT(&g->again);
	TAILQ_INSERT_TAIL(&g->agent->executors, g, link);
	job->executor = g;
	g->arenas = (struct arena_set){.x = job->arenas.x,
		.owner = job->arenas.owner,
		.owner_ctx = job->arenas.owner_ctx,
		.adopted = executor_arena_adopted};
	return g;
}

/* Start the job's executor. Errors: -ENOMEM, BPS_EQUOTA. After an error, the job has no executor.
 * After BPS_EQUOTA, a trainer may request the executor again when another job of the user has
 * ended. If the agent drives no GPUs, or if the executor's process cannot be started, the function
 * returns 0. Then job->executor is in state OVER, its fields `code` and `text` describe the
 * failure, and the failure is final. */
static int executor_create_and_start(struct job *job, struct err_text *err)
{
	struct executor_link *g = executor_link_new(job);
	int rc;

	if (!g)
		return err_set(err, -ENOMEM, "the agent is out of memory");
	rc = quota_take(g->user, QUOTA_EXECUTORS, 1, err);
	if (rc < 0) {
		job->executor = NULL;
		executor_release(g);
		return rc;
	}
	g->is_counted = true;
	if (!*g->agent->cfg.gpu.program)
		rc = err_set(err, BPS_EDEVICE,
			"bps-agent on %s drives no GPUs (see its setting --gpu)",
			g->agent->cfg.host);
	else
		rc = executor_start_process(g, err);
	if (rc < 0) {
		log_rated(LOG_WARN, "cannot start an executor: job=%s: %s", job->name, err->s);
		g->agent->executor_failures += *g->agent->cfg.gpu.program != 0;
		executor_release_quota(g);
		executor_mark_over(g, BPS_EDEVICE, err->s);
	}
	return 0;
}

int executor_restore(struct job *job, int sock, int pidfd, pid_t pid, struct err_text *err)
{
	struct executor_link *g = executor_link_new(job);
	int rc;

	if (!g) {
		if (sock >= 0)
			close(sock);
		if (pidfd >= 0)
			close(pidfd);
		return err_set(err, -ENOMEM, "the agent is out of memory");
	}
	g->sock = sock;
	g->pidfd = pidfd;
	g->pid = pid;
	g->is_handed_over = g->is_adopted = g->is_counted = true;
	quota_charge(g->user, QUOTA_EXECUTORS, 1);
	rc = sock >= 0 && pidfd >= 0 ? executor_make_rings(g, err) : BPS_EDEVICE;
	if (rc == 0) {
		executor_start_watching(g);
		executor_send_start(g);
		return 0;
	}
	if (rc == BPS_EDEVICE)
		err_set(err, rc, "the executor of the job's GPUs has ended");
	executor_release_quota(g);
	executor_mark_over(g, rc, err->s);
	return rc == BPS_EDEVICE ? 0 : rc;
}

int executor_restore_route(struct executor_link *g, const struct ledger_route *k)
{
	if (!k->n_inputs || k->n_inputs > LOCAL_GPUS_MAX)
		return BPS_EPROTO;
	snprintf(g->route, sizeof(g->route), "%s", k->route);
	g->n_inputs = k->n_inputs;
	memcpy(g->input_nodes, k->input_nodes, sizeof(g->input_nodes));
	memcpy(g->input_workers, k->input_workers, sizeof(g->input_workers));
	g->sum_node = k->sum_node;
	if (g->state != EXECUTOR_OVER)
		executor_set_state(g, EXECUTOR_RUNNING, "the executor ran before the restart");
	return 0;
}

/* ---- trainers ---- */

/* Connect the trainer and the executor: send each of them one end of a new socket pair. */
static void executor_connect_trainer(struct executor_link *g, struct trainer *t)
{
	struct local_msg m = {
		.type = GPU_TRAINER, .gpu_trainer = {.worker = t->worker, .pid = (uint32_t)t->pid}};
	int sv[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0) {
		trainer_send_device_answer(t, -1, -errno, "cannot create a socket to the executor");
		return;
	}
	rc = local_send(g->sock, &m, &sv[1], 1, 0);
	if (rc < 0)
		trainer_send_device_answer(
			t, -1, BPS_EDEVICE, "the executor does not accept connections");
	else
		trainer_send_device_answer(t, sv[0], 0, "");
	close(sv[0]);
	close(sv[1]);
}

static void executor_accept_request(struct trainer *t, uint32_t seq)
{
	struct job *job = t->job;
	struct err_text err = {""};
	int rc = 0;

	t->live->device_seq = seq;
	if (t->state != TRAINER_ATTACHED || job->state != JOB_RUNNING) {
		trainer_send_device_answer(t, -1, job && job->code < 0 ? job->code : BPS_ECLOSED,
			job && *job->text ? job->text : "the job is not running");
		return;
	}
	if (!job->executor)
		rc = executor_create_and_start(job, &err);
	t->has_asked_device = true;
	if (rc < 0)
		trainer_send_device_answer(t, -1, rc, err.s);
	else if (job->executor->state == EXECUTOR_OVER)
		trainer_send_device_answer(t, -1, job->executor->code, job->executor->text);
	else if (job->executor->state == EXECUTOR_STARTING)
		t->wants_device = true;
	else
		executor_connect_trainer(job->executor, t);
}

const struct executor_ops executor_ops = {.tensors = &device_tensor_kind,
	.ask = executor_accept_request,
	.end = executor_end,
	.release = executor_release};

/* ---- messages from the executor ---- */

static void on_executor_ready(struct executor_link *g, const struct gpu_text *m)
{
	struct trainer *t, *next;

	if (m->code) {
		executor_fail(g, BPS_EDEVICE, "%s", m->text);
		return;
	}
	if (g->state == EXECUTOR_STARTING)
		executor_set_state(g, EXECUTOR_MEETING, "ready");
	for (t = g->job ? TAILQ_FIRST(&g->job->trainers) : NULL; t; t = next) {
		next = TAILQ_NEXT(t, of_job);
		if (t->wants_device)
			executor_connect_trainer(g, t);
	}
}

static void on_executor_route(struct executor_link *g, const struct gpu_route *m)
{
	if (!m->n_inputs || m->n_inputs > LOCAL_GPUS_MAX ||
		m->input_nodes.bytes != m->n_inputs * sizeof(g->input_nodes[0]) ||
		m->input_workers.bytes != m->n_inputs * sizeof(g->input_workers[0])) {
		executor_fail(g, BPS_EPROTO,
			"the executor's route has an invalid number of inputs: %u", m->n_inputs);
		return;
	}
	if (g->state == EXECUTOR_RUNNING) {
		if (m->n_inputs != g->n_inputs)
			executor_fail(g, BPS_EPROTO,
				"the executor's route differs from its route before the restart");
		return;
	}
	snprintf(g->route, sizeof(g->route), "%s", m->route);
	g->n_inputs = m->n_inputs;
	memcpy(g->input_nodes, m->input_nodes.data, m->input_nodes.bytes);
	memcpy(g->input_workers, m->input_workers.data, m->input_workers.bytes);
	g->sum_node = m->sum_node;
	if (handover_write_route(g) < 0)
		executor_fail(g, -ENOMEM, "the agent is out of memory");
	else
		executor_set_state(g, EXECUTOR_RUNNING, m->route);
}

static void on_executor_message(struct executor_link *g, const struct local_msg *m)
{
	if (g->state == EXECUTOR_OVER)
		return;
	/* An adopted executor sends READY and ROUTE again after it receives START from this
	 * process. */
	if (m->type == GPU_READY && (g->state == EXECUTOR_STARTING || g->is_adopted))
		on_executor_ready(g, &m->gpu_text);
	else if (m->type == GPU_ROUTE && (g->state == EXECUTOR_MEETING || g->is_adopted))
		on_executor_route(g, &m->gpu_route);
	else if (m->type == GPU_FAILED)
		executor_fail(g,
			m->gpu_text.code == (uint32_t)-BPS_EWORKER_LOST ? BPS_EWORKER_LOST
									: BPS_EDEVICE,
			"%s", m->gpu_text.text);
	else
		executor_fail(g, BPS_EPROTO, "the executor sent an unexpected message: %s",
			local_type_name(m->type));
}

void executor_receive_messages(struct executor_link *g)
{
	int rc = 1;

	while (rc == 1) {
		struct err_text err = {""};
		struct local_frame f;

		rc = local_recv(g->sock, &f, 0, &err);
		if (rc == 1)
			on_executor_message(g, &f.msg);
		else if (rc == BPS_EPROTO || rc == -EMFILE)
			executor_fail(
				g, rc, "cannot decode a message from the executor: %s", err.s);
		else if (rc != -EAGAIN && g->sock_poll.data)
			/* on_executor_exit reports why the executor has ended */
			uv_poll_stop(&g->sock_poll);
		local_frame_free(&f);
	}
}
