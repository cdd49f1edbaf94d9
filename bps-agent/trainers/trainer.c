/* The agent's end of a trainer's connection: its socket, its control page, its ring. Requests are
 * served in requests.c and the files that requests.c calls. Thread: the data thread. */
#include "bps-agent/trainers/trainer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bps-agent/handover/handover_write.h"
#include "bps-agent/trainers/slow_close.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/state.h"

/* Time limit for HELLO on a new connection, in ms. */
#define GREETING_MS 5000
/* Largest number of submissions that one call of trainer_poll_ring takes from the ring. */
#define RING_BATCH 256

static const struct state_row states[] = {
	[TRAINER_GREETING] = {"greeting", 1u << TRAINER_JOINING},
	[TRAINER_JOINING] = {"joining", 1u << TRAINER_ATTACHED | 1u << TRAINER_OVER},
	[TRAINER_ATTACHED] = {"attached", 1u << TRAINER_FINISHING | 1u << TRAINER_OVER},
	[TRAINER_FINISHING] = {"finishing", 1u << TRAINER_OVER},
	[TRAINER_OVER] = {"over", 0},
	[TRAINER_GONE] = {"gone", 0},
};

void trainer_set_state(struct trainer *t, enum trainer_state state)
{
	if (state != TRAINER_GONE && !(states[t->state].next >> state & 1)) {
		log_error("trainer cannot change from %s to %s: pid=%d", states[t->state].name,
			states[state].name, (int)t->pid);
		return;
	}
	log_debug("trainer changes from %s to %s: pid=%d job=%s rank=%d", states[t->state].name,
		states[state].name, (int)t->pid, t->job ? t->job->name : "-", (int)t->rank);
	t->state = state;
}

/* ---- the end ---- */

static void free_if_closed(struct trainer *t)
{
	if (t->n_handles)
		return;
	if (t->control)
		memory_thread_drop(t->agent->memory_thread,
			&(struct memory){.fd = -1, .mem = t->control, .bytes = t->control_bytes});
	if (t->efd >= 0)
		close(t->efd);
	if (t->pidfd >= 0)
		close(t->pidfd);
	if (t->is_left)
		close(t->sock);
	else
		slow_close_socket(t->agent, t->sock);
	quota_give(t->user, QUOTA_MEMORY, t->control ? t->control_bytes : 0);
	quota_give(t->user, QUOTA_DESCRIPTORS, TRAINER_FDS);
	quota_account_release(t->user);
	t->agent->trainer_events->freed(t);
	free(t->tensors);
	free(t);
}

static void on_trainer_handle_closed(uv_handle_t *h)
{
	struct trainer *t = h->data;

	t->n_handles--;
	free_if_closed(t);
}

void trainer_ref(struct trainer *t)
{
	t->n_handles++;
}

void trainer_unref(struct trainer *t)
{
	t->n_handles--;
	if (t->state == TRAINER_GONE)
		free_if_closed(t);
}

static void trainer_close_handle(uv_handle_t *h)
{
	if (h->data)
		uv_close(h, on_trainer_handle_closed);
}

/* Remove the trainer from the agent's list. The trainer's memory is freed when all handles of the
 * trainer are closed. */
static void trainer_unlist_and_close(struct trainer *t)
{
	trainer_set_state(t, TRAINER_GONE);
	TAILQ_REMOVE(&t->agent->trainers, t, link);
	t->agent->n_trainers--;
	quota_give(t->user, QUOTA_TRAINERS, 1);
	/* keep the trainer's memory until uv_close has been called for all handles */
	t->n_handles++;
	trainer_close_handle((uv_handle_t *)&t->sock_poll);
	trainer_close_handle((uv_handle_t *)&t->efd_poll);
	trainer_close_handle((uv_handle_t *)&t->pid_poll);
	trainer_close_handle((uv_handle_t *)&t->greeting);
	trainer_close_handle((uv_handle_t *)&t->slowed);
	t->n_handles--;
	free_if_closed(t);
}

void trainer_disconnect(struct trainer *t, bool is_fault, const char *why)
{
	if (t->state == TRAINER_GONE)
		return;
	FAILPOINT(AGENT_TRAINER_DROP);
	if (is_fault)
		log_rated(LOG_WARN,
			"disconnecting a trainer that violated the protocol: pid=%d uid=%u job=%s "
			"rank=%d why=%s",
			(int)t->pid, (unsigned)t->uid, t->job ? t->job->name : "-", (int)t->rank,
			why);
	else
		log_debug("trainer left: pid=%d why=%s", (int)t->pid, why);
	t->agent->trainer_events->going(t, why);
	handover_forget_trainer(t);
	trainer_unlist_and_close(t);
}

void trainer_close_for_handover(struct trainer *t)
{
	t->is_left = true;
	t->agent->trainer_events->going(t, NULL);
	trainer_unlist_and_close(t);
}

