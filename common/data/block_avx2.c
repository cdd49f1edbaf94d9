/* The kernels of block.c for AVX2. The Makefile compiles this file with this instruction set
 * enabled. */
#ifdef __AVX2__
#define BLOCK_TABLE block_avx2
#include "common/data/block_kernels.h"
#endif
