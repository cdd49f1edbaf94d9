/* Measures conversions and sums of one core on memory that is larger than the caches: encoding of
 * block types, the conversion to bf16, and sums of four contributions with the conversion of the
 * result. All rates are GB/s of the values as f32. */
#include "tests/bench/probe/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/block.h"
#include "common/data/convert.h"
#include "common/data/reduce.h"
#include "common/data/simd.h"

#define N_VALUES  ((size_t)16 << 20)
#define N_SRC     4
#define N_TURNS   9
#define TURNS_MAX 256

static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8, DTYPE_Q4, DTYPE_SIGN};
static const unsigned n_types = sizeof(types) / sizeof(types[0]);

struct kernels {
	float *values, *residual, *dst;
	void *src[N_SRC];
};

enum kernel { KERNEL_COPY, KERNEL_ENCODE, KERNEL_RESIDUAL, KERNEL_DECODE, KERNEL_SUM, KERNELS };

static void run_kernel(struct kernels *k, enum kernel kernel, enum dtype dtype)
{
	switch (kernel) {
	case KERNEL_COPY:
		memcpy(k->dst, k->values, N_VALUES * sizeof(float));
		break;
	case KERNEL_ENCODE:
		convert_from_f32(k->dst, k->values, N_VALUES, 1, dtype);
		break;
	case KERNEL_RESIDUAL:
		block_encode(k->dst, k->values, k->residual, N_VALUES, 1, dtype);
		break;
	case KERNEL_DECODE:
		convert_to_f32(k->dst, k->src[0], N_VALUES, 1, dtype);
		break;
	case KERNEL_SUM:
		reduce_all(k->dst, (const void *const *)k->src, N_SRC, dtype_elems(dtype, N_VALUES),
			dtype, OP_SUM, 1);
		break;
	case KERNELS:
		break;
	}
}

/* Run each kernel in turn for a while. Each ratio within one turn is then of one speed of the
 * machine. ret: GB/s, from the medians of the times. */
static void measure_type(struct kernels *k, enum dtype dtype, double seconds, double ret[KERNELS])
{
	static double times[KERNELS][TURNS_MAX];
	double end = probe_now_s() + seconds;
	unsigned n = 0;

	for (unsigned s = 0; s < N_SRC; s++)
		convert_from_f32(k->src[s], k->values, N_VALUES, 1, dtype);
	for (; n < TURNS_MAX && (n < N_TURNS || probe_now_s() < end); n++) {
		for (unsigned i = 0; i < KERNELS; i++) {
			double start = probe_now_s();

			if (i != KERNEL_RESIDUAL || dtype_is_block(dtype))
				run_kernel(k, (enum kernel)i, dtype);
			times[i][n] = probe_now_s() - start;
		}
	}
	for (unsigned i = 0; i < KERNELS; i++)
		ret[i] = N_VALUES * sizeof(float) / probe_median(times[i], n) / 1e9;
}

void probe_kernels(double seconds)
{
	size_t bytes = N_VALUES * sizeof(float);
	struct kernels k = {malloc(bytes), calloc(1, bytes), calloc(1, bytes), {NULL}};
	uint32_t x = 1;

	for (unsigned s = 0; s < N_SRC; s++)
		k.src[s] = calloc(1, bytes);
	if (!k.values || !k.residual || !k.dst || !k.src[N_SRC - 1])
		probe_fail("out of memory");
	for (size_t i = 0; i < N_VALUES; i++) {
		x = x * 1664525 + 1013904223;
		k.values[i] = (float)(int32_t)x * 0x1p-31f;
	}
	printf("{\"what\": \"kernels\", \"simd\": \"%s\", \"results\": [", simd_name());
	for (size_t t = 0; t < n_types; t++) {
		double gbs[KERNELS];

		measure_type(&k, types[t], seconds / n_types, gbs);
		printf("%s{\"dtype\": \"%s\", \"memcpy_gbs\": %.3f, \"encode_gbs\": %.3f, "
		       "\"residual_gbs\": %.3f, \"decode_gbs\": %.3f, \"sum_gbs\": %.3f}",
			t ? ", " : "", dtype_name(types[t]), gbs[KERNEL_COPY], gbs[KERNEL_ENCODE],
			dtype_is_block(types[t]) ? gbs[KERNEL_RESIDUAL] : 0, gbs[KERNEL_DECODE],
			gbs[KERNEL_SUM]);
	}
	printf("]}\n");
	for (unsigned s = 0; s < N_SRC; s++)
		free(k.src[s]);
	free(k.values);
	free(k.residual);
	free(k.dst);
}
