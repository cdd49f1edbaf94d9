/* Choice of the instruction set. */
#include "common/data/simd.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char *const simd_names[SIMD_COUNT] = {
	[SIMD_PORTABLE] = "portable",
	[SIMD_AVX2] = "avx2",
	[SIMD_AVX512] = "avx512",
};

static bool simd_is_usable(enum simd simd)
{
#ifdef __x86_64__
	/* The kernels for AVX2 also need F16C, which every CPU with AVX2 has. F16C is not checked,
	 * because __builtin_cpu_supports of clang does not accept the name "f16c". */
	if (simd == SIMD_AVX2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	if (simd == SIMD_AVX512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
	return simd == SIMD_PORTABLE;
}

static int simd_find(const char *name, enum simd *ret)
{
	for (unsigned i = 0; i < SIMD_COUNT; i++) {
		if (strcmp(simd_names[i], name) == 0 && simd_is_usable((enum simd)i)) {
			*ret = (enum simd)i;
			return 0;
		}
	}
	return -ENOTSUP;
}

const char *simd_refused_choice(void)
{
	const char *wanted = getenv("BPS_SIMD");
	enum simd ignored;

	return wanted && simd_find(wanted, &ignored) < 0 ? wanted : NULL;
}

static enum simd simd_choose(void)
{
	const char *wanted = getenv("BPS_SIMD");
	enum simd simd = SIMD_COUNT;

	if (wanted && simd_find(wanted, &simd) == 0)
		return simd;
	do
		simd--;
	while (!simd_is_usable(simd));
	return simd;
}

/* Instruction set in use plus 1; 0 before the first use. Threads that choose at the same time make
 * the same choice, and the tables are constant, so relaxed order suffices. */
static _Atomic(unsigned) simd_now;

enum simd simd_in_use(void)
{
	unsigned now = atomic_load_explicit(&simd_now, memory_order_relaxed);

	if (!now) {
		now = (unsigned)simd_choose() + 1;
		atomic_store_explicit(&simd_now, now, memory_order_relaxed);
	}
	return (enum simd)(now - 1);
}

const char *simd_name(void)
{
	return simd_names[simd_in_use()];
}

int simd_select(const char *name)
{
	enum simd simd;
	int rc = simd_find(name, &simd);

	if (rc == 0)
		atomic_store_explicit(&simd_now, (unsigned)simd + 1, memory_order_relaxed);
	return rc;
}
