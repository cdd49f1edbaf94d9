/* Barrier, broadcast and all-gather of host data, built on push_pull (bps.h). They use no messages
 * of their own. Thread: any; one collective at a time. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libbpsclient/last_error.h"

#include "common/base/clock.h"

/* Collectives are sums of bytes in which all workers but one contribute zeros. The data is cut into
 * pieces of a few fixed sizes, so that any amount needs only four tensors. They are submitted above
 * all gradients, because their callers block. */

static const uint32_t piece_bytes[] = {64, 4096, 256u << 10, 4u << 20};
#define N_PIECES         (sizeof(piece_bytes) / sizeof(piece_bytes[0]))
#define COLLECT_PRIORITY INT32_MAX

struct collective {
	struct bps *b;
	uint64_t deadline_ns;
	uint32_t timeout_ms;
};

static int begin(struct collective *c, struct bps *b, uint32_t timeout_ms)
{
	int rc = client_check(b);

	if (rc < 0)
		return rc;
	if (pthread_mutex_trylock(&b->collect_mutex))
		return last_error_set(
			BPS_EBUSY, "another thread is in a collective of job '%s'", b->options.job);
	c->b = b;
	c->timeout_ms = timeout_ms ? timeout_ms : b->options.timeout_ms;
	c->deadline_ns = clock_deadline(c->timeout_ms);
	return 0;
}

static int end(struct collective *c, int rc)
{
	pthread_mutex_unlock(&c->b->collect_mutex);
	return rc;
}

static int run(struct collective *c, struct bps_tensor *t)
{
	int rc = client_submit(&t, 1, BPS_SUM, COLLECT_PRIORITY);

	return rc < 0 ? rc : tensor_wait(t, c->deadline_ns, c->timeout_ms);
}

static int piece_tensor(struct bps *b, size_t left, struct bps_tensor **ret)
{
	struct bps_decl d = {.dtype = BPS_U8};
	char name[64];
	size_t i = 0;

	while (i < N_PIECES - 1 && piece_bytes[i] < left)
		i++;
	snprintf(name, sizeof(name), CLIENT_NAME_PREFIX "bytes.%u", piece_bytes[i]);
	d.name = name;
	d.n_elems = piece_bytes[i];
	return tensor_declare(b, &d, NULL, 1, ret);
}

/* Copy into a piece the part of src that belongs there. The piece covers [first, first + n) of the
 * whole, src covers [at, at + n_src). */
static void fill(char *piece, size_t first, size_t n, const char *src, size_t at, size_t n_src)
{
	size_t from = at > first ? at : first;
	size_t to = at + n_src < first + n ? at + n_src : first + n;

	memset(piece, 0, n);
	if (from < to)
		memcpy(piece + (from - first), src + (from - at), to - from);
}

/* In a job that may shrink, a sum can be complete without a lost machine, whose part is then zeros.
 * All workers get the same list of contributors, so that all or none fail here. */
static int check_root(const struct collective *c, struct bps_tensor *t, int root)
{
	size_t size = (size_t)c->b->size;
	struct bps_worker *all;
	bool is_behind = false;
	int n;

	if (bps_contributors(t) == c->b->size)
		return 0;
	all = calloc(size, sizeof(*all));
	if (!all)
		return last_error_set(-ENOMEM, "out of memory");
	n = bps_contributor_list(t, all, size);
	for (int i = 0; i < n && i < c->b->size; i++)
		is_behind |= all[i].rank == root && !all[i].is_missing;
	free(all);
	if (n < 0 || is_behind)
		return n < 0 ? n : 0;
	return last_error_set(BPS_EWORKER_LOST,
		"broadcast: rank %d of job '%s' is lost, or has not joined: nobody has its bytes",
		root, c->b->options.job);
}

/* Exchange data: every worker's src of n_src bytes has its place `at` in the whole of n_bytes,
 * which is stored in dst. root: the only worker with data; -1: all have data. */
static int exchange(struct collective *c, const char *src, size_t at, size_t n_src, char *dst,
	size_t n_bytes, int root)
{
	struct bps_tensor *t;
	size_t n;
	int rc;

	for (size_t first = 0; first < n_bytes; first += n) {
		rc = piece_tensor(c->b, n_bytes - first, &t);
		if (rc < 0)
			return rc;
		if (!tensor_is_done(t)) /* other workers may still sum its bytes */
			return last_error_set(BPS_EBUSY,
				"a collective of job '%s' that ended with an error is still in "
				"flight",
				c->b->options.job);
		rc = tensor_may_fill(t);
		if (rc < 0)
			return rc;
		n = n_bytes - first < t->bytes ? n_bytes - first : t->bytes;
		fill(t->in, first, n, src, at, n_src);
		rc = run(c, t);
		if (!rc && root >= 0)
			rc = check_root(c, t, root);
		if (rc < 0)
			return rc;
		memcpy(dst + first, bps_output(t), n);
	}
	return 0;
}

int bps_barrier(struct bps *b, uint32_t timeout_ms)
{
	struct bps_decl d = {CLIENT_NAME_PREFIX "barrier", BPS_I32, 1};
	struct bps_tensor *t;
	struct collective c;
	int rc = begin(&c, b, timeout_ms);

	if (rc < 0)
		return rc;
	rc = tensor_declare(b, &d, NULL, 1, &t);
	if (!rc)
		rc = run(&c, t);
	return end(&c, rc);
}

/* Check the caller's memory for the whole of n_bytes: there must be some unless n_bytes is 0. what:
 * names the call and the memory in the sentence. Errors: -EINVAL. */
static int check_memory(bool has_data, size_t n_bytes, const char *what)
{
	if (n_bytes > PTRDIFF_MAX)
		return last_error_set(
			-EINVAL, "%s: %zu bytes are more than memory has", what, n_bytes);
	if (n_bytes && !has_data)
		return last_error_set(-EINVAL, "%s is NULL", what);
	return 0;
}

int bps_broadcast(struct bps *b, void *data, size_t n_bytes, int root, uint32_t timeout_ms)
{
	struct collective c;
	int rc = begin(&c, b, timeout_ms);

	if (rc < 0)
		return rc;
	if (root < 0 || root >= b->size)
		rc = last_error_set(-EINVAL, "broadcast: root %d is not a rank of job '%s' of %d",
			root, b->options.job, b->size);
	else
		rc = check_memory(data, n_bytes, "broadcast: data");
	if (!rc)
		rc = exchange(&c, data, 0, b->rank == root ? n_bytes : 0, data, n_bytes, root);
	return end(&c, rc);
}

int bps_allgather(struct bps *b, const void *src, size_t n_bytes, void *dst, uint32_t timeout_ms)
{
	struct collective c;
	int rc = begin(&c, b, timeout_ms);
	size_t whole;

	if (rc < 0)
		return rc;
	if (__builtin_mul_overflow(n_bytes, (size_t)b->size, &whole))
		rc = last_error_set(
			-EINVAL, "allgather: %zu bytes of %d workers", n_bytes, b->size);
	else
		rc = check_memory(src && dst, whole, "allgather: src or dst");
	if (!rc)
		rc = exchange(&c, src, (size_t)b->rank * n_bytes, n_bytes, dst, whole, -1);
	return end(&c, rc);
}