void trainer_send_message(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds)
{
	int rc;

	if (t->state == TRAINER_GONE)
		return;
	rc = local_send(t->sock, m, fds, n_fds, 0);
	/* Do not disconnect the trainer here, because the caller may be iterating over the list of
	 * trainers. After shutdown, the poll of the socket reports the end of the connection. */
	if (rc < 0) {
		log_rated(LOG_WARN,
			"disconnecting a trainer that does not accept a message: pid=%d type=%s "
			"err=%s",
			(int)t->pid, local_type_name(m->type), err_str(rc));
		shutdown(t->sock, SHUT_RDWR);
	}
}

void trainer_send_job_failure(
	struct trainer *t, int code, const char *text, const struct ctl_cause *cause)
{
	struct local_msg m = {.type = LOCAL_JOB, .job = {.code = (uint32_t)-code, .text = text}};

	if (cause)
		m.job.cause = *cause;
	trainer_send_message(t, &m, NULL, 0);
}

/* ---- ring ---- */

/* Handle at most `most` submissions. Return whether there were any. */
static bool take_submissions(struct trainer *t, unsigned most)
{
	struct local_sqe e;
	struct err_text err;
	bool any = false;

	for (unsigned i = 0; i < most; i++) {
		if (!local_sq_pop(t->control, t->sq_entries, &t->sq_head, &e))
			break;
		any = true;
		if (t->agent->trainer_events->submission(t, &e, &err) < 0) {
			trainer_disconnect(t, true, err.s);
			break;
		}
		t->live->sq_head = t->sq_head;
	}
	return any;
}

bool trainer_poll_ring(struct trainer *t)
{
	return t->control && !FAILPOINT(AGENT_RING_POLL) && take_submissions(t, RING_BATCH);
}

void trainer_empty_ring(struct trainer *t)
{
	if (t->control)
		take_submissions(t, t->sq_entries);
}

bool trainer_may_sleep(struct trainer *t)
{
	return !t->control || local_sq_sleep(t->control, t->sq_entries, t->sq_head);
}

void trainer_mark_awake(struct trainer *t)
{
	if (t->control)
		local_sq_awake(t->control);
}

void trainer_report_round_done(
	struct trainer *t, uint32_t index, uint64_t round, int status, uint32_t workers)
{
	local_complete_round(t->control, t->sq_entries, index, round, status, workers);
	t->completed++;
	t->is_dirty = true;
	t->agent->has_dirty = true;
}

void trainer_wake_dirty(struct agent *a)
{
	struct trainer *t;

	if (!a->has_dirty)
		return;
	a->has_dirty = false;
	TAILQ_FOREACH (t, &a->trainers, link) {
		if (!t->is_dirty)
			continue;
		t->is_dirty = false;
		local_done_wake(t->control);
	}
}

/* ---- socket ---- */

/* Remove the message that has been answered. on_trainer_readable only peeks at a message, so that
 * the message stays in the socket until it has been answered. After a crash, the next process finds
 * the message there. A crash may also happen after the answer and before this function. So the
 * first message that the next process finds may have been answered already. */
void trainer_answered(struct trainer *t)
{
	char c;

	if (!t->is_asking || t->state == TRAINER_GONE)
		return;
	t->is_asking = t->may_repeat_message = false;
	if (t->live)
		t->live->handled_seq = t->asked_seq;
	(void)!recv(t->sock, &c, sizeof(c), MSG_DONTWAIT);
}

static bool is_answered_message(const struct trainer *t, const struct local_msg *m)
{
	return t->may_repeat_message && t->live && m->seq && m->seq == t->live->handled_seq;
}

static void on_trainer_readable(uv_poll_t *p, int status, int events);

/* Poll the socket for the end of the connection. Unless messages must wait, also poll the socket
 * for messages. */
static void trainer_update_socket_poll(struct trainer *t)
{
	bool is_deaf = t->is_slowed || t->is_held;

	uv_poll_start(
		&t->sock_poll, UV_DISCONNECT | (is_deaf ? 0 : UV_READABLE), on_trainer_readable);
}

static void on_trainer_exit(uv_poll_t *p, int status, int events);

/* Return whether the trainer waits until the scheduler has reported its job after a restart. If it
 * ends meanwhile, its last messages stay in the socket. */
static bool trainer_is_resuming(const struct trainer *t)
{
	return t->is_held && t->job && t->job->is_resumed;
}

void trainer_set_held(struct trainer *t, bool is_held)
{
	t->is_held = is_held;
	if (t->state == TRAINER_GONE)
		return;
	trainer_update_socket_poll(t);
	if (!is_held && t->pid_poll.data)
		uv_poll_start(&t->pid_poll, UV_READABLE, on_trainer_exit);
}

static void on_trainer_pace_timer(uv_timer_t *timer)
{
	struct trainer *t = timer->data;

	t->is_slowed = false;
	t->has_waited = true;
	trainer_update_socket_poll(t);
}

