#include "common/data/dtype.h"

static const struct {
	uint16_t bytes, acc_bytes, values;
	const char *name;
} dtypes[] = {
	[DTYPE_I8] = {1, 1, 1, "i8"},
	[DTYPE_U8] = {1, 1, 1, "u8"},
	[DTYPE_I32] = {4, 4, 1, "i32"},
	[DTYPE_I64] = {8, 8, 1, "i64"},
	[DTYPE_F16] = {2, 4, 1, "f16"},
	[DTYPE_F32] = {4, 4, 1, "f32"},
	[DTYPE_F64] = {8, 8, 1, "f64"},
	[DTYPE_BF16] = {2, 4, 1, "bf16"},
	[DTYPE_Q8] = {260, 1024, 256, "q8"},
	[DTYPE_Q4] = {34, 256, 64, "q4"},
	[DTYPE_SIGN] = {132, 4096, 1024, "sign"},
};
static const char *const ops[OP_COUNT] = {
	[OP_SUM] = "sum",
	[OP_PROD] = "prod",
	[OP_MAX] = "max",
	[OP_MIN] = "min",
	[OP_AVG] = "avg",
	[OP_BAND] = "band",
	[OP_BOR] = "bor",
	[OP_BXOR] = "bxor",
};

#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

size_t dtype_bytes(unsigned dtype)
{
	return dtype < N_DTYPES ? dtypes[dtype].bytes : 0;
}

size_t dtype_values(unsigned dtype)
{
	return dtype < N_DTYPES ? dtypes[dtype].values : 0;
}

uint64_t dtype_elems(unsigned dtype, uint64_t n_values)
{
	uint64_t values = dtype_values(dtype);

	return values ? n_values / values + (n_values % values != 0) : 0;
}

size_t dtype_elems_in_step(unsigned dtype, size_t n_values)
{
	size_t values = dtype_values(dtype);

	return values && n_values > values ? n_values / values : 1;
}

size_t dtype_acc_bytes(unsigned dtype)
{
	return dtype < N_DTYPES ? dtypes[dtype].acc_bytes : 0;
}

bool dtype_is_block(unsigned dtype)
{
	return dtype_values(dtype) > 1;
}

bool dtype_is_float(unsigned dtype)
{
	return dtype >= DTYPE_F16 && dtype_bytes(dtype);
}

const char *dtype_name(unsigned dtype)
{
	return dtype_bytes(dtype) ? dtypes[dtype].name : "?";
}

const char *op_name(unsigned op)
{
	return op < OP_COUNT ? ops[op] : "?";
}

bool op_is_bitwise(unsigned op)
{
	return op >= OP_BAND && op < OP_COUNT;
}

bool op_is_valid_for_dtype(unsigned op, unsigned dtype)
{
	if (dtype_is_block(dtype))
		return op == OP_SUM || op == OP_AVG;
	return op < OP_COUNT && dtype_bytes(dtype) &&
	       (!op_is_bitwise(op) || !dtype_is_float(dtype));
}

bool op_takes_means(unsigned op, unsigned dtype)
{
	return dtype == DTYPE_F16 && op == OP_AVG;
}
