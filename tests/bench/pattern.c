/* Input patterns whose reduction is known. Element i of rank k's input in round r is base + share,
 * where base is (i + r) mod 7 and share is k mod 4. For products, see input_value. The reduction
 * over the ranks depends on i only through (i + r) mod 7, so the result repeats after 7 elements.
 * Therefore only the first 7 elements of the result are computed. Each later element is compared
 * with the element 7 places before. Block types have equal inputs at all ranks (block_value), which
 * their sums represent exactly. */
#include "tests/bench/bench.h"

#include <string.h>

#define SHARES 4

size_t dtype_size(enum bps_dtype dtype)
{
	switch (dtype) {
	case BPS_I8:
	case BPS_U8:
		return 1;
	case BPS_F16:
	case BPS_BF16:
		return 2;
	case BPS_I32:
	case BPS_F32:
		return 4;
	case BPS_I64:
	case BPS_F64:
		break;
	case BPS_Q8:
		return 260;
	case BPS_Q4:
		return 34;
	case BPS_SIGN:
		return 132;
	}
	return 8;
}

/* Return the number of values of a block, or 0 if dtype is not a block type. */
static unsigned block_values(enum bps_dtype dtype)
{
	return dtype == BPS_Q8 ? 256 : dtype == BPS_Q4 ? 64 : dtype == BPS_SIGN ? 1024 : 0;
}

uint64_t pattern_value_count(enum bps_dtype dtype, uint64_t bytes)
{
	return bytes / (block_values(dtype) ? sizeof(float) : dtype_size(dtype));
}

/* Return a number n such that the type represents all integers from 0 to n exactly. */
static uint64_t exact_max(enum bps_dtype dtype)
{
	switch (dtype) {
	case BPS_I8:
		return 127;
	case BPS_U8:
		return 255;
	case BPS_BF16:
		return 1u << 8;
	case BPS_F16:
		return 1u << 11;
	case BPS_F32:
		return 1u << 24;
	case BPS_I32:
	case BPS_I64:
	case BPS_F64:
	case BPS_Q8:
	case BPS_Q4:
	case BPS_SIGN:
		break;
	}
	return INT32_MAX;
}

static uint64_t input_value(enum bps_op op, unsigned base, int rank)
{
	/* Rank 0's factor depends on the element, rank 1's factor is 2, and all other factors are
	 * 1. */
	if (op == BPS_PROD)
		return rank == 0 ? base + 1 : rank == 1 ? 2 : 1;
	return base + (unsigned)rank % SHARES;
}

static uint64_t output_bits(enum bps_op op, unsigned base, int size)
{
	uint64_t v = input_value(op, base, 0);

	for (int rank = 1; rank < size; rank++) {
		uint64_t x = input_value(op, base, rank);

		v = op == BPS_BAND ? v & x : op == BPS_BOR ? v | x : v ^ x;
	}
	return v;
}

static uint64_t output_value(enum bps_op op, unsigned base, int size)
{
	uint64_t n = (uint64_t)size, shares = 0;

	for (unsigned k = 0; k < n; k++)
		shares += k % SHARES;
	switch (op) {
	case BPS_PROD:
		return (base + 1) * (n > 1 ? 2 : 1);
	case BPS_MAX:
		return base + (n < SHARES ? n - 1 : SHARES - 1);
	case BPS_MIN:
		return base;
	case BPS_BAND:
	case BPS_BOR:
	case BPS_BXOR:
		return output_bits(op, base, size);
	case BPS_SUM:
	case BPS_AVG:
		break;
	}
	return n * base + shares;
}

/* Return value i of a block type. Each block has the largest integer of its type, so the scale is 1
 * for one rank, and n for the sum of n ranks. */
static float block_value(enum bps_dtype dtype, uint64_t i)
{
	unsigned base = (unsigned)(i % PATTERN_PERIOD);

	if (dtype == BPS_SIGN)
		return base < 3 ? -1 : 1;
	return (float)(base + (dtype == BPS_Q8 ? 127 : 7) - (PATTERN_PERIOD - 1));
}

static void block_pattern_fill(struct bps_tensor *t, uint64_t round)
{
	enum bps_dtype dtype = bps_dtype(t);
	uint64_t n = bps_count(t), values = block_values(dtype);
	float block[1024];

	for (uint64_t at = 0; at < n; at += values) {
		for (uint64_t i = 0; i < values; i++)
			block[i] = block_value(dtype, at + i + round);
		bps_fill_at_f32(t, at, block, n - at < values ? n - at : values, 1, NULL);
	}
}

