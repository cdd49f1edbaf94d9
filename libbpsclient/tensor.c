/* Submission and attributes of a worker's tensors. Declarations are in declare.c, waits in wait.c,
 * messages in session_requests.c. Thread: any; but two threads must not operate on one tensor at
 * once. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>

#include "common/base/failpoint.h"
#include "libbpsclient/average.h"
#include "libbpsclient/copy.h"
#include "libbpsclient/last_error.h"

_Static_assert(BPS_SUM == (int)OP_SUM && BPS_PROD == (int)OP_PROD && BPS_MAX == (int)OP_MAX &&
		       BPS_MIN == (int)OP_MIN && BPS_AVG == (int)OP_AVG &&
		       BPS_BAND == (int)OP_BAND && BPS_BOR == (int)OP_BOR &&
		       BPS_BXOR == (int)OP_BXOR,
	"public and internal operations");

#define PRIORITY_MIDDLE 32768

/* ---- submission ---- */

static uint64_t tensor_load_done_round(const struct bps_tensor *t)
{
	/* Acquire: pairs with the store in local_complete_round, or in single_worker_submit. */
	return atomic_load_explicit(&t->entry->done_round, memory_order_acquire);
}

static int tensor_load_entry_status(const struct bps_tensor *t)
{
	return atomic_load_explicit(&t->entry->status, memory_order_relaxed);
}

bool tensor_has_ended_round(const struct bps_tensor *t, uint64_t round)
{
	return tensor_load_done_round(t) >= round;
}

bool tensor_is_done(const struct bps_tensor *t)
{
	uint64_t wide_round;
	const struct bps_tensor *wide = average_carrier(t, t->round, &wide_round);

	/* If the tensor itself has failed, the companion's round may never complete. So do not wait
	 * for that round. */
	return tensor_has_ended_round(t, t->round) &&
	       (!wide || tensor_has_ended_round(wide, wide_round) || tensor_load_entry_status(t));
}

struct bps_tensor *tensor_awaited(struct bps_tensor *t)
{
	struct bps_tensor *wide = average_carrier(t, t->round, NULL);

	return wide && tensor_has_ended_round(t, t->round) && !tensor_is_done(t) ? wide : t;
}

int tensor_get_failure_code(const struct bps_tensor *t, const struct bps_tensor **ret_failed)
{
	const struct bps_tensor *wide = average_carrier(t, t->round, NULL);
	int status = tensor_load_entry_status(t);

	if (ret_failed)
		*ret_failed = !status && wide ? wide : t;
	return !status && wide ? tensor_load_entry_status(wide) : status;
}

int tensor_explain(const struct bps_tensor *t, int code)
{
	struct session *s = &t->b->session;
	const struct bps_tensor *shown = t->owner ? t->owner : t;
	struct err_text why = {""};

	if (session_failure(s, &why) != code &&
		session_request_reason(s, t->idx, t->round, &why) < 0)
		session_failure(s, &why);
	last_error_tensor(shown->name);
	return last_error_set(code, "push_pull of tensor '%s' in job '%s', round %llu: %s",
		shown->name, t->b->options.job, (unsigned long long)shown->round,
		*why.s ? why.s : err_str(code));
}

static uint16_t convert_priority_to_wire(const struct bps_tensor *t, int32_t priority)
{
	int64_t p = (int64_t)PRIORITY_MIDDLE + priority;

	if (priority == BPS_PRIORITY_AUTO)
		return t->auto_priority;
	return p < 0 ? 0 : p > CLIENT_PRIORITY_MAX ? CLIENT_PRIORITY_MAX : (uint16_t)p;
}

/* Check that all tensors of a group may be submitted, and that the ring has room for `n_entries`
 * entries. n: number of tensors, at least 1. Marks each tensor, to find a tensor that is listed
 * twice. The caller holds ring_mutex. *ret_bad: the tensor that may not be submitted. If no single
 * tensor is the cause, *ret_bad is the last tensor. Errors: BPS_EBUSY, -EAGAIN, or the error with
 * which the tensor or the session has failed. */