/* Return whether the limit on the user's request rate allows the agent to read the next message
 * now. If the limit requires a wait, the message stays in the socket, and the agent reads the
 * message after the wait. If the connection has exceeded the limit for too long, disconnect the
 * trainer. */
static bool trainer_has_turn(struct trainer *t)
{
	struct err_text err;
	int64_t wait_ns;

	if (t->has_waited) {
		t->has_waited = false;
		return true;
	}
	wait_ns = quota_pace_request(t->user, &t->pace, clock_now_ns(), &err);
	if (wait_ns < 0) {
		/* Report the reason before disconnecting the trainer. */
		trainer_send_job_failure(t, BPS_EQUOTA, err.s, NULL);
		trainer_disconnect(t, true, err.s);
	} else if (wait_ns > 0) {
		t->is_slowed = true;
		trainer_update_socket_poll(t);
		uv_timer_start(
			&t->slowed, on_trainer_pace_timer, (uint64_t)wait_ns / 1000000 + 1, 0);
	}
	return wait_ns == 0;
}

/* Peek at the next message. *ret_brings_fds: whether descriptors come with the message. The
 * descriptors are not received. Otherwise the agent would have to close each of them, which could
 * block in a file system of the trainer. Returns 1 if there is a message, 0 for an empty message or
 * at the end of the connection, or -errno. */
static int socket_peek_message(int sock, bool *ret_brings_fds)
{
	char c;
	struct iovec iov = {&c, sizeof(c)};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n = recvmsg(sock, &mh, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return -errno;
	*ret_brings_fds = mh.msg_flags & MSG_CTRUNC;
	return (int)n;
}

static bool trainer_has_message(const struct trainer *t)
{
	bool unused;

	return socket_peek_message(t->sock, &unused) > 0;
}

static void on_trainer_readable(uv_poll_t *p, int status, int events)
{
	struct trainer *t = p->data;
	struct local_msg m;
	struct err_text err = {0};
	bool brings_fds = false;
	void *mem = NULL;
	int rc, n;

	(void)status; /* the receive call below reports the error more precisely */
	if (t->is_slowed || t->is_held) {
		if (events & UV_DISCONNECT && trainer_is_resuming(t))
			uv_poll_stop(&t->sock_poll);
		else if (events & UV_DISCONNECT)
			trainer_disconnect(t, false, "the trainer closed its socket");
		return;
	}
	if (!trainer_has_turn(t))
		return;
	n = socket_peek_message(t->sock, &brings_fds);
	if (n == -EAGAIN)
		return;
	if (brings_fds) {
		trainer_disconnect(
			t, true, "the trainer sent descriptors, which the agent does not accept");
		return;
	}
	rc = local_peek(t->sock, &m, &mem, &err);
	if (rc == -EAGAIN)
		return;
	if (rc == 1) {
		t->is_asking = true;
		t->asked_seq = m.seq;
		if (!is_answered_message(t, &m))
			t->agent->trainer_events->message(t, &m, &mem);
		if (!t->is_held)
			trainer_answered(t);
		free(mem);
		return;
	}
	trainer_disconnect(t, rc == BPS_EPROTO,
		rc == 0  ? "the trainer closed its socket"
		: *err.s ? err.s
			 : err_str(rc));
}

static void on_trainer_exit(uv_poll_t *p, int status, int events)
{
	struct trainer *t = p->data;

	(void)status;
	(void)events;
	if (trainer_is_resuming(t)) {
		uv_poll_stop(p);
		return;
	}
	/* The process may have sent messages before its end, for example FINISH. */
	while (t->state != TRAINER_GONE && !t->is_slowed && !t->is_held && trainer_has_message(t))
		on_trainer_readable(&t->sock_poll, 0, UV_READABLE);
	trainer_disconnect(t, false, "the trainer's process has ended");
}

static void on_greeting_timeout(uv_timer_t *timer)
{
	struct trainer *t = timer->data;

	trainer_disconnect(t, true, "the trainer sent no HELLO within 5 s");
}

void trainer_start_watching(struct trainer *t)
{
	uv_loop_t *uv = dataloop_uv(t->agent->loop);

	uv_timer_init(uv, &t->greeting);
	uv_poll_init(uv, &t->sock_poll, t->sock);
	uv_timer_init(uv, &t->slowed);
	t->sock_poll.data = t->greeting.data = t->slowed.data = t;
	t->n_handles = 3;
	uv_timer_start(&t->greeting, on_greeting_timeout, GREETING_MS, 0);
	if (t->pidfd >= 0 && uv_poll_init(uv, &t->pid_poll, t->pidfd) == 0) {
		t->pid_poll.data = t;
		t->n_handles++;
		uv_poll_start(&t->pid_poll, UV_READABLE, on_trainer_exit);
	}
	trainer_update_socket_poll(t);
}
