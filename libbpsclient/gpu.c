/* The bps_gpu_... calls (bps_gpu(3)): open the GPU, manage memory, declare and submit tensors, and
 * let streams wait. gpu_link.c has the connection to the executor, the process that drives the
 * GPUs; gpu_cuda.c has the calls to CUDA. Thread: any. */
#include "libbpsclient/gpu.h"

#include <errno.h>

#include "common/base/clock.h"
#include "common/data/shape.h"
#include "libbpsclient/average.h"
#include "libbpsclient/client.h"
#include "libbpsclient/last_error.h"

/* Number of rounds of one tensor that may be in flight. bps-agent has the same limit. */
#define AHEAD_MAX 8
/* Time limit in milliseconds. If an executor has ended without a message, a call waits this long
 * for the agent to report the cause. The agent and the executor detect the cause at the same time.
 * On a loaded machine, the agent's report takes some tens of milliseconds. */
#define EXPLAIN_MS 500

static int require_open_gpu(struct bps *b, const char *what)
{
	int rc = client_check_is_open(b);

	if (rc < 0)
		return rc;
	if (b->is_single)
		return last_error_set(-EOPNOTSUPP,
			"%s: a job of one worker has no agent (set BPS_FORCE_DISTRIBUTED to use "
			"an agent)",
			what);
	if (!b->gpu)
		return last_error_set(-EINVAL,
			"%s: this worker has not opened its GPU: call bps_gpu_open first", what);
	return 0;
}

/* Prepend the name of the failed operation, `what`, to the text of bps_last_error. Returns `rc`. */
static int prepend_call_to_last_error(int rc, const char *what)
{
	struct err_text why = *last_error_text();

	return last_error_set(rc, "%s: %s", what, why.s);
}

/* After a time-out, append to the text of bps_last_error the workers for which the agent waits. */
static void append_awaited_workers(struct bps *b)
{
	struct err_text late = *last_error_text(), why = {""};

	session_request_reason(&b->session, UINT32_MAX, LOCAL_WHY_GPU_OPEN, &why);
	if (*why.s)
		last_error_set(BPS_ETIMEDOUT, "%s: %s", late.s, why.s);
}

int bps_gpu_open(struct bps *b, const unsigned char *uuid)
{
	uint64_t deadline_ns;
	uint32_t timeout_ms;
	int sock, rc = client_check_is_open(b);

	if (rc < 0)
		return rc;
	if (b->is_single)
		return require_open_gpu(b, "bps_gpu_open");
	if (b->gpu)
		return last_error_set(
			BPS_EDUP, "bps_gpu_open: this worker has already opened its GPU");
	timeout_ms = b->options.open_timeout_ms;
	deadline_ns = clock_deadline(timeout_ms);
	rc = session_device(&b->session, timeout_ms, &sock, last_error_text());
	if (rc == 0)
		rc = gpu_link_open(sock, b->session.sock, uuid, deadline_ns, timeout_ms, &b->gpu,
			last_error_text());
	if (rc == BPS_ETIMEDOUT)
		append_awaited_workers(b);
	return rc < 0 ? prepend_call_to_last_error(rc, "bps_gpu_open") : 0;
}

int bps_gpu_alloc(struct bps *b, uint64_t n_bytes, void **ret)
{
	int rc = require_open_gpu(b, "bps_gpu_alloc");

	if (rc < 0)
		return rc;
	if (!n_bytes || !ret)
		return last_error_set(-EINVAL, "bps_gpu_alloc: n_bytes is 0, or ret is NULL");
	rc = gpu_link_alloc(b->gpu, n_bytes, b->options.timeout_ms, ret, last_error_text());
	return rc < 0 ? prepend_call_to_last_error(rc, "bps_gpu_alloc") : 0;
}

int bps_gpu_import(struct bps *b, void *ptr, uint64_t n_bytes)
{
	int rc = require_open_gpu(b, "bps_gpu_import");

	if (rc < 0)
		return rc;
	if (!ptr || !n_bytes)
		return last_error_set(-EINVAL, "bps_gpu_import: ptr is NULL, or n_bytes is 0");
	rc = gpu_link_import(b->gpu, ptr, n_bytes, b->options.timeout_ms, last_error_text());
	return rc < 0 ? prepend_call_to_last_error(rc, "bps_gpu_import") : 0;
}

/* Find a tensor that lies in the region and is in flight. Returns NULL if there is none. The caller
 * holds ring_mutex. */
static const struct bps_tensor *in_flight_there(struct bps *b, uint32_t region)
{
	for (unsigned i = 0; i < CLIENT_BUCKETS; i++)
		for (const struct bps_tensor *t = b->buckets[i]; t; t = t->next)
			if (t->region == region && t->entry && !tensor_is_done(t))
				return t;
	return NULL;
}

/* If `is_released` is true, forbid submissions of the tensors in the region. Otherwise allow the
 * submissions again. Errors: BPS_EBUSY: `is_released` is true, but a tensor in the region is in
 * flight. */
