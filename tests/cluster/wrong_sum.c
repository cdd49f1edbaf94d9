/* A library to preload into a trainer whose tensors are f32. It flips one bit in the
 * WRONG_SUM_AT-th result (counted from 1) that the trainer reads. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct bps_tensor;
extern uint64_t bps_count(const struct bps_tensor *t);

const void *bps_output(const struct bps_tensor *t)
{
	static const void *(*real)(const struct bps_tensor *t);
	static long n_looks;
	const char *at = getenv("WRONG_SUM_AT");
	size_t n_bytes = bps_count(t) * sizeof(float);
	uint8_t *copy;

	if (!real)
		real = (const void *(*)(const struct bps_tensor *))dlsym(RTLD_NEXT, "bps_output");
	if (!at || ++n_looks != atol(at))
		return real(t);
	copy = malloc(n_bytes); /* the agent's memory is read-only, so change a copy */
	if (!copy)
		abort();
	memcpy(copy, real(t), n_bytes);
	copy[n_bytes - 1] ^= 1;
	return copy;
}
