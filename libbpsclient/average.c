/* Computes averages of integers by means of companions, which are tensors of a wider type
 * (average.h). This file declares companions, and converts inputs and results. tensor.c submits
 * the companions, and wait.c waits for them. Thread: the one that operates on the tensor. */
#include "libbpsclient/average.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/shape.h"
#include "libbpsclient/last_error.h"

/* An i64 is summed as an upper and a lower half. A lower half has 32 bits, so the sum of the lower
 * halves of at most 2^16 workers has 48 bits. The 16 bits above this sum hold the number of
 * workers. In these bits, 2^16 wraps to 0. */
#define HALF_BITS  32
#define COUNT_BITS 48
#define COUNT_ONE  (UINT64_C(1) << COUNT_BITS)

_Static_assert(CLIENT_WORKERS_MAX <= 1 << (64 - COUNT_BITS), "the count of workers fits");
_Static_assert(HALF_BITS + 16 <= COUNT_BITS, "the sum of lower halves fits");

struct average {
	struct bps_tensor *wide; /* the companion; owned by the job's table of tensors */
	/* Results of the last even and the last odd round, in the tensor's type */
	void *out[2];
	/* Let r be one of the tensor's last two rounds. wide_round[r & 1] is the companion's round
	 * that carries the average for round r; 0: round r does not average integers */
	uint64_t wide_round[2];
	uint64_t converted[2]; /* [i]: companion's round whose average is in out[i]; 0: no round */
};

/* ---- conversion ---- */

#define WIDEN(type, wide)                                                                          \
	for (uint64_t i = 0; i < n; i++)                                                           \
		((wide *)to)[i] = ((const type *)from)[i];

static void split_i64_into_halves(uint64_t *to, const int64_t *from, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		to[2 * i] = (uint64_t)(from[i] >> HALF_BITS);
		to[2 * i + 1] = COUNT_ONE | (uint32_t)from[i];
	}
}

static void convert_to_companion_type(void *to, const void *from, enum bps_dtype dtype, uint64_t n)
{
	if (dtype == BPS_I8)
		/* NOLINTNEXTLINE(bugprone-signed-char-misuse): numbers, not characters */
		WIDEN(int8_t, int32_t)
	else if (dtype == BPS_U8)
		WIDEN(uint8_t, int32_t)
	else if (dtype == BPS_I32)
		WIDEN(int32_t, int64_t)
	else
		split_i64_into_halves(to, from, n);
}

#define NARROW(type, wide)                                                                         \
	for (uint64_t i = 0; i < n; i++)                                                           \
		((type *)to)[i] = (type)((const wide *)from)[i];

/* Divide a sum by the number of workers, and round the quotient down. The sum is `upper` * 2^32 +
 * x, where x is the value of the COUNT_BITS least significant bits of `lower`. The other bits of
 * `lower` hold the number of workers. The remainder of `upper` / `count` is below `count`, so the
 * dividend of the second division needs at most 49 bits. */
static int64_t divide_i64_half_sums(int64_t upper, uint64_t lower)
{
	int64_t count = (int64_t)(lower >> COUNT_BITS), quotient, rest;

	if (!count)
		count = 1 << (64 - COUNT_BITS);
	quotient = upper / count;
	rest = upper % count;
	if (rest < 0) {
		rest += count;
		quotient--;
	}
	rest = (rest << HALF_BITS) + (int64_t)(lower & (COUNT_ONE - 1));
	return quotient * (INT64_C(1) << HALF_BITS) + rest / count;
}

static void divide_all_i64_half_sums(int64_t *to, const uint64_t *from, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		to[i] = divide_i64_half_sums((int64_t)from[2 * i], from[2 * i + 1]);
}

static void convert_from_companion_type(
	void *to, const void *from, enum bps_dtype dtype, uint64_t n)
{
	if (dtype == BPS_I8)
		NARROW(int8_t, int32_t)
	else if (dtype == BPS_U8)
		NARROW(uint8_t, int32_t)
	else if (dtype == BPS_I32)
		NARROW(int32_t, int64_t)
	else
		divide_all_i64_half_sums(to, from, n);
}

/* ---- the companion ---- */

bool average_is_needed(const struct bps_tensor *t, enum bps_op op)
{
	return op == BPS_AVG && !t->b->is_single &&
	       (t->shape.dtype == BPS_I8 || t->shape.dtype == BPS_U8 || t->shape.dtype == BPS_I32 ||
		       t->shape.dtype == BPS_I64);
}

