/* Barrier, broadcast and all-gather of host data, built on push_pull (bps.h). These calls need no
 * messages of their own. Thread: any; one collective of a job at a time. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libbpsclient/last_error.h"

#include "common/base/clock.h"

/* A broadcast is a sum of bytes from which all workers except the root abstain. In an all-gather,
 * each worker abstains from the pieces that have none of its bytes, and contributes zeros around
 * its part of the others. The data is cut into pieces of a few fixed sizes. Up to LANES pieces are
 * in flight, each in a tensor of its own: while one piece is on the wire, another one is copied. So
 * any amount of data needs few tensors and little memory. The pieces have a higher priority than
 * gradients, because the callers of collectives block. */

static const uint32_t piece_bytes[] = {64, 4096, 64u << 10, 1u << 20};
#define N_SIZES          (sizeof(piece_bytes) / sizeof(piece_bytes[0]))
#define LANES            8
#define COLLECT_PRIORITY INT32_MAX

struct collective {
	struct bps *b;
	uint64_t deadline_ns;
	uint32_t timeout_ms;
};

static int collective_begin_call(struct collective *c, struct bps *b, uint32_t timeout_ms)
{
	int rc = client_check_is_open(b);

	if (rc < 0)
		return rc;
	if (pthread_mutex_trylock(&b->collect_mutex))
		return last_error_set(BPS_EBUSY,
			"another thread runs a collective of job '%s': wait until that call "
			"returns, then call again",
			b->options.job);
	c->b = b;
	c->timeout_ms = timeout_ms ? timeout_ms : b->options.timeout_ms;
	c->deadline_ns = clock_deadline(c->timeout_ms);
	return 0;
}

static int collective_end_call(struct collective *c, int rc)
{
	pthread_mutex_unlock(&c->b->collect_mutex);
	return rc;
}

static int collective_submit_tensor(struct bps_tensor *t, bool abstains)
{
	return client_submit_tensors(&t, 1,
		&(struct submission){
			.op = BPS_SUM, .priority = COLLECT_PRIORITY, .abstains = abstains});
}

static int collective_wait_for_tensor(const struct collective *c, struct bps_tensor *t)
{
	return tensor_wait_for_result(t, c->deadline_ns, c->timeout_ms);
}

/* Check that the sum has the root's bytes. All other workers abstain, so a sum of no worker lacks
 * them. In a job that may shrink, a sum can be complete although the root's machine is lost. All
 * workers get the same number of contributors, so this check fails at all workers or at none.
 * Errors: BPS_EWORKER_LOST. */
static int check_root_contributed(const struct collective *c, struct bps_tensor *t, int root)
{
	size_t size = (size_t)c->b->size;
	struct bps_worker *all;
	int n;

	if (bps_contributors(t) > 0)
		return 0;
	all = calloc(size, sizeof(*all));
	if (!all)
		return last_error_set(-ENOMEM, "broadcast: out of memory for the list of workers");
	n = bps_contributor_list(t, all, size);
	for (int i = 0; i < n && i < c->b->size; i++)
		if (all[i].rank == root)
			last_error_cause(&(struct ctl_cause){(uint32_t)root, all[i].host});
	free(all);
	if (n < 0)
		return n;
	return last_error_set(BPS_EWORKER_LOST,
		"broadcast: rank %d of job '%s' is lost, or has not joined, so no worker has "
		"the bytes to broadcast",
		root, c->b->options.job);
}

/* Data of a whole collective. The result consists of n_bytes bytes and is stored in dst. This
 * worker contributes n_src bytes from src. These bytes begin at offset `at` of the result. */
struct whole {
	const char *src;
	char *dst;
	size_t at, n_src, n_bytes;
	int root; /* the only worker that contributes data; -1: all workers do */
};

/* A piece in flight: the bytes [first, first + n) of the result. */
struct piece {
	struct bps_tensor *t;
	size_t first, n;
};

/* Return the smallest piece size that is at least n_bytes. If all sizes are smaller than n_bytes,
 * return the largest size. */
static uint32_t piece_size_for_bytes(size_t n_bytes)
{
	size_t i = 0;

	while (i < N_SIZES - 1 && piece_bytes[i] < n_bytes)
		i++;
	return piece_bytes[i];
}