static int check_group_may_submit(struct bps *b, struct bps_tensor *const *tensors, size_t n,
	size_t n_entries, struct bps_tensor **ret_bad)
{
	size_t i;
	int rc = 0;

	*ret_bad = tensors[0];
	for (i = 0; !rc && i < n; i++) {
		*ret_bad = tensors[i];
		if (!tensor_is_done(tensors[i]) || tensors[i]->is_marked) {
			rc = BPS_EBUSY;
			break;
		}
		rc = tensor_get_failure_code(tensors[i], NULL);
		tensors[i]->is_marked = true;
	}
	while (i > 0)
		tensors[--i]->is_marked = false;
	if (!rc && !b->is_single) {
		rc = atomic_load_explicit(&b->session.failure, memory_order_acquire);
		if (!rc && local_sq_room(b->session.control) < n_entries)
			rc = -EAGAIN;
		if (!rc && b->is_at_barrier)
			rc = BPS_EBUSY;
	}
	return rc;
}

void tensor_submit_next_round(struct bps_tensor *t, const struct submission *how)
{
	struct local_sqe e = {.tensor = t->idx,
		.op = (uint8_t)how->op,
		.priority = convert_priority_to_wire(t, how->priority),
		.flags = how->abstains ? LOCAL_ABSTAINS : 0,
		.round = ++t->round};

	t->copy_dst = NULL;
	if (t->b->is_single)
		single_worker_submit(t, how->abstains);
	else
		(void)local_sq_push(
			t->b->session.control, &e); /* the caller checked that there is room */
}

int tensor_explain_busy(const struct bps_tensor *t)
{
	last_error_tensor(t->name);
	return last_error_set(BPS_EBUSY, "tensor '%s': round %llu is in flight: wait for it first",
		t->name, (unsigned long long)t->round);
}

static int explain_refusal(struct bps_tensor *t, int rc)
{
	const struct bps_tensor *failed;

	last_error_tensor(t->name);
	if (rc == BPS_EBUSY && t->b->is_at_barrier)
		return last_error_set(rc,
			"tensor '%s': the job is at a barrier: call bps_checkpoint_barrier until "
			"it succeeds",
			t->name);
	if (rc == BPS_EBUSY)
		return tensor_explain_busy(t);
	if (rc == -EAGAIN)
		return last_error_set(rc,
			"tensor '%s': the queue to the agent is full: wait for a round first",
			t->name);
	tensor_get_failure_code(t, &failed);
	return tensor_explain(failed, rc);
}

int tensor_may_fill(struct bps_tensor *t)
{
	int rc = tensor_is_done(t) ? tensor_get_failure_code(t, NULL) : BPS_EBUSY;

	return rc ? explain_refusal(t, rc) : 0;
}

int tensor_may_run_ahead(struct bps_tensor *t, uint64_t max)
{
	int rc = tensor_load_entry_status(t);

	if (!rc && t->b->is_at_barrier)
		return explain_refusal(t, BPS_EBUSY);
	if (!rc && t->round - tensor_load_done_round(t) >= max)
		return last_error_set(BPS_EBUSY,
			"tensor '%s': too many rounds are in flight (the latest is round %llu): "
			"wait for one of them first",
			t->name, (unsigned long long)t->round);
	if (!rc && !local_sq_room(t->b->session.control))
		rc = -EAGAIN;
	return rc ? explain_refusal(t, rc) : 0;
}

int tensor_check_group(struct bps_tensor *const *tensors, size_t n, const char *what)
{
	if (!tensors)
		return last_error_set(-EINVAL, "%s: the array of tensors is NULL", what);
	for (size_t i = 0; i < n; i++)
		if (!tensors[i] || tensors[i]->b != tensors[0]->b)
			return last_error_set(-EINVAL,
				"%s: the tensor at index %zu is NULL or belongs to another job",
				what, i);
	return client_check_is_open(tensors[0]->b);
}

static int check_tensors_for_push_pull(struct bps_tensor *const *tensors, size_t n, enum bps_op op)
{
	int rc = tensor_check_group(tensors, n, "push_pull");

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++)
		if (tensors[i]->region)
			return last_error_set(-EINVAL,
				"push_pull: tensor '%s' lies in device memory: submit it with "
				"bps_gpu_push_pull",
				tensors[i]->name);
	if ((unsigned)op >= OP_COUNT)
		return last_error_set(-EINVAL, "push_pull: %d is not an operation", (int)op);
	for (size_t i = 0; i < n; i++)
		if (tensors[i]->shape.mode == MODE_VALUE && op != BPS_SUM)
			return last_error_set(-EINVAL,
				"push_pull: tensor '%s' is a value, to which workers can only add "
				"(BPS_SUM), not %s",
				tensors[i]->name, op_name(op));
	for (size_t i = 0; i < n; i++)
		if (!op_is_valid_for_dtype(op, (unsigned)tensors[i]->shape.dtype))
			return last_error_set(-EINVAL,
				"push_pull: tensor '%s': %s is an operation on %s, not on %s",
				tensors[i]->name, op_name(op),
				op_is_bitwise(op) ? "integers" : "single values",
				dtype_name((unsigned)tensors[i]->shape.dtype));
	return 0;
}

