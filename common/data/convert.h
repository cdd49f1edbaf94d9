#ifndef BPS_COMMON_DATA_CONVERT_H
#define BPS_COMMON_DATA_CONVERT_H
/* Conversions between arrays of f32 and elements of the fractional types. The functions keep no
 * state, and any thread may call them. */
#include <stddef.h>

#include "common/data/dtype.h"

/* Multiply n_values values of src by scale, and write them to dst as elements of dtype
 * (dtype_is_float). Each exact product is rounded once, to the nearest number, ties to even. A
 * block type has the rules of block_encode instead. */
void convert_from_f32(void *dst, const float *src, size_t n_values, float scale, enum dtype dtype);
/* Multiply n_values values of the elements of src by scale, and write them to dst. Each product of
 * an f64 is rounded twice: to f64, then to f32. */
void convert_to_f32(float *dst, const void *src, size_t n_values, float scale, enum dtype dtype);
#endif
