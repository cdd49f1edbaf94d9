/* The kernels of convert.c for AVX-512. The Makefile compiles this file with this instruction set
 * enabled. */
#ifdef __AVX512F__
#define CONVERT_TABLE convert_avx512
#include "common/data/convert_kernels.h"
#endif
