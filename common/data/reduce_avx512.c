/* The kernels of reduce.c for AVX-512 (F, BW, DQ, VL). The Makefile compiles this file with these
 * instruction sets enabled. */
#ifdef __AVX512F__
#define REDUCE_TABLE     reduce_avx512
#define REDUCE_VEC_BYTES 64
#include "common/data/reduce_kernels.h"
#endif
