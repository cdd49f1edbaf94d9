#ifndef BPS_COMMON_DATA_DTYPE_H
#define BPS_COMMON_DATA_DTYPE_H
/* Element types and reduction operations, with the numbers that the wire, the ring and bps.h use.
 * The numbers below 32 are those of NCCL. Types of NCCL that are missing here are refused with an
 * error. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
	DTYPE_I8 = 0,
	DTYPE_U8 = 1,
	DTYPE_I32 = 2,
	DTYPE_I64 = 4,
	DTYPE_F16 = 6,
	DTYPE_F32 = 7,
	DTYPE_F64 = 8,
	DTYPE_BF16 = 9,
	/* Block types: an element holds many values (block.h). */
	DTYPE_Q8 = 32,
	DTYPE_Q4 = 33,
	DTYPE_SIGN = 34,
};

/* The bitwise operations are defined for integers only, and only sum and avg for block types. */
enum op {
	OP_SUM = 0,
	OP_PROD = 1,
	OP_MAX = 2,
	OP_MIN = 3,
	OP_AVG = 4,
	OP_BAND = 5,
	OP_BOR = 6,
	OP_BXOR = 7,
	OP_COUNT,
};

/* Return the size of one element in bytes, or 0 for an unknown dtype. */
size_t dtype_bytes(unsigned dtype);
/* Return the number of values of one element: 1, or the number of values of a block. */
size_t dtype_values(unsigned dtype);
/* Return the number of elements that n_values values need. The last element of a block type may be
 * incomplete. If the type is unknown, return 0. */
uint64_t dtype_elems(unsigned dtype, uint64_t n_values);
/* Return the number of whole elements that n_values values make up, but at least 1. dtype: a known
 * type. */
size_t dtype_elems_in_step(unsigned dtype, size_t n_values);
/* Return the size of the accumulator of one element in bytes: an f32 per value for f16, bf16 and
 * block types, else the result of dtype_bytes. */
size_t dtype_acc_bytes(unsigned dtype);
/* Return whether dtype is a block type. */
bool dtype_is_block(unsigned dtype);
/* Return whether dtype is a type of fractional numbers: a floating-point type or a block type. */
bool dtype_is_float(unsigned dtype);
/* Return the name of a type or an operation, such as "f32" or "sum", or "?" for an unknown dtype or
 * op. */
const char *dtype_name(unsigned dtype);
const char *op_name(unsigned op);
/* Return whether op is a bitwise operation. */
bool op_is_bitwise(unsigned op);
/* Return whether op is an operation on elements of dtype. */
bool op_is_valid_for_dtype(unsigned op, unsigned dtype);
/* Return whether a machine contributes the mean of its workers' values instead of their sum. This
 * holds for averages of f16, because the sum may be too large for f16 although the average is not.
 * Then the server weights each contribution by the number of its workers. */
bool op_takes_means(unsigned op, unsigned dtype);
#endif
