/* The requests of a worker to its agent: declarations, devices, barriers, the end, and questions
 * (session.h). Thread: any; the session's lock protects the socket. */
#include "libbpsclient/session_impl.h"

#include <errno.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "libbpsclient/base/process_limit.h"
#include "libbpsclient/last_error.h"

/* Translate the agent's answer for one declared tensor into addresses in this process. bytes: size
 * of each buffer. on_device: the tensor is in device memory and has no buffers in this process.
 * Returns 0 even if the agent has refused the tensor. Errors: the error with which the session has
 * failed. */
static int session_resolve_slot(struct session *s, const struct local_slot *m, uint64_t bytes,
	bool on_device, struct session_slot *ret)
{
	int lost;

	*ret = (struct session_slot){.code = 0};
	if (m->code) {
		ret->code = local_code_from_wire(m->code, BPS_EMISMATCH);
		err_set(&ret->text, ret->code, "%s", *m->text ? m->text : err_str(ret->code));
		ret->cause_rank = m->cause.rank;
		snprintf(ret->cause_host, sizeof(ret->cause_host), "%s", m->cause.host);
		return 0;
	}
	ret->tensor = m->tensor;
	if (on_device && m->tensor < s->tensor_entries)
		return 0;
	ret->in = arenas_resolve_address(&s->arenas, m->in_arena, true, m->in_offset, bytes);
	ret->out[0] =
		arenas_resolve_address(&s->arenas, m->out_arena, false, m->out_offset[0], bytes);
	ret->out[1] =
		arenas_resolve_address(&s->arenas, m->out_arena, false, m->out_offset[1], bytes);
	lost = arenas_why_lost(&s->arenas, m->in_arena);
	if (!lost)
		lost = arenas_why_lost(&s->arenas, m->out_arena);
	if (lost && (!ret->in || !ret->out[0])) {
		ret->code = process_limit_explain(
			lost, "the shared memory of the tensor cannot be mapped", &ret->text);
		return 0;
	}
	if (!ret->in || !ret->out[0] || !ret->out[1] || m->tensor >= s->tensor_entries)
		return session_cut_connection(
			s, BPS_EPROTO, "a declared tensor lies outside of the shared memory");
	return 0;
}

/* Take the lock, send m and receive the answer to m. If session_lock_and_request() returns 0, the
 * caller holds the lock. The caller must then read the answer and call
 * session_free_answer_and_unlock(), which releases the lock. what: beginning of the error sentence,
 * such as "cannot declare tensors". Errors: those of session_send_and_receive(). */
static int session_lock_and_request(struct session *s, struct local_msg *m, uint16_t answer_type,
	uint32_t timeout_ms, const char *what, struct local_frame *f, struct err_text *err)
{
	uint64_t deadline_ns = clock_deadline(timeout_ms);
	int rc = timed_lock_take(&s->lock, deadline_ns);

	*f = (struct local_frame){.mem = NULL};
	if (rc < 0)
		return err_set(err, BPS_ETIMEDOUT,
			"%s: another thread still waits for an answer from the agent", what);
	rc = session_send_and_receive(s, m, answer_type, deadline_ns, f);
	if (!rc)
		return 0;
	rc = session_explain_request(s, rc, what, err);
	local_frame_free(f);
	timed_lock_give(&s->lock);
	return rc;
}

static void session_free_answer_and_unlock(struct session *s, struct local_frame *f)
{
	local_frame_free(f);
	timed_lock_give(&s->lock);
}

