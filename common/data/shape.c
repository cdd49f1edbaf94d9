/* Shapes of tensors: comparison, checks, sizes and text. */
#include "common/data/shape.h"

#include <errno.h>
#include <stdio.h>

#include "common/base/error.h"

struct tensor_shape shape_from_dtype_and_count(unsigned dtype, uint64_t n_values)
{
	return (struct tensor_shape){
		.dtype = dtype < UINT8_MAX ? (uint8_t)dtype : UINT8_MAX, .n_values = n_values};
}

uint64_t shape_elems(const struct tensor_shape *s)
{
	return dtype_elems(s->dtype, s->n_values);
}

uint64_t shape_bytes(const struct tensor_shape *s)
{
	return shape_elems(s) * dtype_bytes(s->dtype);
}

uint64_t shape_partition_count(const struct tensor_shape *s, uint32_t part_elems)
{
	return (shape_elems(s) - 1) / part_elems + 1;
}

uint32_t shape_part_elems(const struct tensor_shape *s, uint32_t part_elems, uint32_t part)
{
	uint64_t rest = shape_elems(s) - (uint64_t)part * part_elems;

	return rest < part_elems ? (uint32_t)rest : part_elems;
}

bool shape_is_equal(const struct tensor_shape *a, const struct tensor_shape *b)
{
	return a->dtype == b->dtype && a->mode == b->mode && a->owner == b->owner &&
	       a->stale == b->stale && a->n_values == b->n_values && a->digest == b->digest;
}

int shape_check(const struct tensor_shape *s, uint64_t bytes_max, struct err_text *err)
{
	size_t elem = dtype_bytes(s->dtype);

	if (!elem)
		return err_set(err, -EINVAL, "%u is not an element type", s->dtype);
	if (!s->n_values)
		return err_set(err, -EINVAL, "the tensor has no values");
	if (s->mode > MODE_VALUE || s->owner || (s->mode == MODE_SUM && s->stale))
		return err_set(err, -EINVAL,
			"this release sums the contributions of a round or adds them to a value, "
			"and gives the result to every worker; mode %u, owner %u and staleness %u "
			"are unknown",
			s->mode, s->owner, s->stale);
	if (s->mode == MODE_VALUE && s->dtype != DTYPE_F32 && s->dtype != DTYPE_F64)
		return err_set(
			err, -EINVAL, "a value must be f32 or f64, not %s", dtype_name(s->dtype));
	if (shape_elems(s) > bytes_max / elem)
		return err_set(err, BPS_EQUOTA,
			"%s is larger than the limit of %llu GiB for one tensor", shape_text(s).s,
			(unsigned long long)(bytes_max >> 30));
	return 0;
}

struct shape_text shape_text(const struct tensor_shape *s)
{
	struct shape_text ret;
	int n = snprintf(ret.s, sizeof(ret.s), "%s x %llu", dtype_name(s->dtype),
		(unsigned long long)s->n_values);

	if (s->mode == MODE_VALUE && s->stale == STALE_UNBOUNDED)
		n += snprintf(ret.s + n, sizeof(ret.s) - (size_t)n, " (value, no bound)");
	else if (s->mode == MODE_VALUE)
		n += snprintf(ret.s + n, sizeof(ret.s) - (size_t)n, " (value, stale %u)", s->stale);
	else if (s->mode || s->owner || s->stale)
		n += snprintf(ret.s + n, sizeof(ret.s) - (size_t)n,
			" (mode %u, owner %u, stale %u)", s->mode, s->owner, s->stale);
	if (s->digest)
		snprintf(ret.s + n, sizeof(ret.s) - (size_t)n, " (layout %llx)",
			(unsigned long long)s->digest);
	return ret;
}
