/* Blocks. The first byte of the input selects the type and the number of sources; the rest is the
 * bytes of the sources' blocks. Every sequence of bytes is a valid block. So no bytes may lead
 * outside of the arrays, all instruction sets of this machine must compute the same bytes, and a
 * sum that is decoded and encoded again must have the same bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/block.h"
#include "common/data/reduce.h"
#include "common/data/simd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static const char *const simds[] = {"portable", "avx2", "avx512"};

/* Copy bytes to memory of exactly this size, so that a sanitizer detects each access beyond it. */
static void *copy_of(const void *from, size_t n_bytes)
{
	void *to = malloc(n_bytes ? n_bytes : 1);

	if (!to)
		abort();
	if (from && n_bytes)
		memcpy(to, from, n_bytes);
	return to;
}

static void check_again(const unsigned char *sum, size_t n_elems, enum dtype dtype)
{
	size_t bytes = n_elems * dtype_bytes(dtype), values = n_elems * dtype_values(dtype);
	float *decoded = copy_of(NULL, values * sizeof(float));
	unsigned char *again = copy_of(NULL, bytes);

	block_decode(decoded, sum, values, 1, dtype);
	block_encode(again, decoded, NULL, values, 1, dtype);
	if (memcmp(again, sum, bytes) != 0)
		abort();
	free(decoded);
	free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	enum dtype dtype = n_bytes ? DTYPE_Q8 + data[0] % 3 : DTYPE_Q8;
	unsigned n_src = n_bytes ? 1 + data[0] / 3 % REDUCE_MAX_SRC : 1;
	size_t n_elems = (n_bytes ? n_bytes - 1 : 0) / n_src / dtype_bytes(dtype);
	size_t bytes = n_elems * dtype_bytes(dtype);
	void *src[REDUCE_MAX_SRC], *first = copy_of(NULL, bytes), *sum = copy_of(NULL, bytes);

	for (unsigned i = 0; i < n_src; i++)
		src[i] = copy_of(data + 1 + i * bytes, bytes);
	for (size_t i = 0; i < sizeof(simds) / sizeof(simds[0]); i++) {
		if (simd_select(simds[i]) < 0)
			continue;
		reduce_all(i ? sum : first, (const void *const *)src, n_src, n_elems, dtype, OP_AVG,
			n_src);
		if (i && memcmp(sum, first, bytes) != 0)
			abort();
	}
	check_again(first, n_elems, dtype);
	for (unsigned i = 0; i < n_src; i++)
		free(src[i]);
	free(first);
	free(sum);
	return 0;
}
