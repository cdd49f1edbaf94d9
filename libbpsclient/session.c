/* A worker's connection to its agent (session.h). This file opens the connection, sends messages,
 * receives answers, records the session's failure, and wakes the agent. The requests are in
 * session_requests.c. Submissions and completions go through shared memory instead (tensor.c,
 * wait.c). Thread: any; the session's lock protects the socket. */
#include "libbpsclient/bps.h"
#include "libbpsclient/session_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/local/cause_file.h"
#include "common/wire/ctlmsg.h"
#include "libbpsclient/last_error.h"
#include "libbpsclient/base/process_limit.h"

#define ATTACH_TRIES 3 /* limit on the connections that end before WELCOME */

/* ---- failure ---- */

/* Record the failure, unless the session has failed already. The caller holds the lock. */
static int session_record_failure(struct session *s, int code, const char *text)
{
	if (!atomic_load_explicit(&s->failure, memory_order_relaxed)) {
		arenas_make_inputs_private(&s->arenas);
		err_set(&s->failure_text, code, "%s", text);
		atomic_store_explicit(&s->failure, code, memory_order_release);
	}
	return code;
}

int session_cut_connection(struct session *s, int code, const char *why)
{
	struct err_text text;

	s->is_cut = true;
	if (code == BPS_ENOAGENT)
		err_set(&text, code,
			"the agent at '%s' is gone: %s (was bps-agent stopped or "
			"killed?)",
			s->options->socket, why);
	else
		err_set(&text, code,
			"the agent at '%s' broke the protocol: %s (are bps-agent and libbpsclient "
			"of one release?)",
			s->options->socket, why);
	return session_record_failure(s, code, text.s);
}

int session_failure(struct session *s, struct err_text *ret)
{
	int code = atomic_load_explicit(&s->failure, memory_order_acquire);

	if (code)
		/* the text is complete, because session_record_failure writes it before the code */
		*ret = s->failure_text;
	if (code)
		last_error_cause(&(struct ctl_cause){s->cause_rank, s->cause_host});
	return code;
}

/* ---- frames ---- */

int frame_detach_fd(struct local_frame *f, unsigned i)
{
	int fd = f->fds[i];

	f->fds[i] = f->fds[--f->n_fds];
	return fd;
}

static int session_add_arena(struct session *s, struct local_frame *f)
{
	int fd = f->n_fds == 1 ? f->fds[0] : s->has_lost_fds ? -EMFILE : -1;
	int rc = arenas_add(&s->arenas, &f->msg.arena, &fd);

	if (f->n_fds == 1 && fd < 0)
		f->n_fds = 0; /* arenas_add kept the descriptor */
	return rc;
}

/* Store which worker or machine caused the failure that the caller is about to record. */
static void session_record_cause(struct session *s, const struct ctl_cause *cause)
{
	if (atomic_load_explicit(&s->failure, memory_order_relaxed))
		return;
	s->cause_rank = cause->rank;
	snprintf(s->cause_host, sizeof(s->cause_host), "%s", cause->host);
	if (cause->rank != CTL_NO_ID)
		cause_file_set(s->options->job, s->rank, cause->rank);
}

static void session_apply_job_message(struct session *s, const struct local_job *m)
{
	if (m->code) {
		session_record_cause(s, &m->cause);
		session_record_failure(s, local_code_from_wire(m->code, BPS_EJOB_FAILED),
			*m->text ? m->text : "the job has failed");
		return;
	}
	s->rank = m->rank;
	s->size = m->size;
	s->local_rank = m->local_rank;
	s->local_size = m->local_size;
	s->barrier = m->barrier;
	s->is_new = m->is_new;
	s->root = m->root;
	s->is_complete = true;
	cause_file_set(s->options->job, s->rank, CTL_NO_ID);
}

/* Handle a frame that is not the awaited answer. An answer to a request that has timed out is
 * dropped. Returns 0, or the session's failure. */