static int region_set_tensors_released(struct bps *b, uint32_t region, bool is_released)
{
	const struct bps_tensor *busy;
	int rc = 0;

	pthread_mutex_lock(&b->declare_mutex);
	pthread_mutex_lock(&b->ring_mutex);
	busy = is_released ? in_flight_there(b, region) : NULL;
	if (busy)
		rc = err_set(last_error_text(), BPS_EBUSY,
			"tensor '%s' in this memory is in flight: wait for its round first",
			busy->name);
	for (unsigned i = 0; i < CLIENT_BUCKETS && rc == 0; i++)
		for (struct bps_tensor *t = b->buckets[i]; t; t = t->next)
			if (t->region == region)
				t->is_released = is_released;
	pthread_mutex_unlock(&b->ring_mutex);
	pthread_mutex_unlock(&b->declare_mutex);
	return rc;
}

static bool is_done_on_gpu_only(const struct bps_tensor *t, uint32_t region)
{
	uint64_t done;

	if (!t->region || (region && t->region != region) || !t->entry || tensor_is_done(t))
		return false;
	/* A relaxed load suffices, because the value only decides whether to call
	 * tensor_wait_round. tensor_wait_round loads with acquire order. */
	done = atomic_load_explicit(&t->b->gpu->slots[t->idx].done, memory_order_relaxed);
	/* The executor poisons the slots of a tensor when one of the machine's workers releases its
	 * memory, even if another worker's agent has not reported the last round. */
	return gpu_slot_reached(gpu_slot_finished_round(done), t->round);
}

/* Find a tensor whose last round is complete on the stream, but has not been reported by the agent.
 * Returns NULL if there is none. region: as in gpu_await_agent. */
static struct bps_tensor *done_on_gpu_only(struct bps *b, uint32_t region, uint64_t *ret_round)
{
	struct bps_tensor *found = NULL;

	pthread_mutex_lock(&b->declare_mutex);
	pthread_mutex_lock(&b->ring_mutex);
	for (unsigned i = 0; !found && i < CLIENT_BUCKETS; i++) {
		found = b->buckets[i];
		while (found && !is_done_on_gpu_only(found, region))
			found = found->next;
	}
	if (found)
		*ret_round = found->round;
	pthread_mutex_unlock(&b->ring_mutex);
	pthread_mutex_unlock(&b->declare_mutex);
	return found;
}

int gpu_await_agent(struct bps *b, uint32_t region, uint64_t deadline_ns, uint32_t timeout_ms)
{
	struct bps_tensor *t;
	uint64_t round;
	int rc = 0;

	/* While another thread submits, this loop may run until the deadline. The caller then
	 * reports that a round is in flight. */
	while (rc == 0 && clock_now_ns() < deadline_ns && b->gpu &&
		(t = done_on_gpu_only(b, region, &round)))
		rc = tensor_wait_round(t, round, deadline_ns, timeout_ms);
	return rc;
}

int bps_gpu_release(struct bps *b, void *ptr)
{
	uint32_t region = 0, timeout_ms;
	uint64_t offset = 0, deadline_ns;
	int rc = require_open_gpu(b, "bps_gpu_release");

	if (rc < 0)
		return rc;
	timeout_ms = b->options.timeout_ms;
	deadline_ns = clock_deadline(timeout_ms);
	if (!gpu_link_find_region(b->gpu, ptr, 1, &region, &offset) || offset)
		return last_error_set(-EINVAL,
			"bps_gpu_release: %p is not the start of memory from bps_gpu_alloc or "
			"bps_gpu_import",
			ptr);
	rc = gpu_await_agent(b, region, deadline_ns, timeout_ms);
	if (rc == 0)
		rc = region_set_tensors_released(b, region, true);
	if (rc == 0) {
		rc = gpu_link_release(
			b->gpu, ptr, clock_ms_until_deadline(deadline_ns), last_error_text());
		if (rc < 0) {
			struct err_text why = *last_error_text();

			region_set_tensors_released(b, region, false);
			*last_error_text() = why;
		}
	}
	return rc < 0 ? prepend_call_to_last_error(rc, "bps_gpu_release") : 0;
}

int bps_gpu_declare(struct bps *b, const char *name, enum bps_dtype dtype, uint64_t n_values,
	void *ptr, struct bps_tensor **ret)
{
	struct tensor_decl d = {name, shape_from_dtype_and_count((unsigned)dtype, n_values)};
	struct tensor_place place;
	int rc = require_open_gpu(b, "bps_gpu_declare");

	if (rc == 0)
		rc = tensor_check_ret(ret);
	if (rc == 0)
		rc = tensor_check_decl(&d);
	if (rc < 0)
		return rc;
	if (dtype_is_block(dtype))
		return last_error_set(-EINVAL,
			"tensor '%s': a tensor of type %s cannot lie in device memory: declare it "
			"with bps_declare, and copy the blocks to bps_input",
			name, dtype_name(dtype));
	if (!gpu_link_find_region(b->gpu, ptr, shape_bytes(&d.shape), &place.region, &place.offset))
		return last_error_set(-EINVAL,
			"tensor '%s': its %llu bytes at %p are not within one piece of memory from "
			"bps_gpu_alloc or bps_gpu_import",
			name, (unsigned long long)shape_bytes(&d.shape), ptr);
	if (place.offset % dtype_bytes(dtype))
		return last_error_set(-EINVAL,
			"tensor '%s': its address %p is not a multiple of the element size, %zu "
			"bytes",
			name, ptr, dtype_bytes(dtype));
	return tensor_declare(b, &d, &place, 1, ret);
}

