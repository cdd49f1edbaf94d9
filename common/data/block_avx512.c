/* The kernels of block.c for AVX-512. The Makefile compiles this file with this instruction set
 * enabled. */
#ifdef __AVX512F__
#define BLOCK_TABLE block_avx512
#include "common/data/block_kernels.h"
#endif