int session_declare(struct session *s, const struct local_decl *decls, const uint64_t *bytes,
	uint32_t n, struct session_slot *ret, struct err_text *err)
{
	struct local_msg m = {.type = LOCAL_DECLARE, .declare = {.n_tensors = n}};
	struct local_frame f;
	int rc;

	m.declare.tensors =
		(struct local_decl *)(uintptr_t)decls; /* encoding does not write to decls */
	rc = session_lock_and_request(
		s, &m, LOCAL_DECLARED, s->options->timeout_ms, "cannot declare tensors", &f, err);
	if (rc < 0)
		return rc;
	if (f.msg.declared.n_slots != n)
		rc = session_cut_connection(s, BPS_EPROTO,
			"the answer DECLARED has more or fewer tensors than the request");
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = session_resolve_slot(
			s, &f.msg.declared.slots[i], bytes[i], decls[i].region != 0, &ret[i]);
	if (rc < 0)
		rc = session_explain_request(s, rc, "cannot declare tensors", err);
	session_free_answer_and_unlock(s, &f);
	return rc;
}

int session_device(struct session *s, uint32_t timeout_ms, int *ret_sock, struct err_text *err)
{
	struct local_msg m = {.type = LOCAL_DEVICE};
	struct local_frame f;
	int rc;

	rc = session_lock_and_request(
		s, &m, LOCAL_DEVICE_AT, timeout_ms, "cannot connect to the executor", &f, err);
	if (rc < 0)
		return rc;
	if (s->has_lost_fds) {
		rc = process_limit_explain(
			-EMFILE, "the executor's socket cannot be received", err);
	} else if (f.msg.device_at.code || f.n_fds != 1) {
		rc = local_code_from_wire(f.msg.device_at.code, BPS_EDEVICE);
		err_set(err, rc, "%s", f.msg.device_at.text);
	} else {
		*ret_sock = frame_detach_fd(&f, 0);
	}
	session_free_answer_and_unlock(s, &f);
	return rc;
}

int session_copy_on_write(
	struct session *s, const void *address, uint64_t n_bytes, void **ret, struct err_text *err)
{
	int rc;

	timed_lock_take(&s->lock, UINT64_MAX);
	rc = arenas_copy_on_write(&s->arenas, address, n_bytes, ret);
	timed_lock_give(&s->lock);
	if (rc < 0)
		return process_limit_explain(rc, "the results cannot be mapped copy-on-write", err);
	return 0;
}

int session_request_reason(struct session *s, uint32_t tensor, uint64_t round, struct err_text *ret)
{
	struct local_msg m = {.type = LOCAL_WHY, .why = {.tensor = tensor, .round = round}};
	struct local_frame f;
	struct err_text err;
	int rc = session_lock_and_request(s, &m, LOCAL_TEXT, SESSION_WHY_MS, "why", &f, &err);

	if (rc < 0)
		return rc;
	err_set(ret, 0, "%s", f.msg.text.text);
	last_error_cause(&f.msg.text.cause);
	session_free_answer_and_unlock(s, &f);
	return 0;
}

static int explain_job_refusal(const struct session *s, uint32_t wire_code, const char *text,
	const struct ctl_cause *cause, struct err_text *err)
{
	int rc = local_code_from_wire(wire_code, BPS_EJOB_FAILED);

	last_error_cause(cause);
	return err_set(err, rc, "job '%s': %s", s->options->job, *text ? text : err_str(rc));
}

/* Send m. The agent answers when all workers of the job have sent this message. The error sentences
 * contain `what` and `deed`. what: the failed action, such as "cannot finish". deed: the action
 * that some workers have not done, such as "finished". */
static int session_collective_request(struct session *s, struct local_msg *m, uint16_t answer_type,
	uint64_t deadline_ns, uint32_t timeout_ms, const char *what, const char *deed,
	struct session_passed *ret, struct err_text *err)
{
	struct local_frame f = {.mem = NULL};
	struct err_text why = {""};
	int rc = timed_lock_take(&s->lock, deadline_ns);

