/* Waiting for rounds: bps_poll, bps_wait, bps_wait_some, and the error sentences about late or
 * failed rounds. Completion is read from shared memory. A wait also reads the socket at intervals,
 * to notice that the job has failed or the agent has ended. Any thread may call the functions. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libbpsclient/average.h"
#include "libbpsclient/copy.h"
#include "libbpsclient/last_error.h"

#include "common/base/clock.h"
#include "common/base/failpoint.h"

/* Longest time that a wait sleeps before it checks the socket. The wait needs this check, because
 * an agent that dies does not wake the waiters. */
#define SLICE_NS (500u * 1000000u)

/* Handle the end of a round. After success, copy the result to copy_dst if the caller wants a copy.
 * After a failure, set bps_last_error to the reason. Returns 0 or the failure's code. */
static int tensor_deliver_result(struct bps_tensor *t)
{
	const struct bps_tensor *failed;
	int code = tensor_get_failure_code(t, &failed);

	if (code)
		return tensor_explain(failed, code);
	if (t->copy_dst && average_carrier(t, t->round, NULL))
		average_copy_result(t, t->round, t->copy_dst);
	else if (t->copy_dst)
		tensor_copy_bytes(t, t->copy_dst, t->out[t->round & 1], t->bytes);
	t->copy_dst = NULL;
	return 0;
}

/* Return the tensor whose name the user has declared. If t carries the average of another tensor,
 * return that tensor and set *round to the round of that tensor. Otherwise return t. */
static const struct bps_tensor *resolve_declared_tensor(const struct bps_tensor *t, uint64_t *round)
{
	if (!t->owner)
		return t;
	*round = t->owner->round;
	return t->owner;
}

int tensor_explain_timeout(const struct bps_tensor *t, uint64_t round, uint32_t timeout_ms)
{
	struct err_text why = {""};

	session_request_reason(&t->b->session, t->idx, round, &why);
	t = resolve_declared_tensor(t, &round);
	last_error_tensor(t->name);
	return last_error_set(BPS_ETIMEDOUT,
		"push_pull of tensor '%s' in job '%s', round %llu, is not complete after %u ms: %s",
		t->name, t->b->options.job, (unsigned long long)round, timeout_ms,
		*why.s ? why.s : "the agent did not report the reason");
}

/* Set bps_last_error to the reason why no server sums the round at present. The round stays in
 * flight, and a later wait may get the round's result. Returns the argument
 * `code`. */
static int explain_trouble(const struct bps_tensor *t, uint64_t round, int code)
{
	struct err_text why = {""};

	session_request_reason(&t->b->session, t->idx, round, &why);
	t = resolve_declared_tensor(t, &round);
	last_error_tensor(t->name);
	return last_error_set(code, "push_pull of tensor '%s' in job '%s', round %llu: %s%s%s",
		t->name, t->b->options.job, (unsigned long long)round, err_str(code),
		*why.s ? ": " : "", why.s);
}

/* Return the code of a fault that the agent reports for the whole machine, or 0. Rounds stay in
 * flight during such a fault. */
static int load_machine_fault_code(const struct bps_tensor *t)
{
	/* Relaxed: no other data depends on this error code. */
	int code = atomic_load_explicit(&t->b->session.control->trouble, memory_order_relaxed);

	return code == BPS_ENOSERVER || code == BPS_EISOLATED ? code : 0;
}

/* Wait as tensor_wait_round does. The caller has noted the wait. */
static int await_round(
	struct bps_tensor *t, uint64_t round, uint64_t deadline_ns, uint32_t timeout_ms)
{
	struct session *s = &t->b->session;
	uint64_t now, spin_ns = (uint64_t)t->b->options.spin_us * 1000;
	uint32_t seen;
	int code;

	while (!tensor_has_ended_round(t, round)) {
		seen = atomic_load(&s->control->done_seq);
		if (tensor_has_ended_round(t, round))
			break;
		code = session_poll_failure(s);
		if (code && !tensor_has_ended_round(t, round))
			return tensor_explain(t, code);
		code = load_machine_fault_code(t);
		if (code && !tensor_has_ended_round(t, round))
			return explain_trouble(t, round, code);
		now = clock_now_ns();
		if (now >= deadline_ns)
			return tensor_explain_timeout(t, round, timeout_ms);
		local_done_wait(s->control, t->entry, seen, spin_ns,
			deadline_ns - now < SLICE_NS ? deadline_ns - now : SLICE_NS);
		spin_ns = 0;
	}
	return 0;
}

int tensor_wait_round(
	struct bps_tensor *t, uint64_t round, uint64_t deadline_ns, uint32_t timeout_ms)
{
	int rc;

	if (tensor_has_ended_round(t, round))
		return 0;
	session_wait_begins(&t->b->session);
	rc = await_round(t, round, deadline_ns, timeout_ms);
	session_wait_ends(&t->b->session);
	return rc;
}

