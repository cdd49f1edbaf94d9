/* The kernels of reduce.c for AVX2 with F16C. The Makefile compiles this file with these
 * instruction sets enabled. */
#ifdef __AVX2__
#define REDUCE_TABLE     reduce_avx2
#define REDUCE_VEC_BYTES 32
#include "common/data/reduce_kernels.h"
#endif
