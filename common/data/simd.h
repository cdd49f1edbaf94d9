#ifndef BPS_COMMON_DATA_SIMD_H
#define BPS_COMMON_DATA_SIMD_H
/* The instruction set in use for sums and conversions. Each module with kernels (reduce.c, block.c,
 * convert.c) has one table of functions for each instruction set, and all tables compute the same
 * bits. The first use chooses the best instruction set that this CPU has. The environment variable
 * BPS_SIMD=portable|avx2|avx512 overrides this choice. The only state is the choice. Any thread may
 * call the functions. */
#include <stddef.h>

enum simd {
	SIMD_PORTABLE, /* what every CPU of the architecture has: SSE2, NEON or VSX */
	SIMD_AVX2,     /* AVX2, FMA and F16C */
	SIMD_AVX512,   /* AVX-512 F, BW, DQ and VL, FMA and F16C */
	SIMD_COUNT
};

/* Choose an entry from an array of tables, which is indexed by enum simd. */
#ifdef __x86_64__
#define SIMD_TABLES(portable, avx2, avx512)                                                        \
	{                                                                                          \
		&(portable), &(avx2), &(avx512)                                                    \
	}
#else
#define SIMD_TABLES(portable, avx2, avx512)                                                        \
	{                                                                                          \
		&(portable), NULL, NULL                                                            \
	}
#endif

enum simd simd_in_use(void);
/* Return the name of the instruction set in use: "avx512", "avx2" or "portable". */
const char *simd_name(void);
/* Return the value of BPS_SIMD if it names no instruction set that this machine has, else NULL. */
const char *simd_refused_choice(void);
/* Use the named instruction set from now on. For tests and measurements; do not call it while a
 * kernel runs.
 * Errors: -ENOTSUP: the name is unknown, or this machine or build does not have the instruction
 * set; nothing changes. */
int simd_select(const char *name);
#endif
