#ifndef BPS_COMMON_DATA_REDUCE_H
#define BPS_COMMON_DATA_REDUCE_H
/* Element-wise reduction: the arithmetic of the service. The server reduces over machines, the
 * agent over the workers of its machine. The only state is the chosen instruction set. Any thread
 * may call the functions.
 *
 * A reduction uses an accumulator: f32 for f16 and bf16, the element type itself for all others
 * (then the accumulator may be the destination). Integers wrap. min and max propagate NaN. f16 and
 * bf16 round to nearest even once, in reduce_finish. The first use chooses the instruction set
 * (AVX-512, AVX2, portable); BPS_SIMD=portable|avx2|avx512 in the environment overrides it.
 *
 * All instruction sets produce the same bits. The order of additions per element is the same, and
 * FMA contraction is off. Every NaN that a fold writes is the quiet positive NaN without payload.
 * Otherwise the compiler's choice of the operands' order would decide which of two NaNs an addition
 * returns. For min and max -0.0 is less than +0.0, so that their result does not depend on the
 * order of the operands. */
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

#include "common/data/dtype.h"

/* Most operands of one reduce_fold call. */
#define REDUCE_MAX_SRC 8

/* Compute acc = fold of op over acc (unless is_first), src[0], src[1], ... src[n_src - 1], in that
 * order. acc: n_elems accumulator elements. src: n_src (1..REDUCE_MAX_SRC) arrays of n_elems
 * elements of dtype, any alignment. acc may be src[0] itself when the types are the same. The
 * caller has checked that dtype is in enum dtype and op < OP_COUNT. avg is folded as sum;
 * reduce_finish divides. */
void reduce_fold(void *acc, const void *const *src, unsigned n_src, size_t n_elems,
	enum dtype dtype, enum op op, bool is_first);

/* Compute dst = acc rounded to dtype; with op avg, acc is first divided by divisor (integers round
 * to the floor). dst may be acc when the types are the same; then sum, prod, min and max cost
 * nothing. divisor >= 1; for f16, bf16 and f32 it is converted to f32, which is exact up to 2^24.
 * NaNs stay (quiet) NaNs. */
void reduce_finish(
	void *dst, const void *acc, size_t n_elems, enum dtype dtype, enum op op, uint32_t divisor);

/* Compute dst = fold of op over src[0] ... src[n_src - 1], and finish the result. The result has
 * the same bits as reduce_fold (is_first) and then reduce_finish, but no accumulator is stored in
 * memory. dst: n_elems of dtype; must not overlap a source. */
void reduce_all(void *dst, const void *const *src, unsigned n_src, size_t n_elems, enum dtype dtype,
	enum op op, uint32_t divisor);

/* Return the name of the instruction set in use: "avx512", "avx2" or "portable". */
const char *reduce_isa(void);

/* Use the named instruction set from now on. For tests and measurements; do not call it while a
 * reduction runs.
 * Errors: -ENOTSUP: the name is unknown, or this machine or build does not have the instruction
 * set; nothing changes. */
int reduce_select(const char *name);
#endif
