#ifndef BPS_COMMON_DATA_KERNELS_INLINE_H
#define BPS_COMMON_DATA_KERNELS_INLINE_H
/* Functions of the kernels of several files. Each source file of an instruction set compiles its
 * own copy (convert_kernels.h), so all functions here are inlined. */
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t bits_from_f32(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

INLINE float f32_from_bits(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}
#endif