/* Return the code of the failure that has released all streams, or 0. After such a failure streams
 * no longer wait for sums. Sets bps_last_error. */
static int report_stream_failure(struct bps *b)
{
	struct err_text err;
	int rc = session_failure(&b->session, &err);

	if (!rc)
		rc = gpu_link_failure(b->gpu, &err);
	/* If the job has failed, the executor ends, but the agent's report of the failure may
	 * arrive later. So the first caller that finds the failure waits for the report. */
	if (rc && atomic_exchange_explicit(&b->gpu->is_unexplained, false, memory_order_relaxed) &&
		session_await_failure(&b->session, EXPLAIN_MS))
		rc = session_failure(&b->session, &err);
	return rc ? last_error_set(rc, "job '%s': %s", b->options.job, err.s) : 0;
}

static int check_device_tensor(struct bps_tensor *t, const char *what)
{
	int rc = t ? require_open_gpu(t->b, what)
		   : last_error_set(-EINVAL, "%s: the tensor is NULL", what);

	if (rc == 0 && !t->region)
		rc = last_error_set(-EINVAL, "%s: tensor '%s' lies in host memory", what, t->name);
	return rc < 0 ? rc : report_stream_failure(t->b);
}

/* Check the operation. An average of integers needs a companion, which is a second, wider tensor
 * (average.h). Executors have no companions, so this function rejects such an average. Without a
 * companion the sum could wrap. Also, machines that have the tensor in host memory use a companion,
 * and would wait for rounds of the companion that this machine would never submit. */
static int check_gpu_operation(const struct bps_tensor *t, enum bps_op op)
{
	if ((unsigned)op >= OP_COUNT)
		return last_error_set(-EINVAL, "push_pull: %d is not an operation", (int)op);
	if (op_is_bitwise(op))
		return last_error_set(-EOPNOTSUPP,
			"tensor '%s': GPUs do not compute %s: declare the tensor in host memory",
			t->name, op_name(op));
	if (average_is_needed(t, op))
		return last_error_set(-EOPNOTSUPP,
			"tensor '%s': GPUs do not average integers: divide the result of BPS_SUM, "
			"or declare the tensor in host memory",
			t->name);
	return 0;
}

int bps_gpu_push_pull(struct bps_tensor *t, enum bps_op op, int32_t priority, void *stream)
{
	struct client_gpu *g;
	int rc = check_device_tensor(t, "bps_gpu_push_pull");

	if (rc < 0)
		return rc;
	rc = check_gpu_operation(t, op);
	if (rc < 0)
		return rc;
	g = t->b->gpu;
	pthread_mutex_lock(&t->b->ring_mutex);
	rc = t->is_released
		     ? last_error_set(-EINVAL,
			       "tensor '%s': its memory was released by bps_gpu_release", t->name)
		     : tensor_may_run_ahead(t, AHEAD_MAX);
	/* Write the counter before the submission. If the round were submitted first and the write
	 * then failed, the round would never end */
	if (rc == 0)
		rc = g->driver->write(
			g, stream, &g->slots[t->idx].ready, t->round + 1, last_error_text());
	if (rc == 0) {
		atomic_store_explicit(&t->entry->waits, 0, memory_order_relaxed);
		tensor_submit_next_round(t, &(struct submission){.op = op, .priority = priority});
	}
	pthread_mutex_unlock(&t->b->ring_mutex);
	if (rc < 0)
		return rc;
	session_publish(&t->b->session);
	return 0;
}

int bps_gpu_wait_stream(struct bps_tensor *t, void *stream)
{
	uint32_t timeout_ms;
	struct client_gpu *g;
	int rc = check_device_tensor(t, "bps_gpu_wait_stream");

	if (rc < 0 || !t->round)
		return rc;
	g = t->b->gpu;
	timeout_ms = t->b->options.timeout_ms;
	/* Relaxed: the flag guards no data (local_is_awaited). */
	atomic_store_explicit(&t->entry->waits, 1, memory_order_relaxed);
	rc = g->driver->wait(g, stream, &g->slots[t->idx].done, t->round,
		clock_deadline(timeout_ms), last_error_text());
	if (rc == BPS_ETIMEDOUT)
		return tensor_explain_timeout(t, t->round, timeout_ms);
	return rc < 0 ? prepend_call_to_last_error(rc, "bps_gpu_wait_stream") : 0;
}

const char *bps_gpu_route(const struct bps *b)
{
	return b && b->gpu ? b->gpu->route : "";
}