/* Prepare the companion (average.h) of each tensor for which this operation needs a companion. Add
 * the number of companions to *n_averages. */
static int prepare_averages(struct bps_tensor *const *tensors, size_t n,
	const struct submission *how, size_t *n_averages)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++)
		if (average_is_needed(tensors[i], how->op)) {
			rc = average_prepare(tensors[i], how->abstains);
			(*n_averages)++;
		}
	return rc;
}

/* Put the next round of a tensor into the ring. If the operation needs a companion, also put the
 * companion's next round into the ring. The caller holds ring_mutex. */
static void submit_with_companion(struct bps_tensor *t, const struct submission *how)
{
	tensor_submit_next_round(t, how);
	if (average_is_needed(t, how->op))
		average_submit_companion(t, how);
	else
		average_clear_companion_round(t);
}

int client_submit_tensors(struct bps_tensor *const *tensors, size_t n, const struct submission *how)
{
	struct bps_tensor *bad;
	size_t n_averages = 0;
	struct bps *b;
	int rc;

	if (!n)
		return 0;
	rc = check_tensors_for_push_pull(tensors, n, how->op);
	if (!rc)
		rc = prepare_averages(tensors, n, how, &n_averages);
	if (rc < 0)
		return rc;
	b = tensors[0]->b;
	pthread_mutex_lock(&b->ring_mutex);
	rc = check_group_may_submit(b, tensors, n, n + n_averages, &bad);
	for (size_t i = 0; !rc && i < n; i++)
		submit_with_companion(tensors[i], how);
	pthread_mutex_unlock(&b->ring_mutex);
	if (rc)
		return explain_refusal(bad, rc);
	FAILPOINT(CLIENT_SUBMIT_BEFORE_PUBLISH);
	if (!b->is_single)
		session_publish(&b->session);
	FAILPOINT(CLIENT_SUBMIT_PUBLISHED);
	return 0;
}

int bps_push_pull(struct bps_tensor *t, enum bps_op op, int32_t priority)
{
	return client_submit_tensors(&t, 1, &(struct submission){.op = op, .priority = priority});
}

int bps_push_pull_group(
	struct bps_tensor *const *tensors, size_t n, enum bps_op op, int32_t priority)
{
	return client_submit_tensors(
		tensors, n, &(struct submission){.op = op, .priority = priority});
}

int bps_abstain(struct bps_tensor *t, enum bps_op op, int32_t priority)
{
	return client_submit_tensors(
		&t, 1, &(struct submission){.op = op, .priority = priority, .abstains = true});
}

int bps_push_pull_copy(
	struct bps_tensor *t, const void *src, void *dst, enum bps_op op, int32_t priority)
{
	int rc;

	if (!t || !src)
		return last_error_set(-EINVAL, "push_pull: %s is NULL", t ? "src" : "the tensor");
	rc = check_tensors_for_push_pull(&t, 1, op);
	if (rc < 0)
		return rc;
	if (dst && t->shape.owner != OWNER_ALL)
		return last_error_set(-EINVAL,
			"push_pull: tensor '%s' is in shards: pass NULL for dst, and read the own "
			"shard with bps_read",
			t->name);
	rc = tensor_may_fill(t);
	if (rc < 0)
		return rc;
	tensor_copy_bytes(t, t->in, src, t->bytes);
	rc = bps_push_pull(t, op, priority);
	if (!rc)
		t->copy_dst = dst;
	return rc;
}

/* ---- attributes of a tensor ---- */

/* Return the number of the last round that has ended. A round has ended if it has failed, or if it
 * is complete in the tensor and in the tensor's companion. */
static uint64_t tensor_last_ended_round(const struct bps_tensor *t)
{
	uint64_t done = tensor_load_done_round(t);

	return done && done == t->round && !tensor_is_done(t) ? done - 1 : done;
}

/* Return the entry that holds the number of contributors to a complete round. */
static struct local_entry *find_contributor_entry(const struct bps_tensor *t, uint64_t round)
{
	struct bps_tensor *wide = average_carrier(t, round, NULL);

