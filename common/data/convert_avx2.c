/* The kernels of convert.c for AVX2. The Makefile compiles this file with this instruction set
 * enabled. */
#ifdef __AVX2__
#define CONVERT_TABLE convert_avx2
#include "common/data/convert_kernels.h"
#endif
