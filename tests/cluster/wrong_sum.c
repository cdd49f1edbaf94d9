/* Preloaded into a trainer whose tensors are f32: of the results that it looks at, the
 * WRONG_SUM_AT-th (from 1) has a bit that is not as it was summed. */
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
	copy = malloc(n_bytes); /* what the agent gives is read-only */
	if (!copy)
		abort();
	memcpy(copy, real(t), n_bytes);
	copy[n_bytes - 1] ^= 1;
	return copy;
}