	return wide ? wide->entry : t->entry;
}

void *bps_input(struct bps_tensor *t)
{
	return t->in;
}

const void *bps_output(const struct bps_tensor *t)
{
	uint64_t done = tensor_last_ended_round(t);

	if (t->region)
		return NULL;
	/* if the last round has failed, return the result of the previous round */
	if (done && done == t->round && tensor_get_failure_code(t, NULL))
		done--;
	if (!done)
		return NULL;
	return average_carrier(t, done, NULL) ? average_output(t, done) : t->out[done & 1];
}

int bps_outputs(const struct bps_tensor *t, const void *ret[2])
{
	int rc = t ? client_check_is_open(t->b)
		   : last_error_set(-EINVAL, "outputs: the tensor is NULL");

	if (!rc && !ret)
		rc = last_error_set(-EINVAL, "outputs: ret is NULL");
	if (!rc && t->region)
		rc = last_error_set(-EINVAL,
			"outputs: tensor '%s' lies in device memory and has no output buffers: "
			"read the sum from the tensor's device memory",
			t->name);
	if (rc < 0)
		return rc;
	ret[0] = t->out[0];
	ret[1] = t->out[1];
	return 0;
}

int bps_shard(const struct bps_tensor *t, uint64_t *first, uint64_t *n)
{
	if (!t || !first || !n)
		return last_error_set(-EINVAL, "shard: %s is NULL",
			t ? "the address for the answer" : "the tensor");
	*n = t->shape.n_values;
	if (t->shape.owner == OWNER_SHARDS)
		*n /= (uint64_t)t->b->size;
	*first = t->shape.owner == OWNER_SHARDS ? *n * (uint64_t)t->b->rank : 0;
	return 0;
}

int tensor_check_shard(const struct bps_tensor *t, const char *what, uint64_t at, uint64_t n_bytes)
{
	uint64_t first, n, begin, bytes;

	if (t->shape.owner == OWNER_ALL)
		return 0;
	bps_shard(t, &first, &n);
	bytes = t->bytes / (uint64_t)t->b->size; /* a shard has whole elements */
	begin = bytes * (uint64_t)t->b->rank;
	if (at >= begin && at - begin <= bytes && n_bytes <= bytes - (at - begin))
		return 0;
	return last_error_set(-EINVAL,
		"%s: tensor '%s' is in shards, and rank %d gets only the values %llu to %llu of "
		"its results (bytes %llu to %llu)",
		what, t->name, t->b->rank, (unsigned long long)first,
		(unsigned long long)(first + n), (unsigned long long)begin,
		(unsigned long long)(begin + bytes));
}

uint64_t bps_count(const struct bps_tensor *t)
{
	return t->shape.n_values;
}

enum bps_dtype bps_dtype(const struct bps_tensor *t)
{
	return t->shape.dtype;
}

const char *bps_name(const struct bps_tensor *t)
{
	return t->name;
}

int bps_tensor_info(const struct bps_tensor *t, struct bps_info *ret)
{
	const struct local_entry *entry;
	uint64_t done;
	int rc = t ? client_check_is_open(t->b)
		   : last_error_set(-EINVAL, "tensor_info: the tensor is NULL");

	if (!rc && !ret)
		rc = last_error_set(-EINVAL, "tensor_info: ret is NULL");
	if (rc < 0)
		return rc;
	done = tensor_last_ended_round(t);
	*ret = (struct bps_info){.round = done};
	if (!done)
		return 0;
	entry = find_contributor_entry(t, done);
	ret->contributors = atomic_load_explicit(&entry->workers, memory_order_relaxed);
	ret->contributors_most = atomic_load_explicit(&entry->workers_most, memory_order_relaxed);
	ret->is_mine_missing =
		atomic_load_explicit(&entry->is_mine_missing, memory_order_relaxed) != 0;
	ret->is_late = atomic_load_explicit(&entry->is_late, memory_order_relaxed) != 0;
	return 0;
}

int bps_contributors(const struct bps_tensor *t)
{
	uint64_t done;

	if (!t)
		return last_error_set(-EINVAL, "contributors: the tensor is NULL");
	done = tensor_last_ended_round(t);
	return done ? (int)atomic_load_explicit(
			      &find_contributor_entry(t, done)->workers, memory_order_relaxed)
		    : 0;
}