static int wait_and_settle(struct bps_tensor *t, uint64_t deadline_ns, uint32_t timeout_ms)
{
	struct bps_tensor *wide;
	int rc;

	rc = tensor_wait_round(t, t->round, deadline_ns, timeout_ms);
	if (!rc && (wide = tensor_awaited(t)) != t)
		rc = tensor_wait_round(wide, wide->round, deadline_ns, timeout_ms);
	if (rc < 0)
		return rc;
	FAILPOINT(CLIENT_WAITED);
	if (t->round > t->b->trace.due_round)
		trace_write_planned(t->b);
	return tensor_deliver_result(t);
}

int tensor_wait_for_result(struct bps_tensor *t, uint64_t deadline_ns, uint32_t timeout_ms)
{
	FAILPOINT(CLIENT_WAIT);
	return wait_and_settle(t, deadline_ns, timeout_ms);
}

/* Add `by` to the number of threads that wait for each of the tensors (struct local_entry), because
 * the caller waits for all of them while it sleeps for one. */
static void tensors_count_waits(struct bps_tensor *const *tensors, size_t n, uint32_t by)
{
	for (size_t i = 0; i < n; i++)
		if (tensors[i])
			atomic_fetch_add_explicit(
				&tensors[i]->entry->waits, by, memory_order_relaxed);
}

int bps_wait_group(struct bps_tensor *const *tensors, size_t n, uint32_t timeout_ms)
{
	uint64_t deadline_ns;
	int rc;

	if (!n)
		return 0;
	rc = tensor_check_group(tensors, n, "wait");
	if (rc < 0)
		return rc;
	if (!timeout_ms)
		timeout_ms = tensors[0]->b->options.timeout_ms;
	deadline_ns = clock_deadline(timeout_ms);
	if (n > 1)
		tensors_count_waits(tensors, n, 1);
	for (size_t i = 0; !rc && i < n; i++)
		rc = tensor_wait_for_result(tensors[i], deadline_ns, timeout_ms);
	if (n > 1)
		tensors_count_waits(tensors, n, UINT32_MAX);
	return rc;
}

int bps_wait(struct bps_tensor *t, uint32_t timeout_ms)
{
	return bps_wait_group(&t, 1, timeout_ms);
}

/* Return whether a wait for the tensor would return at once. */
static bool tensor_wait_has_ended(const struct bps_tensor *t, uint64_t deadline_ns)
{
	return tensor_is_done(t) || session_poll_failure(&t->b->session) ||
	       load_machine_fault_code(t) || clock_now_ns() >= deadline_ns;
}

/* Sleep until tensor_wait_has_ended() is true, and return 0. If a signal or the time SLICE_NS ends
 * the sleep earlier, return -EINTR. */
static int sleep_until_ended(struct bps_tensor *t, uint64_t deadline_ns, uint64_t spin_ns)
{
	struct local_control *c = t->b->session.control;
	uint64_t now = clock_now_ns(), end_ns = now + SLICE_NS;
	uint32_t seen;
	int rc = 0;

	if (end_ns > deadline_ns)
		end_ns = deadline_ns;
	while (!rc && now < end_ns) {
		seen = atomic_load(&c->done_seq);
		if (tensor_wait_has_ended(t, deadline_ns))
			return 0;
		rc = local_done_wait(c, tensor_awaited(t)->entry, seen, spin_ns, end_ns - now);
		spin_ns = 0;
		now = clock_now_ns();
	}
	return tensor_wait_has_ended(t, deadline_ns) ? 0 : -EINTR;
}

int bps_wait_intr(struct bps_tensor *t, uint32_t timeout_ms, uint64_t *begun_ns)
{
	int rc = tensor_check_group(&t, 1, "wait");
	uint64_t deadline_ns, spin_ns = 0;

	if (!rc && !begun_ns)
		rc = last_error_set(-EINVAL, "wait: begun_ns is NULL");
	if (rc < 0)
		return rc;
	if (!*begun_ns) {
		FAILPOINT(CLIENT_WAIT);
		*begun_ns = clock_now_ns();
		spin_ns = (uint64_t)t->b->options.spin_us * 1000;
	}
	if (!timeout_ms)
		timeout_ms = t->b->options.timeout_ms;
	deadline_ns = *begun_ns + timeout_ms * NS_PER_MS;
	rc = 0;
	if (!tensor_is_done(t)) {
		session_wait_begins(&t->b->session);
		rc = sleep_until_ended(t, deadline_ns, spin_ns);
		session_wait_ends(&t->b->session);
	}
	return rc ? rc : wait_and_settle(t, deadline_ns, timeout_ms);
}

/* ---- wait for at least one of several tensors ---- */

/* Consider the order in which the rounds of this process completed. Return the position of the
 * tensor's latest completion in this order. If the tensor's companion (average.h) completed later,
 * return the position of the companion's completion. */
