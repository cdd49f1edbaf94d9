/* Suspend and resume a job. For the other workers, bps_suspend ends the job in the same way as
 * bps_close. Rounds in flight are abandoned, because no worker waits for them after all workers
 * have called bps_suspend. This process keeps the declarations: names, types, counts, and the
 * callers' handles. bps_resume joins a new job of the same name and declares all tensors again.
 * Thread: the caller's.
 *
 *   OPEN --bps_suspend: all workers have left--> SUSPENDED --bps_resume--> OPEN
 *
 * While the job is SUSPENDED, a tensor has no buffers, and no round of the tensor is complete or in
 * flight. The tensor's entry, normally in memory shared with the agent, is in private memory
 * during this time. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "libbpsclient/average.h"
#include "libbpsclient/last_error.h"

static void tensor_detach_from_job(struct bps_tensor *t)
{
	free(t->own_slots);
	t->own_slots = NULL;
	atomic_store_explicit(&t->own_entry.done_round, 0, memory_order_relaxed);
	atomic_store_explicit(&t->own_entry.status, 0, memory_order_relaxed);
	atomic_store_explicit(&t->own_entry.workers, 0, memory_order_relaxed);
	atomic_store_explicit(&t->own_entry.workers_most, 0, memory_order_relaxed);
	atomic_store_explicit(&t->own_entry.is_mine_missing, 0, memory_order_relaxed);
	atomic_store_explicit(&t->own_entry.is_late, 0, memory_order_relaxed);
	t->entry = &t->own_entry;
	t->in = NULL;
	t->out[0] = t->out[1] = NULL;
	t->round = 0;
	t->copy_dst = NULL;
	t->n_filled = 0;
	average_clear_all_rounds(t);
}

static void detach_all_tensors(struct bps *b)
{
	for (unsigned i = 0; i < CLIENT_BUCKETS; i++)
		for (struct bps_tensor *t = b->buckets[i]; t; t = t->next)
			tensor_detach_from_job(t);
}

int bps_suspend(struct bps *b, uint32_t timeout_ms)
{
	int rc = client_check_is_open(b);

	if (rc < 0)
		return rc;
	if (b->gpu)
		return last_error_set(-EOPNOTSUPP,
			"suspend: job '%s' has tensors in the memory of GPUs: call bps_close and "
			"bps_open instead",
			b->options.job);
	if (!b->is_single) {
		rc = session_failure(&b->session, last_error_text());
		if (!rc)
			rc = session_finish(&b->session,
				timeout_ms ? timeout_ms : b->options.timeout_ms, last_error_text());
		if (rc == BPS_ETIMEDOUT)
			/* not all workers have left, so the caller may call bps_suspend again */
			return rc;
		session_close(&b->session);
	}
	b->is_suspended = true;
	detach_all_tensors(b);
	return rc;
}

static int compare_declaration_order(const void *a, const void *b)
{
	const struct bps_tensor *x = *(struct bps_tensor *const *)a;
	const struct bps_tensor *y = *(struct bps_tensor *const *)b;

	return (x->auto_priority < y->auto_priority) - (x->auto_priority > y->auto_priority);
}

/* Declare all tensors again, in their original order, because the order decides their default
 * priorities. */
static int redeclare_all_tensors(struct bps *b)
{
	struct bps_tensor **all = calloc(b->n_declared + 1u, sizeof(struct bps_tensor *));
	size_t n = 0;
	int rc;

	if (!all)
		return last_error_set(-ENOMEM, "resume: out of memory");
	for (unsigned i = 0; i < CLIENT_BUCKETS; i++)
		for (struct bps_tensor *t = b->buckets[i]; t && n < b->n_declared; t = t->next)
			all[n++] = t;
	qsort(all, n, sizeof(struct bps_tensor *), compare_declaration_order);
	rc = tensor_redeclare(b, all, n);
	free(all);
	return rc;
}

int bps_resume(struct bps *b, int32_t rank, int32_t size)
{
	struct client_options was;
	int rc = client_check_own(b);

	if (rc < 0)
		return rc;
	if (!b->is_suspended)
		return last_error_set(-EINVAL, "resume: job '%s' is not suspended", b->options.job);
	if (size < 1 || size > CLIENT_WORKERS_MAX || rank < -1 || rank >= size)
		return last_error_set(
			-EINVAL, "resume: rank %d of %d workers is not valid", rank, size);
	was = b->options;
	b->options.rank = rank;
	b->options.size = size;
	if (b->options.max_size < size || !b->options.is_elastic)
		b->options.max_size = size;
	/* The launcher's local rank and local size belong to the previous rank and size. So they
	 * are not valid any more: let the agent assign new ones. */
	b->options.local_rank = b->options.local_size = -1;
	rc = client_join_job(b);
	if (rc < 0) {
		b->options = was;
		return rc;
	}
	b->is_suspended = false;
	rc = redeclare_all_tensors(b);
	/* After a failure, some tensors may have no buffers. Suspend the job again, so that the
	 * caller may repeat bps_resume. */
	if (rc < 0) {
		if (!b->is_single)
			session_close(&b->session);
		detach_all_tensors(b);
		b->is_suspended = true;
	}
	return rc;
}
