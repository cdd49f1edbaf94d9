/* Barriers of all workers of a job, bps_checkpoint_barrier(3). While the worker is at a barrier, it
 * cannot submit anything (submissions check is_at_barrier under ring_mutex). If the call times out,
 * the worker stays at the barrier, because the agent keeps the request. So the worker must call
 * again, from any thread. The other workers can pass the barrier in the meantime. Thread: any. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"
#include "libbpsclient/gpu.h"

#include "common/base/clock.h"
#include "libbpsclient/last_error.h"

int client_check_idle(struct bps *b)
{
	const struct bps_tensor *found = NULL;

	pthread_mutex_lock(&b->declare_mutex);
	for (unsigned i = 0; !found && i < CLIENT_BUCKETS; i++)
		for (const struct bps_tensor *t = b->buckets[i]; t && !found; t = t->next)
			/* Skip companions (they have an owner), because tensor_is_done(t) also
			 * checks the companion of t. */
			if (t->entry && !t->owner && !tensor_is_done(t))
				found = t;
	pthread_mutex_unlock(&b->declare_mutex);
	return found ? tensor_explain_busy(found) : 0;
}

static void set_at_barrier(struct bps *b, bool is_at_barrier)
{
	pthread_mutex_lock(&b->ring_mutex);
	b->is_at_barrier = is_at_barrier;
	pthread_mutex_unlock(&b->ring_mutex);
}

int bps_checkpoint_barrier(struct bps *b, uint32_t timeout_ms)
{
	struct session_passed passed;
	uint64_t deadline_ns;
	int rc = client_check_is_open(b);

	if (rc < 0)
		return rc;
	if (b->is_single)
		return 0;
	if (!timeout_ms)
		timeout_ms = b->options.timeout_ms;
	deadline_ns = clock_deadline(timeout_ms);
	rc = gpu_await_agent(b, 0, deadline_ns, timeout_ms);
	if (rc < 0)
		return rc;
	set_at_barrier(b, true);
	rc = client_check_idle(b);
	if (rc < 0) {
		set_at_barrier(b, false);
		return rc;
	}
	rc = session_barrier(
		&b->session, b->barrier + 1, deadline_ns, timeout_ms, &passed, last_error_text());
	if (rc < 0)
		/* Do not call set_at_barrier(b, false) here. After a time-out the worker is still
		 * at the barrier. After any other error the job is over. */
		return rc;
	b->barrier++;
	b->is_new = false;
	b->root = (int32_t)passed.root;
	set_at_barrier(b, false);
	return (int)passed.n_new;
}

int bps_is_new(const struct bps *b)
{
	return b->is_new;
}

int bps_root(const struct bps *b)
{
	return b->root;
}