/* Declare n tensors, each of which carries one piece at a time. bytes: size of each tensor. Errors:
 * the errors of bps_declare; BPS_EBUSY: a round of one of these tensors is still in flight. */
static int declare_lane_tensors(struct bps *b, uint32_t bytes, unsigned n, struct bps_tensor **ret)
{
	char names[LANES][64];
	struct tensor_decl decls[LANES] = {{0}};
	int rc;

	for (unsigned i = 0; i < n; i++) {
		snprintf(names[i], sizeof(names[i]), CLIENT_NAME_PREFIX "bytes.%u.%u", bytes, i);
		decls[i] =
			(struct tensor_decl){names[i], shape_from_dtype_and_count(DTYPE_U8, bytes)};
	}
	rc = tensor_declare(b, decls, NULL, n, ret);
	for (unsigned i = 0; !rc && i < n; i++) {
		/* Other workers may still sum the tensor's bytes, so do not write to the tensor */
		if (!tensor_is_done(ret[i]))
			return last_error_set(BPS_EBUSY,
				"an earlier collective of job '%s' ended with an error, and its "
				"round is still in flight: call again later",
				b->options.job);
		rc = tensor_may_fill(ret[i]);
	}
	return rc;
}

/* Write this worker's bytes of a piece into the input of the piece's tensor, and zeros elsewhere.
 * Bytes of the input that are zero already are not written again. Returns false if the piece has no
 * bytes of this worker. */
static bool piece_fill_input(const struct whole *w, const struct piece *p)
{
	size_t from = w->at > p->first ? w->at - p->first : 0;
	size_t end = w->at + w->n_src > p->first ? w->at + w->n_src - p->first : 0;
	char *in = p->t->in;

	if (end > p->n)
		end = p->n;
	if (from >= end)
		return false;
	memset(in, 0, from < p->t->n_filled ? from : p->t->n_filled);
	if (end < p->t->n_filled)
		memset(in + end, 0, p->t->n_filled - end);
	memcpy(in + from, w->src + (p->first + from - w->at), end - from);
	p->t->n_filled = end;
	return true;
}

/* Wait for a piece, check that the piece has the root's bytes, and store the bytes in dst. */
static int piece_wait_and_store(struct collective *c, const struct whole *w, const struct piece *p)
{
	int rc = collective_wait_for_tensor(c, p->t);

	if (!rc && w->root >= 0)
		rc = check_root_contributed(c, p->t, w->root);
	if (!rc && w->root != c->b->rank) /* the root has the bytes already */
		memcpy(w->dst + p->first, bps_output(p->t), p->n);
	return rc;
}

/* Wait for the pieces that are still in flight. The caller has found that the root is lost. All
 * workers end the collective at the same piece, with the same pieces in flight. So after this wait,
 * the next collective begins with the same round of each tensor at all workers. */
static void wait_for_pieces_in_flight(
	struct collective *c, const struct piece *pieces, size_t n_done, size_t n)
{
	struct err_text why = *last_error_text();
	int rc = 0;

	while (!rc && n_done < n)
		rc = collective_wait_for_tensor(c, pieces[n_done++ % LANES].t);
	*last_error_text() = why;
}

/* Tensors for the n pieces of one collective. Pieces of the largest size use the tensors in `lanes`
 * in turn. A smaller last piece uses the tensor `last`; without a smaller piece, `last` is NULL. */
struct cut {
	size_t n;
	struct bps_tensor *lanes[LANES], *last;
};

static int declare_tensors_for_pieces(struct bps *b, size_t n_bytes, struct cut *ret)
{
	uint32_t large = piece_bytes[N_SIZES - 1];
	size_t rest = n_bytes % large, n_large = n_bytes / large;
	int rc = 0;

	*ret = (struct cut){.n = n_large + (rest ? 1 : 0)};
	if (rest && piece_size_for_bytes(rest) == large)
		n_large++;
	if (n_large)
		rc = declare_lane_tensors(
			b, large, n_large < LANES ? (unsigned)n_large : LANES, ret->lanes);
	if (!rc && n_large < ret->n)
		rc = declare_lane_tensors(b, piece_size_for_bytes(rest), 1, &ret->last);
	return rc;
}

