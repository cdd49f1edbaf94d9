/* bps_fill_f32 and bps_read_f32 copy values between an f32 array of the caller and a tensor of
 * floats, and multiply each value by a factor. The product of two f32 is exact in f64, and is
 * rounded once: to the nearest number, ties to even. The loops have no branches, and no loop
 * converts between 16 and 64 bits. So the compiler vectorizes the loops (the Makefile compiles this
 * file with -O3). Any thread may call the functions. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"

#include <errno.h>
#include <string.h>

#include "common/data/shape.h"
#include "libbpsclient/last_error.h"

/* Number of values that a loop converts at a time. The buffer of 4 KiB stays in the L1 cache. */
#define BLOCK 1024

/* Number of fraction bits: f64 has 52, f32 has 23, f16 has 10, bf16 has 7. Bias of the exponent:
 * f32 has 127, f16 has 15. */
#define BF16_DROPPED 45 /* bits by which the fraction of bf16 is shorter than that of f64: 52 - 7 */
#define F16_DROPPED  42
#define BF16_NORMAL  0x1p-126 /* smallest normal number of bf16 */
#define F16_NORMAL   0x1p-14
#define BF16_LEAST   0x1p-133 /* smallest bf16 number above 0 */
#define F16_LEAST    0x1p-24
#define F32_INF      0x7f800000u
#define F16_INF      0x7c00u
#define F16_NAN      0x7e00u
#define F16_REBIAS   0x38000000u /* difference of the biases: (127 - 15) << 23 */
#define F16_END      0x47800000u /* 2^16 in f32 */
#define F16_MIN      0x38800000u /* F16_NORMAL in f32 */
#define HALF         0x3f000000u /* 0.5 in f32; its last bit has the value F16_LEAST */

static inline uint32_t bits_from_f32_value(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static inline float f32_value_from_bits(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* Round x to a type whose fraction is `dropped` bits shorter than that of f64. normal: the type's
 * smallest normal number. least: the type's smallest number above 0. The type's numbers below
 * `normal` are the multiples of `least`. To round x to such a multiple, the function adds `rounder`
 * to x and then subtracts `rounder` again. The last bit of `rounder` has the value `least`. */
static inline double round_f64_ties_to_even(double x, unsigned dropped, double normal, double least)
{
	double rounder = 0x1.8p52 * least, small = (x + rounder) - rounder, large;
	uint64_t bits, below = (UINT64_C(1) << dropped) - 1;

	memcpy(&bits, &x, sizeof(bits));
	bits = (bits + (below >> 1) + (bits >> dropped & 1)) & ~below;
	memcpy(&large, &bits, sizeof(large));
	/* Return a NaN unchanged. The addition above can carry from the fraction of the NaN into
	 * the exponent. `large` is then not a NaN. */
	large = x == x ? large : x;
	small = __builtin_copysign(small, x);
	return __builtin_fabs(x) < normal ? small : large;
}

/* Return the f16 with the value of an f32, which is given as its bits. The caller has rounded the
 * value to f16's precision. A value that is too large gives infinity. */
static inline uint16_t f16_from_f32_bits(uint32_t bits)
{
	uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
	uint32_t normal = (size - F16_REBIAS) >> 13;
	uint32_t subnormal =
		bits_from_f32_value(f32_value_from_bits(size) + f32_value_from_bits(HALF)) - HALF;
	uint32_t h = size < F16_MIN ? subnormal : normal;

	h = size >= F16_END ? F16_INF : h;
	h = size > F32_INF ? F16_NAN : h;
	return (uint16_t)(sign | h);
}

static inline float f32_from_f16_bits(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, size = h & 0x7fff;
	uint32_t normal = (size << 13) + F16_REBIAS;
	uint32_t subnormal =
		bits_from_f32_value(f32_value_from_bits(HALF + size) - f32_value_from_bits(HALF));
	uint32_t bits = size < 0x400 ? subnormal : normal;

	bits = size >= F16_INF ? (size << 13) | F32_INF : bits;
	return f32_value_from_bits(sign | bits);
}

static inline float f32_from_bf16_bits(uint16_t h)
{
	return f32_value_from_bits((uint32_t)h << 16);
}

/* ---- copy in ---- */

static void scale_f32_block_to_bf16(
	uint16_t *restrict to, const float *restrict from, size_t n, double scale)
{
	float block[BLOCK];

	for (size_t i = 0; i < n; i++)
		block[i] = (float)round_f64_ties_to_even(
			(double)from[i] * scale, BF16_DROPPED, BF16_NORMAL, BF16_LEAST);
	for (size_t i = 0; i < n; i++)
		to[i] = (uint16_t)(bits_from_f32_value(block[i]) >> 16);
}

static void scale_f32_block_to_f16(
	uint16_t *restrict to, const float *restrict from, size_t n, double scale)
{
	float block[BLOCK];

	for (size_t i = 0; i < n; i++)
		block[i] = (float)round_f64_ties_to_even(
			(double)from[i] * scale, F16_DROPPED, F16_NORMAL, F16_LEAST);
	for (size_t i = 0; i < n; i++)
		to[i] = f16_from_f32_bits(bits_from_f32_value(block[i]));
}

static void scale_f32_in_blocks(uint16_t *to, const float *from, size_t n, double scale,
	void (*fill)(uint16_t *, const float *, size_t, double))
{
	for (size_t i = 0; i < n; i += BLOCK)
		fill(to + i, from + i, n - i < BLOCK ? n - i : BLOCK, scale);
}

static void scale_f32_values(float *restrict to, const float *restrict from, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] * scale;
}

static void scale_f32_to_f64(
	double *restrict to, const float *restrict from, size_t n, double scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (double)from[i] * scale;
}

/* ---- copy out ---- */

static void scale_bf16_to_f32(
	float *restrict to, const uint16_t *restrict from, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = f32_from_bf16_bits(from[i]) * scale;
}

static void scale_f16_to_f32(
	float *restrict to, const uint16_t *restrict from, size_t n, float scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = f32_from_f16_bits(from[i]) * scale;
}

static void scale_f64_to_f32(
	float *restrict to, const double *restrict from, size_t n, double scale)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (float)(from[i] * scale);
}

