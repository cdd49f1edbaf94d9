/* The kernels of reduce.c for AVX2 with F16C; the Makefile gives this file those instructions. */
#ifdef __AVX2__
#define REDUCE_TABLE     reduce_avx2
#define REDUCE_NAME      "avx2"
#define REDUCE_VEC_BYTES 32
#include "common/data/reduce_kernels.h"
#endif