static int64_t block_pattern_check(
	const struct bps_tensor *t, enum bps_op op, uint64_t round, int size)
{
	enum bps_dtype dtype = bps_dtype(t);
	uint64_t n = bps_count(t), values = block_values(dtype);
	float block[1024], factor = op == BPS_AVG ? 1 : (float)size;

	for (uint64_t at = 0; at < n; at += values) {
		uint64_t m = n - at < values ? n - at : values;

		if (bps_read_at_f32(t, at, block, m, 1) < 0)
			return (int64_t)at;
		for (uint64_t i = 0; i < m; i++)
			if (block[i] != factor * block_value(dtype, at + i + round))
				return (int64_t)(at + i);
	}
	return -1;
}

bool pattern_is_exact(enum bps_dtype dtype, enum bps_op op, int size)
{
	if (block_values(dtype))
		return size <= 1 << (dtype == BPS_Q4 ? 8 : 12); /* the bits of a scale */
	/* An average is exact if the division by the number of workers is exact. If the number of
	 * workers is 1, 2 or a multiple of 4, the mean of the shares is a multiple of one half,
	 * which float types represent. Averages of integers are rounded to the floor. */
	if (op == BPS_AVG && size > 2 && size % SHARES != 0)
		return false;
	return output_value(op, PATTERN_PERIOD - 1, size) <= exact_max(dtype);
}

/* Return the bits of v in a 16-bit float type with `fraction_bits` fraction bits. v must be a
 * multiple of 0.5, and the type must be able to represent v exactly. */
static uint16_t half_bits(double v, unsigned fraction_bits, unsigned bias)
{
	uint32_t twice = (uint32_t)(2 * v);
	unsigned top;

	if (!twice)
		return 0;
	top = 31 - (unsigned)__builtin_clz(twice);
	return (uint16_t)((top - 1 + bias) << fraction_bits |
			  ((((uint64_t)twice << fraction_bits) >> top) &
				  ((UINT32_C(1) << fraction_bits) - 1)));
}

static void encode(enum bps_dtype dtype, double v, void *dst)
{
	union {
		uint8_t u8;
		int32_t i32;
		int64_t i64;
		uint16_t h;
		float f32;
		double f64;
	} u;

	switch (dtype) {
	case BPS_I8:
	case BPS_U8:
		u.u8 = (uint8_t)v;
		break;
	case BPS_I32:
		u.i32 = (int32_t)v;
		break;
	case BPS_I64:
		u.i64 = (int64_t)v;
		break;
	case BPS_F16:
		u.h = half_bits(v, 10, 15);
		break;
	case BPS_BF16:
		u.h = half_bits(v, 7, 127);
		break;
	case BPS_F32:
		u.f32 = (float)v;
		break;
	case BPS_F64:
		u.f64 = v;
		break;
	case BPS_Q8:
	case BPS_Q4:
	case BPS_SIGN:
		return; /* the library encodes blocks */
	}
	memcpy(dst, &u, dtype_size(dtype));
}

void pattern_fill(struct bps_tensor *t, enum bps_op op, uint64_t round, int rank)
{
	enum bps_dtype dtype = bps_dtype(t);
	size_t elem = dtype_size(dtype), all = bps_count(t) * elem, have;
	unsigned char *in = bps_input(t), *p = in;

	if (block_values(dtype)) {
		block_pattern_fill(t, round);
		return;
	}
	for (uint64_t i = 0; i < PATTERN_PERIOD && i < bps_count(t); i++, p += elem)
		encode(dtype,
			(double)input_value(op, (unsigned)((i + round) % PATTERN_PERIOD), rank), p);
	for (have = (size_t)(p - in); have < all; have *= 2)
		memcpy(in + have, in, have < all - have ? have : all - have);
}

int64_t pattern_check(const struct bps_tensor *t, enum bps_op op, uint64_t round, int size)
{
	enum bps_dtype dtype = bps_dtype(t);
	size_t elem = dtype_size(dtype), period = PATTERN_PERIOD * elem;
	const unsigned char *out = bps_output(t);
	uint64_t n = bps_count(t);
	unsigned char want[8];

	if (block_values(dtype))
		return block_pattern_check(t, op, round, size);
	for (uint64_t i = 0; i < n && i < PATTERN_PERIOD; i++) {
		double v = (double)output_value(op, (unsigned)((i + round) % PATTERN_PERIOD), size);

		encode(dtype, op == BPS_AVG ? v / size : v, want);
		if (memcmp(out + i * elem, want, elem) != 0)
			return (int64_t)i;
	}
	if (n <= PATTERN_PERIOD || memcmp(out, out + period, n * elem - period) == 0)
		return -1;
	for (uint64_t i = PATTERN_PERIOD; i < n; i++)
		if (memcmp(out + i * elem, out + i * elem - period, elem) != 0)
			return (int64_t)i;
	return -1;
}