	if (rc < 0)
		return err_set(err, BPS_ETIMEDOUT,
			"%s: another thread still waits for an answer from the agent", what);
	rc = session_send_and_receive(s, m, answer_type, deadline_ns, &f);
	if (rc < 0 && rc != -ETIMEDOUT)
		rc = session_explain_request(s, rc, what, err);
	else if (!rc && answer_type == LOCAL_FINISHED && f.msg.finished.code)
		rc = explain_job_refusal(
			s, f.msg.finished.code, f.msg.finished.text, &f.msg.finished.cause, err);
	else if (!rc && answer_type == LOCAL_PASSED && f.msg.passed.code)
		rc = explain_job_refusal(
			s, f.msg.passed.code, f.msg.passed.text, &f.msg.passed.cause, err);
	else if (!rc && answer_type == LOCAL_PASSED)
		*ret = (struct session_passed){f.msg.passed.n_new, f.msg.passed.root};
	session_free_answer_and_unlock(s, &f);
	if (rc != -ETIMEDOUT)
		return rc;
	session_request_reason(s, UINT32_MAX, 0, &why);
	return err_set(err, BPS_ETIMEDOUT, "not all workers of job '%s' %s in %u ms: %s",
		s->options->job, deed, timeout_ms,
		*why.s ? why.s : "the agent did not report which workers are missing");
}

int session_finish(struct session *s, uint32_t timeout_ms, struct err_text *err)
{
	struct local_msg m = {.type = LOCAL_FINISH};

	return session_collective_request(s, &m, LOCAL_FINISHED, clock_deadline(timeout_ms),
		timeout_ms, "cannot finish", "finished", NULL, err);
}

int session_barrier(struct session *s, uint64_t number, uint64_t deadline_ns, uint32_t timeout_ms,
	struct session_passed *ret, struct err_text *err)
{
	struct local_msg m = {.type = LOCAL_BARRIER, .barrier = {.number = number}};

	return session_collective_request(s, &m, LOCAL_PASSED, deadline_ns, timeout_ms,
		"cannot pass the barrier", "reached the barrier", ret, err);
}

int session_workers(struct session *s, uint32_t tensor, uint32_t first,
	void (*fn)(void *ctx, const struct local_people *page), void *ctx, struct err_text *err)
{
	struct local_msg m = {.type = LOCAL_ASK, .ask = {.tensor = tensor, .first = first}};
	struct local_frame f;
	int rc;

	rc = session_lock_and_request(s, &m, LOCAL_PEOPLE, s->options->timeout_ms,
		"cannot get the list of workers", &f, err);
	if (rc < 0)
		return rc;
	fn(ctx, &f.msg.people);
	session_free_answer_and_unlock(s, &f);
	return 0;
}

int session_traffic(struct session *s, struct local_traffic *ret, struct err_text *err)
{
	struct local_msg m = {.type = LOCAL_ASK_TRAFFIC};
	struct local_frame f;
	int rc;

	rc = session_lock_and_request(s, &m, LOCAL_TRAFFIC, s->options->timeout_ms,
		"cannot get the network traffic", &f, err);
	if (rc < 0)
		return rc;
	*ret = f.msg.traffic;
	session_free_answer_and_unlock(s, &f);
	return 0;
}

int session_trace(
	struct session *s, const struct local_ask_trace *ask, int *ret_fd, struct err_text *err)
{
	struct local_msg m = {.type = LOCAL_ASK_TRACE, .ask_trace = *ask};
	struct local_frame f;
	int rc;

	rc = session_lock_and_request(s, &m, LOCAL_TRACE, s->options->timeout_ms,
		"cannot get a trace of the rounds", &f, err);
	if (rc < 0)
		return rc;
	if (f.msg.trace.code)
		rc = err_set(err, local_code_from_wire(f.msg.trace.code, BPS_EPROTO), "trace: %s",
			f.msg.trace.text);
	else if (f.n_fds != 1)
		rc = err_set(
			err, BPS_EPROTO, "trace: the agent sent %u descriptors, not 1", f.n_fds);
	else
		*ret_fd = frame_detach_fd(&f, 0);
	session_free_answer_and_unlock(s, &f);
	return rc;
}