static int declare_companion_tensor(const struct bps_tensor *t, struct bps_tensor **ret)
{
	char name[CTL_TENSOR_NAME_MAX + 1];
	bool is_narrow = t->shape.dtype == DTYPE_I8 || t->shape.dtype == DTYPE_U8;
	bool is_widest = t->shape.dtype == DTYPE_I64;
	struct tensor_decl d = {name, t->shape};
	int n = snprintf(name, sizeof(name), AVERAGE_PREFIX "%s", t->name);

	d.shape.dtype = is_narrow ? DTYPE_I32 : DTYPE_I64;
	d.shape.n_values = is_widest ? 2 * t->shape.n_values : t->shape.n_values;
	if (n >= (int)sizeof(name))
		return last_error_set(-EINVAL,
			"tensor '%s': the name is too long for an average of integers: use at most "
			"%zu bytes",
			t->name, sizeof(name) - sizeof(AVERAGE_PREFIX));
	return tensor_declare(t->b, &d, NULL, 1, ret);
}

static int average_create_for_tensor(struct bps_tensor *t)
{
	struct average *a = calloc(1, sizeof(*a));
	size_t each = (t->bytes + LOCAL_ALIGN - 1) / LOCAL_ALIGN * LOCAL_ALIGN;
	int rc;

	if (!a)
		return last_error_set(-ENOMEM, "tensor '%s': out of memory for averages", t->name);
	a->out[0] = aligned_alloc(LOCAL_ALIGN, 2 * each);
	if (!a->out[0]) {
		free(a);
		return last_error_set(-ENOMEM,
			"tensor '%s': out of memory for %zu bytes of averages", t->name, 2 * each);
	}
	a->out[1] = (char *)a->out[0] + each;
	rc = declare_companion_tensor(t, &a->wide);
	if (rc < 0) {
		free(a->out[0]);
		free(a);
		return rc;
	}
	a->wide->auto_priority = t->auto_priority;
	a->wide->owner = t;
	t->average = a;
	return 0;
}

int average_prepare(struct bps_tensor *t, bool abstains)
{
	int rc = tensor_may_fill(t);

	if (!rc && !t->average)
		rc = average_create_for_tensor(t);
	if (!rc && !abstains)
		convert_to_companion_type(
			t->average->wide->in, t->in, t->shape.dtype, t->shape.n_values);
	return rc;
}

void average_submit_companion(struct bps_tensor *t, const struct submission *how)
{
	struct average *a = t->average;
	struct submission wide = *how;

	wide.op = t->shape.dtype == BPS_I64 ? BPS_SUM : BPS_AVG;
	tensor_submit_next_round(a->wide, &wide);
	a->wide_round[t->round & 1] = a->wide->round;
}

void average_clear_companion_round(struct bps_tensor *t)
{
	if (t->average)
		t->average->wide_round[t->round & 1] = 0;
}

/* ---- rounds ---- */

struct bps_tensor *average_carrier(const struct bps_tensor *t, uint64_t round, uint64_t *ret_round)
{
	const struct average *a = t->average;

	if (!a || !a->wide_round[round & 1])
		return NULL;
	if (ret_round)
		*ret_round = a->wide_round[round & 1];
	return a->wide;
}

void average_copy_result(const struct bps_tensor *t, uint64_t round, void *dst)
{
	const struct average *a = t->average;

	convert_from_companion_type(
		dst, a->wide->out[a->wide_round[round & 1] & 1], t->shape.dtype, t->shape.n_values);
}

const void *average_output(const struct bps_tensor *t, uint64_t round)
{
	struct average *a = t->average;
	unsigned slot = round & 1;

	if (a->converted[slot] != a->wide_round[slot]) {
		average_copy_result(t, round, a->out[slot]);
		a->converted[slot] = a->wide_round[slot];
	}
	return a->out[slot];
}

void average_clear_all_rounds(struct bps_tensor *t)
{
	struct average *a = t->average;

	for (unsigned i = 0; a && i < 2; i++)
		a->wide_round[i] = a->converted[i] = 0;
}

void average_free(struct bps_tensor *t)
{
	if (t->average)
		free(t->average->out[0]);
	free(t->average);
}