static int handle_unasked(struct session *s, struct local_frame *f)
{
	int rc;

	switch (f->msg.type) {
	case LOCAL_JOB:
		session_apply_job_message(s, &f->msg.job);
		return 0;
	case LOCAL_ARENA:
		rc = session_add_arena(s, f);
		return rc < 0 ? session_cut_connection(
					s, rc, "an announced shared memory file cannot be mapped")
			      : 0;
	case LOCAL_WELCOME: /* if code != 0, the agent refused this worker before reading HELLO */
		if (!f->msg.welcome.code && !s->control)
			return session_cut_connection(
				s, BPS_EPROTO, "WELCOME arrived before this worker sent HELLO");
		if (!f->msg.welcome.code) { /* a restarted agent sends WELCOME again */
			s->n_types = f->msg.welcome.n_types;
			return 0;
		}
		return session_record_failure(s,
			local_code_from_wire(f->msg.welcome.code, BPS_EPROTO), f->msg.welcome.text);
	case LOCAL_DECLARED:
	case LOCAL_DEVICE_AT:
	case LOCAL_TEXT:
	case LOCAL_FINISHED:
	case LOCAL_PEOPLE:
	case LOCAL_PASSED:
	case LOCAL_TRAFFIC:
	case LOCAL_TRACE:
		return 0;
	default:
		return session_cut_connection(s, BPS_EPROTO, local_type_name(f->msg.type));
	}
}

/* Receive one frame. Returns 1, or -EAGAIN, -ETIMEDOUT, -ENOMEM. Any other error makes the session
 * fail; the return value is then the code of the session's failure. */
static int session_receive_frame(struct session *s, struct local_frame *f, uint32_t timeout_ms)
{
	struct err_text err = {""};
	int rc = local_recv(s->sock, f, timeout_ms, &err);

	s->has_lost_fds = rc == -EMFILE;
	s->arenas.has_lost_some |= rc == -ENOMEM; /* the lost frame may have announced an arena */
	if (s->has_lost_fds)
		return 1;
	if (rc == 1 || rc == -EAGAIN || rc == -ETIMEDOUT || rc == -ENOMEM)
		return rc;
	if (rc == 0)
		return session_cut_connection(s, BPS_ENOAGENT, "the connection ended");
	if (rc == BPS_EPROTO)
		return session_cut_connection(s, rc, err.s);
	return session_cut_connection(s, BPS_ENOAGENT, err.s);
}

/* Handle all frames that have arrived, without waiting. The caller holds the lock. */
static void session_drain_frames(struct session *s)
{
	struct local_frame f;
	int rc = 1;

	while (!s->is_cut && rc > 0) {
		rc = session_receive_frame(s, &f, 0);
		if (rc > 0)
			handle_unasked(s, &f);
		local_frame_free(&f);
	}
}

static int session_send_message(struct session *s, const struct local_msg *m, uint64_t deadline_ns)
{
	int rc = local_send(s->sock, m, NULL, 0, clock_ms_until_deadline(deadline_ns));

	if ((rc == -EPIPE || rc == -ECONNRESET) && m->type == LOCAL_HELLO)
		/* The agent refused this worker before reading HELLO. The agent's message WELCOME
		 * has the reason. */
		return 0;
	if (rc == -EPIPE || rc == -ECONNRESET) {
		session_drain_frames(s); /* the agent's last frames may report the reason */
		return session_cut_connection(s, BPS_ENOAGENT, err_str(rc));
	}
	return rc == -EAGAIN ? -ETIMEDOUT : rc;
}

/* Trigger the failpoints (places where tests inject faults) that follow the sending of a
 * request. */
static void trigger_sent_failpoint(uint16_t type)
{
	if (type == LOCAL_HELLO)
		FAILPOINT(CLIENT_HELLO_SENT);
	else if (type == LOCAL_DECLARE)
		FAILPOINT(CLIENT_DECLARE_SENT);
	else if (type == LOCAL_FINISH)
		FAILPOINT(CLIENT_CLOSE_SENT);
}

/* Receive frames until the answer to request number seq has come. A WELCOME is accepted with any
 * number, because it answers only one request, HELLO. The caller holds the lock. */
static int session_await_answer(
	struct session *s, uint16_t type, uint32_t seq, uint64_t deadline_ns, struct local_frame *f)
{
	int rc;

