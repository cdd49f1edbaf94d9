/* Copy with non-temporal stores, which every x86-64 processor has. Builds with sanitizers use
 * memcpy, because sanitizers do not see these stores. The functions keep no state and may be called
 * on any thread. */
#include "common/data/copy_nontemporal.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>

#define LINE_BYTES sizeof(__m128i[4])

static void cache_line_stream_copy(char *dst, const char *src)
{
	for (size_t i = 0; i < LINE_BYTES; i += sizeof(__m128i))
		_mm_stream_si128((__m128i *)(dst + i), _mm_loadu_si128((const __m128i *)(src + i)));
}

void copy_nontemporal(void *dst, const void *src, size_t n_bytes)
{
	size_t head = -(uintptr_t)dst % LINE_BYTES; /* bytes before dst's first cache line */
	const char *from = src;
	char *to = dst;

	if (n_bytes < head + LINE_BYTES) {
		memcpy(to, from, n_bytes);
		return;
	}
	memcpy(to, from, head);
	for (to += head, from += head, n_bytes -= head; n_bytes >= LINE_BYTES;
		n_bytes -= LINE_BYTES) {
		cache_line_stream_copy(to, from);
		to += LINE_BYTES;
		from += LINE_BYTES;
	}
	memcpy(to, from, n_bytes);
	/* Order the non-temporal stores before later stores, such as the store of a flag that
	 * announces the data */
	_mm_sfence();
}
#else
void copy_nontemporal(void *dst, const void *src, size_t n_bytes)
{
	memcpy(dst, src, n_bytes);
}
#endif
