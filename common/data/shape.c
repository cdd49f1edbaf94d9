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

uint32_t shape_shards(const struct tensor_shape *s, uint32_t job_size)
{
	return s->owner == OWNER_SHARDS ? job_size : 1;
}

/* Return the number of partitions of a shard. */
static uint64_t partitions_per_shard(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems)
{
	return (shape_elems(s) / n_shards - 1) / part_elems + 1;
}

uint64_t shape_partition_count(const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems)
{
	return partitions_per_shard(s, n_shards, part_elems) * n_shards;
}

uint32_t shape_part_elems(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems, uint32_t part)
{
	uint64_t nth = part % partitions_per_shard(s, n_shards, part_elems);
	uint64_t rest = shape_elems(s) / n_shards - nth * part_elems;

	return rest < part_elems ? (uint32_t)rest : part_elems;
}

uint64_t shape_part_first(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems, uint32_t part)
{
	uint64_t per_shard = partitions_per_shard(s, n_shards, part_elems);

	return part / per_shard * (shape_elems(s) / n_shards) + part % per_shard * part_elems;
}

uint32_t shape_part_shard(
	const struct tensor_shape *s, uint32_t n_shards, uint32_t part_elems, uint32_t part)
{
	return (uint32_t)(part / partitions_per_shard(s, n_shards, part_elems));
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
	if (s->mode > MODE_VALUE || s->owner > OWNER_SHARDS || (s->mode == MODE_SUM && s->stale))
		return err_set(err, -EINVAL,
			"this release sums the contributions of a round or adds them to a value, "
			"and gives each worker the result or a shard of it; mode %u, owner %u and "
			"staleness %u are unknown",
			s->mode, s->owner, s->stale);
	if (s->mode == MODE_VALUE && s->owner)
		return err_set(err, -EINVAL, "a value cannot be cut into shards");
	if (s->mode == MODE_VALUE && s->dtype != DTYPE_F32 && s->dtype != DTYPE_F64)
		return err_set(
			err, -EINVAL, "a value must be f32 or f64, not %s", dtype_name(s->dtype));
	if (shape_elems(s) > bytes_max / elem)
		return err_set(err, BPS_EQUOTA,
			"%s is larger than the limit of %llu GiB for one tensor", shape_text(s).s,
			(unsigned long long)(bytes_max >> 30));
	return 0;
}

int shape_check_shards(const struct tensor_shape *s, uint32_t n_shards, struct err_text *err)
{
	uint64_t unit = dtype_values(s->dtype) * (uint64_t)n_shards;

	if (s->owner != OWNER_SHARDS || (unit && s->n_values % unit == 0))
		return 0;
	return err_set(err, -EINVAL,
		"%s cannot be cut into %u equal shards, one for each worker: add values until "
		"their number is a multiple of %llu",
		shape_text(s).s, n_shards, (unsigned long long)unit);
}

int shape_check_job(const struct tensor_shape *s, const struct shape_job *job, struct err_text *err)
{
	bool is_value = s->mode == MODE_VALUE, is_cut = s->owner == OWNER_SHARDS;
	const char *option = job->is_deterministic && is_value ? "deterministic"
			     : job->is_elastic                 ? "elastic"
			     : job->may_shrink && is_cut       ? "on_agent_loss=shrink"
			     : job->has_backup                 ? "backup"
							       : NULL;

	if (!option || (!is_value && !is_cut))
		return 0;
	return err_set(err, -EINVAL, "a job with the option %s cannot have %s", option,
		is_value ? "values" : "tensors in shards");
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
	else if (s->owner == OWNER_SHARDS && !s->mode && !s->stale)
		n += snprintf(ret.s + n, sizeof(ret.s) - (size_t)n, " (in shards)");
	else if (s->mode || s->owner || s->stale)
		n += snprintf(ret.s + n, sizeof(ret.s) - (size_t)n,
			" (mode %u, owner %u, stale %u)", s->mode, s->owner, s->stale);
	if (s->digest)
		snprintf(ret.s + n, sizeof(ret.s) - (size_t)n, " (layout %llx)",
			(unsigned long long)s->digest);
	return ret;
}