	for (;;) {
		rc = session_receive_frame(s, f, clock_ms_until_deadline(deadline_ns));
		if (rc < 0)
			return rc == -EAGAIN ? -ETIMEDOUT : rc;
		if (f->msg.type == type && (f->msg.seq == seq || type == LOCAL_WELCOME))
			return 0;
		rc = handle_unasked(s, f);
		local_frame_free(f);
		if (rc < 0)
			return rc;
	}
}

int session_send_and_receive(struct session *s, struct local_msg *m, uint16_t answer_type,
	uint64_t deadline_ns, struct local_frame *f)
{
	int rc;

	if (s->is_cut)
		return atomic_load_explicit(&s->failure, memory_order_relaxed);
	if (m->type != LOCAL_HELLO && m->type >= s->n_types)
		return -EOPNOTSUPP;
	m->seq = ++s->seq;
	rc = session_send_message(s, m, deadline_ns);
	if (rc < 0)
		return rc;
	trigger_sent_failpoint(m->type);
	return session_await_answer(s, answer_type, m->seq, deadline_ns, f);
}

int session_explain_request(struct session *s, int rc, const char *what, struct err_text *err)
{
	int failure = atomic_load_explicit(&s->failure, memory_order_relaxed);
	struct err_text why;

	if (failure && rc == failure) {
		session_failure(s, &why);
		return err_set(err, rc, "%s: %s", what, why.s);
	}
	if (rc == -ETIMEDOUT)
		return err_set(err, BPS_ETIMEDOUT,
			"%s: the agent at '%s' did not answer before the time-out", what,
			s->options->socket);
	if (rc == -EOPNOTSUPP)
		return err_set(
			err, rc, "%s: the agent is of an older release: upgrade bps-agent", what);
	return process_limit_explain(rc, what, err);
}

/* ---- open ---- */

static int session_connect_to_agent(struct session *s, struct err_text *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const struct client_options *o = s->options;
	/* SO_SNDTIMEO also limits connect(), which blocks while the agent's backlog is full. */
	struct timeval tv = {
		.tv_sec = o->open_timeout_ms / 1000, .tv_usec = o->open_timeout_ms % 1000 * 1000};
	int cause, rc = FAILPOINT(CLIENT_CONNECT);

	if (rc < 0)
		return err_set(
			err, BPS_ENOAGENT, "cannot connect to '%s': %s", o->socket, err_str(rc));
	memcpy(addr.sun_path, o->socket, strnlen(o->socket, sizeof(addr.sun_path)));
	s->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s->sock < 0)
		return process_limit_explain(-errno, "cannot create a socket for the agent", err);
	setsockopt(s->sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (!connect(s->sock, (struct sockaddr *)&addr, sizeof(addr)))
		return 0;
	cause = errno;
	return err_set(err, BPS_ENOAGENT, "cannot connect to '%s': %s (%s)", o->socket,
		err_str(-cause),
		cause == EACCES ? "is this user in the socket's group?"
				: "is bps-agent running? bpsrun starts one for a job");
}

static int session_map_control_page(struct session *s, struct local_frame *f, struct err_text *err)
{
	struct stat st;
	void *page = NULL;
	int rc;

	if (s->has_lost_fds)
		return process_limit_explain(
			-EMFILE, "the agent's control page cannot be received", err);
	if (f->n_fds != 2)
		return err_set(err, BPS_EPROTO,
			"the agent sent %u descriptors with its WELCOME, not 2", f->n_fds);
	if (fstat(f->fds[0], &st) < 0 || st.st_size <= 0 || (uint64_t)st.st_size > ARENA_MAX_BYTES)
		return err_set(err, BPS_EPROTO, "the agent's control page is empty or too large");
	s->event_fd = frame_detach_fd(f, 1);
	rc = arenas_map_sealed_file(f->fds[0], (uint64_t)st.st_size, true, &page);
	if (rc)
		return process_limit_explain(rc, "the agent's control page cannot be mapped", err);
	s->control = page;
	s->control_bytes = (size_t)st.st_size;
	rc = local_control_check(s->control, s->control_bytes, err);
	if (rc < 0)
		return rc;
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): errno is not 0 after a failure */
	s->entries = local_tensor_entries(s->control, s->control->sq_entries);
	s->tensor_entries = s->control->tensor_entries;
	return 0;
}