/* ---- calls ---- */

static int check_float_tensor(const struct bps_tensor *t, const void *memory, const char *what)
{
	int rc = t ? client_check_is_open(t->b)
		   : last_error_set(-EINVAL, "%s: the tensor is NULL", what);

	if (rc < 0)
		return rc;
	if (!memory)
		return last_error_set(
			-EINVAL, "%s: tensor '%s': the caller's memory is NULL", what, t->name);
	if (t->region)
		return last_error_set(
			-EINVAL, "%s: tensor '%s' lies in device memory", what, t->name);
	if (t->shape.dtype == BPS_F16 || t->shape.dtype == BPS_BF16 || t->shape.dtype == BPS_F32 ||
		t->shape.dtype == BPS_F64)
		return 0;
	return last_error_set(-EINVAL,
		"%s: tensor '%s' has the integer type %s: use bps_input and bps_output", what,
		t->name, dtype_name(t->shape.dtype));
}

int bps_fill_f32(struct bps_tensor *t, const float *src, float scale)
{
	int rc = check_float_tensor(t, src, "fill_f32");

	if (rc == 0)
		rc = tensor_may_fill(t);
	if (rc < 0)
		return rc;
	if (t->shape.dtype == BPS_BF16)
		scale_f32_in_blocks(
			t->in, src, t->shape.n_values, (double)scale, scale_f32_block_to_bf16);
	else if (t->shape.dtype == BPS_F16)
		scale_f32_in_blocks(
			t->in, src, t->shape.n_values, (double)scale, scale_f32_block_to_f16);
	else if (t->shape.dtype == BPS_F64)
		scale_f32_to_f64(t->in, src, t->shape.n_values, (double)scale);
	else
		scale_f32_values(t->in, src, t->shape.n_values, scale);
	return 0;
}

int bps_read_f32(const struct bps_tensor *t, float *dst, float scale)
{
	const void *out;
	int rc = check_float_tensor(t, dst, "read_f32");

	if (rc < 0)
		return rc;
	out = bps_output(t);
	if (!out)
		return last_error_set(-EINVAL,
			"read_f32: no round of tensor '%s' is complete: call bps_push_pull and "
			"bps_wait first",
			t->name);
	if (t->shape.dtype == BPS_BF16)
		scale_bf16_to_f32(dst, out, t->shape.n_values, scale);
	else if (t->shape.dtype == BPS_F16)
		scale_f16_to_f32(dst, out, t->shape.n_values, scale);
	else if (t->shape.dtype == BPS_F64)
		scale_f64_to_f32(dst, out, t->shape.n_values, (double)scale);
	else
		scale_f32_values(dst, out, t->shape.n_values, scale);
	return 0;
}