/* Fill and submit the i-th piece. */
static int piece_fill_and_submit(
	const struct whole *w, const struct cut *cut, size_t i, struct piece *ret)
{
	size_t bytes = piece_bytes[N_SIZES - 1], first = i * bytes, left = w->n_bytes - first;

	*ret = (struct piece){.t = i + 1 == cut->n && cut->last ? cut->last : cut->lanes[i % LANES],
		.first = first,
		.n = left < bytes ? left : bytes};
	return collective_submit_tensor(ret->t, !piece_fill_input(w, ret));
}

static int collective_exchange_pieces(struct collective *c, const struct whole *w)
{
	struct piece pieces[LANES];
	struct cut cut;
	size_t sent = 0;
	int rc = declare_tensors_for_pieces(c->b, w->n_bytes, &cut);

	for (size_t done = 0; !rc && done < cut.n; done++) {
		for (; !rc && sent < cut.n && sent < done + LANES; sent++)
			rc = piece_fill_and_submit(w, &cut, sent, &pieces[sent % LANES]);
		if (!rc)
			rc = piece_wait_and_store(c, w, &pieces[done % LANES]);
		if (rc == BPS_EWORKER_LOST)
			wait_for_pieces_in_flight(c, pieces, done + 1, sent);
	}
	return rc;
}

int bps_barrier(struct bps *b, uint32_t timeout_ms)
{
	struct tensor_decl d = {
		CLIENT_NAME_PREFIX "barrier", shape_from_dtype_and_count(DTYPE_I32, 1)};
	struct bps_tensor *t;
	struct collective c;
	int rc = collective_begin_call(&c, b, timeout_ms);

	if (rc < 0)
		return rc;
	rc = tensor_declare(b, &d, NULL, 1, &t);
	if (!rc)
		rc = collective_submit_tensor(t, true); /* the sum is not needed */
	if (!rc)
		rc = collective_wait_for_tensor(&c, t);
	return collective_end_call(&c, rc);
}

/* Check the memory of the caller. has_data: the pointer to the memory is not NULL. The pointer may
 * be NULL only if n_bytes is 0. what: names of the call and of its argument, for the error text.
 * Errors: -EINVAL. Sets bps_last_error. */
static int check_caller_memory(bool has_data, size_t n_bytes, const char *what)
{
	if (n_bytes > PTRDIFF_MAX)
		return last_error_set(-EINVAL, "%s: %zu bytes are more than a process can address",
			what, n_bytes);
	if (n_bytes && !has_data)
		return last_error_set(-EINVAL, "%s is NULL", what);
	return 0;
}

int bps_broadcast(struct bps *b, void *data, size_t n_bytes, int root, uint32_t timeout_ms)
{
	struct collective c;
	int rc = collective_begin_call(&c, b, timeout_ms);

	if (rc < 0)
		return rc;
	if (root < 0 || root >= b->size)
		rc = last_error_set(-EINVAL,
			"broadcast: root %d is not a rank of job '%s' of %d workers", root,
			b->options.job, b->size);
	else
		rc = check_caller_memory(data, n_bytes, "broadcast: data");
	if (!rc)
		rc = collective_exchange_pieces(&c, &(struct whole){.src = data,
							    .dst = data,
							    .n_src = b->rank == root ? n_bytes : 0,
							    .n_bytes = n_bytes,
							    .root = root});
	return collective_end_call(&c, rc);
}

int bps_allgather(struct bps *b, const void *src, size_t n_bytes, void *dst, uint32_t timeout_ms)
{
	struct collective c;
	int rc = collective_begin_call(&c, b, timeout_ms);
	size_t whole;

	if (rc < 0)
		return rc;
	if (__builtin_mul_overflow(n_bytes, (size_t)b->size, &whole))
		rc = last_error_set(-EINVAL,
			"allgather: %zu bytes from each of %d workers are more than a process can "
			"address",
			n_bytes, b->size);
	else
		rc = check_caller_memory(src && dst, whole, "allgather: src or dst");
	if (!rc)
		rc = collective_exchange_pieces(&c, &(struct whole){.src = src,
							    .dst = dst,
							    .at = (size_t)b->rank * n_bytes,
							    .n_src = n_bytes,
							    .n_bytes = whole,
							    .root = -1});
	return collective_end_call(&c, rc);
}
