#ifndef BPS_COMMON_DATA_REDUCE_H
#define BPS_COMMON_DATA_REDUCE_H
/* Element-wise reduction: the arithmetic of the service. The server reduces over machines, the
 * agent over the workers of its machine. Any thread may call the functions.
 *
 * A reduction uses an accumulator. The accumulator has one f32 per value for the element types f16
 * and bf16 and for block types, else the element type itself. If the accumulator has the element
 * type, one buffer can be both the accumulator and the destination. Integers wrap on overflow. min
 * and max propagate NaN. Results in f16 and bf16 are rounded once, to nearest even, in
 * reduce_finish. There the sums of a block type are encoded, also once (block.h).
 *
 * All instruction sets produce the same bits. The order of additions per element is the same, and
 * FMA contraction is off. Every NaN that a fold writes is the quiet positive NaN without payload.
 * Otherwise the compiler's choice of the operands' order would decide which of two NaNs an addition
 * returns. For min and max, -0.0 is less than +0.0, so the result of min and max does not depend on
 * the order of the operands. */
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include "common/data/dtype.h"

/* Largest number of sources (n_src) of one call of reduce_fold or reduce_all. */
#define REDUCE_MAX_SRC 8

/* Apply `op` to acc, src[0], src[1], ... src[n_src - 1], in this order, and store the result in
 * acc. If is_first, leave out the old content of acc. acc: the accumulators of n_elems elements.
 * src: n_src (1..REDUCE_MAX_SRC) arrays of n_elems elements of dtype, any alignment. acc may be
 * src[0] itself when dtype is also the type of the accumulator. The caller has checked that
 * op_is_valid_for_dtype(op, dtype). For op avg, reduce_fold computes the sum, and reduce_finish
 * divides the sum. */
void reduce_fold(void *acc, const void *const *src, unsigned n_src, size_t n_elems,
	enum dtype dtype, enum op op, bool is_first);

/* Round acc to dtype, and store the result in dst. For op avg, first divide acc by `divisor`, and
 * round quotients of integers to the floor. dst may be acc when dtype is also the type of the
 * accumulator. If dst is acc, reduce_finish does nothing for sum, prod, min and max. `divisor` must
 * be at least 1. For f16, bf16 and f32, `divisor` is converted to f32. The conversion is exact up
 * to 2^24. The result of a NaN is a quiet NaN. */
void reduce_finish(
	void *dst, const void *acc, size_t n_elems, enum dtype dtype, enum op op, uint32_t divisor);

/* Compute dst from src[0] ... src[n_src - 1] in one call. The result has the same bits as the
 * result of a call of reduce_fold with is_first = true and then a call of reduce_finish. The caller
 * needs no accumulator. dst: n_elems elements of dtype; must not overlap a source. */
void reduce_all(void *dst, const void *const *src, unsigned n_src, size_t n_elems, enum dtype dtype,
	enum op op, uint32_t divisor);

/* Do the same as reduce_fold and reduce_all for averages of means: src[i] is an array of f16, each
 * element the mean of weights[i] values. The accumulator gets the sum of the products
 * weights[i] * src[i]. For reduce_finish (op avg) and for reduce_means_all, `divisor` is the sum of
 * all weights. Weights up to 2^13 give exact products. */
void reduce_means_fold(void *acc, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, bool is_first);
void reduce_means_all(void *dst, const void *const *src, const float *weights, unsigned n_src,
	size_t n_elems, uint32_t divisor);
#endif
