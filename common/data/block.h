#ifndef BPS_COMMON_DATA_BLOCK_H
#define BPS_COMMON_DATA_BLOCK_H
/* Block types: element types of fixed size whose element, called a block, stands for many f32
 * values. A block has a scale and a small integer for each value. The value of field i is
 * scale * integer i. The trainer's library encodes values into blocks. Agents and servers decode
 * blocks, add in f32, and encode each sum once. Nothing else looks into a block. The functions keep
 * no state, and any thread may call them.
 *
 *   type   values   scale          integers                   bytes
 *   q8     256      f32            8 bits, -127 to 127        260
 *   q4     64       bf16           4 bits, -7 to 7            34
 *   sign   1024     f32            1 bit: 0 is +1, 1 is -1    132
 *
 * A block is its scale, and then 32-bit words, little-endian. With w words of fields of b bits,
 * value i is the field that begins at bit (i / w) * b of word i % w. So a loop over the words needs
 * the same constant shift for w values in sequence, and vectorizes with every instruction set.
 * Fields of q8 and q4 are in two's complement.
 *
 * Encode: m is the largest absolute value of the block. The scale of q8 and q4 is m / 127 and
 * m / 7, the scale of sign is the mean of the absolute values; each is truncated to 16, 8 and 12
 * significant bits. The integer is value * (1 / scale) in f32, rounded to nearest, ties to even. A
 * scale of less than 2^-126 becomes 0, and so do all integers. If m is not finite, the scale is a
 * NaN and all integers are 0, so that all values of the block are NaN.
 *
 * Decode: truncate the scale in the same way, because a program may have written the block. The
 * product of a scale, which has few bits, and an integer is exact. So it makes no difference
 * whether a machine fuses the multiplication with an addition, and encoding a decoded block gives
 * the same block. Every sequence of bytes is a valid block.
 *
 * If a tensor's number of values is not a multiple of the block's, the last block repeats its
 * values until it is full. Zeros instead would reduce the mean that is the scale of sign. */
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include "common/data/dtype.h"

/* Encode n_values values. Each product p = src[i] * scale is rounded to f32. If residual is not
 * NULL, p is (src[i] * scale) + residual[i] instead, and residual[i] becomes p minus the decoded
 * value. If a block becomes NaN, its residuals become 0. dst: dtype_elems(dtype, n_values) blocks,
 * any alignment. src and residual: n_values values; they must not overlap dst or each other. dtype:
 * a block type. */
void block_encode(void *dst, const float *src, float *residual, size_t n_values, float scale,
	enum dtype dtype);
/* Decode n_values values, and multiply each of them by scale. src: dtype_elems(dtype, n_values)
 * blocks, any alignment. */
void block_decode(float *dst, const void *src, size_t n_values, float scale, enum dtype dtype);

/* Do for block types what the functions of reduce.h do, for op sum and avg. n_elems: number of
 * blocks. acc: all values of these blocks. */
void block_fold(void *acc, const void *const *src, unsigned n_src, size_t n_elems, enum dtype dtype,
	bool is_first);
void block_finish(void *dst, const void *acc, size_t n_elems, enum dtype dtype, uint32_t divisor);
void block_reduce_all(void *dst, const void *const *src, unsigned n_src, size_t n_elems,
	enum dtype dtype, uint32_t divisor);
#endif