static int session_attach_to_agent(struct session *s, uint64_t deadline_ns, struct err_text *err)
{
	const struct client_options *o = s->options;
	struct local_msg m = {.type = LOCAL_HELLO,
		.hello = {.abi = LOCAL_ABI,
			.version = BPS_VERSION,
			.job = o->job,
			.rank = o->rank < 0 ? UINT32_MAX : (uint32_t)o->rank,
			.size = (uint32_t)o->size,
			.flags = (o->is_deterministic ? JOB_DETERMINISTIC : 0) |
				 (o->is_forced ? JOB_DISTRIBUTED : 0) |
				 (o->may_shrink ? JOB_SHRINK : 0) |
				 (o->is_elastic ? JOB_ELASTIC : 0),
			.part_bytes = o->part_bytes,
			.backup = o->backup,
			.grace_ms = o->grace_ms,
			.max_size = (uint32_t)o->max_size,
			.machine_size = o->local_size > 0 ? (uint32_t)o->local_size : 1,
			.token = {o->token, o->has_token ? sizeof(o->token) : 0}}};
	struct local_frame f = {.mem = NULL};
	int rc;

	rc = session_send_and_receive(s, &m, LOCAL_WELCOME, deadline_ns, &f);
	if (rc < 0) {
		rc = session_explain_request(s, rc, "cannot attach to the agent", err);
	} else if (f.msg.welcome.code) {
		rc = local_code_from_wire(f.msg.welcome.code, BPS_EPROTO);
		err_set(err, rc, "the agent refused rank %d of job '%s': %s", o->rank, o->job,
			*f.msg.welcome.text ? f.msg.welcome.text : err_str(rc));
	} else {
		s->n_types = f.msg.welcome.n_types;
		rc = session_map_control_page(s, &f, err);
	}
	local_frame_free(&f);
	return rc;
}

static int session_await_all_workers(struct session *s, uint64_t deadline_ns, struct err_text *err)
{
	const struct client_options *o = s->options;
	struct err_text why = {""};
	struct local_frame f;
	int rc;

	while (!s->is_complete && !atomic_load_explicit(&s->failure, memory_order_relaxed)) {
		rc = session_receive_frame(s, &f, clock_ms_until_deadline(deadline_ns));
		if (rc > 0)
			handle_unasked(s, &f);
		local_frame_free(&f);
		if (rc == -EAGAIN || rc == -ETIMEDOUT)
			goto late;
		if (rc == -ENOMEM)
			return process_limit_explain(rc, "cannot receive from the agent", err);
	}
	rc = session_failure(s, &why);
	if (rc)
		return err_set(err, rc, "cannot join job '%s': %s", o->job, why.s);
	if (!s->size || s->rank >= s->size || s->local_rank >= s->local_size ||
		s->size > CTL_WORKERS_MAX || s->local_size > s->size)
		return err_set(err, BPS_EPROTO,
			"the agent assigned rank %u of %u, which is invalid", s->rank, s->size);
	return 0;
late:
	session_request_reason(s, UINT32_MAX, 0, &why);
	return err_set(err, BPS_ETIMEDOUT, "job '%s' of %d workers is not complete after %u ms: %s",
		o->job, o->size, o->open_timeout_ms,
		*why.s ? why.s : "the agent did not report which workers are missing");
}

/* Connect and send HELLO. If the agent dies before it has accepted HELLO, the connection ends. The
 * agent's next process listens at the same socket but has no record of this worker, so connect
 * again. */
static int connect_and_attach(struct session *s, uint64_t deadline_ns, struct err_text *err)
{
	int rc = 0;

	for (unsigned i = 0; i < ATTACH_TRIES; i++) {
		rc = session_connect_to_agent(s, err);
		if (rc < 0)
			break;
		rc = session_attach_to_agent(s, deadline_ns, err);
		if (rc != BPS_ENOAGENT || s->control)
			break;
		close(s->sock);
		s->sock = -1;
		s->is_cut = false;
		atomic_store_explicit(&s->failure, 0, memory_order_relaxed);
	}
	return rc;
}

