/* Copies values between f32 arrays of the caller and tensors of fractional types. The loops are in
 * common/data. Any thread may call these functions. */
#include "common/data/convert.h"

#include <errno.h>

#include "common/data/block.h"
#include "common/data/shape.h"
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"
#include "libbpsclient/copy.h"
#include "libbpsclient/last_error.h"

/* A piece of a tensor: n values from value `first` on, and the caller's memory for them. */
struct value_range {
	const char *what; /* name of the public function */
	uint64_t first, n;
	const void *memory;
};

/* Check that the piece lies in the tensor, and begins on an element. */
static int check_piece_range(const struct bps_tensor *t, const struct value_range *p)
{
	size_t values = dtype_values(t->shape.dtype);

	if (p->first > t->shape.n_values || p->n > t->shape.n_values - p->first)
		return last_error_set(-EINVAL,
			"%s: values %llu to %llu do not lie in tensor '%s', which has %llu values",
			p->what, (unsigned long long)p->first,
			(unsigned long long)(p->first + p->n), t->name,
			(unsigned long long)t->shape.n_values);
	if (p->first % values)
		return last_error_set(-EINVAL,
			"%s: tensor '%s' has blocks of %zu values, and value %llu is inside of a "
			"block: begin at a multiple of %zu",
			p->what, t->name, values, (unsigned long long)p->first, values);
	return 0;
}

static int check_piece(const struct bps_tensor *t, const struct value_range *p)
{
	int rc = t ? client_check_is_open(t->b)
		   : last_error_set(-EINVAL, "%s: the tensor is NULL", p->what);

	if (rc < 0)
		return rc;
	if (!p->memory && p->n)
		return last_error_set(
			-EINVAL, "%s: tensor '%s': the caller's memory is NULL", p->what, t->name);
	if (t->region)
		return last_error_set(
			-EINVAL, "%s: tensor '%s' lies in device memory", p->what, t->name);
	if (!dtype_is_float(t->shape.dtype))
		return last_error_set(-EINVAL,
			"%s: tensor '%s' has the integer type %s: use bps_input and bps_output",
			p->what, t->name, dtype_name(t->shape.dtype));
	return check_piece_range(t, p);
}

/* Return the number of bytes before value `first`, which begins an element. */
static size_t byte_offset_of_value(const struct bps_tensor *t, uint64_t first)
{
	return first / dtype_values(t->shape.dtype) * dtype_bytes(t->shape.dtype);
}

static int fill_piece(
	struct bps_tensor *t, const struct value_range *p, float scale, float *residual)
{
	int rc = check_piece(t, p);
	char *dst;

	if (rc == 0 && residual && !dtype_is_block(t->shape.dtype))
		rc = last_error_set(-EINVAL,
			"%s: tensor '%s' has type %s: only q8, q4 and sign take a residual",
			p->what, t->name, dtype_name(t->shape.dtype));
	if (rc == 0)
		rc = tensor_may_fill(t);
	if (rc < 0)
		return rc;
	dst = (char *)t->in + byte_offset_of_value(t, p->first);
	if (residual)
		block_encode(dst, p->memory, residual, p->n, scale, t->shape.dtype);
	else
		convert_from_f32(dst, p->memory, p->n, scale, t->shape.dtype);
	return 0;
}

static int read_piece(
	const struct bps_tensor *t, const struct value_range *p, float *dst, float scale)
{
	int rc = check_piece(t, p);
	const char *out;

	if (rc < 0)
		return rc;
	rc = tensor_find_output(t, p->what, &out);
	if (!rc)
		rc = tensor_check_shard(t, p->what, byte_offset_of_value(t, p->first),
			dtype_elems(t->shape.dtype, p->n) * dtype_bytes(t->shape.dtype));
	if (rc < 0)
		return rc;
	convert_to_f32(dst, out + byte_offset_of_value(t, p->first), p->n, scale, t->shape.dtype);
	return 0;
}

int bps_fill_f32(struct bps_tensor *t, const float *src, float scale)
{
	struct value_range p = {"fill_f32", 0, t ? t->shape.n_values : 0, src};

	return fill_piece(t, &p, scale, NULL);
}

int bps_fill_at_f32(struct bps_tensor *t, uint64_t first, const float *src, uint64_t n_values,
	float scale, float *residual)
{
	struct value_range p = {"fill_at_f32", first, n_values, src};

	return fill_piece(t, &p, scale, residual);
}

int bps_read_f32(const struct bps_tensor *t, float *dst, float scale)
{
	struct value_range p = {"read_f32", 0, t ? t->shape.n_values : 0, dst};

	return read_piece(t, &p, dst, scale);
}

int bps_read_at_f32(
	const struct bps_tensor *t, uint64_t first, float *dst, uint64_t n_values, float scale)
{
	struct value_range p = {"read_at_f32", first, n_values, dst};

	return read_piece(t, &p, dst, scale);
}

uint64_t bps_blocks(enum bps_dtype dtype, uint64_t n_values)
{
	return dtype_elems(dtype, n_values);
}