static uint64_t tensor_completion_order(const struct bps_tensor *t)
{
	const struct bps_tensor *wide = average_carrier(t, t->round, NULL);
	uint64_t order, later = 0;

	/* Relaxed: the caller has called tensor_is_done, which has the acquire. */
	order = atomic_load_explicit(&t->entry->done_order, memory_order_relaxed);
	if (wide)
		later = atomic_load_explicit(&wide->entry->done_order, memory_order_relaxed);
	return order > later ? order : later;
}

static int compare_completion_order(const void *a, const void *b, void *ctx)
{
	struct bps_tensor *const *tensors = ctx;
	uint64_t x = tensor_completion_order(tensors[*(const size_t *)a]);
	uint64_t y = tensor_completion_order(tensors[*(const size_t *)b]);

	return (x > y) - (x < y);
}

/* Write the indices of the tensors that are done, in the order of completion, and return the number
 * of these indices. Set *ret_pending to a tensor that is not done, or to NULL if there is none. */
static size_t list_done_tensors(struct bps_tensor *const *tensors, size_t n, size_t *ret_idx,
	struct bps_tensor **ret_pending)
{
	size_t n_done = 0;

	*ret_pending = NULL;
	for (size_t i = 0; i < n; i++) {
		if (tensors[i] && tensor_is_done(tensors[i]))
			ret_idx[n_done++] = i;
		else if (tensors[i] && !*ret_pending)
			*ret_pending = tensors[i];
	}
	qsort_r(ret_idx, n_done, sizeof(*ret_idx), compare_completion_order,
		(void *)(uintptr_t)tensors);
	return n_done;
}

/* Wait until at least one of the tensors is done. Returns the number of tensors that are done; 0 if
 * all entries are NULL. */
static int wait_for_any_done_tensor(struct bps *b, struct bps_tensor *const *tensors, size_t n,
	uint32_t timeout_ms, size_t *ret_idx)
{
	uint64_t deadline_ns = clock_deadline(timeout_ms), now;
	uint64_t spin_ns = (uint64_t)b->options.spin_us * 1000;
	struct local_control *c = b->session.control;
	struct bps_tensor *pending;
	size_t n_done;
	int rc = 0;

	for (;;) {
		uint32_t seen = c ? atomic_load(&c->done_seq) : 0;

		n_done = list_done_tensors(tensors, n, ret_idx, &pending);
		if (n_done || !pending)
			return (int)n_done;
		pending = tensor_awaited(pending);
		if (rc)
			return tensor_explain(pending, rc);
		rc = session_poll_failure(&b->session);
		if (rc)
			/* Check the rounds again, because a round may have completed before the
			 * failure. */
			continue;
		rc = load_machine_fault_code(pending);
		if (rc)
			return explain_trouble(pending, pending->round, rc);
		now = clock_now_ns();
		if (now >= deadline_ns)
			return tensor_explain_timeout(pending, pending->round, timeout_ms);
		tensors_count_waits(tensors, n, 1);
		session_wait_begins(&b->session);
		local_done_wait(c, pending->entry, seen, spin_ns,
			deadline_ns - now < SLICE_NS ? deadline_ns - now : SLICE_NS);
		session_wait_ends(&b->session);
		tensors_count_waits(tensors, n, UINT32_MAX);
		spin_ns = 0;
	}
}

int bps_wait_some(struct bps_tensor *const *tensors, size_t n, uint32_t timeout_ms, size_t *ret_idx)
{
	struct bps *b = NULL;
	int rc;

	if (n && (!tensors || !ret_idx || n > INT_MAX))
		return last_error_set(-EINVAL, "wait_some: %s",
			n > INT_MAX ? "too many tensors" : "an array is NULL");
	for (size_t i = 0; i < n; i++) {
		if (b && tensors[i] && tensors[i]->b != b)
			return last_error_set(-EINVAL,
				"wait_some: the tensor at index %zu belongs to another job", i);
		if (tensors[i])
			b = tensors[i]->b;
	}
	if (!b)
		return 0;
	rc = client_check_is_open(b);
	if (rc < 0)
		return rc;
	return wait_for_any_done_tensor(
		b, tensors, n, timeout_ms ? timeout_ms : b->options.timeout_ms, ret_idx);
}

int bps_poll(struct bps_tensor *t)
{
	const struct bps_tensor *awaited;
	int rc;

	if (!t)
		return last_error_set(-EINVAL, "poll: the tensor is NULL");
	rc = client_check_is_open(t->b);
	if (rc < 0)
		return rc;
	if (!tensor_is_done(t)) {
		awaited = tensor_awaited(t);
		rc = session_poll_failure(&t->b->session);
		if (rc && !tensor_is_done(t))
			return tensor_explain(awaited, rc);
		rc = load_machine_fault_code(t);
		if (!tensor_is_done(t))
			return rc ? explain_trouble(awaited, awaited->round, rc) : 0;
	}
	rc = tensor_deliver_result(t);
	return rc < 0 ? rc : 1;
}