int session_open(struct session *s, const struct client_options *options, struct err_text *err)
{
	uint64_t deadline_ns = clock_deadline(options->open_timeout_ms);
	int rc;

	*s = (struct session){.options = options, .sock = -1, .event_fd = -1};
	timed_lock_init(&s->lock);
	pthread_mutex_init(&s->waits_lock, NULL);
	rc = connect_and_attach(s, deadline_ns, err);
	if (!rc)
		rc = session_await_all_workers(s, deadline_ns, err);
	if (rc < 0)
		session_close(s);
	return rc;
}

void session_close(struct session *s)
{
	arenas_fini(&s->arenas);
	if (s->control)
		munmap(s->control, s->control_bytes);
	if (s->event_fd >= 0)
		close(s->event_fd);
	if (s->sock >= 0) {
		/* A forked child may have a copy of the socket. Without shutdown, the agent would
		 * notice the end of this connection only when the child ends. */
		shutdown(s->sock, SHUT_RDWR);
		close(s->sock);
	}
	timed_lock_fini(&s->lock);
	pthread_mutex_destroy(&s->waits_lock);
}

/* ---- hot path ---- */

void session_publish(struct session *s)
{
	uint64_t one = 1;

	/* The write fails only if the eventfd's counter is full. The agent is then already being
	 * woken. */
	if (local_sq_publish(s->control))
		(void)!write(s->event_fd, &one, sizeof(one));
}

int session_await_failure(struct session *s, uint32_t timeout_ms)
{
	uint64_t deadline_ns = clock_deadline(timeout_ms);
	struct pollfd p = {.fd = s->sock, .events = POLLIN};
	uint32_t left = 1;

	if (!timed_lock_take(&s->lock, deadline_ns)) {
		session_drain_frames(s);
		while (!atomic_load_explicit(&s->failure, memory_order_relaxed) && left) {
			left = clock_ms_until_deadline(deadline_ns);
			poll(&p, 1, (int)left);
			session_drain_frames(s);
		}
		timed_lock_give(&s->lock);
	}
	return atomic_load_explicit(&s->failure, memory_order_acquire);
}

int session_poll_failure(struct session *s)
{
	uint64_t now = clock_now_ns();
	uint64_t due = atomic_load_explicit(&s->poll_due_ns, memory_order_relaxed);

	/* Relaxed: the exchange only chooses the thread that reads. The lock protects the data that
	 * the thread reads. */
	if (now >= due &&
		atomic_compare_exchange_strong_explicit(&s->poll_due_ns, &due,
			now + (uint64_t)SESSION_POLL_MS * 1000000, memory_order_relaxed,
			memory_order_relaxed) &&
		!timed_lock_take(&s->lock, 0)) {
		session_drain_frames(s);
		timed_lock_give(&s->lock);
	}
	return atomic_load_explicit(&s->failure, memory_order_acquire);
}

/* ---- waits ---- */

void session_wait_begins(struct session *s)
{
	if (!s->control)
		return; /* a job of one worker */
	pthread_mutex_lock(&s->waits_lock);
	if (s->n_waits++ == 0)
		atomic_store_explicit(
			&s->control->wait_began_ns, clock_now_ns(), memory_order_relaxed);
	pthread_mutex_unlock(&s->waits_lock);
}

void session_wait_ends(struct session *s)
{
	struct local_control *c = s->control;
	uint64_t began_ns;

	if (!c)
		return;
	pthread_mutex_lock(&s->waits_lock);
	if (--s->n_waits == 0) {
		began_ns = atomic_load_explicit(&c->wait_began_ns, memory_order_relaxed);
		atomic_fetch_add_explicit(
			&c->waited_ns, clock_now_ns() - began_ns, memory_order_relaxed);
		atomic_store_explicit(&c->wait_began_ns, 0, memory_order_relaxed);
	}
	pthread_mutex_unlock(&s->waits_lock);
}
